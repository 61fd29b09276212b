// What each rank of a pipeline holds at its fullest, beside what its plan says. Before doctest:
// LibTorch has a CHECK of its own.
#include "engine/train/run/tests/context_layouts.h"
#include "sdk/comm/tests/sampled.h"

#include <doctest/doctest.h>

#include "engine/job/plan.h"
#include "engine/train/step/memory.h"
#include "engine/train/step/optimizer.h"
#include "engine/train/step/tests/causal_loss.h"
#include "sdk/comm/tests/shared_memory_switch.h"

namespace pipeline_memory_test {

using namespace meshwright;

namespace {

// Of a rank: tensors at their most, less what it holds between steps; and what the plan says of
// both.
struct Use {
  int64_t peak = 0, state = 0;
  Bytes planned;
};

// `beside`: how many ranks share each stage, and by what.
struct Beside {
  int64_t ranks = 1;
  std::vector<std::string> sets = {};
  int64_t tokens = 512;
};

std::vector<Use> measure(const std::string& model, int64_t pp, const std::string& schedule,
                         int64_t micro_batches, const Beside& beside = {}) {
  std::vector<Use> out(static_cast<size_t>(pp * beside.ranks));
  run_ranks(pp * beside.ranks, [&](const std::shared_ptr<World>& world) {
    std::vector<std::string> sets{"distributed.pp_size=" + std::to_string(pp),
                                  "distributed.pipeline.pp_schedule=\"" + schedule + "\""};
    sets.insert(sets.end(), beside.sets.begin(), beside.sets.end());
    Job job = Job::from_text(
        "schema = 1\n[model]\nconfig = \"" + model +
            "\"\n[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = \"float32\"\n"
            "[dataset]\nkind = \"mock\"\nseq_len = " +
            std::to_string(beside.tokens) +
            "\n[step_scheduler]\nlocal_batch_size = 1\nglobal_batch_size = " +
            std::to_string(micro_batches) + "\n",
        sets);
    train::MemoryMeter meter(at::kCPU);
    modules::CausalLM net = modules::build_model(model, DType::float32, at::kMeta);
    Trainer trainer(job, world, net.ptr(), net->outline(), beside.tokens);
    for (const ParallelParameter& p : trainer.model().parameters()) modules::initialize(*net, p, 1);
    trainer.model().after_optimizer_step();
    // The last one counts: the optimizer's state comes in the first.
    for (int step = 0; step < steps_of(2, 3); ++step) {
      meter.reset_peak();
      trainer.step([&](int64_t, const at::Tensor& hidden) {
        at::Tensor ids = at::empty({1, beside.tokens + 1}, at::kLong).fill_(3);
        return train::loss_of(trainer, net, ids, hidden);
      });
    }
    Use& use = out[static_cast<size_t>(world->rank())];
    use.peak = meter.peak();
    for (const FlatParameterGroup& group : trainer.model().update_groups())
      use.state += static_cast<int64_t>(group.values.nbytes() + group.grads.nbytes());
    for (const train::Optimizer::State& s : train::optimizer_of(trainer).state())
      for (const at::Tensor& t : s.tensors) use.state += static_cast<int64_t>(t.nbytes());
    use.planned = trainer.plan().footprint->bytes;
  });
  return out;
}

void check(const std::vector<Use>& uses, const std::string& what) {
  constexpr double kMost = 0.05;
  for (size_t rank = 0; rank < uses.size(); ++rank) {
    const Use& use = uses[rank];
    const Bytes& b = use.planned;
    const int64_t planned = b.weights + b.gradients + b.optimizer + b.transient + b.activations;
    const double far = static_cast<double>(use.peak) / static_cast<double>(planned),
                 moving = static_cast<double>(use.peak - use.state) /
                          static_cast<double>(b.transient + b.activations);
    INFO(what << ", rank " << rank);
    MESSAGE(what << ", rank " << rank << ": peak over plan " << far << ", without the state "
                 << moving);
    CHECK(far > 1 - kMost);
    CHECK(far < 1 + kMost);
    CHECK(moving > 1 - 1.4 * kMost);
    CHECK(moving < 1 + 1.4 * kMost);
  }
}

std::string model_of(const TestFolder& folder) {
  return write_model(
      folder.path,
      {"layers", "LlamaForCausalLM", "llama", 32, 4, 4, 64,
       R"(, "num_hidden_layers": 16, "tie_word_embeddings": false, "intermediate_size": 88)"});
}

}  // namespace

TEST_CASE("pipeline memory: each rank holds what its plan says, under every schedule") {
  // What was sent stays with the sender, as on devices, and not in memory that two ranks share.
  const meshwright::testing::SharedMemory sockets(false);
  TestFolder folder("pipeline_memory");
  const std::string model = model_of(folder);
  size_t turn = 0;
  for (const auto& [pp, schedule] :
       std::vector<std::pair<int64_t, const char*>>{{2, "GPipe"},
                                                    {2, "1F1B"},
                                                    {2, "LoopedBFS"},
                                                    {2, "Interleaved1F1B"},
                                                    {2, "InterleavedZeroBubble"},
                                                    {2, "ZBVZeroBubble"},
                                                    {2, "DualPipeV"},
                                                    {4, "GPipe"},
                                                    {4, "1F1B"},
                                                    {4, "LoopedBFS"},
                                                    {4, "Interleaved1F1B"},
                                                    {4, "InterleavedZeroBubble"},
                                                    {4, "ZBVZeroBubble"},
                                                    {4, "DualPipeV"}}) {
    if (!all_layouts() && turn++ % 2 == 0) continue;  // these over shared memory, below
    check(measure(model, pp, schedule, 2 * pp), "pp " + std::to_string(pp) + ", " + schedule);
  }
}

// The plan is that of devices and sockets, where what was sent stays with the sender until it has
// gone. Between ranks of one host it lies in memory that two ranks share, which is not a tensor's.
TEST_CASE("pipeline memory: over shared memory no rank holds more than its plan says") {
  const meshwright::testing::SharedMemory shared(true);
  TestFolder folder("pipeline_memory_shared");
  const std::string model = model_of(folder);
  size_t turn = 0;  // half: each schedule on two ranks or on four
  for (const int64_t pp : {2, 4})
    for (const std::string& schedule :
         std::vector<std::string>{"GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B",
                                  "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}) {
      if (!sampled(turn++, 2)) continue;
      for (const Use& use : measure(model, pp, schedule, 2 * pp)) {
        const Bytes& b = use.planned;
        const double far = static_cast<double>(use.peak) /
                           static_cast<double>(b.weights + b.gradients + b.optimizer + b.transient +
                                               b.activations);
        INFO(pp << " ranks, " << schedule);
        MESSAGE(pp << " ranks, " << schedule << ": peak over plan " << far);
        CHECK(far < 1.05);
        CHECK(far > 0.85);  // what was sent: 10% where a stage is one layer
      }
    }
}

TEST_CASE("pipeline memory: recomputation, and stages that are not alike") {
  const meshwright::testing::SharedMemory sockets(false);
  TestFolder folder("pipeline_memory_uneven");
  const std::string model = model_of(folder);
  size_t turn = 0;  // a quarter: four schedules with one of these each
  for (const char* schedule :
       {"GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"}) {
    const std::string name = schedule;
    for (const char* how : {"full", "selective"})
      if (sampled(turn++, 4))
        check(measure(model, 2, name, 4,
                      {1,
                       {std::string("distributed.activation_checkpointing=\"") + how + "\""},
                       1024}),  // a layer's 5 kB of generator state are less beside it
              name + ", recomputation " + how);
    if (sampled(turn++, 4))
      check(measure(model, 2, name, 4,
                    {1,
                     {"distributed.pipeline.first_stage_less_layers=2",
                      "distributed.pipeline.last_stage_less_layers=1"}}),
            name + ", uneven stages");
  }
}

TEST_CASE("pipeline memory: beside shards, cut weights and parts of samples") {
  const meshwright::testing::SharedMemory sockets(false);
  TestFolder folder("pipeline_memory_beside");
  const std::string model = model_of(folder);
  size_t number = 0;
  for (const char* schedule :
       {"1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"}) {
    const std::string name = schedule;
    struct Row {
      const char* name;
      int64_t micro_batches;
      std::vector<std::string> sets;
    };
    // Half: each schedule beside two or three of these, each of these beside two schedules.
    size_t turn = number++;
    for (const Row& row : std::vector<Row>{
             {"two shards", 8, {}},
             {"gathered for each pass", 8, {"distributed.fsdp2.reshard_after_forward=true"}},
             {"cp 2", 4, {"distributed.cp_size=2"}},
             {"tp 2", 4, {"distributed.tp_size=2"}},
             {"tp 2 with parts of sequences",
              4,
              {"distributed.tp_size=2", "distributed.sequence_parallel=true"}}})
      if (sampled(turn++, 2))
        check(measure(model, 2, name, row.micro_batches, {2, row.sets}), name + ", " + row.name);
  }
}

}  // namespace pipeline_memory_test
