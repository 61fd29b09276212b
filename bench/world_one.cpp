// What a strategy costs where there is nothing to share: one rank under ddp and fsdp2 beside a bare
// LibTorch loop (forward, backward, norm and clip, fused AdamW), the same net and batches, step by
// step in turns.
//
//   build/bin/bench_world_one [--steps N] [--hidden H --layers L --batch B]
#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <malloc.h>
#include <torch/nn/utils/clip_grad.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "engine/models/running/causal_lm.h"
#include "engine/models/running/initialize.h"
#include "meshwright/trainer.h"

using namespace meshwright;
using at::Tensor;
using Clock = std::chrono::steady_clock;

namespace {

struct Sizes {
  int64_t hidden = 256, layers = 8, batch = 2, steps = 40, length = 128;
};

std::string model_file(const Sizes& s) {
  std::string path = (std::filesystem::temp_directory_path() /
                      ("bench_world_one_" + std::to_string(::getpid()) + ".json"))
                         .string();
  std::ofstream(path)
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": )"
      << s.hidden << R"(, "intermediate_size": )" << s.hidden * 43 / 16
      << R"(, "num_hidden_layers": )" << s.layers
      << R"(, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 256,
  "rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "tie_word_embeddings": false})";
  return path;
}

Tensor loss_of(modules::CausalLM& net, const Tensor& ids) {
  int64_t length = ids.size(1) - 1;
  return at::cross_entropy_loss(net(ids.narrow(1, 0, length)).flatten(0, 1),
                                ids.narrow(1, 1, length).flatten(), {}, at::Reduction::Sum);
}

// The loop a LibTorch user writes, with the fused optimizer.
struct Bare {
  explicit Bare(const std::string& model)
      : net(modules::build_model(model, DType::float32, at::kCPU)) {
    for (auto& item : net->named_parameters()) {
      ParallelParameter p;
      p.name = item.key();
      p.local = item.value().detach();
      p.global_shape = item.value().sizes().vec();
      p.region = Region::whole(p.global_shape);
      modules::initialize(*net, p, 1);
      values.push_back(item.value());
    }
    for (const Tensor& v : values) {
      average.push_back(at::zeros_like(v));
      square.push_back(at::zeros_like(v));
    }
  }
  double step(const Tensor& ids) {
    Tensor loss = loss_of(net, ids) / static_cast<double>(ids.size(0) * (ids.size(1) - 1));
    loss.backward();
    double norm = torch::nn::utils::clip_grad_norm_(values, 1.0);
    c10::NoGradGuard no_grad;
    std::vector<Tensor> grads;
    for (Tensor& v : values) grads.push_back(v.grad());
    std::vector<Tensor> counts(values.size(), at::full({}, static_cast<double>(++steps)));
    at::_fused_adamw_(values, grads, average, square, {}, counts, 1e-3, 0.9, 0.95, 0.1, 1e-8, false,
                      false);
    for (Tensor& v : values) v.mutable_grad() = Tensor();
    return loss.item<double>() + 0 * norm;
  }
  modules::CausalLM net;
  std::vector<Tensor> values, average, square;
  int64_t steps = 0;
};

struct Ours {
  Ours(const std::string& model, const char* strategy, const Sizes& s)
      : job(Job::from_text(
            "schema = 1\n[model]\nconfig = \"" + model + "\"\n[distributed]\nstrategy = \"" +
            strategy +
            "\"\n[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = "
            "\"float32\"\n[dataset]\nkind = \"mock\"\nseq_len = "
            "128\n"
            "[step_scheduler]\nlocal_batch_size = " +
            std::to_string(s.batch) + "\nglobal_batch_size = " + std::to_string(s.batch) +
            "\n[optimizer]\nlr = 1e-3\nweight_decay = 0.1\n[lr_scheduler]\nlr_decay_style = "
            "\"constant\"\nlr_warmup_steps = 0\n")),
        net(modules::build_model(model, DType::float32, at::kMeta)),
        trainer(job, World::single(), net.ptr(), net->outline(), s.batch * s.length) {
    for (const ParallelParameter& p : trainer.model().parameters()) modules::initialize(*net, p, 1);
    trainer.model().after_optimizer_step();
  }
  double step(const Tensor& ids) {
    return trainer
        .step([&](int64_t) {
          return MicroBatchLoss{loss_of(net, ids), ids.size(0) * (ids.size(1) - 1)};
        })
        .loss;
  }
  Job job;
  modules::CausalLM net;
  Trainer trainer;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

}  // namespace

int main(int argc, char** argv) {
  Sizes s;
  for (int i = 1; i + 1 < argc; i += 2) {
    int64_t n = std::atoll(argv[i + 1]);
    if (!std::strcmp(argv[i], "--steps")) s.steps = n;
    if (!std::strcmp(argv[i], "--hidden")) s.hidden = n;
    if (!std::strcmp(argv[i], "--layers")) s.layers = n;
    if (!std::strcmp(argv[i], "--batch")) s.batch = n;
  }
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // as the program does: for all of them
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  at::set_num_threads(1);
  std::string model = model_file(s);
  Bare bare(model);
  Ours ddp(model, "ddp", s), fsdp2(model, "fsdp2", s);
  std::filesystem::remove(model);
  std::vector<double> times[3], ratios[3];
  double worst = 0;
  for (int64_t i = 0; i < s.steps + 3; ++i) {
    Tensor ids = at::randint(0, 256, {s.batch, s.length + 1}, at::kLong);
    double ms[3], loss[3];
    for (int k = 0; k < 3; ++k) {
      int who = static_cast<int>((i + k) % 3);  // each goes first in turn
      auto begin = Clock::now();
      loss[who] = who == 0 ? bare.step(ids) : who == 1 ? ddp.step(ids) : fsdp2.step(ids);
      ms[who] = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    }
    for (int k = 1; k < 3; ++k) worst = std::max(worst, std::abs(loss[k] / loss[0] - 1));
    if (i < 3) continue;
    for (int k = 0; k < 3; ++k) {
      times[k].push_back(ms[k]);
      ratios[k].push_back(ms[k] / ms[0]);
    }
  }
  std::printf("hidden %ld, %ld layers, batch %ld x %ld, 1 thread, %ld steps in turns\n",
              long(s.hidden), long(s.layers), long(s.batch), long(s.length), long(s.steps));
  std::printf("%-10s %12s %22s\n", "", "median ms", "median ratio to bare");
  const char* names[] = {"bare", "ddp", "fsdp2"};
  for (int k = 0; k < 3; ++k)
    std::printf("%-10s %12.2f %22.3f\n", names[k], median(times[k]), median(ratios[k]));
  std::printf("largest difference of a loss: %.1e\n", worst);
  return 0;
}
