// What a rank holds at its fullest under fsdp2, with batches so small that activations hardly
// count: the closed form of the state, the root and the last unit, and a few layers on their way.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "engine/job/plan.h"
#include "engine/models/running/causal_lm.h"
#include "engine/models/running/initialize.h"
#include "engine/train/step/memory.h"
#include "engine/train/step/optimizer.h"
#include "meshwright/parallel/testing.h"
#include "meshwright/trainer.h"

namespace memory_test {

using namespace meshwright;

namespace {

constexpr int64_t kLayers = 8, kHidden = 256, kInner = 688, kVocabulary = 256;
constexpr int64_t kLayer =
    4 * (4 * kHidden * kHidden + 3 * kHidden * kInner + 2 * kHidden);  // bytes of parameters
constexpr int64_t kRoot = 4 * (2 * kVocabulary * kHidden + kHidden);

std::string model_file() {
  std::filesystem::path path = std::filesystem::temp_directory_path() /
                               ("meshwright_memory_test_" + std::to_string(::getpid()) + ".json");
  std::ofstream(path)
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 688,
    "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 128, "tie_word_embeddings": false})";
  return path.string();
}

struct Use {
  int64_t state = 0, settled = 0,
          peak =
              0;  // bytes of a rank: values, gradients, optimizer; live between steps; live at most
};

Use measure(const std::string& model, int64_t ranks,
            const std::vector<std::pair<std::string, std::string>>& keys) {
  std::mutex mutex;
  Use worst;
  run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
    Job job =
        Job::from_text("schema = 1\n[model]\nconfig = \"" + model +
                       "\"\n[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = "
                       "\"float32\"\n[dataset]\nkind = \"mock\"\n"
                       "seq_len = 4\n[step_scheduler]\nlocal_batch_size = 1\nglobal_batch_size = " +
                       std::to_string(ranks) + "\n");
    for (const auto& [key, value] : keys) job.set(key, value);
    train::MemoryMeter meter(at::kCPU);
    modules::CausalLM net = modules::build_model(model, DType::float32, at::kMeta);
    Trainer trainer(job, world, net.ptr(), net->outline(), 4);
    for (const ParallelParameter& p : trainer.model().parameters()) modules::initialize(*net, p, 1);
    trainer.model().after_optimizer_step();
    Use use;
    for (int step = 0; step < 4; ++step) {
      if (step == 2) meter.reset_peak();
      trainer.step([&](int64_t) {
        at::Tensor ids = at::randint(0, kVocabulary, {1, 5}, at::kLong);
        return MicroBatchLoss{
            at::cross_entropy_loss(net(ids.narrow(1, 0, 4)).flatten(0, 1),
                                   ids.narrow(1, 1, 4).flatten(), {}, at::Reduction::Sum),
            4};
      });
    }
    for (const FlatParameterGroup& group : trainer.model().update_groups())
      use.state += static_cast<int64_t>(group.values.nbytes() + group.grads.nbytes());
    for (const train::Optimizer::State& s : train::optimizer_of(trainer).state())
      for (const at::Tensor& t : s.tensors) use.state += static_cast<int64_t>(t.nbytes());
    use.settled = meter.live();
    use.peak = meter.peak();
    std::lock_guard lock(mutex);
    worst.state = std::max(worst.state, use.state);
    worst.settled = std::max(worst.settled, use.settled);
    worst.peak = std::max(worst.peak, use.peak);
  });
  return worst;
}

}  // namespace

