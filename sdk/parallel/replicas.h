// Whole parameters on every rank: what the loop reads of them, and the buckets of gradients.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/parallel/gradients.h"
#include "meshwright/parallel/replicated_model.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "sdk/nn/buffers.h"
#include "sdk/nn/weight_gradients.h"

namespace meshwright::detail {

class ReplicatedModel final : public ParallelModel, public PipelineUnits {
 public:
  ReplicatedModel(std::shared_ptr<torch::nn::Module> model, ReplicatedPolicy policy,
                  std::shared_ptr<Group> group, std::shared_ptr<World> world,
                  std::shared_ptr<TensorParallel> tensor_parallel,
                  const std::vector<GradientBucket>& buckets);

  void begin_step() override;
  void begin_micro_batch(GradientSync sync) override;
  void end_step() override;
  const std::vector<ParallelParameter>& parameters() const override { return described_; }
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
  void summon_full_parameters(const std::function<void()>& body) override { body(); }
  std::shared_ptr<Group> data_group() override {
    return tensor_parallel_ ? group_ : world_->everyone();
  }
  std::shared_ptr<TensorParallel> tensor_parallel() const override { return tensor_parallel_; }
  PipelineUnits* pipeline_units() override { return this; }
  std::vector<std::string> unit_names() const override;
  void hold_units(const std::vector<std::string>& units, bool held) override;
  void reduce_units(const std::vector<std::string>& units) override;

  void gradient_ready(size_t parameter);
  // Where a function may write the gradient of a parameter itself: on a device, whose products may
  // be wider than their factors.
  std::optional<GradientPlace> gradient_place(size_t parameter);

 private:
  double clip(double max_norm, double scale, double* left);
  struct Parameter {
    std::string name;
    at::Tensor variable;
    std::vector<int64_t> sizes;
    int64_t count = 0, offset = 0;  // in values_ and grads_; frozen ones follow in frozen_
    bool trainable = true;
    size_t bucket = 0;
    bool arrived = false;   // a gradient came in this micro-batch
    bool ever = false;      // in any micro-batch of this step
    bool absorbed = false;  // its bucket has what came, or zeros
    bool unused = false;    // static_graph: by the first step
    bool told = false;      // to reduce, in this step
    std::string unit;       // by the general rule; known from the first call that names units on
  };
  struct Bucket {
    int64_t begin = 0, end = 0;  // elements of grads_
    std::vector<size_t> members;
    size_t waiting = 0;
    bool launched = false;
    at::Tensor reduced;  // in the reduce dtype, when it is not the storage dtype and there is
                         // anything to sum
    Work work;
  };

  bool alone() const { return group_->size() == 1; }
  // One rank without casts, and no wider sum of micro-batches to keep: gradients stay where
  // autograd puts them.
  bool direct() const { return alone() && param_ == storage_ && !wider(reduce_, storage_); }
  // Whether gradients of earlier micro-batches wait in the buckets. Autograd adds them up in the
  // dtype of computation, which is of use only where that is as wide as the reduce dtype.
  bool collects() const { return policy_.gradient_as_bucket_view || wider(reduce_, param_); }
  void lay_out(const std::vector<GradientBucket>& planned);
  std::vector<GradientBucket> own_buckets(const std::vector<int64_t>& counts) const;
  void adopt();
  void cast_inputs_and_outputs();
  void describe();
  void broadcast(const std::vector<at::Tensor>& tensors);
  double share() const { return 1.0 / static_cast<double>(group_->size()); }
  at::Tensor slot(const Parameter& p);
  // A parameter's own part of one of these two.
  at::Tensor part(const Parameter& p, const at::Tensor& trained, const at::Tensor& frozen) const;
  void absorb(Parameter& p);
  void launch(Bucket& bucket);
  void launch_ready();
  std::vector<size_t> meant(const std::vector<std::string>& units);
  void check_reduced() const;
  void check_unused();
  void sum_partial_gradients();

  std::shared_ptr<torch::nn::Module> model_;
  ReplicatedPolicy policy_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<World> world_;
  std::shared_ptr<TensorParallel> tensor_parallel_;
  // Of what trains, of what is frozen, and of computation, reduction and outputs.
  at::ScalarType storage_ = at::kFloat, frozen_storage_ = at::kFloat, param_, reduce_, output_;
  std::vector<Parameter> parameters_;  // in the order of the buckets
  std::vector<Bucket> buckets_;
  size_t next_ = 0;  // bucket to launch
  at::Tensor values_, grads_, frozen_;
  at::Tensor compute_, frozen_compute_;  // undefined: the values serve
  bool frozen_stays_ = false;  // only the optimizer has written since frozen_compute_ was made
  int64_t trainable_ = 0;
  bool last_ = true, learned_ = false;
  bool told_ = false;  // buckets reduce in this step when they are told to
  std::vector<ParallelParameter> described_;
  std::vector<FlatParameterGroup> updates_;
};

}  // namespace meshwright::detail
