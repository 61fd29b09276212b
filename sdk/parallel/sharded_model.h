// A model over its units: what the loop reads of it, and the hooks that gather and free.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/nn/module.h"
#include "meshwright/parallel/gradients.h"
#include "unit.h"

namespace meshwright::detail {

class ShardedModel final : public ParallelModel, public PipelineUnits {
 public:
  ShardedModel(std::shared_ptr<torch::nn::Module> model, const std::vector<UnitSpec>& specs,
               const ShardingPolicy& policy, ShardGroups groups, std::shared_ptr<World> world);

  void begin_step() override;
  void begin_micro_batch(GradientSync sync) override;
  void end_step() override;
  void end_step_deferred() override;
  const std::vector<ParallelParameter>& parameters() const override { return parameters_; }
  const std::vector<FlatParameterGroup>& update_groups() const override { return updates_; }
  void after_optimizer_step() override;
  bool values_written(const ValuesWritten& written) override;
  double clip_grad_norm(double max_norm, double scale) override {
    return clip(max_norm, scale, nullptr);
  }
  double clip_grad_norm_deferred(double max_norm, double scale, double& left) override {
    return clip(max_norm, scale, &left);
  }
  at::Tensor full_tensor(std::string_view name) override;
  void summon_full_parameters(const std::function<void()>& body) override;
  std::shared_ptr<Group> data_group() override;
  std::shared_ptr<TensorParallel> tensor_parallel() const override {
    return context_.groups.tensor_parallel;
  }
  PipelineUnits* pipeline_units() override { return this; }
  std::vector<std::string> unit_names() const override;
  std::string independent_axis() const override { return context_.groups.independent_axis; }
  bool reduces_every_micro_batch() const override {
    return context_.policy.reduction.every_micro_batch;
  }
  void hold_units(const std::vector<std::string>& units, bool held) override;
  void reduce_units(const std::vector<std::string>& units) override;

 private:
  double clip(double max_norm, double scale, double* left);
  void allocate();
  void reserve();
  void rotate();
  void describe();
  void order_reductions();
  void attach(Unit& unit);
  static bool passes_through(const Unit& unit);
  static void unshard(Unit& unit);
  void find_frozen_apart(const std::vector<UnitSpec>& specs);
  void pair_units();
  void before_forward(Unit& unit, TensorRefs& inputs);
  void follow_inputs(Unit& unit, TensorRefs& inputs);
  void after_forward(Unit& unit, TensorRefs& outputs);
  void before_backward(Unit& unit);
  bool same_pass(const Unit& unit, const Unit& other) const;
  bool chained(const Unit& unit, size_t index) const;
  void prefetch_forward(const Unit& unit);
  void prefetch_backward(const Unit& unit);
  static void unshard_for_backward(Unit& unit);
  void settle();
  std::vector<Unit*> meant(const std::vector<std::string>& names) const;
  void check_reduced() const;
  void check_own_gradients();
  void throw_nonfinite(const Nonfinite& mine, const char* when, const char* field);
  std::vector<GradientSet> gradient_sets() const;
  bool recomputing() const;
  at::ScalarType widest_reduce() const;
  bool is_expert(std::string_view parameter) const;
  void complete(ParallelParameter& parameter) const;
  at::Tensor join(std::string_view name, const at::Tensor& local) const;

  std::shared_ptr<torch::nn::Module> model_;
  UnitContext context_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<Unit*> order_;      // of the first forward
  std::vector<size_t> position_;  // in order_, by unit index
  std::vector<int64_t> passes_;   // in which of a pipeline's a unit first ran, by its index
  int64_t pass_ = 0;
  bool order_known_ = false, in_step_ = false, whole_ = false;
  bool frozen_stays_ = false;  // only the optimizer has written since the last refresh
  int64_t forward_began_ = 0;
  std::vector<ParallelParameter> parameters_;
  std::vector<FlatParameterGroup> updates_;
};

}  // namespace meshwright::detail