TEST_CASE(
    "a rank of fsdp2 holds its share of the state, and of the rest what the prefetch depth says") {
  std::string model = model_file();
  auto depth = [](const char* forward, const char* backward) {
    return std::vector<std::pair<std::string, std::string>>{
        {"distributed.fsdp2.enable_fsdp2_prefetch", "true"},
        {"distributed.fsdp2.fsdp2_forward_prefetch_depth", forward},
        {"distributed.fsdp2.fsdp2_backward_prefetch_depth", backward}};
  };
  struct Row {
    int64_t ranks;
    std::vector<std::pair<std::string, std::string>> keys;
    int64_t depth;
  };
  for (bool shared : {false, true}) {
    ::setenv("MESHWRIGHT_SHARED_MEMORY", shared ? "1" : "0", 1);
    for (const Row& row : std::vector<Row>{{2, {}, 2},
                                           {4, {}, 2},
                                           {2, depth("1", "1"), 1},
                                           {2, depth("1", "2"), 2},
                                           {2, depth("3", "3"), 3}}) {
      CAPTURE(shared);
      CAPTURE(row.ranks);
      CAPTURE(row.depth);
      Use use = measure(model, row.ranks, row.keys);
      int64_t total = kLayers * kLayer + kRoot, share = 4 * total / row.ranks;
      CHECK(use.state >= share);
      CHECK(static_cast<double>(use.state) < 1.02 * static_cast<double>(share));
      // What shared memory holds is not the allocator's: room for a rank's gathers and reductions.
      int64_t slots = shared ? kLayer / row.ranks * ((row.keys.empty() ? 2 : row.depth + 1) + 2) +
                                   2 * kLayer / row.ranks * (row.ranks - 1)
                             : 0;
      auto layers = [&](int64_t bytes) {
        return static_cast<double>(bytes) / static_cast<double>(kLayer);
      };
      // Root and last layer keep parameters and get gradients; of the others, depth + 1 have
      // parameters and two gradients.
      double transient = layers(use.peak - use.state - 2 * kRoot - 2 * kLayer), activations = 0.4;
      std::string what = std::to_string(row.ranks) + " ranks, depth " + std::to_string(row.depth) +
                         (shared ? ", shared memory" : ", sockets");
      MESSAGE(what, std::string(": layers on their way "), transient,
              std::string(", and in shared memory "), layers(slots));
      CHECK(transient <= static_cast<double>(row.depth + 1 + 2) + activations);
      CHECK(transient + layers(slots) <= static_cast<double>(row.depth + 1 + 2) + activations);
    }
  }
  ::unsetenv("MESHWRIGHT_SHARED_MEMORY");
  std::filesystem::remove(model);
}

// Before the first step: values, gradients, and under ddp the copy that computes.
TEST_CASE("beside adapters a base takes the memory that the plan says, by the dtype of its own") {
  const std::string model = model_file();
  struct Row {
    const char* strategy;
    std::vector<std::pair<std::string, std::string>> keys = {};
  };
  const std::pair<std::string, std::string> replicate{"lora.base_sharding", "\"replicate\""};
  for (const Row& row : std::vector<Row>{{"ddp"},
                                         {"fsdp2"},
                                         {"megatron_fsdp"},
                                         {"fsdp2", {{"distributed.tp_size", "2"}}},
                                         {"fsdp2", {replicate}},
                                         {"megatron_fsdp", {replicate}}})
    for (const auto& [dtype, stored] :
         {std::pair("auto", DType::float32), std::pair("float32", DType::float32),
          std::pair("auto", DType::bfloat16)}) {
      const std::string strategy = row.strategy, base = dtype, whole(dtype_name(stored)),
                        more = row.keys.empty() ? "" : row.keys.front().first;
      // What is kept whole is in the dtype that computes; what tp alone cuts is cast on the way.
      if (!more.empty() && base != "auto") continue;
      CAPTURE(strategy);
      CAPTURE(more);
      CAPTURE(base);
      CAPTURE(whole);
      std::mutex mutex;
      int64_t planned = 0, live = 0;
      run_ranks(2, [&](const std::shared_ptr<World>& world) {
        Job job;
        for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
                 {"model.config", '"' + model + '"'},
                 {"distributed.strategy", '"' + strategy + '"'},
                 {"dataset.kind", "\"mock\""},
                 {"dataset.seq_len", "4"},
                 {"step_scheduler.global_batch_size", "2"},
                 {"step_scheduler.local_batch_size", "1"},
                 {"lora.r", "8"},
                 {"model.torch_dtype", '"' + whole + '"'},
                 {"lora.base_dtype", '"' + base + '"'}})
          job.set(key, value);
        for (const auto& [key, value] : row.keys) job.set(key, value);
        train::MemoryMeter meter(at::kCPU);
        modules::CausalLM net = modules::build_model(model, parse_dtype(whole), at::kMeta);
        Trainer trainer(job, world, net.ptr(), net->outline(), 4);
        const Bytes& bytes = trainer.plan().footprint->bytes;
        std::lock_guard lock(mutex);
        if (world->rank() != 0) return;
        live = meter.live();
        planned = bytes.weights + bytes.gradients + (strategy == "ddp" ? bytes.transient : 0);
      });
      CHECK(static_cast<double>(live) ==
            doctest::Approx(static_cast<double>(planned)).epsilon(0.05));
    }
  std::filesystem::remove(model);
}

}  // namespace memory_test
