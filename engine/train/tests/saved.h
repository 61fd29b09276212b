// Runs that are saved on one layout and go on on another. Before doctest.h: LibTorch has a CHECK of its own.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/train/tests/small_run.h"
#include "meshwright/testing.h"

namespace meshwright {

// Every tensor of a checkpoint, gathered, as bytes.
inline std::map<std::string, std::string> contents(const std::filesystem::path& path) {
  checkpoint::Checkpoint from(path);
  std::map<std::string, std::string> out;
  for (const checkpoint::TensorRecord& tensor : from.meta().tensors) {
    checkpoint::Region whole = checkpoint::Region::whole(tensor.shape);
    std::string bytes(static_cast<size_t>(whole.count() * dtype_size(tensor.dtype)), '\0');
    from.read(tensor, whole, tensor.dtype, bytes.data());
    out[tensor.state + "/" + tensor.name] = std::move(bytes);
  }
  return out;
}

// Losses of `steps` steps after loading `from` ("": from fresh weights), and a checkpoint before step `save_at`.
inline std::vector<double> losses_of(const Layout& layout, const std::filesystem::path& from, int steps,
                                     const std::filesystem::path& save_after = {}, int save_at = -1) {
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

}  // namespace meshwright
