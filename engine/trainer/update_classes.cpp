#include "engine/trainer/update_classes.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <string>

#include "engine/plan/plan.h"
#include "engine/trainer/local_state.h"

namespace meshwright::train {

plan::ParameterGroups freeze_parameters(const config::Config& config, ModelOutline& outline,
                                        torch::nn::Module& module, plan::JobPlan& plan) {
  // What a program of one's own has frozen may not be in its outline.
  ModelOutline live = outline;
  auto parameters = module.named_parameters();
  for (ParameterOutline& p : live.parameters)
    if (const at::Tensor* held = parameters.find(p.name); held != nullptr && !held->requires_grad())
      p.trainable = false;
  std::vector<std::string> warnings;
  plan::ParameterGroups groups = plan::group_parameters(config, live, warnings);
  if (!plan.outline) plan.warnings.insert(plan.warnings.end(), warnings.begin(), warnings.end());
  const std::set<std::string_view> frozen(groups.frozen.begin(), groups.frozen.end());
  for (ParameterOutline& p : outline.parameters) {
    if (!frozen.contains(p.name)) continue;
    p.trainable = false;
    if (at::Tensor* held = parameters.find(p.name)) held->set_requires_grad(false);
  }
  return groups;
}

std::vector<UpdateClass> update_classes(const ParallelModel& model, const ModelOutline* stages,
                                        const plan::ParameterGroups& groups) {
  struct Run {
    int64_t begin;
    plan::UpdateRule rule;
  };
  std::vector<std::vector<Run>> runs(model.update_groups().size());
  const std::vector<UpdatePlace> places = update_places(model);
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].group == SIZE_MAX) continue;
    const std::string& own = model.parameters()[i].name;
    const auto found = groups.rule_of.find(stages != nullptr ? stored_name(*stages, own) : own);
    runs[places[i].group].push_back({places[i].begin, found == groups.rule_of.end()
                                                          ? groups.other
                                                          : groups.rules[found->second]});
  }
  std::vector<UpdateClass> out;
  auto add = [&](const plan::UpdateRule& rule, const UpdateRange& range) {
    auto at = std::find_if(out.begin(), out.end(), [&](const UpdateClass& alike) {
      return plan::UpdateRule{alike.lr_factor, alike.weight_decay} == rule;
    });
    if (at == out.end()) at = out.insert(at, UpdateClass{rule.lr_factor, rule.weight_decay, {}});
    at->ranges.push_back(range);
  };
  for (size_t g = 0; g < runs.size(); ++g) {
    std::vector<Run>& of_group = runs[g];
    std::sort(of_group.begin(), of_group.end(),
              [](const Run& a, const Run& b) { return a.begin < b.begin; });
    const int64_t end = model.update_groups()[g].values.numel();
    if (of_group.empty()) {
      add(groups.other, {g, 0, end});
      continue;
    }
    int64_t begin = 0;
    for (size_t i = 0; i < of_group.size(); ++i) {
      const bool last = i + 1 == of_group.size();
      if (!last && of_group[i + 1].rule == of_group[i].rule) continue;
      const int64_t until = last ? end : of_group[i + 1].begin;
      if (until > begin) add(of_group[i].rule, {g, begin, until - begin});
      begin = until;
    }
  }
  return out;
}

}  // namespace meshwright::train
