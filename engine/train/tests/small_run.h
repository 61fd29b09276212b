// A small Llama that trains on any layout, on samples that know nothing of ranks.
#pragma once

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/nets/causal_lm.h"
#include "engine/nets/initialize.h"
#include "meshwright/trainer.h"

namespace meshwright {

inline const std::string kModel = MESHWRIGHT_SOURCE_DIR "/configs/models/llama-tiny.json";
inline constexpr int64_t kBatch = 12, kLength = 8;

struct Layout {
  const char* strategy;
  int64_t ranks;
  std::vector<std::string> sets = {};
  std::string text() const { return std::string(strategy) + " on " + std::to_string(ranks) + (sets.empty() ? "" : " " + sets[0]); }
};

// Sample number `position` of an endless order that knows nothing of ranks.
inline void fill_sample(int64_t position, int64_t* out) {
  uint64_t state = static_cast<uint64_t>(position) * 0x9e3779b97f4a7c15u + 7;
  for (int64_t i = 0; i <= kLength; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out[i] = static_cast<int64_t>(state >> 56);
  }
}

struct Rank {
  Rank(const Layout& layout, const std::shared_ptr<World>& world, const std::vector<std::string>& sets = {})
      : job(make(layout, sets)),
        net(nets::build_model(kModel, DType::float32, at::kMeta)),
        trainer(job, world, net.ptr(), net->outline(), kLength) {}
  static Job make(const Layout& layout, const std::vector<std::string>& more) {
    std::vector<std::string> sets{"distributed.strategy=" + std::string(layout.strategy)};
    sets.insert(sets.end(), layout.sets.begin(), layout.sets.end());
    sets.insert(sets.end(), more.begin(), more.end());
    return Job::from_text("schema = 1\n[model]\nconfig = \"" + kModel +
                              "\"\n[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = \"float32\"\n"
                              "[dataset]\nkind = \"mock\"\nseq_len = 8\n[optimizer]\nlr = 1e-3\n[lr_scheduler]\nlr_warmup_steps = 2\n"
                              "[step_scheduler]\nlocal_batch_size = 1\nglobal_batch_size = 12\nmax_steps = 40\n",
                          sets);
  }
  void initialize() {
    for (const ParallelParameter& p : trainer.model().parameters()) nets::initialize(*net, p, 1);
    trainer.model().values_changed();
  }
  StepResult step() {
    int64_t first = trainer.next_step() * kBatch;
    return trainer.step([&](int64_t micro) {
      at::Tensor ids = at::empty({1, kLength + 1}, at::kLong);
      fill_sample(first + micro * trainer.data_parallel_size() + trainer.data_parallel_rank(), ids.mutable_data_ptr<int64_t>());
      at::Tensor logits = net(ids.narrow(1, 0, kLength));
      return MicroLoss{at::cross_entropy_loss(logits.flatten(0, 1), ids.narrow(1, 1, kLength).flatten(), {}, at::Reduction::Sum, -100),
                       kLength};
    });
  }
  Job job;
  nets::CausalLM net;
  Trainer trainer;
};

}  // namespace meshwright
