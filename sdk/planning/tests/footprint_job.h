// Jobs on paper for the tests of the cost model, and how their figures are looked at.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "llama_outline.h"
#include "meshwright/footprint.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::testing {

// A job on paper: what a test varies, and the request it makes.
struct Job {
  ModelOutline outline = {};
  ParallelSizes sizes = {};
  int64_t world = 1;
  Workload work = {};
  bool sequence_parallel = false;
  MixedPrecision mp{DType::float32, DType::float32, DType::float32, true};

  StrategyConfig config = {};
  MeshPlan mesh = {};
  TpPlan tp = {};

  Job& plan() {
    config.shared().sizes = sizes;
    config.shared().mp = mp;
    config.shared().sequence_parallel = sequence_parallel;
    mesh = plan_sharded_mesh({world, {}, config});
    plan_tp();
    return *this;
  }
  Job& plan(bool flat) { return flat ? plan_flat() : plan(); }
  // What a rank of each kind of plan costs.
  Footprint rows(const ShardingPolicy& policy = {}, int64_t rank = 0) const {
    return footprint_of(request(rank), fully_sharded_plan(request(rank), policy));
  }
  Footprint flat(const ShardingPolicy& policy = {}, int64_t rank = 0) const {
    return footprint_of(request(rank), flat_plan(request(rank), policy));
  }
  Footprint copies(const ReplicatedPolicy& policy = {}, int64_t rank = 0) const {
    return footprint_of(request(rank), replicated_plan(request(rank), policy));
  }
  // The plan of flat buffers, or of rows.
  ShardingPlan sharded(bool flat, int64_t rank = 0) const {
    return flat ? flat_plan(request(rank)) : fully_sharded_plan(request(rank));
  }
  // Axes (dp, tp), as megatron_fsdp lays them out.
  Job& plan_flat() {
    config.shared().sizes = sizes;
    config.shared().mp = mp;
    mesh.device_mesh.emplace(
        std::vector<MeshAxis>{{"dp", world / sizes.tp}, {"cp", 1}, {"tp", sizes.tp}});
    mesh.fsdp_axes = {"dp"};
    mesh.dp = world / sizes.tp;
    plan_tp();
    return *this;
  }
  Job& plan_ddp() {
    config.shared().mp = mp;
    mesh.dp = world;
    return *this;
  }
  void plan_tp() {
    if (sizes.tp > 1) tp = select_tp_plan(outline, {sizes.tp, sequence_parallel, {}});
  }
  ShardingRequest request(int64_t rank = 0) const {
    return {outline, mesh, tp, config, work, rank};
  }
};

inline const WireRow* find_row(const std::vector<WireRow>& wire, const std::string& axis,
                               const std::string& op) {
  for (const WireRow& row : wire)
    if (row.axis == axis && row.op == op) return &row;
  return nullptr;
}

inline void check_row(const std::vector<WireRow>& wire, const std::string& axis,
                      const std::string& op, int64_t count, int64_t bytes) {
  CAPTURE(axis);
  CAPTURE(op);
  const WireRow* row = find_row(wire, axis, op);
  REQUIRE(row != nullptr);
  CHECK(row->count == count);
  CHECK(row->bytes == bytes);
}

inline void check_row(const Footprint& footprint, const std::string& axis, const std::string& op,
                      int64_t count, int64_t bytes) {
  check_row(footprint.wire, axis, op, count, bytes);
}

inline const ParameterPlacement& placement(const Footprint& footprint, const std::string& name) {
  for (const ParameterPlacement& p : footprint.parameters)
    if (p.name == name) return p;
  FAIL("no parameter " << name);
  return footprint.parameters.front();
}

using Placement = std::vector<std::pair<std::string, std::string>>;

// Factors of rank 3 beside a Linear.
inline void add_adapter(ModelOutline& outline, const std::string& linear) {
  const std::vector<int64_t> shape = outline.find_parameter(linear + ".weight")->shape;
  const auto at =
      std::ranges::find(outline.parameters, linear + ".weight", &ParameterOutline::name);
  outline.parameters.insert(at + 1, {ParameterOutline{linear + ".lora_A.weight", {3, shape[1]}},
                                     ParameterOutline{linear + ".lora_B.weight", {shape[0], 3}}});
  for (const char* part : {".lora_A", ".lora_B"})
    outline.modules.push_back({linear + part, ModuleKind::other, "Linear"});
}

inline int64_t total_elements(const ModelOutline& outline) {
  int64_t sum = 0;
  for (const ParameterOutline& p : outline.parameters) sum += element_count(p.shape);
  return sum;
}

}  // namespace meshwright::testing
