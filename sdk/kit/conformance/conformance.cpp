#include "sdk/base/conformance.h"

#include <exception>

#include "sdk/base/check_schema.h"
#include "sdk/kit/conformance/cases.h"
#include "sdk/kit/conformance/probe.h"

namespace meshwright::conformance {
namespace {

constexpr Case kCases[] = {
    {"abi", Scope::library, "the loader accepts the library and its facts name what it holds",
     &check_facts},
    {"symbols", Scope::library, "the library exports its descriptor and its marker, nothing else",
     &check_symbols},
    {"descriptor", Scope::library, "names, version, license and texts are in order",
     &check_descriptor},
    {"schema", Scope::strategy,
     "defaults are valid, and wrong keys, types, ranges and choices are refused", &check_options},
    {"lifecycle", Scope::strategy, "it is made and destroyed a hundred times without growth",
     &check_lifecycle},
    {"validate", Scope::strategy, "validate answers whatever the options hold", &check_validate},
    {"mesh", Scope::strategy,
     "up to 4,096 ranks: ranks and coordinates are one to one, groups agree", &check_mesh},
    {"mesh_pure", Scope::strategy,
     "plan_mesh gives the same answer twice, in every thread, and changes nothing",
     &check_mesh_pure},
    {"mesh_refusal", Scope::strategy, "sizes that cannot be are refused, with settings that work",
     &check_mesh_refusal},
    {"tp_plan", Scope::strategy,
     "tensor-parallel plans match the model, and impossible head counts are refused",
     &check_tp_plan},
    {"footprint", Scope::strategy,
     "local shapes tile the parameters, bytes and axes are consistent", &check_footprint},
    {"parallelize", Scope::strategy,
     "what can train trains as a plain loop does, what cannot says so", &check_parallelize},
    {"data_schema", Scope::dataset,
     "defaults are valid, and wrong keys, types, ranges and choices are refused", &check_options},
    {"data_lifecycle", Scope::dataset,
     "it is made and destroyed a hundred times without growth, and validate answers whatever the "
     "options hold",
     &check_data_lifecycle},
    {"data_open", Scope::dataset,
     "it opens, tells what it is, and refuses what is not there by name", &check_data_open},
    {"data_read", Scope::dataset,
     "samples are written whole: ids of the vocabulary, ascending documents, weights",
     &check_data_read},
    {"data_pure", Scope::dataset,
     "a sample is the same in any order, in every thread, and when opened again", &check_data_pure},
    {"data_fingerprint", Scope::dataset,
     "the fingerprint is that of the samples: a copy has it, other data have another one",
     &check_data_fingerprint},
    {"model_schema", Scope::model,
     "defaults are valid, and wrong keys, types, ranges and choices are refused", &check_options},
    {"model_lifecycle", Scope::model,
     "it is made and destroyed a hundred times without growth, and validate answers whatever the "
     "options hold",
     &check_model_lifecycle},
    {"model_outline", Scope::model,
     "the model on paper is sound, the same each time, and what its plans name is there",
     &check_model_outline},
    {"model_module", Scope::model, "the module is what the outline says, and can be wrapped",
     &check_model_module},
    {"model_forward", Scope::model,
     "samples and later tokens are not seen, losses are sums, every parameter gets a gradient",
     &check_model_forward},
    {"model_layouts", Scope::model,
     "sharded, cut and in stages it trains as alone, or says beforehand that it does not",
     &check_model_layouts},
};

}  // namespace

void Report::fail(std::string problem) {
  if (count_++ < kMaxProblems) problems_.push_back(std::move(problem));
}

void Report::skip(std::string why) { skipped_ = std::move(why); }

void Report::note(std::string text, int64_t looked_at) {
  note_ = std::move(text);
  if (looked_at == 0 && skipped_.empty()) skipped_ = "it found nothing to look at: " + note_;
}

Verdict Report::verdict() const {
  if (count_ > 0) return Verdict::failed;
  return skipped_.empty() ? Verdict::ok : Verdict::skipped;
}

std::span<const Case> cases() { return kCases; }

const Case* find_case(std::string_view name) {
  for (const Case& c : kCases)
    if (c.name == name) return &c;
  return nullptr;
}

Report run_case(const Case& c, const Subject& subject) {
  Report report;
  try {
    // Nothing can be asked of what has options that cannot be made; the case that says why is
    // "schema".
    if (c.scope != Scope::library && c.run != &check_options) try {
        check_schema(schema_of(subject));
      } catch (const Error&) {
        report.skip("its option schema is not sound");
        return report;
      }
    c.run(subject, report);
  } catch (const std::exception& error) {
    report.fail(std::string("the case ended early: ") + error.what());
  } catch (...) {
    report.fail("the case ended early with an exception that is not a std::exception");
  }
  return report;
}

}  // namespace meshwright::conformance
