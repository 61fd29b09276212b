// Damage to a checkpoint of several ranks: every cut and every flipped bit is told by `verify`, and
// refused by every rank that loads. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/megatron_fsdp.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/inspect.h"
#include "meshwright/parallel/testing.h"

namespace checkpoint_damage_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

struct Damage {
  fs::path file;
  int64_t at = 0;  // a bit, or the size to cut to
  bool cut = false;
};

// Does one act of damage, and undoes it.
class Damaged {
 public:
  explicit Damaged(const Damage& damage) : damage_(damage) {
    std::ifstream in(damage.file, std::ios::binary);
    whole_.assign(std::istreambuf_iterator<char>(in), {});
    std::string bytes = damage.cut ? whole_.substr(0, static_cast<size_t>(damage.at)) : whole_;
    if (!damage.cut) {
      char& byte = bytes[static_cast<size_t>(damage.at / 8)];
      byte = static_cast<char>(byte ^ (1 << damage.at % 8));
    }
    put(bytes);
  }
  Damaged(const Damaged&) = delete;
  Damaged& operator=(const Damaged&) = delete;
  ~Damaged() { put(whole_); }

 private:
  void put(const std::string& bytes) const {
    std::ofstream(damage_.file, std::ios::binary | std::ios::trunc) << bytes;
  }
  const Damage& damage_;
  std::string whole_;
};

struct Counts {
  int64_t cuts = 0, flips = 0;
  int64_t verified = 0;  // told by verify, with the file's name
  int64_t refused = 0;   // by both ranks that load
  int64_t alone = 0;     // of these, found by the second rank only
  std::string text;
  int64_t not_read = 0;  // flips in files that loading does not read, of which no weight comes
};

// Cuts every file at every `step` bytes and flips `flips` random bits of all of them.
Counts damage_all(const Layout& saving, const Layout& two, int64_t step, int64_t flips,
                  unsigned seed) {
  fs::path folder = fs::temp_directory_path() / ("checkpoint_damage_" + std::to_string(::getpid()));
  fs::remove_all(folder);
  run_ranks(saving.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(saving, world);
    rank.initialize();
    rank.step();
    rank.trainer.save(folder.string());
  });
  fs::path saved = folder / "step_00000001";
  std::vector<Damage> all;
  std::vector<std::pair<fs::path, int64_t>> files;
  int64_t total = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(saved))
    if (entry.is_regular_file())
      files.emplace_back(entry.path(), static_cast<int64_t>(entry.file_size()));
  std::sort(files.begin(), files.end());
  for (const auto& [path, bytes] : files) {
    total += bytes;
    for (int64_t at = 0; at < bytes; at += step) all.push_back({path, at, true});
  }
  Counts counts;
  counts.cuts = static_cast<int64_t>(all.size());
  counts.flips = flips;
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < flips; ++i) {
    auto bit = static_cast<int64_t>(random() % static_cast<uint64_t>(total * 8));
    size_t file = 0;
    while (bit >= files[file].second * 8) bit -= files[file++].second * 8;
    all.push_back({files[file].first, bit, false});
  }
  std::vector<int> refusals[2] = {std::vector<int>(all.size(), 0),
                                  std::vector<int>(all.size(), 0)};  // by rank
  std::vector<int> alone(all.size(), 0);
  run_ranks(two.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(two, world);
    bool leads = world->rank() == 0;
    for (size_t i = 0; i < all.size(); ++i) {
      std::unique_ptr<Damaged> damaged;
      if (leads) {
        damaged = std::make_unique<Damaged>(all[i]);
        std::vector<Error> told = checkpoint::verify_checkpoint(saved, [](int64_t) {}).damage;
        if (!told.empty() && told[0].message().find(all[i].file.string()) == 0) ++counts.verified;
      }
      world->everyone()->barrier();
      bool refused = false;
      try {
        rank.trainer.load(saved.string());
      } catch (const Error& error) {
        refused = error.code() == ErrorCode::bad_checkpoint &&
                  error.message().find(all[i].file.string()) == 0;
        // Which rank it was is told where not all have met it.
        if (leads && std::ranges::count(error.notes(), "on rank 1") > 0) alone[i] = 1;
      }
      world->everyone()->barrier();
      refusals[world->rank()][i] = refused ? 1 : 0;
    }
    // What is whole again is loaded.
    world->everyone()->barrier();
    rank.trainer.load(saved.string());
  });
  for (size_t i = 0; i < all.size(); ++i) {
    bool weightless =
        all[i].file.extension() != ".safetensors" && all[i].file.filename() != "meta.json";
    int refused = refusals[0][i] + refusals[1][i];
    if (refused == 2) {
      ++counts.refused;
      counts.alone += alone[i];
    } else if (weightless && !all[i].cut && refused == 0) {
      ++counts.not_read;
    }
  }
  CHECK(checkpoint::verify_checkpoint(saved, [](int64_t) {}).damage.empty());
  counts.text = std::to_string(files.size()) + " files, " + std::to_string(total) +
                " bytes: " + std::to_string(counts.cuts) + " cuts (every " + std::to_string(step) +
                " bytes), " + std::to_string(counts.flips) + " flipped bits (seed " +
                std::to_string(seed) + "); verify told " + std::to_string(counts.verified) +
                ", loading on 2 ranks refused " + std::to_string(counts.refused) +
                ", in files that it does not read lay " + std::to_string(counts.not_read) + "\n";
  MESSAGE(counts.text);
  fs::remove_all(folder);
  return counts;
}

