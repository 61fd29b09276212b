// One rank of the kit's training: a model under a strategy, step by step beside the plain loop. Not
// for use outside the kit.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/parallel/parallel.h"
#include "meshwright/parallel/testing.h"
#include "sdk/kit/comparison/watch.h"
#include "sdk/kit/conformance/probe.h"
#include "sdk/kit/conformance/training/model.h"
#include "sdk/kit/conformance/training/place.h"
#include "sdk/kit/conformance/training/ranks.h"

namespace meshwright::conformance {

constexpr double kTolerance = 1e-5;
// Under bfloat16, beside a plain loop in float32.
constexpr double kRoundedTolerance = 0.02;
inline std::string step_text(int64_t step) { return "step " + std::to_string(step + 1); }

// Bytes of the host's tensors that this thread made and has not freed.
struct HostMeter : c10::MemoryReportingInfoBase {
  int64_t live = 0, peak = 0;
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    live += bytes;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

// All ranks make the same calls in the same order. What is wrong is collected, so that a rank that
// finds something does not leave the others waiting.
class RankRun {
 public:
  // Collective. What is wrong goes to `problems`. Throws std::runtime_error when nothing can be
  // run.
  RankRun(const Subject& subject, const MeshRequest& request, const Reference& reference,
          const std::shared_ptr<World>& world, std::vector<std::string>& problems);

  // Collective. From the beginning to the end; `saved` gets what this rank holds before
  // kSavedStep, none under bfloat16.
  void train(std::vector<SavedPart>& saved);
  // Collective. Takes its parts of a state before kSavedStep, made elsewhere, and goes on.
  void resume(const TrainingState& state);
  // From here on train() leaves in `evidence` what the ranks' place of fault is found by.
  void watch(Evidence& evidence);
  // What this rank would save now.
  std::vector<SavedPart> save() const;
  // After resume(): this rank ends with the same values as a run without a stop.
  void check_end(const std::vector<SavedPart>& unbroken);
  // Whether its plan says that gradients are approximate.
  bool approximate() const { return gradient_tolerance_.has_value(); }
  // The largest that it was off by, as gradient_tolerance counts.
  double gradient_error() const { return gradient_error_; }
  // What its plan says that it may be; nullopt: gradients are exact.
  std::optional<double> declared_error() const { return gradient_tolerance_; }
  // What this run is held to: the plain loop, or where gradients are approximate, a loop that uses
  // them.
  const Reference& reference() const { return approximate() ? own_ : exact_; }

  // Whether replicas go their own ways, so that no plain loop does what they do together.
  bool independent() const { return !model_->independent_axis().empty(); }

 private:
  void fail(const std::string& what) { problems_.push_back(what); }
  void make_model(const MeshRequest& request);
  void check_data_group();
  void check_parameters();
  void check_independence();
  void check_runs(int64_t step, int64_t before);
  void check_whole(const Tensors& expected, const std::string& when, double tolerance);
  void cut_short(int64_t step);
  void step(int64_t step);
  double weight() const;
  at::Tensor loss_of(int64_t step, const std::vector<int64_t>& rows);
  double pass(int64_t step);
  double pass_stages(int64_t step);
  void check_groups(int64_t step);
  void check_gradients(int64_t step);
  at::Tensor gathered_gradient(const std::string& name, const std::vector<int64_t>& shape);
  void use_gradients(int64_t step, const LossAndGradients& exact, double norm);
  std::string explain(const ParallelParameter& p, int64_t step) const;
  void keep_gradients();
  void update();
  std::vector<WireRow> planned_wire(ShardingRequest cost) const;
  Bytes planned_bytes(ShardingRequest cost) const;
  Footprint cost_of(const ShardingRequest& request) const;
  void count(const std::vector<TrafficCounter::Row>& before);
  void check_memory();
  void check_summon();
  void check_summoned(const Tensors& whole, std::vector<std::string>& found);
  std::vector<int64_t> own_rows() const;
  std::vector<std::vector<int64_t>> micro_batches() const;

  const Reference& exact_;
  Reference own_;
  std::optional<double> gradient_tolerance_;
  double gradient_error_ = 0;
  std::vector<std::string>& problems_;
  std::shared_ptr<World> world_;
  Instance strategy_;
  Net net_;
  ModelOutline outline_;  // of this rank's stages
  MeshPlan mesh_;
  std::vector<WireRow> wire_;  // of a step, as its footprint says
  int64_t data_ranks_ = 1;
  const std::string name_;          // of the strategy
  const detail::PluginCode* code_;  // its own
  TpPlan tp_;
  int64_t measured_ = 0;  // bytes at most beside what the step began with
  Bytes planned_;         // as its footprint says
  double tolerance_ = kTolerance;
  bool recomputes_ = false;  // whole layers, in their backward
  std::shared_ptr<HostMeter> meter_ = std::make_shared<HostMeter>();
  std::unique_ptr<ParallelModel> model_;
  std::vector<at::Tensor> momenta_;  // as update_groups()
  int64_t updates_ = 0;
  bool sound_ = true;  // what parameters() says can be used
  std::optional<PipelinePlan> stages_;
  std::unique_ptr<PipelineRunner> runner_;
  Evidence* evidence_ = nullptr;
  std::unique_ptr<comparison::Watch> watch_;
};

}  // namespace meshwright::conformance
