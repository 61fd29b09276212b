#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/job/plan.h"

namespace limits_test {

namespace plan = meshwright::plan;
namespace config = meshwright::config;
using meshwright::Error;
using meshwright::ErrorCode;

namespace {

plan::Job job(const std::vector<std::string>& sets) {
  meshwright::Diagnostics diagnostics;
  config::Source source =
      config::Source::load({.file = {}, .sets = sets, .environment = {}}, diagnostics);
  plan::Job out;
  out.config = config::resolve(source, {}, "", diagnostics);
  for (const Error& error : diagnostics.errors()) FAIL(error.what());
  return out;
}

struct Refused {
  ErrorCode code;
  std::string key;
  size_t helps;
};

std::optional<Refused> refused(const std::vector<std::string>& sets, std::optional<int64_t> world) {
  try {
    plan::check_rank_limits(job(sets), world);
    return std::nullopt;
  } catch (const Error& error) {
    return Refused{error.code(), error.key(), error.helps().size()};
  }
}

}  // namespace

TEST_CASE("sizes up to the largest plannable world pass") {
  const std::string most = std::to_string(plan::kMostRanks);
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"distributed.tp_size=8", "distributed.pp_size=16", "distributed.cp_size=2",
       "distributed.dp_replicate_size=8"},
      {"distributed.tp_size=" + most},
      {"distributed.dp_size=" + most, "distributed.dp_replicate_size=2"},
      {"distributed.ep_size=" + most},
      {"distributed.tp_size=0", "distributed.pp_size=-1"}};
  for (const auto& sets : cases) {
    CHECK(!refused(sets, plan::kMostRanks));
    CHECK(!refused(sets, std::nullopt));
  }
}

TEST_CASE(
    "sizes whose product leaves the plannable worlds are refused before anything multiplies them") {
  const std::string huge = "9000000000000000000";
  struct Case {
    std::vector<std::string> sets;
    std::optional<int64_t> world;
    ErrorCode code;
    std::string key;
  };
  const std::vector<Case> cases = {
      {{}, plan::kMostRanks + 1, ErrorCode::out_of_range, ""},
      {{}, INT64_MAX, ErrorCode::out_of_range, ""},
      {{"distributed.tp_size=" + huge}, 8, ErrorCode::world_not_divisible, "distributed.tp_size"},
      {{"distributed.tp_size=" + huge, "distributed.pp_size=" + huge},
       8,
       ErrorCode::world_not_divisible,
       "distributed.tp_size"},
      {{"distributed.cp_size=3000000", "distributed.pp_size=2"},
       std::nullopt,
       ErrorCode::world_not_divisible,
       "distributed.cp_size"},
      {{"distributed.dp_size=" + huge}, 8, ErrorCode::world_mismatch, "distributed.dp_size"},
      {{"distributed.dp_replicate_size=" + huge},
       std::nullopt,
       ErrorCode::world_not_divisible,
       "distributed.dp_replicate_size"},
      {{"distributed.ep_size=" + huge},
       std::nullopt,
       ErrorCode::ep_not_divisor,
       "distributed.ep_size"}};
  for (const Case& c : cases) {
    CAPTURE(c.key);
    std::optional<Refused> refusal = refused(c.sets, c.world);
    REQUIRE(refusal);
    CHECK(refusal->code == c.code);
    CHECK(refusal->key == c.key);
    CHECK(refusal->helps >= 1);
  }
}

}  // namespace limits_test
