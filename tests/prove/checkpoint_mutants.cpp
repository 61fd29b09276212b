// A strategy with one fault in how it is saved or goes on, which its option names: what `prove` is
// to find of checkpoints. Its first steps are right.
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/parallel/forwarding_model.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/plugin_main.h"
#include "meshwright/sharded_strategy.h"

namespace {

using namespace meshwright;
using at::Tensor;

constexpr std::array kOptions = {choice_option(
    "fault", "\"none\"",
    "none|names_swapped|parts_swapped|not_saved|loads_more|steps_otherwise|mixes_steps",
    "What is wrong.")};

class Mutant final : public ForwardingModel {
 public:
  Mutant(std::unique_ptr<ParallelModel> inner, std::string fault)
      : ForwardingModel(std::move(inner)), fault_(std::move(fault)) {}

  const std::vector<ParallelParameter>& parameters() const override {
    return saves_ ? told_ : ForwardingModel::parameters();
  }
  bool before_save(SaveReason reason, int64_t steps) override {
    if (fault_ == "not_saved") throw std::runtime_error("nothing can be saved");
    told_ = ForwardingModel::parameters();
    if (fault_ == "names_swapped") std::swap(named("0").name, named("1").name);
    if (fault_ == "parts_swapped") swap_halves(named("0"));
    if (fault_ == "mixes_steps") swap_in(older_);
    saves_ = true;
    return ForwardingModel::before_save(reason, steps);
  }
  void begin_step() override {
    if (saves_ && fault_ == "mixes_steps") swap_in(newer_);
    saves_ = false;
    ForwardingModel::begin_step();
  }
  void after_optimizer_step() override {
    ForwardingModel::after_optimizer_step();
    older_ = std::move(newer_);
    newer_.clear();
    for (const ParallelParameter& p : ForwardingModel::parameters())
      newer_.push_back(p.local.detach().clone());
  }
  bool values_written(const ValuesWritten& written) override {
    const bool wrote = ForwardingModel::values_written(written);
    if (written.by != ValuesWritten::By::checkpoint) return wrote;
    goes_on_ = true;
    if (fault_ != "loads_more") return wrote;
    c10::NoGradGuard no_grad;
    for (const ParallelParameter& p : ForwardingModel::parameters())
      if (p.name == "model.norm.weight" && p.local.numel() > 0) Tensor(p.local).mul_(1.5);
    return true;
  }
  void end_step() override {
    ForwardingModel::end_step();
    if (fault_ != "steps_otherwise" || !goes_on_) return;
    c10::NoGradGuard no_grad;
    for (const FlatParameterGroup& group : update_groups()) Tensor(group.grads).mul_(0.5);
  }

 private:
  // As a save in the background has them whose copies are made too late, or too early.
  void swap_in(const std::vector<Tensor>& values) {
    c10::NoGradGuard no_grad;
    const std::vector<ParallelParameter>& parameters = ForwardingModel::parameters();
    for (size_t i = 0; i < std::min(parameters.size(), values.size()); ++i)
      Tensor(parameters[i].local).copy_(values[i]);
  }
  ParallelParameter& named(const std::string& layer) {
    return *std::ranges::find(told_, "model.layers." + layer + ".mlp.up_proj.weight",
                              &ParallelParameter::name);
  }
  // This rank's part is said to be where the other one's is.
  static void swap_halves(ParallelParameter& p) {
    const int64_t rows = p.global_shape[0];
    if (p.region.flat()) {
      const int64_t all = rows * p.global_shape[1], begin = p.region.begin;
      p.region.begin = all - p.region.end;
      p.region.end = all - begin;
    } else {
      p.region.offsets[0] = rows - p.region.offsets[0] - p.region.sizes[0];
    }
  }

  std::string fault_;
  bool saves_ = false, goes_on_ = false;
  std::vector<ParallelParameter> told_;
  std::vector<Tensor> older_, newer_;  // the parameters after the last two steps
};

class Mutants final : public ShardedStrategy {
 public:
  std::unique_ptr<ParallelModel> parallelize(ParallelizeRequest& request) override {
    return std::make_unique<Mutant>(execute_plan(request, plan_of(*this, request)),
                                    request.config.own().get_string("fault"));
  }
};

constexpr std::array kStrategies = {
    describe<Mutants>({.name = "checkpoint_mutants",
                       .summary = "Fully sharded, with one fault in its checkpoints",
                       .options = kOptions})};

}  // namespace

MESHWRIGHT_PLUGIN("checkpoint_mutants", "1.0.0", "v", "l", "What prove is to find of checkpoints",
                  kStrategies)
