// dist_env.device and dist_env.backend on machines with and without devices; the part for CUDA is a
// fake, but for the last case.
#include <torch/csrc/distributed/c10d/HashStore.hpp>
// After c10, which has a CHECK of its own.
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "engine/config/config.h"
#include "engine/launch/device/device.h"
#include "meshwright/error.h"
#include "sdk/comm/tests/shared_memory_switch.h"

using namespace meshwright;
using device::choose;
using meshwright::testing::Variable;

namespace {

int64_t devices = 0, used = -1;
std::string segments;  // what the allocator was told, and before which device
const cuda::CudaPart kFake{[] { return devices; },
                           [](int64_t index) { return "Fake " + std::to_string(index); },
                           [](int64_t index) {
                             used = index;
                             segments += " then cuda:" + std::to_string(index);
                           },
                           nullptr,
                           nullptr,
                           nullptr,
                           nullptr,
                           nullptr,
                           nullptr,
                           nullptr,
                           nullptr,
                           [](int64_t index) { return "uuid " + std::to_string(index); },
                           [](int64_t index) { return "bus " + std::to_string(index); },
                           [] { return std::string("2.0.0"); },
                           [](int64_t, int64_t) { return true; },
                           nullptr,
                           nullptr,
                           [](bool wanted) { segments += wanted ? "grow" : "stay"; }};

Options dist_env(const char* device, const char* backend) {
  for (const OptionSchema& schema : config::engine_schemas())
    if (schema.table == "dist_env") {
      Options options(schema);
      options.set("device", std::string(device));
      options.set("backend", std::string(backend));
      return options;
    }
  return Options(OptionSchema{});
}

launch::RankEnvironment local(int64_t rank, int64_t world) {
  launch::RankEnvironment ranks;
  ranks.rank = ranks.local_rank = rank;
  ranks.world_size = ranks.local_world_size = world;
  return ranks;
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::device_unavailable);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("device and back end follow from what is asked for and what is there") {
  struct Row {
    const char *device, *backend;
    int64_t there, rank, world;
    const char* expected;  // device, back end
    size_t notices;
  };
  const Row rows[] = {
      {"auto", "auto", 0, 0, 2, "cpu gloo", 0},    {"cpu", "auto", 8, 3, 8, "cpu gloo", 0},
      {"cpu", "gloo", 8, 3, 8, "cpu gloo", 0},     {"auto", "auto", 8, 3, 8, "cuda:3 nccl", 0},
      {"cuda", "auto", 8, 7, 8, "cuda:7 nccl", 0}, {"cuda", "nccl", 2, 1, 2, "cuda:1 nccl", 0},
      {"cuda", "gloo", 2, 1, 2, "cuda:1 gloo", 0}, {"cuda", "auto", 1, 1, 2, "cuda:0 nccl", 0},
      {"auto", "gloo", 1, 2, 3, "cuda:0 gloo", 0}, {"cuda", "auto", 1, 0, 1, "cuda:0 nccl", 0},
  };
  for (const Row& row : rows) {
    CAPTURE(row.expected);
    CAPTURE(row.device);
    devices = row.there;
    used = -1;
    device::Chosen chosen =
        choose(dist_env(row.device, row.backend), local(row.rank, row.world), &kFake, "");
    CHECK(chosen.device.str() + (chosen.nccl ? " nccl" : " gloo") == row.expected);
    CHECK(chosen.notices.size() == row.notices);
    CHECK(used == (chosen.device.is_cuda() ? chosen.device.index() : -1));
  }
}

TEST_CASE("what cannot be had is refused with the way out") {
  devices = 1;
  CHECK(message_of([&] {
          choose(dist_env("cpu", "nccl"), local(0, 1), &kFake, "");
        }).find("needs CUDA devices") != std::string::npos);
  CHECK(message_of([&] {
          choose(dist_env("cuda", "auto"), local(0, 1), nullptr, "it is not built");
        }).find("it is not built") != std::string::npos);
  devices = 0;
  CHECK(message_of([&] {
          choose(dist_env("cuda", "auto"), local(0, 1), &kFake, "");
        }).find("finds no CUDA device") != std::string::npos);
}

TEST_CASE("automatic choice says why a device that is there goes unused") {
  device::Chosen chosen =
      choose(dist_env("auto", "auto"), local(0, 1), nullptr, "its CUDA part cannot be loaded");
  CHECK(chosen.device.is_cpu());
  REQUIRE(chosen.notices.size() == 1);
  CHECK(chosen.notices[0].find("its CUDA part cannot be loaded") != std::string::npos);
}

TEST_CASE(
    "segments of the allocator may grow from before the device is used, unless the environment "
    "says otherwise") {
  struct Row {
    const char *device, *given, *environment, *older;  // nullptr: not set
    const char *told, *notice;                         // the allocator, the user
  };
  devices = 2;
  for (const Row& row : {
           Row{"cuda", nullptr, nullptr, nullptr, " then cuda:1", ""},
           Row{"cuda", "false", nullptr, nullptr, "stay then cuda:1", ""},
           Row{"cuda", "true", nullptr, nullptr, "grow then cuda:1", ""},
           Row{"auto", "true", "max_split_size_mb:64", nullptr, "grow then cuda:1", ""},
           // LibTorch reads the older name where the other one is not set.
           Row{"cuda", "true", "max_split_size_mb:64", "expandable_segments:False",
               "grow then cuda:1", ""},
           Row{"cuda", "true", "expandable_segments:True", nullptr, " then cuda:1", ""},
           Row{"cuda", nullptr, "expandable_segments: True", nullptr, " then cuda:1", ""},
           Row{"cuda", "true", nullptr, "max_split_size_mb:64, expandable_segments: False",
               " then cuda:1",
               "PYTORCH_CUDA_ALLOC_CONF says expandable_segments:False, which comes before "
               "dist_env.expandable_segments = true"},
           Row{"cuda", "false", "expandable_segments:True,max_split_size_mb:64", nullptr,
               " then cuda:1",
               "PYTORCH_ALLOC_CONF says expandable_segments:True, which comes before "
               "dist_env.expandable_segments = false"},
           Row{"cpu", "true", nullptr, nullptr, "", ""},  // config says so
       }) {
    CAPTURE(std::string(row.environment == nullptr ? "" : row.environment));
    CAPTURE(std::string(row.told));
    const Variable environment("PYTORCH_ALLOC_CONF", row.environment),
        older("PYTORCH_CUDA_ALLOC_CONF", row.older);
    Options table = dist_env(row.device, "auto");
    if (row.given != nullptr) table.set("expandable_segments", std::string(row.given) == "true");
    segments.clear();
    const device::Chosen chosen = choose(table, local(1, 2), &kFake, "");
    CHECK(segments == row.told);
    REQUIRE(chosen.notices.size() == (*row.notice != '\0' ? 1U : 0U));
    if (!chosen.notices.empty()) CHECK(chosen.notices[0] == row.notice);
  }
  devices = 0;
  Options table = dist_env("auto", "auto");
  table.set("expandable_segments", true);
  const device::Chosen chosen = choose(table, local(0, 1), &kFake, "");
  REQUIRE(chosen.notices.size() == 1);
  CHECK(chosen.notices[0].find("expandable_segments = true has no effect") != std::string::npos);
}

TEST_CASE("ranks that share a device do not use NCCL, those with one of their own do") {
  struct Row {
    const char* backend;
    int64_t there, world;
    bool nccl;
    const char* said;  // by every rank, as a notice or an error
  };
  for (const Row& row : {Row{"auto", 2, 2, true, ""}, Row{"nccl", 2, 2, true, ""},
                         Row{"auto", 1, 2, false, "ranks 0 and 1 share the CUDA device cuda:0"},
                         Row{"auto", 2, 3, false, "ranks 0 and 2 share the CUDA device cuda:0"},
                         Row{"gloo", 1, 2, false, ""},
                         Row{"nccl", 1, 2, false, "ranks 0 and 1 share the CUDA device cuda:0"}}) {
    CAPTURE(row.backend);
    CAPTURE(row.there);
    devices = row.there;
    auto store = c10::make_intrusive<c10d::HashStore>();
    Options table = dist_env("cuda", row.backend);
    std::vector<device::Chosen> chosen;
    for (int64_t rank = 0; rank < row.world; ++rank)
      chosen.push_back(choose(table, local(rank, row.world), &kFake, ""));
    for (size_t rank = 0; rank < chosen.size(); ++rank)
      device::claim(chosen[rank], *store, static_cast<int64_t>(rank));
    for (device::Chosen& one : chosen) {
      std::string said = message_of([&] { device::settle(one, *store, 0, 1, table); });
      if (said.empty()) CHECK((one.nccl != nullptr) == row.nccl);
      for (const std::string& notice : one.notices) said += notice;
      CHECK(said.find(row.said) != std::string::npos);
      CHECK(said.empty() == std::string(row.said).empty());
    }
  }
}
