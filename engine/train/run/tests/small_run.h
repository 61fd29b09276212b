// A small model, Llama unless told otherwise, that trains on any layout, on samples that know
// nothing of ranks.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/models/running/causal_lm.h"
#include "engine/models/running/initialize.h"
#include "engine/train/step/local_state.h"
#include "engine/train/step/stages.h"
#include "engine/train/step/tests/causal_loss.h"
#include "meshwright/nn/stage.h"
#include "meshwright/trainer.h"

namespace meshwright {

inline const std::string kModel = MESHWRIGHT_SOURCE_DIR "/configs/models/llama-tiny.json";
inline constexpr int64_t kBatch = 12, kLength = 8;

struct Layout {
  const char* strategy;
  int64_t ranks;
  std::vector<std::string> sets = {};
  std::string model = kModel;
  int64_t batch = kBatch;
  DType storage = DType::float32;
  std::string text() const {
    std::string out = std::string(strategy) + " on " + std::to_string(ranks);
    for (const std::string& set : sets) out += " " + set;
    return out;
  }
};

// Sample number `position` of an endless order that knows nothing of ranks.
inline void fill_sample(int64_t position, int64_t vocabulary, int64_t* out) {
  uint64_t state = static_cast<uint64_t>(position) * 0x9e3779b97f4a7c15u + 7;
  for (int64_t i = 0; i <= kLength; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out[i] = static_cast<int64_t>((state >> 32) * static_cast<uint64_t>(vocabulary) >> 32);
  }
}

struct Rank {
  // `prepare`: what is done to the model before it is parallelized. `expected`: targets of a
  // micro-batch, as the trainer is told.
  Rank(const Layout& layout, const std::shared_ptr<World>& world,
       const std::function<void(torch::nn::Module&)>& prepare = {}, int64_t expected = kLength)
      : job(make(layout)),
        net(prepared(layout, prepare)),
        trainer(job, world, net.ptr(), net->outline(), expected),
        batch(layout.batch) {}
  static modules::CausalLM prepared(const Layout& layout,
                                    const std::function<void(torch::nn::Module&)>& prepare) {
    modules::CausalLM out = modules::build_model(layout.model, layout.storage, at::kMeta);
    if (prepare) prepare(*out);
    return out;
  }
  static Job make(const Layout& layout) {
    std::vector<std::string> sets{"distributed.strategy=" + std::string(layout.strategy)};
    sets.push_back("step_scheduler.global_batch_size=" + std::to_string(layout.batch));
    sets.insert(sets.end(), layout.sets.begin(), layout.sets.end());
    return Job::from_text(
        "schema = 1\n[model]\nconfig = \"" + layout.model +
            "\"\n[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = \"float32\"\n"
            "[dataset]\nkind = \"mock\"\nseq_len = 8\n[optimizer]\nlr = "
            "1e-3\n[lr_scheduler]\nlr_warmup_steps = 2\n"
            "[step_scheduler]\nlocal_batch_size = 1\nmax_steps = 40\n",
        sets);
  }
  // Norms are not all ones and biases not all zeros, so that a misplaced one changes something.
  void initialize() {
    c10::NoGradGuard no_grad;
    for (ParallelParameter p : trainer.model().parameters()) {
      if (trainer.stages() != nullptr)
        p.name = train::stored_name(trainer.stages()->outline(), p.name);
      modules::initialize(*net, p, 1);
      if (p.global_shape.size() != 1) continue;
      at::Tensor local = p.local;
      int64_t from =
          (p.region.flat() ? 0 : p.region.offsets[0]) + std::max<int64_t>(p.region.begin, 0);
      // Every rank computes the sines of the whole parameter and takes its part: a vectorised sine
      // and that of the elements left over differ in the last digit, so sines of the part alone
      // would depend on where it begins, and bfloat16 rounds some of them apart.
      at::Tensor waves =
          at::arange(p.global_shape[0], at::kFloat).sin_().mul_(0.1).to(local.scalar_type());
      local.add_(waves.narrow(0, from, local.numel()));
    }
    trainer.model().after_optimizer_step();
  }
  // `spoil`: what losses are multiplied by.
  StepResult step(double spoil = 1) {
    int64_t first = trainer.next_step() * batch, rows = trainer.local_batch();
    return trainer.step([&](int64_t micro, const at::Tensor& hidden) {
      at::Tensor ids = at::empty({rows, kLength + 1}, at::kLong);
      int64_t from =
          first + (micro * trainer.data_parallel_size() + trainer.data_parallel_rank()) * rows;
      for (int64_t row = 0; row < rows; ++row)
        fill_sample(from + row, net->outline().vocab_size,
                    ids.mutable_data_ptr<int64_t>() + row * (kLength + 1));
      MicroBatchLoss out = train::loss_of(trainer, net, ids, hidden);
      if (spoil != 1 && current_stage().last) out.sum = out.sum * spoil;
      return out;
    });
  }
  Job job;
  modules::CausalLM net;
  Trainer trainer;
  int64_t batch;
};

}  // namespace meshwright
