#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "engine/job/plan.h"

namespace meshwright::plan {
namespace {

using NamedSize = std::pair<const char*, int64_t>;

// The product, or nullopt when it is above kMostRanks. Sizes below 1 count as 1.
std::optional<int64_t> bounded_product(std::span<const NamedSize> sizes) {
  int64_t product = 1;
  for (auto [name, size] : sizes) {
    size = std::max<int64_t>(size, 1);
    if (size > kMostRanks || product > kMostRanks / size) return std::nullopt;
    product *= size;
  }
  return product;
}

std::string setting(const char* name, int64_t value) {
  return std::string("set distributed.") + name + "_size = " + std::to_string(value);
}

}  // namespace

void check_rank_limits(const Job& job, std::optional<int64_t> world) {
  const std::string most = std::to_string(kMostRanks);
  if (world && *world > kMostRanks)
    throw Error(ErrorCode::out_of_range, "a world of " + std::to_string(*world) +
                                             " ranks; at most " + most + " can be planned")
        .help("--world-size " + most)
        .help("--world-size 131072");
  const ParallelSizes& s = job.config.shared.sizes;
  std::array<NamedSize, 4> sizes = {
      {{"tp", s.tp},
       {"cp", s.cp},
       {"pp", s.pp},
       s.dp ? NamedSize{"dp", *s.dp} : NamedSize{"dp_replicate", s.dp_replicate}}};
  auto error = [&](ErrorCode code, const std::string& message, const char* name) {
    const Options& table = job.config.table("distributed");
    const std::string key = std::string(name) + "_size";
    return Error(code, message).key("distributed." + key).at(table.origin(key));
  };
  if (s.ep > kMostRanks)
    throw error(ErrorCode::ep_not_divisor,
                "ep_size " + std::to_string(s.ep) + " is more than the " + most +
                    " ranks that can be planned",
                "ep")
        .help(setting("ep", 1))
        .help("leave distributed.ep_size out");
  if (bounded_product(sizes)) return;
  auto largest =
      std::max_element(sizes.begin(), sizes.end(),
                       [](const NamedSize& a, const NamedSize& b) { return a.second < b.second; });
  std::string product;
  for (auto [name, size] : sizes)
    if (size > 1)
      product += (product.empty() ? "" : " * ") + std::string(name) + ' ' + std::to_string(size);
  Error refusal =
      error(s.dp ? ErrorCode::world_mismatch : ErrorCode::world_not_divisible,
            product + " is more than the " + most + " ranks that can be planned", largest->first);
  const char* name = largest->first;
  largest->second = 1;
  if (std::optional<int64_t> rest = bounded_product(sizes);
      rest && (!world || (*world % *rest == 0 && (!s.dp || *world == *rest))))
    throw refusal.help(setting(name, 1))
        .help(std::string("leave distributed.") + name + "_size out");
  throw refusal.help(
      "leave distributed.dp_size, tp_size, cp_size and pp_size out: every rank then shards the "
      "parameters");
}

}  // namespace meshwright::plan
