// translate_tp_plan: plans that match the model, choices that are honoured or refused, head counts
// that cannot be split.
#include <algorithm>
#include <set>

#include "meshwright/tp_plan.h"
#include "sdk/base/checks.h"
#include "sdk/kit/conformance/cases.h"
#include "sdk/kit/conformance/probe.h"

namespace meshwright::conformance {
namespace {

std::string describe(const TpPlanRequest& request) {
  std::string out = "tp " + std::to_string(request.tp_size) +
                    (request.sequence_parallel ? " with sequence parallel" : "");
  switch (request.choice.kind) {
    case TpPlanChoice::Kind::automatic:
      return out;
    case TpPlanChoice::Kind::named:
      return out + ", plan \"" + request.choice.name + "\"";
    case TpPlanChoice::Kind::custom:
      return out + ", own patterns";
  }
  return out;
}

std::string fingerprint(const Answer<TpPlan>& answer) {
  if (!answer.value) return answer.error ? answer.error->what() : answer.foreign;
  std::string out = answer.value->source;
  for (const TpEntry& entry : answer.value->entries) {
    out += "\n" + entry.pattern + " " + std::string(style_name(entry.style.kind)) + " " +
           std::string(layout_name(entry.style.input)) + " " +
           std::string(layout_name(entry.style.output)) +
           (entry.style.output_kind == TpOutputKind::plain ? " plain:" : " sharded:");
    for (const std::string& module : entry.modules) out += " " + module;
  }
  return out;
}

class Translator {
 public:
  Translator(Strategy& strategy, const std::string& model_name, const ModelOutline& model,
             Report& report)
      : strategy_(strategy), name_(model_name), model_(model), report_(report) {}

  // Asks twice; what comes back must be the same, and a plan must fit the model.
  Answer<TpPlan> ask_for(const TpPlanRequest& request) {
    auto once = [&] { return ask([&] { return strategy_.translate_tp_plan(model_, request); }); };
    Answer<TpPlan> answer = once();
    std::string lead = name_ + ", " + describe(request) + ": ";
    if (!answer.foreign.empty())
      report_.fail(lead + answer.foreign + " left translate_tp_plan; only meshwright::Error may");
    if (fingerprint(once()) != fingerprint(answer))
      report_.fail(lead + "a second call gave another plan");
    if (answer.error) {
      int hundred = static_cast<int>(answer.error->code()) / 100;
      if ((hundred != 2 && hundred != 3) || answer.error->helps().empty())
        report_.fail(lead + "refused by " + one_line(*answer.error) +
                     ", which is no 2xx or 3xx code with a help line");
    }
    if (answer.value) fits(lead, request, *answer.value);
    return answer;
  }

  void expect_plan(const TpPlanRequest& request) {
    Answer<TpPlan> answer = ask_for(request);
    if (answer.error)
      report_.fail(name_ + ", " + describe(request) + ": no plan: " + one_line(*answer.error));
    if (answer.value && answer.value->entries.empty() && request.tp_size > 1)
      report_.fail(name_ + ", " + describe(request) + ": the plan splits nothing");
    if (answer.value)
      if (const auto runs = ask([&] {
            check_tp_blocks(*answer.value, model_);
            return true;
          });
          runs.error)
        report_.fail(name_ + ", " + describe(request) +
                     ": the engine would not run the plan: " + one_line(*runs.error));
    plans_ += answer.value ? 1 : 0;
  }

  void expect_refusal(const TpPlanRequest& request, const std::string& why) {
    Answer<TpPlan> answer = ask_for(request);
    // A plan that leaves attention whole has nothing against odd head counts.
    if (answer.value && splits_attention(*answer.value))
      report_.fail(name_ + ", " + describe(request) + ": accepted, although " + why);
  }

  int plans() const { return plans_; }

 private:
  static bool splits_attention(const TpPlan& plan) {
    return std::any_of(plan.entries.begin(), plan.entries.end(), [](const TpEntry& entry) {
      bool attention = std::any_of(
          entry.modules.begin(), entry.modules.end(),
          [](const std::string& module) { return module.find("self_attn") != std::string::npos; });
      return attention &&
             (entry.style.kind == TpStyleKind::column || entry.style.kind == TpStyleKind::row);
    });
  }

