// States that differ between replicas which are otherwise equal: what error feedback still owes
// (tests/fixtures/plugins/ef_sign.cpp), over checkpoints.
#include <cstring>
#include <mutex>

#include "engine/train/run/tests/saved.h"
#include "engine/train/run/tests/small_models.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace replica_states_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

const std::string kLoad =
    "plugins.load=[\"" MESHWRIGHT_BUILD_DIR "/fixtures/plugins/libmeshwright_fixture_ef_sign.so\"]";

Layout compressed(int64_t ranks, std::vector<std::string> sets = {}) {
  sets.push_back(kLoad);
  return {"ef_sign", ranks, std::move(sets)};
}

using Contents = std::map<std::string, std::string>;

std::vector<float> floats(const std::string& bytes) {
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// Of each parameter what a replica owes: "model.norm.weight" -> bytes.
Contents residuals(const Contents& all, int64_t replica) {
  const std::string lead = train::of_replica("residual", replica) + "/";
  Contents out;
  for (const auto& [key, bytes] : all)
    if (key.starts_with(lead)) out[key.substr(lead.size())] = bytes;
  return out;
}

// Without what belongs to a number of replicas.
Contents shared_part(Contents all) {
  std::erase_if(all, [](const auto& item) { return item.first.starts_with("residual"); });
  return all;
}

// What is there when a checkpoint was loaded, and saved again at once; `told`: the notices of all
// ranks.
Contents loaded(const Layout& layout, const fs::path& from, const fs::path& again,
                std::vector<std::string>& told) {
  told.clear();
  std::mutex mutex;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.trainer.load(from.string());
    rank.trainer.save(again.string());
    std::lock_guard lock(mutex);
    told.insert(told.end(), world->notices().begin(), world->notices().end());
  });
  return contents(again / "step_00000003");
}

}  // namespace

TEST_CASE("each replica goes on with what it owes; another number of them with the mean") {
  TestFolder folder("replica_states");
  const fs::path& in = folder.path;
  const std::vector<double> unbroken = losses_of(compressed(4), {}, 6, in / "four", 3);
  const Contents four = contents(in / "four" / "step_00000003");
  std::vector<Contents> owed;
  for (int64_t replica = 0; replica < 4; ++replica) {
    owed.push_back(residuals(four, replica));
    REQUIRE(!owed.back().empty());
    CHECK((owed.back() != owed.front()) == (replica > 0));
  }
  CHECK(residuals(four, 4).empty());

  // As many replicas: to the bit, also where each is sharded.
  const std::vector<double> losses = losses_of(compressed(4), in / "four", 3);
  CHECK(losses == std::vector<double>(unbroken.begin() + 3, unbroken.end()));
  std::vector<std::string> told;
  losses_of(compressed(2), {}, 3, in / "two", 3);
  const Contents two = contents(in / "two" / "step_00000003");
  CHECK(loaded(compressed(4, {"distributed.dp_replicate_size=2"}), in / "two", in / "sharded",
               told) == two);
  for (const std::string& notice : told) CHECK(notice.find("residual") == std::string::npos);

  for (const int64_t ranks : {1, 2, 3}) {
    const Contents fewer = loaded(compressed(ranks), in / "four", in / std::to_string(ranks), told);
    CHECK(shared_part(fewer) == shared_part(four));
    for (int64_t replica = 0; replica < ranks; ++replica) {
      const Contents own = residuals(fewer, replica);
      CHECK(own.size() == owed[0].size());
      for (const auto& [name, bytes] : own) {
        CAPTURE(name);
        std::vector<double> mean(floats(bytes).size(), 0);
        for (const Contents& one : owed) {
          const std::vector<float> of_one = floats(one.at(name));
          for (size_t i = 0; i < mean.size(); ++i) mean[i] += of_one[i] / 4.0;
        }
        const std::vector<float> found = floats(bytes);
        size_t others = 0;
        for (size_t i = 0; i < mean.size(); ++i)
          others += !(std::abs(found[i] - mean[i]) <= 1e-6 * std::abs(mean[i]));
        CHECK(others == 0);
      }
    }
    CHECK(residuals(fewer, ranks).empty());
    CHECK(std::ranges::count(told, "the checkpoint holds residual of 4 replicas, this job has " +
                                       std::to_string(ranks) + ": each begins with their mean") ==
          ranks);
  }
  losses_of(compressed(2), in / "four", 2);
}

TEST_CASE("another strategy goes on without what replicas owe, and the other way round") {
  TestFolder folder("replica_states_of_others");
  const fs::path& in = folder.path;
  losses_of(compressed(2), {}, 3, in / "compressed", 3);
  losses_of({"fsdp2", 2}, {}, 3, in / "exact", 3);
  std::vector<std::string> told;
  const Contents compressed_state = contents(in / "compressed" / "step_00000003");
  CHECK(loaded({"fsdp2", 2}, in / "compressed", in / "to_exact", told) ==
        shared_part(compressed_state));
  const Contents begun = loaded(compressed(2), in / "exact", in / "to_compressed", told);
  CHECK(shared_part(begun) == contents(in / "exact" / "step_00000003"));
  for (int64_t replica = 0; replica < 2; ++replica) {
    CHECK(residuals(begun, replica).size() == residuals(compressed_state, replica).size());
    for (const auto& [name, bytes] : residuals(begun, replica))
      CHECK(bytes == std::string(bytes.size(), '\0'));
  }
}

}  // namespace replica_states_test