void check(const Counts& counts) {
  CHECK(counts.verified == counts.cuts + counts.flips);
  CHECK(counts.refused + counts.not_read == counts.cuts + counts.flips);
  CHECK(counts.refused > 0);
}

}  // namespace

TEST_CASE("a checkpoint that is cut or has a flipped bit is told by verify and not loaded") {
  // The counts that a release is held to, with a log of them in that file; else a sample.
  const Layout four{"fsdp2", 4}, two{"ddp", 2};
  if (const char* log = std::getenv("MESHWRIGHT_FULL_RUN")) {
    Counts counts = damage_all(four, two, 512, 10000, 1);
    std::ofstream(log, std::ios::app) << counts.text;
    check(counts);
  } else {
    std::random_device device;
    check(damage_all(four, two, 40961, 100, device()));
  }
}

// Each rank reads what it has saved, and the weights of all are gathered once they are read: the
// rank that found nothing must not wait there for the other.
TEST_CASE("damage that one rank alone reads is told by all where weights are gathered after it") {
  std::random_device device;
  for (const char* overlap : {"true", "false"}) {
    CAPTURE(overlap);
    const Layout two{
        "megatron_fsdp", 2, {flat_level(2), flat_option("overlap_param_gather", overlap)}};
    const Counts counts = damage_all(two, two, 1 << 20, 30, device());
    check(counts);
    CHECK(counts.alone > 0);
  }
}

// As `generate` and `evaluate` load.
TEST_CASE("damage that one rank alone reads is told by all where weights alone are loaded") {
  const TestFolder folder("checkpoint_damage_weights");
  const Layout two{"megatron_fsdp", 2, {flat_level(2)}};
  run_ranks(two.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(two, world);
    rank.initialize();
    rank.trainer.save(folder.path.string());
  });
  const fs::path saved = folder.path / "step_00000000";
  int files = 0, refused = 0, alone = 0;
  std::mutex mutex;
  for (const fs::directory_entry& entry : fs::directory_iterator(saved)) {
    if (!entry.path().filename().string().starts_with("model-")) continue;
    ++files;
    const Damage middle{entry.path(), static_cast<int64_t>(entry.file_size()) * 4, false};
    const Damaged damaged(middle);
    run_ranks(two.ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank(two, world);
      checkpoint::Checkpoint from(saved);
      try {
        train::load_weights(rank.trainer, from);
      } catch (const Error& error) {
        std::lock_guard lock(mutex);
        refused += error.code() == ErrorCode::bad_checkpoint ? 1 : 0;
        alone += std::ranges::count(error.notes(), "on rank 1") > 0 ? 1 : 0;
      }
    });
  }
  CHECK(files == 2);
  CHECK(refused == 4);
  CHECK(alone == 2);  // both hear of what the second one has found
}

}  // namespace checkpoint_damage_test
