#include "engine/train/step/update_classes.h"

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "engine/job/plan.h"
#include "engine/train/step/local_state.h"
#include "meshwright/parallel/scalar_type.h"

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
  c10::NoGradGuard no_grad;
  for (size_t i = 0; i < outline.parameters.size(); ++i) {
    ParameterOutline& p = outline.parameters[i];
    const DType stored = live.parameters[i].dtype;
    const bool other = stored != std::exchange(p.dtype, stored);
    at::Tensor* held = parameters.find(p.name);
    if (frozen.contains(p.name)) {
      p.trainable = false;
      if (held != nullptr) held->set_requires_grad(false);
    }
    if (other && held != nullptr) held->set_data(held->to(scalar_type(stored)));
  }
  return groups;
}

namespace {

// Where a parameter's elements begin in a flat group. `name`: as in checkpoints.
struct Start {
  int64_t begin;
  std::string name;
};

// By group, ascending.
std::vector<std::vector<Start>> starts_of(const ParallelModel& model, const ModelOutline* stages) {
  std::vector<std::vector<Start>> out(model.update_groups().size());
  const std::vector<UpdatePlace> places = update_places(model);
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].group == SIZE_MAX) continue;
    const std::string& own = model.parameters()[i].name;
    out[places[i].group].push_back(
        {places[i].begin, stages != nullptr ? stored_name(*stages, own) : own});
  }
  for (std::vector<Start>& of_group : out)
    std::sort(of_group.begin(), of_group.end(),
              [](const Start& a, const Start& b) { return a.begin < b.begin; });
  return out;
}

// Adds a range to the class of `like`, whose own ranges do not matter.
void add_range(std::vector<UpdateClass>& classes, const UpdateClass& like,
               const UpdateRange& range) {
  if (range.count == 0) return;
  auto at = std::find_if(classes.begin(), classes.end(), [&](const UpdateClass& alike) {
    return alike.lr_factor == like.lr_factor && alike.weight_decay == like.weight_decay &&
           alike.began == like.began;
  });
  if (at == classes.end())
    at = classes.insert(at, {like.lr_factor, like.weight_decay, {}, like.began});
  at->ranges.push_back(range);
}

}  // namespace

std::vector<UpdateClass> update_classes(const ParallelModel& model, const ModelOutline* stages,
                                        const plan::ParameterGroups& groups) {
  auto rule_of = [&](const std::string& name) {
    const auto found = groups.rule_of.find(name);
    return found == groups.rule_of.end() ? groups.other : groups.rules[found->second];
  };
  std::vector<UpdateClass> out;
  const std::vector<std::vector<Start>> starts = starts_of(model, stages);
  for (size_t g = 0; g < starts.size(); ++g) {
    int64_t begin = 0;
    plan::UpdateRule rule = starts[g].empty() ? groups.other : rule_of(starts[g].front().name);
    auto end_at = [&](int64_t end) {
      add_range(out, {rule.lr_factor, rule.weight_decay, {}}, {g, begin, end - begin});
      begin = end;
    };
    for (const Start& start : starts[g]) {
      const plan::UpdateRule next = rule_of(start.name);
      if (next == rule) continue;
      end_at(start.begin);
      rule = next;
    }
    end_at(model.update_groups()[g].values.numel());
  }
  return out;
}

std::vector<UpdateClass> classes_begun(const ParallelModel& model, const ModelOutline* stages,
                                       const std::vector<UpdateClass>& classes,
                                       const std::map<std::string, int64_t>& began) {
  std::vector<UpdateClass> out;
  const std::vector<std::vector<Start>> starts = starts_of(model, stages);
  for (const UpdateClass& one : classes)
    for (const UpdateRange& range : one.ranges) {
      UpdateClass like{one.lr_factor, one.weight_decay, {}};
      int64_t begin = range.begin;
      auto end_at = [&](int64_t end) {
        add_range(out, like, {range.group, begin, end - begin});
        begin = end;
      };
      for (const Start& start : starts[range.group]) {
        if (start.begin >= range.begin + range.count) break;
        const auto found = began.find(start.name);
        const int64_t next = found == began.end() ? 0 : found->second;
        if (next == like.began) continue;
        end_at(std::max(start.begin, begin));
        like.began = next;
      }
      end_at(range.begin + range.count);
    }
  return out;
}

}  // namespace meshwright::train
