#include "meshwright/mesh_plan.h"

#include <algorithm>
#include <array>
#include <span>

#include "sdk/base/shared_schemas.h"
#include "sdk/base/text.h"

namespace meshwright {
namespace {

using std::to_string;

// The key of a size, with the place it was written at.
Error size_error(const MeshRequest& request, ErrorCode code, std::string message,
                 const std::string& name) {
  Error error(code, std::move(message));
  std::string option = name + "_size";
  error.key("distributed." + option);
  if (request.config.shared_values.schema().find(option) != nullptr)
    error.at(request.config.shared_values.origin(option));
  return error;
}

// Up to `most` divisors of `value`, the ones nearest to `wanted` first.
std::vector<int64_t> divisors_near(int64_t value, int64_t wanted, size_t most) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= value / d; ++d)
    if (value % d == 0) {
      all.push_back(d);
      if (d != value / d) all.push_back(value / d);
    }
  std::sort(all.begin(), all.end(), [&](int64_t a, int64_t b) {
    int64_t da = std::abs(a - wanted), db = std::abs(b - wanted);
    return da != db ? da < db : a < b;
  });
  if (all.size() > most) all.resize(most);
  return all;
}

std::string set_size(const std::string& name, int64_t value) {
  return "set distributed." + name + "_size = " + to_string(value);
}

// Ranks to be laid out: the explicit list, or the world.
int64_t places(const MeshRequest& request) {
  return request.ranks.empty() ? request.world_size : static_cast<int64_t>(request.ranks.size());
}

void check_rank_list(const MeshRequest& request) {
  if (request.world_size < 1)
    throw Error(ErrorCode::rank_out_of_range, "the world size is " + to_string(request.world_size) +
                                                  ", but it must be at least 1")
        .key("world_size");
  std::vector<int64_t> sorted = request.ranks;
  std::sort(sorted.begin(), sorted.end());
  if (auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    throw Error(ErrorCode::bad_rank_list,
                "rank " + to_string(*twice) + " stands twice in the list of ranks")
        .help("name each rank once");
  if (!sorted.empty() && (sorted.front() < 0 || sorted.back() >= request.world_size))
    throw Error(ErrorCode::bad_rank_list,
                "the list of ranks names rank " +
                    to_string(sorted.front() < 0 ? sorted.front() : sorted.back()) +
                    ", but the world has ranks 0 to " + to_string(request.world_size - 1));
}

}  // namespace

int64_t resolve_dp_size(const MeshRequest& request) {
  check_rank_list(request);
  const ParallelSizes& s = request.config.shared.sizes;
  int64_t world = places(request), model = 1;
  for (int64_t size : {s.tp, s.cp, s.pp})
    if (size < 1 || __builtin_mul_overflow(model, size, &model)) model = INT64_MAX / 2;
  std::string factors =
      "tp " + to_string(s.tp) + " * cp " + to_string(s.cp) + " * pp " + to_string(s.pp);
  if (!s.dp) {
    if (world % model == 0) return world / model;
    // The key to point at: the largest factor that can be mended alone, else the largest, for it is
    // the likeliest mistake.
    struct Factor {
      const char* name;
      int64_t size;
    };
    std::array<Factor, 3> by_size = {{{"tp", s.tp}, {"cp", s.cp}, {"pp", s.pp}}};
    std::stable_sort(by_size.begin(), by_size.end(),
                     [](const Factor& a, const Factor& b) { return a.size > b.size; });
    auto rest_of = [&](const Factor& factor) {
      return std::max<int64_t>(1, model / std::max<int64_t>(1, factor.size));
    };
    const auto* alone = std::find_if(by_size.begin(), by_size.end(), [&](const Factor& f) {
      return f.size > 1 && world % rest_of(f) == 0;
    });
    const Factor& wrong = alone == by_size.end() ? by_size[0] : *alone;
    Error error = size_error(request, ErrorCode::world_not_divisible,
                             "world size " + to_string(world) + " is not divisible by " + factors +
                                 " = " + to_string(model),
                             wrong.name);
    if (alone != by_size.end())
      for (int64_t d : divisors_near(world / rest_of(wrong), wrong.size, 3))
        error.help(set_size(wrong.name, d));
    else
      error.help(
          "set distributed.tp_size = 1, distributed.cp_size = 1 and distributed.pp_size = 1");
    error.help("use a world size of " +
               to_string(model * std::max<int64_t>(1, (world + model - 1) / model)));
    throw error;
  }
  int64_t dp = *s.dp, total = 0;
  if (__builtin_mul_overflow(dp, model, &total)) total = INT64_MAX;
  if (total == world) return dp;
  if (!request.ranks.empty())
    throw Error(ErrorCode::bad_rank_list, "the list names " + to_string(world) + " ranks, but dp " +
                                              to_string(dp) + " * " + factors + " = " +
                                              to_string(total))
        .key("distributed.dp_size")
        .help("list " + to_string(total) + " ranks");
  Error error = size_error(request, ErrorCode::world_mismatch,
                           "dp " + to_string(dp) + " * " + factors + " = " + to_string(total) +
                               ", but the world has " + to_string(world) + " ranks",
                           "dp");
  if (world % model == 0) error.help("set distributed.dp_size = " + to_string(world / model));
  if (world % model == 0)
    error.help("leave distributed.dp_size out: it is inferred as " + to_string(world / model));
  if (total != INT64_MAX) error.help("use a world size of " + to_string(total));
  throw error;
}

