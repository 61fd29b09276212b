// AdamW and SGD by ATen's fused kernels, over the flat tensors a strategy hands out.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "meshwright/options.h"
#include "meshwright/parallel.h"

namespace meshwright::train {

// State is kept group by group, beside the values it belongs to. `state()` gives it for checkpoints.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // One update of every group. Not collective.
  virtual void step(const std::vector<UpdateGroup>& groups, double lr) = 0;
  struct State {
    std::string name;                 // "exp_avg", "exp_avg_sq", "momentum"
    std::vector<at::Tensor> tensors;  // one a group, as long as its values; undefined before the first step
  };
  virtual std::vector<State> state() = 0;
  // Makes the state that the first step would make, all zero: to be filled from a checkpoint.
  virtual void allocate(const std::vector<UpdateGroup>& groups) = 0;
  virtual const char* name() const = 0;  // as in optimizer.name
  int64_t steps = 0;                     // updates done
};

// From the table [optimizer].
std::unique_ptr<Optimizer> make_optimizer(const Options& table);

}  // namespace meshwright::train
