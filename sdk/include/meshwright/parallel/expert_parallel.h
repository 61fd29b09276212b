// Expert parallelism (Lepikhin et al. 2021): each rank of the ep axis holds E / ep experts of every
// mixture-of-experts block, and tokens travel to them and back.
//
//   groups.expert_parallel = apply_expert_parallel(request);  // after tensor parallelism
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/parallel/group.h"
#include "meshwright/parallel/parallel.h"
#include "meshwright/parallel/sharded_units.h"

namespace meshwright {

class MESHWRIGHT_API ExpertParallel {
 public:
  struct Parts;  // of the SDK library
  explicit ExpertParallel(std::unique_ptr<const Parts> parts);
  ~ExpertParallel();

  // Experts lie over `ep`, each one's parameters along dim 1 over `ep_shard`, which may have one
  // rank.
  const std::shared_ptr<Group>& ep() const;
  const std::shared_ptr<Group>& ep_shard() const;
  // How the unit of an experts module is cut.
  UnitSharding sharding() const;
  // Whether a parameter belongs to experts.
  bool holds(std::string_view parameter) const;
  // Turns sizes and offsets within this rank's experts into those within all, and adds the
  // placement over ep.
  void describe(ParallelParameter& parameter) const;
  // Collective. The parameter of all experts, gathered over ep.
  at::Tensor whole(std::string_view parameter, const at::Tensor& local) const;

 private:
  std::unique_ptr<const Parts> parts_;
};

// Collective over the groups of the request's expert mesh; nullptr when the plan has none. Every
// mixture-of-experts block keeps this rank's experts and gets the dispatcher that the job asks for.
// Throws Error(model_does_not_fit) for a model without such blocks, or whose experts do not divide
// by ep.
MESHWRIGHT_API std::shared_ptr<ExpertParallel> apply_expert_parallel(
    const ParallelizeRequest& request);

}  // namespace meshwright