void refuse_sizes(const MeshRequest& request, std::string_view strategy,
                  std::span<const std::string_view> names) {
  const ParallelSizes& s = request.config.shared.sizes;
  struct Size {
    std::string_view name, words;
    int64_t size;
  };
  for (const Size& size :
       {Size{"tp", "tensor parallelism", s.tp}, Size{"pp", "pipeline parallelism", s.pp},
        Size{"cp", "context parallelism", s.cp}, Size{"ep", "expert parallelism", s.ep},
        Size{"dp_replicate", "hybrid sharding", s.dp_replicate}}) {
    if (size.size <= 1 || std::find(names.begin(), names.end(), size.name) == names.end()) continue;
    std::string name(size.name);
    throw size_error(request, ErrorCode::size_not_supported,
                     std::string(strategy) + " has no " + std::string(size.words) +
                         ", but distributed." + name + "_size = " + to_string(size.size),
                     name)
        .help(set_size(name, 1))
        .help("set distributed.strategy = " +
              std::string(distributed_schema().find("strategy")->default_value));
  }
}

MeshPlan plan_sharded_mesh(const MeshRequest& request, bool alone) {
  const ParallelSizes& s = request.config.shared.sizes;
  int64_t dp = resolve_dp_size(request), rep = std::max<int64_t>(1, s.dp_replicate);
  auto replicate_help = [&](Error error) {
    size_t given = 0;
    for (int64_t d : divisors_near(dp, rep, 8))
      if ((d < dp || d == 1 || alone) && given++ < 3) error.help(set_size("dp_replicate", d));
    return error;
  };
  if (dp % rep != 0)
    throw replicate_help(
        size_error(request, ErrorCode::dp_replicate_not_divisor,
                   "dp " + to_string(dp) + " is not a multiple of dp_replicate " + to_string(rep),
                   "dp_replicate"));
  if (rep >= dp && rep != 1 && !alone)
    throw replicate_help(
        size_error(request, ErrorCode::dp_replicate_too_large,
                   "dp_replicate " + to_string(rep) + " must be smaller than dp " + to_string(dp) +
                       " (copies alone need no shards: that is plain data parallelism)",
                   "dp_replicate"));
  int64_t stage = dp * s.cp * s.tp;
  if (s.ep > 1 && stage % s.ep != 0) {
    Error error =
        size_error(request, ErrorCode::ep_not_divisor,
                   "dp " + to_string(dp) + " * cp " + to_string(s.cp) + " * tp " + to_string(s.tp) +
                       " = " + to_string(stage) + " is not a multiple of ep " + to_string(s.ep),
                   "ep");
    for (int64_t d : divisors_near(stage, s.ep, 3)) error.help(set_size("ep", d));
    throw error;
  }

  MeshPlan plan;
  plan.dp = dp;
  plan.device_mesh.emplace(
      std::vector<MeshAxis>{
          {"pp", s.pp}, {"dp_replicate", rep}, {"dp_shard", dp / rep}, {"cp", s.cp}, {"tp", s.tp}},
      request.ranks);
  plan.device_mesh->flatten("dp", {"dp_replicate", "dp_shard"});
  plan.device_mesh->flatten("dp_shard_cp", {"dp_shard", "cp"});
  plan.device_mesh->flatten("dp_cp", {"dp_replicate", "dp_shard", "cp"});
  std::string shard = s.cp > 1 ? "dp_shard_cp" : "dp_shard";
  plan.fsdp_axes =
      rep > 1 ? std::vector<std::string>{"dp_replicate", shard} : std::vector<std::string>{shard};
  if (s.ep > 1)
    plan.moe_mesh.emplace(
        std::vector<MeshAxis>{{"pp", s.pp}, {"ep_shard", stage / s.ep}, {"ep", s.ep}},
        request.ranks);
  return plan;
}

}  // namespace meshwright
