// Expert parallelism (Lepikhin et al. 2021): each rank of the ep axis holds E / ep experts of every
// mixture-of-experts block, and tokens travel to them and back.
//
//   groups.expert_parallel = apply_expert_parallel(request);  // after tensor parallelism
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
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
  // Experts over `ep`, each one's parameters along dim 1 over `ep_shard` (which may have one rank).
  // `divisor` divides gradients that are summed over ep_shard (semantics 10.5): it is the number of
  // ranks with different samples times the ranks of tp, which have the same samples.
  ExpertParallel(std::shared_ptr<Group> ep, std::shared_ptr<Group> ep_shard, double divisor)
      : ep_(std::move(ep)), ep_shard_(std::move(ep_shard)), divisor_(divisor) {}

  const std::shared_ptr<Group>& ep() const { return ep_; }
  const std::shared_ptr<Group>& ep_shard() const { return ep_shard_; }
  // How the unit of an experts module is cut.
  UnitSharding sharding() const;
  // Whether a parameter belongs to experts.
  bool holds(std::string_view parameter) const { return whole_.contains(parameter); }
  // Turns sizes and offsets within this rank's experts into those within all, and adds the
  // placement over ep.
  void describe(ParallelParameter& parameter) const;
  // Collective. The parameter of all experts, gathered over ep.
  at::Tensor whole(std::string_view parameter, const at::Tensor& local) const;

 private:
  friend MESHWRIGHT_API std::shared_ptr<ExpertParallel> apply_expert_parallel(
      const ParallelizeRequest& request);
  std::shared_ptr<Group> ep_, ep_shard_;
  double divisor_;
  std::map<std::string, std::vector<int64_t>, std::less<>> whole_;  // sizes with all experts
  std::shared_ptr<const Later> later_;  // room for what later versions add
};

// Collective over the groups of the request's expert mesh; nullptr when the plan has none. Every
// mixture-of-experts block keeps this rank's experts and gets the dispatcher that the job asks for.
// Throws Error(model_does_not_fit) for a model without such blocks, or whose experts do not divide
// by ep.
MESHWRIGHT_API std::shared_ptr<ExpertParallel> apply_expert_parallel(
    const ParallelizeRequest& request);

}  // namespace meshwright