  void fits(const std::string& lead, const TpPlanRequest& request, const TpPlan& plan) {
    if (request.tp_size == 1 && !plan.entries.empty())
      report_.fail(lead + "styles although there is nothing to split");
    std::set<std::string> styled;
    for (const TpEntry& entry : plan.entries) {
      if (entry.modules.empty())
        report_.fail(lead + "the entry " + entry.pattern + " matches nothing");
      for (const std::string& module : entry.modules) {
        const ModuleOutline* found = model_.find_module(module);
        if (found == nullptr)
          report_.fail(lead + entry.pattern + " names a module that does not exist: " + module);
        else if (!tp::can_have(found->kind, entry.style))
          report_.fail(lead + module + " cannot have the style " +
                       std::string(style_name(entry.style.kind)));
        if (!styled.insert(module).second) report_.fail(lead + "two styles for " + module);
        if (!pattern_matches(entry.pattern, module))
          report_.fail(lead + entry.pattern + " does not match " + module);
      }
    }
  }

  Strategy& strategy_;
  const std::string name_;
  const ModelOutline& model_;
  Report& report_;
  int plans_ = 0;
};

}  // namespace

void check_tp_plan(const Subject& subject, Report& report) {
  Instance strategy(subject);
  // Whoever refuses tp is only asked not to crash; whoever plans it must plan these models.
  ParallelDims dims;
  dims.world = 8;
  dims.tp = 2;
  bool has_tp =
      ask([&] { return strategy->plan_mesh(make_request(subject, dims)); }).value.has_value();
  int plans = 0;
  struct Model {
    const char* name;
    ModelShape shape;
  };
  ModelShape tied, unknown;
  tied.tied = true;
  unknown.architecture = "AcmeForCausalLM";  // no table has it: its own plan, or the base plan
  for (const Model& m : {Model{"a Llama", {}}, Model{"a Llama with tied embeddings", tied},
                         Model{"an unknown model", unknown}}) {
    ModelOutline model = make_outline(m.shape);
    Translator translator(*strategy, m.name, model, report);
    for (int64_t tp : {1, 2, 4}) {
      if (has_tp || tp == 1)
        translator.expect_plan({tp, false, {}});
      else
        translator.ask_for({tp, false, {}});
      translator.ask_for({tp, true, {}});  // sequence parallel may be refused
    }
    translator.expect_refusal({3, false, {}}, "8 heads do not divide by 3");
    translator.expect_refusal({8, false, {}}, "4 key-value heads do not divide by 8");
    plans += translator.plans();
  }

  ModelOutline model = make_outline({});
  Translator translator(*strategy, "a Llama", model, report);
  TpPlanRequest custom{
      2, false, {TpPlanChoice::Kind::custom, "", {{"model.layers.*.mlp.up_proj", "colwise"}}}};
  Answer<TpPlan> chosen = translator.ask_for(custom);
  if (chosen.value && (chosen.value->entries.size() != 1 ||
                       chosen.value->entries[0].pattern != "model.layers.*.mlp.up_proj"))
    report.fail("distributed.tp_plan with patterns is neither honoured nor refused");
  auto must_refuse = [&](const TpPlanChoice& choice, const char* what) {
    if (translator.ask_for({2, false, choice}).value)
      report.fail(std::string(what) + " in distributed.tp_plan is accepted");
  };
  must_refuse({TpPlanChoice::Kind::custom, "", {{"model.layers.*.mlp.up_proj", "surely no style"}}},
              "a style string that means nothing");
  must_refuse({TpPlanChoice::Kind::named, "surely_no_plan_of_that_name", {}},
              "the name of a plan that does not exist");
  for (const std::string& name : tp::plan_names())
    translator.ask_for({2, false, {TpPlanChoice::Kind::named, name, {}}});
  report.note(std::to_string(plans) + " plans" + (has_tp ? "" : "; it has no tensor parallelism"),
              plans);
}

}  // namespace meshwright::conformance
