// Model families: on paper here; as they run in the part of the kit that has LibTorch.
#include <algorithm>
#include <bit>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "meshwright/model/model_family.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/checks.h"
#include "sdk/kit/conformance/cases.h"
#include "sdk/kit/conformance/probe.h"

namespace meshwright::conformance {

// What the cases about models share. Not for use outside the kit.

struct FamilyInstance : MadeBy<meshwright_component, ModelFamily> {
  explicit FamilyInstance(const Subject& subject) : MadeBy(*subject.model) {}
};

// The job's, or one of defaults.
ModelRequest model_request_of(const Subject& subject) {
  if (subject.model_request != nullptr) return *subject.model_request;
  ModelRequest request;
  request.options = Options(schema_of(subject));
  return request;
}

// The model on paper of that request, or nullopt with the reason in the report: a problem where a
// job was named, else the case is skipped.
std::optional<ModelOutline> outline_or_skip(const ModelFamily& family, const ModelRequest& request,
                                            const Subject& subject, Report& report) {
  auto answer = ask([&] {
    Diagnostics said;
    family.validate(request, said);
    said.throw_if_any();
    return family.outline(request);
  });
  if (!answer.foreign.empty()) report.fail("outline threw " + answer.foreign);
  if (answer.error && subject.model_request == nullptr)
    report.skip("its defaults make no model (" + code_string(answer.error->code()) +
                "): name a job that has one with --file JOB");
  else if (answer.error)
    report.fail("outline refuses the job's model: " + one_line(*answer.error));
  return std::move(answer.value);
}

namespace {

std::string fingerprint(const ModelOutline& o) {
  std::ostringstream out;
  out << o.architecture << '|' << o.model_type << '|' << o.remote_code << '|' << o.hidden_size
      << '|' << o.layers << '|' << o.attention_heads << '|' << o.key_value_heads << '|'
      << o.head_dim << '|' << o.vocab_size << '|' << o.tied_embeddings << '|' << o.max_positions
      << '|' << o.positions_end << '|' << o.inner_prefix << '|' << o.moe.has_value() << '\n';
  for (int64_t window : o.windows) out << window << ' ';
  for (const ModuleOutline& m : o.modules)
    out << m.name << ' ' << static_cast<int>(m.kind) << ' ' << m.class_name << ' ' << m.width
        << '\n';
  for (const ParameterOutline& p : o.parameters) {
    out << p.name << " (";
    for (int64_t size : p.shape) out << size << ' ';
    out << ") " << static_cast<int>(p.dtype) << p.trainable << p.fused.has_value() << p.copy_of
        << p.stored.transposed;
    for (const std::string& name : p.stored.names) out << ' ' << name;
    const InitialValue init = o.initial_value(p.name);
    out << " begins as " << static_cast<int>(init.kind) << ' '
        << std::bit_cast<uint64_t>(init.value) << ' ' << init.zero_row.value_or(-1) << '\n';
  }
  for (const StringMap* plan : {&o.own_tp_plan, &o.own_sequence_plan})
    for (const auto& [pattern, style] : *plan) out << pattern << '=' << style << '\n';
  return out.str();
}

// The first line in which they differ.
std::string difference_of(const std::string& one, const std::string& other) {
  std::istringstream a(one), b(other);
  std::string x, y;
  while (x == y && (std::getline(a, x) || b.good()))
    if (!std::getline(b, y)) y.clear();
  return "\"" + x + "\" and \"" + y + "\"";
}

void check_kinds(const ModelOutline& o, Report& report) {
  const auto layers = std::ranges::count(o.modules, ModuleKind::layer, &ModuleOutline::kind);
  if (layers != o.layers)
    report.fail("layers is " + std::to_string(o.layers) + ", but " + std::to_string(layers) +
                " modules are of kind layer");
  for (const ModuleOutline& m : o.modules) {
    if (m.kind != ModuleKind::linear && m.kind != ModuleKind::embedding) continue;
    const std::string name = (m.name.empty() ? "" : m.name + ".") + "weight";
    const ParameterOutline* weight = o.find_parameter(name);
    const bool tied = o.tied_embeddings && weight == nullptr;
    if (!tied && (weight == nullptr || weight->shape.size() != 2))
      report.fail("the module " + m.name + " is a matrix by its kind, but " + name +
                  " is not of two dimensions");
  }
}

// What its plans name is there, and they can be translated.
void check_plans(const ModelOutline& o, Report& report) {
  for (const StringMap* plan : {&o.own_tp_plan, &o.own_sequence_plan})
    for (const auto& [pattern, style] : *plan)
      if (std::ranges::none_of(
              o.modules, [&](const ModuleOutline& m) { return pattern_matches(pattern, m.name); }))
        report.fail(std::string(plan == &o.own_tp_plan ? "own_tp_plan" : "own_sequence_plan") +
                    ": " + pattern + " matches no module");
  if (o.own_tp_plan.empty()) return;
  for (bool cut : {false, true}) {
    if (cut && o.own_sequence_plan.empty()) continue;
    auto answer = ask([&] { return own_tp_plan(o, cut); });
    if (answer.error) report.fail("its own plan is refused: " + one_line(*answer.error));
  }
}

// In every thread and of every instance the same.
void check_pure(const ModelFamily& family, const ModelRequest& request, const Subject& subject,
                const std::string& known, Report& report) {
  auto differs = [&](const std::string& where, const std::string& other) {
    if (other != known && !other.empty())
      report.fail("outline gives another model " + where + ": " + difference_of(known, other));
  };
  auto once = [&](const ModelFamily& of) {
    const auto answer = ask([&] { return of.outline(request); });
    return answer.value ? fingerprint(*answer.value) : std::string("nothing");
  };
  differs("when asked again", once(family));
  const FamilyInstance other(subject);
  differs("of another instance", once(*other));
  std::vector<std::string> seen(4);
  std::vector<std::thread> threads;
  for (std::string& each : seen) threads.emplace_back([&] { each = once(family); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& each : seen) differs("in another thread", each);
}

void run(const char* name, const Subject& subject, Report& report) {
  const FamilyInstance family(subject);
  const ModelRequest request = model_request_of(subject);
  const std::optional<ModelOutline> outline = outline_or_skip(*family, request, subject, report);
  if (!outline) return;
  Diagnostics said;
  const auto answer = ask([&] {
    family->check_runs(request, said);
    said.throw_if_any();
    return true;
  });
  if (!answer.foreign.empty()) return report.fail("check_runs threw " + answer.foreign);
  if (answer.error) return report.skip("it plans, but does not run: " + one_line(*answer.error));
  // Two copies and their gradients have to fit anywhere.
  constexpr int64_t kMost = int64_t{1} << 25;
  int64_t elements = 0;
  for (const ParameterOutline& p : outline->parameters) elements += element_count(p.shape);
  if (elements > kMost)
    return report.skip("a model of " + std::to_string(elements >> 20) +
                       " Mi parameters is too large to be tried: name a job of a smaller one");
  void* symbol = symbol_of_training("meshwright_check_model", report);
  if (symbol == nullptr) return;
  const detail::PluginCode* code =
      subject.code != nullptr ? subject.code : detail::plugin_code(subject.model->name);
  reinterpret_cast<void (*)(const char*, const ModelFamily*, const ModelRequest*,
                            const detail::PluginCode*, void*, Say, Say)>(symbol)(
      name, &*family, &request, code, &report, &say_fail, &say_note);
}

}  // namespace

void check_model_lifecycle(const Subject& subject, Report& report) {
  check_growth([&] { FamilyInstance instance(subject); }, report);
  const FamilyInstance family(subject);
  check_unknown_extension(*family, report);
  const OptionSchema schema = schema_of(subject);
  Random random(11);
  for (int i = 0; i < 200 && !report.full(); ++i) {
    ModelRequest request = model_request_of(subject);
    if (i > 0) request.options = random_options(schema, random);
    if (random.chance(20)) request.config = "/no/such/place";
    if (random.chance(30)) request.sizes.tp = 1 + random.below(8);
    Diagnostics diagnostics;
    check_answers([&] { family->validate(request, diagnostics); }, report);
  }
}

void check_model_outline(const Subject& subject, Report& report) {
  const FamilyInstance family(subject);
  ModelRequest request = model_request_of(subject);
  const std::optional<ModelOutline> outline = outline_or_skip(*family, request, subject, report);
  if (!outline) return;
  check_pure(*family, request, subject, fingerprint(*outline), report);
  for (const std::string& problem : problems_of(*outline)) report.fail(problem);
  check_kinds(*outline, report);
  check_plans(*outline, report);
  request.storage = DType::bfloat16;
  const auto narrow = ask([&] { return family->outline(request); });
  if (narrow.value && std::ranges::none_of(narrow.value->parameters, [](const ParameterOutline& p) {
        return p.dtype == DType::bfloat16;
      }))
    report.fail("model.torch_dtype = bfloat16 (request.storage) changes no parameter's dtype");
  int64_t elements = 0;
  for (const ParameterOutline& p : outline->parameters) elements += element_count(p.shape);
  report.note(std::to_string(outline->parameters.size()) + " parameters, " +
                  std::to_string(elements) + " elements, " +
                  (outline->own_tp_plan.empty() ? "no tp plan of its own" : "a tp plan of its own"),
              std::ssize(outline->parameters));
}

void check_model_module(const Subject& subject, Report& report) { run("module", subject, report); }
void check_model_forward(const Subject& subject, Report& report) {
  run("forward", subject, report);
}
void check_model_layouts(const Subject& subject, Report& report) {
  run("layouts", subject, report);
}

}  // namespace meshwright::conformance
