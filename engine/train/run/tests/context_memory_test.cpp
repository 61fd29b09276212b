// What a rank of cp holds at its fullest, beside what its plan says. Before doctest: LibTorch has a
// CHECK of its own.
#include <ATen/ops/empty.h>

#include "engine/train/run/tests/small_run.h"

#include <doctest/doctest.h>

#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "engine/job/plan.h"
#include "engine/train/run/tests/small_models.h"
#include "engine/train/step/memory.h"
#include "engine/train/step/tests/causal_loss.h"
#include "meshwright/parallel/testing.h"
#include "sdk/comm/tests/sampled.h"

namespace context_memory_test {

using namespace meshwright;

namespace {

struct Shape {
  const char* name;
  int64_t heads, kv_heads, layers;
  const char* more = "";
};

std::string write_shape(const std::filesystem::path& folder, const Shape& s) {
  const std::filesystem::path path = folder / (std::string(s.name) + ".json");
  std::ofstream(path)
      << R"({"architectures": [")" << (*s.more ? "Mistral" : "Llama")
      << R"(ForCausalLM"], "model_type": ")" << (*s.more ? "mistral" : "llama")
      << R"(", "hidden_size": 32, "intermediate_size": 88, "vocab_size": 32, "rms_norm_eps": 1e-6,
"max_position_embeddings": 16384, "tie_word_embeddings": false, "num_attention_heads": )"
      << s.heads << R"(, "num_key_value_heads": )" << s.kv_heads << R"(, "num_hidden_layers": )"
      << s.layers << s.more << "}";
  return path.string();
}

std::vector<std::string> shared_by(const std::string& method) {
  return {"distributed.cp_size=2", "distributed.context.method=\"" + method + "\""};
}

// Bytes of shared memory between ranks that this process has mapped: files without a name.
int64_t mapped_bytes() {
  std::ifstream maps("/proc/self/maps");
  int64_t sum = 0;
  for (std::string line; std::getline(maps, line);) {
    uint64_t from = 0, to = 0;
    const bool shared = line.find("/dev/shm/#") != std::string::npos ||
                        line.find("/memfd:meshwright") != std::string::npos;
    if (shared && std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64, &from, &to) == 2)
      sum += static_cast<int64_t>(to - from);
  }
  return sum;
}

// Bytes of a rank, the largest of all.
struct Use {
  int64_t before = 0;  // tensors when the step begins
  int64_t peak = 0;    // tensors at their most
  int64_t room = 0;    // in shared memory
  Bytes planned;
  int64_t step() const { return peak - before + room; }
};

Use measure(const std::string& model, int64_t ranks, int64_t length, int steps,
            const std::vector<std::string>& sets) {
  Use worst;
  std::mutex mutex;
  run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
    Job job = Job::from_text(
        "schema = 1\n[model]\nconfig = \"" + model +
            "\"\n[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = \"float32\"\n"
            "[dataset]\nkind = \"mock\"\nseq_len = " +
            std::to_string(length) +
            "\n[step_scheduler]\nlocal_batch_size = 1\nglobal_batch_size = 1\n",
        sets);
    train::MemoryMeter meter(at::kCPU);
    modules::CausalLM net = modules::build_model(model, DType::float32, at::kMeta);
    Trainer trainer(job, world, net.ptr(), net->outline(), length);
    for (const ParallelParameter& p : trainer.model().parameters()) modules::initialize(*net, p, 1);
    trainer.model().after_optimizer_step();
    Use use;
    for (int step = 0; step < steps; ++step) {
      meter.reset_peak();
      use.before = meter.live();
      trainer.step([&](int64_t) {
        at::Tensor ids = at::empty({1, length + 1}, at::kLong).fill_(3);
        return train::loss_of(trainer, net, ids);
      });
      use.peak = meter.peak();
    }
    use.planned = trainer.plan().footprint->bytes;
    world->everyone()->barrier();
    std::lock_guard lock(mutex);
    worst.room = mapped_bytes() / ranks;
    worst.planned = use.planned;
    worst.before = std::max(worst.before, use.before);
    worst.peak = std::max(worst.peak, use.peak);
  });
  return worst;
}

}  // namespace

TEST_CASE("context parallel: a rank holds what its plan says, by every method") {
  TestFolder folder("context_memory");
  size_t number = 0;  // half: each shape by every second method
  for (const Shape& shape : {Shape{"whole", 4, 4, 6}, Shape{"grouped", 4, 2, 6},
                             Shape{"window", 4, 2, 6, R"(, "sliding_window": 300)"}}) {
    size_t turn = number++;
    for (const char* method : {"", "all_gather", "ring", "ulysses"}) {
      if (!sampled(turn++, 2)) continue;
      const std::string model = write_shape(folder.path, shape);
      const Use use =
          *method ? measure(model, 2, 2048, 3, shared_by(method)) : measure(model, 1, 2048, 3, {});
      const int64_t planned = use.planned.transient + use.planned.activations;
      INFO(std::string(shape.name) << " " << std::string(method));
      CAPTURE(use.peak - use.before);
      CAPTURE(use.room);
      CAPTURE(planned);
      const double far = static_cast<double>(use.step()) / static_cast<double>(planned);
      MESSAGE(std::string(shape.name) << " " << std::string(method) << ": " << far);
      CHECK(far > 0.95);
      CHECK(far < 1.05);
    }
  }
}

TEST_CASE("layers that are frozen from the beginning on keep nothing, as planned") {
  TestFolder folder("frozen_memory");
  const std::string model = write_shape(folder.path, {"grouped", 4, 2, 6});
  std::vector<std::string> sets = {
      R"(optimizer.group=[{pattern = "*embed*", frozen = true},
          {pattern = "model.layers.[0-3].*", frozen = true}])"};
  const Use all = measure(model, 1, 2048, 2, {});
  for (const char* recomputed : {"none", "full"}) {
    CAPTURE(std::string(recomputed));
    if (*recomputed == 'f') sets.emplace_back("distributed.activation_checkpointing=\"full\"");
    const Use use = measure(model, 1, 2048, 2, sets);
    const double far = static_cast<double>(use.step()) /
                       static_cast<double>(use.planned.transient + use.planned.activations);
    MESSAGE(std::string(recomputed) << ": " << far);
    CHECK(far > 0.95);
    CHECK(far < 1.05);
    CHECK(use.step() < all.step() / 2);
  }
}

TEST_CASE("context parallel: two ranks hold little more than half the activations each") {
  TestFolder folder("context_memory_half");
  const std::string model = write_shape(folder.path, {"grouped", 4, 2, 6});
  const Use alone = measure(model, 1, 8192, 1, {});
  // By the others it is what their plans say, as above.
  const Use use = measure(model, 2, 8192, 1, shared_by("ring"));
  const double part = static_cast<double>(use.step()) / static_cast<double>(alone.step()),
               planned = static_cast<double>(use.planned.activations) /
                         static_cast<double>(alone.planned.activations);
  MESSAGE(part << ", planned " << planned);
  CHECK(part <= 0.55);
  CHECK(planned <= 0.55);
}

}  // namespace context_memory_test
