// What a run holds beside what its layout costs, by hand: on a device, on the host, with dropout of
// adapters. Bytes are those of 32 tokens of floats, 128 for each element of a token.
#include <algorithm>
#include <string>

#include "footprint_job.h"
#include "sdk/base/run_memory.h"
#include "sdk/base/shared_schemas.h"

using namespace meshwright;
using namespace meshwright::testing;

namespace {

constexpr int64_t kToken = 32 * 4;

Job small_job(const LlamaSizes& sizes, int64_t world) {
  Job job{.outline = llama_outline(sizes), .world = world};
  job.work = {.local_batch = 2, .seq_len = 16};
  return job;
}

Bytes run_bytes(const ShardingRequest& request, const ShardingPlan& plan,
                const MemoryFacts& facts) {
  Bytes out = footprint_of(request, plan).bytes;
  count_run_memory(request, plan, facts, out);
  return out;
}

Bytes of_rows(const Job& job, const MemoryFacts& facts, const ShardingPolicy& policy = {}) {
  return run_bytes(job.request(), fully_sharded_plan(job.request(), policy), facts);
}
Bytes of_copies(const Job& job, const MemoryFacts& facts) {
  return run_bytes(job.request(), replicated_plan(job.request(), {}), facts);
}

}  // namespace

// A layer keeps 116 elements of a token (footprint_test.cpp), and the head 16 and 32 logits.
TEST_CASE("on a device the gradient of the logits takes their place") {
  Job job = small_job({.layers = 4}, 2);
  job.plan_ddp();
  CHECK(of_copies(job, {}).activations == kToken * (4 * 116 + 16 + 2 * 32));
  CHECK(of_copies(job, {.where = MemoryFacts::Where::host}).activations ==
        kToken * (4 * 116 + 16 + 2 * 32));
  // As the head goes back, the gradient of its input: 8.
  const Bytes device = of_copies(job, {.where = MemoryFacts::Where::device});
  CHECK(device.activations == kToken * (4 * 116 + 16 + 32 + 8));
  CHECK(device.transient == 0);
  Job odd = small_job({.layers = 4, .vocab = 31}, 2);  // no row of them has whole 16 bytes
  odd.plan_ddp();
  CHECK(of_copies(odd, {.where = MemoryFacts::Where::device}).activations ==
        kToken * (4 * 116 + 16 + 2 * 31));
  job.config.shared().mp.param = DType::bfloat16;  // the logits are cast: 32 of two bytes beside 32
  CHECK(of_copies(job, {.where = MemoryFacts::Where::device}).activations ==
        32 * (2 * (4 * 116 + 16) + 4 * 32 + 2 * 32));
}

TEST_CASE("with few words the last mlp's backward is the fullest moment") {
  Job job = small_job({.layers = 4, .vocab = 2}, 2);
  job.plan_ddp();
  // Gradients of its two halves, 20 each, and of its output, 8; the third takes the place of what
  // was kept for it.
  CHECK(of_copies(job, {}).activations == kToken * (4 * 116 + 48));
}

TEST_CASE("on a device the gradients of shards come with the backward of their units") {
  Job job = small_job({.layers = 4}, 2);
  job.plan();
  const Bytes host = of_rows(job, {.where = MemoryFacts::Where::host}),
              device = of_rows(job, {.where = MemoryFacts::Where::device});
  // 4 layers of 688 elements and 520 outside, halved.
  const int64_t all = (4 * 688 + 520) * 4 / 2, come = (688 + 520) * 4 / 2;
  CHECK(host.gradients == all);
  CHECK(device.gradients == all);
  CHECK(host.activations == kToken * (4 * 116 + 16 + 2 * 32));
  // The last layer's backward, with its own and the root's gradients and no others.
  CHECK(device.activations + all == kToken * (4 * 116 + 48) + come);
  job.work.accumulation = 2;
  CHECK(of_rows(job, {.where = MemoryFacts::Where::device}).activations == device.activations);
  // From the first micro-batch on.
  const ShardingPolicy each{.reduction = {.every_micro_batch = true}};
  CHECK(of_rows(job, {.where = MemoryFacts::Where::device}, each).activations ==
        kToken * (4 * 116 + 16 + 32 + 8));
}

