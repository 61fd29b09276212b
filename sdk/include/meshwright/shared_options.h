// What a strategy reads of a job's configuration. A key that comes later is a function more of
// StrategyConfig, whose layout only the SDK library knows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/options.h"

namespace meshwright {

// Sizes as wished for; the mesh holds the actual ones. Absent, "auto", "none", 0 and negatives
// mean: inferred (dp) or 1.
struct ParallelSizes {
  std::optional<int64_t> dp;
  int64_t dp_replicate = 1, tp = 1, cp = 1, pp = 1, ep = 1;
};

// Parameters are cast to param_dtype for the gather and the computation, gradients reduced in
// reduce_dtype; the same under every strategy and world size.
struct MixedPrecision {
  DType param = DType::bfloat16, reduce = DType::float32, output = DType::bfloat16;
  bool cast_forward_inputs = true;
};

enum class ActivationCheckpointing : uint8_t { none, full, selective };

// The tp_plan key: nothing, a plan's name, or patterns.
struct TpPlanChoice {
  enum class Kind : uint8_t { automatic, named, custom };
  Kind kind = Kind::automatic;
  std::string name;
  StringMap patterns;  // pattern = style string, in file order
};

struct SharedOptions;  // the engine's own tables, of which StrategyConfig gives what strategies
                       // read
struct JobView;        // the same of the job around the strategy

// All that a strategy reads: shared options, its own table with defaults filled in, and what the
// job around it is. A value; a copy is its own.
class MESHWRIGHT_API StrategyConfig {
 public:
  StrategyConfig();
  StrategyConfig(const StrategyConfig& other);
  StrategyConfig(StrategyConfig&& other) noexcept;
  StrategyConfig& operator=(const StrategyConfig& other);
  StrategyConfig& operator=(StrategyConfig&& other) noexcept;
  ~StrategyConfig();

  // [distributed.<strategy>]. read() of typed_options.h makes a struct of it.
  const Options& own() const;
  Options& own();
  // [distributed] itself, for errors that point at the place of a key.
  const Options& distributed() const;
  Options& distributed();

  const ParallelSizes& sizes() const;
  ParallelSizes& sizes();
  const MixedPrecision& mp_policy() const;
  MixedPrecision& mp_policy();
  const TpPlanChoice& tp_plan() const;
  bool sequence_parallel() const;
  bool enable_async_tensor_parallel() const;
  ActivationCheckpointing activation_checkpointing() const;
  std::optional<DType> autocast_dtype() const;
  // [distributed.moe]
  bool moe_reshard_after_forward() const;
  bool moe_wrap_outer_model() const;

  // [step_scheduler], [checkpoint], [optimizer]; what rules and plans of strategies ask for.
  int64_t max_steps() const;
  int64_t checkpoint_every() const;  // steps; 0: at the end only
  int64_t local_batch_size() const;  // samples of a micro-batch
  int64_t global_batch_size() const;
  const std::string& optimizer() const;
  std::optional<DType> main_dtype()
      const;                     // of weights that the optimizer keeps beside the model's
  double max_grad_norm() const;  // 0: gradients are not clipped

  // The engine's own view of all that.
  const SharedOptions& shared() const;
  SharedOptions& shared();
  const JobView& job() const;
  JobView& job();

 private:
  struct Values;
  std::unique_ptr<Values> values_;
};

}  // namespace meshwright
