// Runs that are saved on one layout and go on on another. Before doctest.h: LibTorch has a CHECK of
// its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/inspect.h"
#include "engine/train/run/tests/small_run.h"
#include "meshwright/parallel/testing.h"
#include "sdk/comm/tests/sampled.h"

namespace meshwright {

// Every tensor of a checkpoint, gathered, as bytes.
inline std::map<std::string, std::string> contents(const std::filesystem::path& path) {
  checkpoint::Checkpoint from(path);
  std::map<std::string, std::string> out;
  for (const checkpoint::TensorRecord& tensor : from.meta().tensors) {
    Region whole = Region::whole(tensor.shape);
    std::string bytes(static_cast<size_t>(whole.count() * dtype_size(tensor.dtype)), '\0');
    from.read(tensor, whole, tensor.dtype, bytes.data());
    out[tensor.state + "/" + tensor.name] = std::move(bytes);
  }
  return out;
}

// Losses of `steps` steps after loading `from` ("": from fresh weights), and a checkpoint before
// step `save_at`.
inline std::vector<double> losses_of(const Layout& layout, const std::filesystem::path& from,
                                     int steps, const std::filesystem::path& save_after = {},
                                     int save_at = -1) {
  std::vector<double> out;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    if (from.empty())
      rank.initialize();
    else
      rank.trainer.load(from.string());
    std::vector<double> mine;
    for (int step = 0; step <= steps; ++step) {
      if (step == save_at) rank.trainer.save(save_after.string());
      if (step < steps) mine.push_back(rank.step().loss);
    }
    if (world->rank() == 0) out = mine;
  });
  return out;
}

// Saves after three steps on the first layout and goes on on each other one, and the other way
// round: weights and moments stay bitwise identical, and so do the losses on the same layout. The
// loss of the second step after loading is the first one that moments have a part in.
// What went wrong; nothing where all is well.
inline std::string carried_over(const std::vector<Layout>& all,
                                const std::filesystem::path& folder) {
  std::string out;
  const int more = steps_of(2, 5);
  for (size_t a = 0; a < all.size(); ++a) {
    std::filesystem::path saved = folder / ("from " + std::to_string(a));
    std::vector<double> unbroken = losses_of(all[a], {}, 3 + more, saved, 3);
    if (!checkpoint::verify_checkpoint(saved / "step_00000003", [](int64_t) {}).damage.empty())
      out += all[a].text() + ": damaged; ";
    std::map<std::string, std::string> kept = contents(saved / "step_00000003");
    for (size_t b = 0; b < all.size(); ++b) {
      if (a != 0 && b != 0) continue;
      std::string way = all[a].text() + " to " + all[b].text() + ": ";
      std::filesystem::path again = saved / ("to " + std::to_string(b));
      std::vector<double> losses = losses_of(all[b], saved, more, again, 0);
      if (contents(again / "step_00000003") != kept) out += way + "other bits; ";
      double worst = losses.size() == static_cast<size_t>(more) ? 0 : HUGE_VAL;
      for (size_t i = 0; i < losses.size(); ++i)
        worst = std::max(worst, std::abs(losses[i] - unbroken.at(i + 3)));
      if (!(worst <= (a == b ? 0 : 1e-6)))
        out += way + "losses off by " + std::to_string(worst * 1e6) + "e-6; ";
    }
  }
  return out;
}

}  // namespace meshwright