TEST_CASE("one rank runs as copies: all that is cast stays, or autograd's gradients come") {
  Job job = small_job({.layers = 6}, 1);
  job.plan();
  constexpr int64_t elements = 6 * 688 + 520, all = elements * 4;
  // The head's turn to backward, when no gradient is there, or the end, when all are.
  const int64_t head = kToken * (6 * 116 + 16 + 2 * 32),
                last = kToken * (6 * 116 + 48) + (688 + 520) * 4;
  CHECK(of_rows(job, {}).activations == std::max(head, last) - all);
  CHECK(of_rows(job, {}).transient == 0);
  job.work.accumulation = 2;  // they are there from the first micro-batch on
  CHECK(of_rows(job, {}).activations == head);
  job.mp.param = DType::bfloat16;
  job.plan();
  CHECK(of_rows(job, {}).transient == elements * 2);
}

TEST_CASE("a root larger than all other units takes the host's sockets, and their buffers stay") {
  Job job = small_job({.layers = 4, .vocab = 256}, 2);
  job.work.accumulation = 2;
  job.plan();
  const int64_t root = (2 * 256 * 8 + 8) * 4, layer = 688 * 4;
  const int64_t before = of_rows(job, {}).transient;
  // Gathered once more; half of its gradient goes out, and as much comes.
  CHECK(of_rows(job, {.where = MemoryFacts::Where::host}).transient == before + root + root);
  CHECK(of_rows(job, {.where = MemoryFacts::Where::device}).transient == before);
  // With one micro-batch no gradient is there yet at the fullest moment, which were counted.
  job.work.accumulation = 1;
  CHECK(of_rows(job, {.where = MemoryFacts::Where::host}).transient ==
        of_rows(job, {}).transient + 2 * root - (root + 2 * layer));
  Job small = small_job({.layers = 4}, 2);  // 520 elements beside layers of 688
  small.plan();
  CHECK(of_rows(small, {.where = MemoryFacts::Where::host}).transient ==
        of_rows(small, {}).transient);
}

TEST_CASE("experts keep their rows and their first product; on the host in steps, and scratch") {
  Job job = small_job({.layers = 4, .experts = 4, .active = 2}, 2);
  job.plan_ddp();
  // Norms 16, inputs of attention and router 16, inside attention 24; two rows of 8 and of 2 x 20.
  const int64_t layer = 16 + 16 + 24 + 2 * (8 + 40);
  // In backward, of two rows each: gradients of what they gave and got, of the first product and of
  // the second one's input, and that input made again; and the gradient of the layer's output.
  CHECK(of_copies(job, {}).activations == kToken * (4 * layer + 2 * (8 + 8 + 40 + 20 + 20) + 8));
  // 64 rows, 16 of each expert: in the mean 4 more of each, and 4 more of all of them.
  constexpr int64_t rows = 64 + 4 * 4 + 4;
  const int64_t padded = 16 + 16 + 24 + rows * 8 / 32 + rows * 40 / 32;
  CHECK(of_copies(job, {.where = MemoryFacts::Where::host}).activations ==
        kToken * (4 * padded + 16 + 2 * 32) + (rows / 4 * 20 + rows * (40 + 20)) * 5);
}

TEST_CASE("what adapters drop takes a byte for each element that they read") {
  Job job = small_job({.layers = 4}, 2);
  job.plan_ddp();
  for (const char* linear : {"model.layers.1.mlp.down_proj", "model.layers.2.self_attn.q_proj"})
    add_adapter(job.outline, linear);
  const int64_t kept = kToken * (4 * 116 + 2 * 3 + 16 + 2 * 32);
  CHECK(of_copies(job, {}).activations == kept);
  CHECK(of_copies(job, {.drops = true}).activations == kept + 32 * (20 + 8));
  job.config.shared().activation_checkpointing = ActivationCheckpointing::full;
  // One layer's at a time: the last one that has some has less before it than the last layer.
  CHECK(of_copies(job, {.drops = true}).activations == of_copies(job, {}).activations);
}
