// The jobs that run on the fake device: every strategy with its options on 1, 2, 4 and 8 ranks.
// ctest runs a sample of them, tests/fake_device/matrix all.
#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "jobs.h"

namespace fake_device_jobs {

namespace {

const std::string kFirst = "first_fsdp2_cpu", kMegatron = "megatron_fsdp_cpu",
                  kExperts = "experts_cpu";
const std::string kBf16 = "distributed.mp_policy.param_dtype=bfloat16",
                  kBf16Out = "distributed.mp_policy.output_dtype=bfloat16";
const std::string kFloat8Linear = "model.float8_linear=true";
const std::string kTp = "distributed.tp_size=2", kSp = "distributed.sequence_parallel=true",
                  kAsyncTp = "distributed.enable_async_tensor_parallel=true";
const std::string kDdp = "distributed.strategy=ddp",
                  kOffload = "distributed.fsdp2.offload_policy=cpu",
                  kFull = "distributed.activation_checkpointing=full",
                  kSelective = "distributed.activation_checkpointing=selective";
const std::string kLevel = "distributed.megatron_fsdp.zero_dp_strategy=",
                  kNoMeta = "distributed.megatron_fsdp.init_fsdp_with_meta_device=false";
const std::string kEp = "distributed.strategy=moe_ep", kEp2 = "distributed.ep_size=2",
                  kToAll = "distributed.moe.dispatcher=all_to_all",
                  kGather = "distributed.moe.dispatcher=all_gather";
const std::string kPp = "distributed.pp_size=2",
                  kPpBatch = "distributed.pipeline.pp_microbatch_size=2",
                  kPpOne = "distributed.pipeline.pp_microbatch_size=1",
                  kSchedule = "distributed.pipeline.pp_schedule=";
const std::string kQuick = "model.config=configs/models/llama-quickstart.json";
const std::string kWindows = "model.config=configs/models/gemma3-tiny.json";
const std::string kWide = "model.config=tests/fake_device/llama_8_heads.json";
const std::string kSmall = "step_scheduler.local_batch_size=2";    // for more ranks
const std::string kFewer = "step_scheduler.global_batch_size=16",  // of megatron_fsdp_cpu
    kTwoMicroBatches = "step_scheduler.global_batch_size=8";
const Strings kClipped{"optimizer.name=sgd", "optimizer.lr=0.5", "optimizer.max_grad_norm=0.01"};
const std::string kCp = "distributed.cp_size=2", kRing = "distributed.context.ring_size=2",
                  kUlysses = "distributed.context.ulysses_size=2",
                  kAllKeys = "distributed.context.method=all_gather";
// No backward comes to the first layer; and it passes through all of them.
const std::string kFrozenBelow =
                      R"(optimizer.group=[{pattern="model.embed_tokens.*", frozen=true}, )"
                      R"({pattern="model.layers.0.*", frozen=true}])",
                  kFrozenTower = R"(optimizer.group=[{pattern="model.layers.*", frozen=true}])";
// Routing weights are rounded after other operators than on the CPU.
constexpr double kRouted = 2e-4;
// kQuick has twice the layers of kFirst's model: under fsdp2, too, norms differ by 3e-4.
constexpr double kQuickHalf = 5e-4;
// Three layers of six norms each, of queries and keys among them: norms of gradients differ by
// 2.5e-4, and in float32 as little as any.
constexpr double kGemmaHalf = 5e-4;

Row job(std::string name, const std::string& config, int ranks, Strings sets,
        double tolerance = kFloat) {
  return {std::move(name), config, ranks, std::move(sets), tolerance};
}
// One of those that ctest runs, or that it would run if none of them did the same beside more.
Row sample(Row row) {
  row.sample = true;
  return row;
}
Row within(Row row) {
  row.within = true;
  return row;
}
Row megatron(const std::string& name, const std::string& level, Strings more, int ranks = 2) {
  Strings sets{kLevel + level, kNoMeta};
  if (ranks < 8) sets.push_back(kFewer);
  std::move(more.begin(), more.end(), std::back_inserter(sets));
  return {"megatron_fsdp " + level + name, kMegatron, ranks, sets};
}
std::string of_megatron(const char* set) { return std::string("distributed.megatron_fsdp.") + set; }

// Two steps, and as many as are watched in another run.
Row continued(const std::string& name, const std::string& config, int ranks, Strings sets) {
  return {"continued" + name, config, ranks, std::move(sets), kFloat, kWatchedSteps + 2, 2};
}

// In a save ranks agree three times: they tell each other how long their words are, and then these,
// with a copy each way. For copies of 21 parameters and two averages of each the host waits once,
// where it writes behind the step not even that: its thread that writes does.
constexpr int64_t kAgreed = 3 * 4, kSaved = 1;

// How often a host waits in a step beside once for its sums and once for its norm. Both jobs have
// two micro-batches, of experts two layers. Gradients that go to the host are there with the sums.
// Bounds of experts stay on the device, in float32 as well, and all ranks are known to bring
// equally many tokens. On so many ranks, if it depends on them.
constexpr int64_t kSizes = 2 * 2;  // of the messages to experts
const std::map<std::string, int64_t> kMoreWaits{
    {"tp, sequence parallel, offload", 1},  // gradients that tp sums up, on their way back
    {"fsdp2, offload, not pinned", 3},      // gradients of a unit, one copy each
    {"megatron_fsdp 2, reports of NaN", 4 * 21 + 1},  // each gradient of four micro-batches
    {"experts, ep 2", kSizes},
    {"experts, ep 2, bfloat16", kSizes},
    {"continued, experts, ep 2", kSizes},
    {"experts, ep 2, recomputation", kSizes},  // told once
    {"experts, ep 2 of 4", 2},                 // one micro-batch
    {"experts, ep 2 of 8", 2},
    {"experts, ep 4", 2},
    {"saved every step", kSaved + kAgreed},
    {"saved every step, asynchronous", kAgreed},
    {"saved every step, asynchronous, offload", kAgreed},
};

}  // namespace

const std::vector<Row> kJobs{
    job("ddp", kFirst, 1, {kDdp}),
    within(job("ddp", kFirst, 2, {kDdp})),
    job("ddp", kFirst, 4, {kDdp}),
    job("ddp", kFirst, 8, {kDdp, kSmall}),
    job("ddp, bfloat16", kFirst, 2, {kDdp, kBf16, kBf16Out}, kHalf),
    job("ddp, recomputation", kFirst, 2, {kDdp, kFull}),
    job("ddp, no bucket views", kFirst, 2, {kDdp, "distributed.ddp.gradient_as_bucket_view=false"}),
    job("ddp, small buckets", kFirst, 2, {kDdp, "distributed.ddp.bucket_cap_mb=0.1"}),
    job("fsdp2", kFirst, 1, {}),
    within(job("fsdp2", kFirst, 2, {})),
    job("fsdp2", kFirst, 4, {}),
    job("fsdp2", kFirst, 8, {kSmall}),
    sample(job("fsdp2, bfloat16", kFirst, 2, {kBf16, kBf16Out}, kHalf)),
    job("fsdp2, bfloat16, float32 reduction", kFirst, 2,
        {kBf16, kBf16Out, "distributed.mp_policy.reduce_dtype=float32"}, kHalf),
    job("fsdp2, bfloat16, four layers", kFirst, 2, {kQuick, kBf16, kBf16Out}, kQuickHalf),
    sample(job("fsdp2, bfloat16, float8", kFirst, 2, {kFloat8Linear, kBf16, kBf16Out}, kFloat8)),
    job("fsdp2, bfloat16, float8, recomputation", kFirst, 2,
        {kFloat8Linear, kBf16, kBf16Out, kFull}, kFloat8),
    within(
        job("fsdp2, gathered once", kFirst, 2, {"distributed.fsdp2.reshard_after_forward=false"})),
    job("fsdp2, prefetch", kFirst, 2, {"distributed.fsdp2.enable_fsdp2_prefetch=true"}),
    job("fsdp2, reduction in every micro-batch", kFirst, 2,
        {"distributed.fsdp2.defer_fsdp_grad_sync=false"}),
    job("fsdp2, offload", kFirst, 1, {kOffload}),
    within(job("fsdp2, offload", kFirst, 2, {kOffload})),
    sample(job("fsdp2, offload, not pinned", kFirst, 2,
               {kOffload, "distributed.fsdp2.offload_pin_memory=false"})),
    job("fsdp2, offload, bfloat16", kFirst, 2, {kOffload, kBf16, kBf16Out}, kHalf),
    within(job("fsdp2, recomputation", kFirst, 2, {kFull})),
    job("fsdp2, selective recomputation", kFirst, 2, {kSelective}),
    job("fsdp2, offload, recomputation", kFirst, 4, {kOffload, kFull}),
    job("fsdp2, frozen from below", kFirst, 2, {kFrozenBelow}),
    job("fsdp2, frozen tower", kFirst, 2, {kFrozenTower}),
    job("fsdp2, frozen tower, recomputation", kFirst, 2, {kFrozenTower, kFull}),
    job("HSDP", kFirst, 4, {"distributed.dp_replicate_size=2"}),
    job("HSDP", kFirst, 8, {"distributed.dp_replicate_size=2", kSmall}),
    job("HSDP, offload", kFirst, 4, {"distributed.dp_replicate_size=2", kOffload}),
    within(megatron("", "0", {})),
    megatron("", "1", {}),
    megatron("", "2", {}),
    megatron("", "3", {}),
    megatron("", "3", {}, 1),
    megatron("", "3", {}, 4),
    megatron("", "3", {}, 8),
    job("megatron_fsdp 3, meta device", kMegatron, 2, {kFewer}),
    megatron(", double buffer", "3", {of_megatron("fsdp_double_buffer=true")}),
    megatron(", registered buffers", "3", {of_megatron("nccl_ub=true")}),
    megatron(", no overlap", "1",
             {of_megatron("overlap_param_gather=false"), of_megatron("overlap_grad_reduce=false")}),
    megatron(", average in the collective", "3", {of_megatron("average_in_collective=true")}),
    megatron(", reports of NaN", "2", {of_megatron("report_nan_in_param_grad=true")}),
    megatron(", no check of NaN", "2", {of_megatron("check_for_nan_in_grad=false")}),
    megatron(", no buckets", "3", {of_megatron("disable_bucketing=true")}),
    megatron(", loss per token", "1", {of_megatron("calculate_per_token_loss=true")}),
    megatron(", loss per token", "3", {of_megatron("calculate_per_token_loss=true")}),
    megatron(", units by class", "3",
             {of_megatron(R"(megatron_fsdp_unit_modules=["LlamaMLP", "LlamaAttention"])")}),
    job("megatron_fsdp 2, bfloat16", kMegatron, 2,
        {kLevel + "2", kNoMeta, kFewer, kBf16, of_megatron("preserve_fp32_weights=true"),
         of_megatron("grad_reduce_in_fp32=true")},
        kHalf),
    job("megatron_fsdp 3, recomputation", kMegatron, 2, {kFewer, kFull}),
    within(job("tp", kFirst, 2, {kTp})),
    job("tp x fsdp2", kFirst, 4, {kTp}),
    job("tp x fsdp2", kFirst, 8, {kTp}),
    within(job("tp, sequence parallel", kFirst, 2, {kTp, kSp})),
    sample(job("tp, sequence parallel, asynchronous", kFirst, 2, {kTp, kSp, kAsyncTp})),
    job("tp of 4, sequence parallel, asynchronous", kFirst, 4,
        {kWide, "distributed.tp_size=4", kSp, kAsyncTp}),
    job("tp, sequence parallel, asynchronous, bfloat16", kFirst, 2,
        {kTp, kSp, kAsyncTp, kBf16, kBf16Out}, kHalf),
    job("tp x fsdp2, sequence parallel, recomputation", kFirst, 4, {kTp, kSp, kFull}),
    sample(job("tp x fsdp2, recomputation, offload", kFirst, 4, {kTp, kFull, kOffload})),
    job("tp, bfloat16", kFirst, 2, {kTp, kBf16, kBf16Out}, kHalf),
    within(job("tp, bfloat16, float8", kFirst, 2, {kTp, kFloat8Linear, kBf16, kBf16Out}, kFloat8)),
    within(job("experts, fsdp2", kExperts, 2, {})),
    job("experts, fsdp2, recomputation", kExperts, 2, {kFull}),
    sample(job("experts, ep 2", kExperts, 2, {kEp, kEp2, kToAll})),
    job("experts, ep 2, all-gather", kExperts, 2, {kEp, kEp2, kGather}),
    job("experts, ep 2 of 4", kExperts, 4, {kEp, kEp2, kToAll}),
    job("experts, ep 2 of 4, all-gather", kExperts, 4, {kEp, kEp2, kGather}),
    job("experts, ep 4", kExperts, 4, {kEp, "distributed.ep_size=4", kToAll}),
    job("experts, ep 2 of 8", kExperts, 8, {kEp, kEp2, kToAll, kSmall}),
    job("experts, ep 2, recomputation", kExperts, 2, {kEp, kEp2, kToAll, kFull}),
    sample(job("experts, fsdp2, bfloat16", kExperts, 2, {kBf16, kBf16Out}, kRouted)),
    job("experts, ep 2, bfloat16", kExperts, 2, {kEp, kEp2, kToAll, kBf16, kBf16Out}, kRouted),
    job("experts, ep 2, all-gather, bfloat16", kExperts, 2, {kEp, kEp2, kGather, kBf16, kBf16Out},
        kRouted),
    job("adapters", kFirst, 2, {"lora.r=4"}),
    sample(job("windows", kFirst, 2, {kWindows})),
    job("windows, bfloat16", kFirst, 2, {kWindows, kBf16, kBf16Out}, kGemmaHalf),
    job("windows, tp", kFirst, 2, {kWindows, kTp}),
    sample(job("cp, ring", kFirst, 2, {kCp, kRing})),
    sample(job("cp, ulysses", kFirst, 2, {kCp, kUlysses})),
    job("cp, all-gather", kFirst, 2, {kCp, kAllKeys}),
    job("cp, ring of 4", kFirst, 4, {"distributed.cp_size=4", "distributed.context.ring_size=4"}),
    job("cp, ring, windows", kFirst, 2, {kWindows, kCp, kRing}),
    job("cp, ring x ulysses", kFirst, 4, {"distributed.cp_size=4", kRing, kUlysses}),
    job("cp x tp", kFirst, 4, {kTp, kCp}),
    job("cp, ring, bfloat16", kFirst, 2, {kCp, kRing, kBf16, kBf16Out}, kHalf),
    job("cp, ulysses, bfloat16", kFirst, 2, {kCp, kUlysses, kBf16, kBf16Out}, kHalf),
    job("cp, all-gather, bfloat16", kFirst, 2, {kCp, kAllKeys, kBf16, kBf16Out}, kHalf),
    job("pp, GPipe", kFirst, 2, {kPp, kPpBatch, kSchedule + "GPipe"}),
    within(job("pp, 1F1B", kFirst, 2, {kPp, kPpBatch, kSchedule + "1F1B"})),
    job("pp x fsdp2, 1F1B", kFirst, 4, {kPp, kPpBatch, kSchedule + "1F1B"}),
    job("pp x tp x fsdp2, 1F1B", kFirst, 8, {kPp, kPpBatch, kSchedule + "1F1B", kTp}),
    job("pp of 4, 1F1B", kFirst, 4, {kQuick, "distributed.pp_size=4", kPpOne, kSchedule + "1F1B"}),
    job("pp of 4, GPipe", kFirst, 4,
        {kQuick, "distributed.pp_size=4", kPpOne, kSchedule + "GPipe"}),
    job("pp, interleaved", kFirst, 2, {kQuick, kPp, kPpBatch, kSchedule + "Interleaved1F1B"}),
    sample(job("pp, ZBV", kFirst, 2, {kQuick, kPp, kPpBatch, kSchedule + "ZBVZeroBubble"})),
    job("pp, 1F1B, bfloat16", kFirst, 2, {kPp, kPpBatch, kSchedule + "1F1B", kBf16, kBf16Out},
        kHalf),
    job("pp x fsdp2, 1F1B, bfloat16", kFirst, 4,
        {kPp, kPpBatch, kSchedule + "1F1B", kBf16, kBf16Out}, kHalf),
    job("pp, ZBV, bfloat16", kFirst, 2,
        {kQuick, kPp, kPpBatch, kSchedule + "ZBVZeroBubble", kBf16, kBf16Out}, kQuickHalf),
    within(job("saved every step", kFirst, 2, {"checkpoint.every_steps=1"})),
    sample(job("saved every step, asynchronous", kFirst, 2,
               {"checkpoint.every_steps=1", "checkpoint.async=true"})),
    job("saved every step, asynchronous, offload", kFirst, 2,
        {"checkpoint.every_steps=1", "checkpoint.async=true", kOffload}),
    continued("", kFirst, 2, {}),
    continued(", asynchronous save", kFirst, 2, {"checkpoint.async=true"}),
    continued(", ddp", kFirst, 2, {kDdp}),
    continued(", megatron_fsdp 3", kMegatron, 2, {kFewer}),
    continued(", experts, ep 2", kExperts, 2, {kEp, kEp2, kToAll}),
    continued(", tp x fsdp2", kFirst, 4, {kTp}),
    // By SGD, which shows a factor that AdamW hardly does: the optimizer multiplies with it.
    within(job("clipped", kFirst, 2, kClipped)),
    sample(job("clipped, ddp", kFirst, 2, {kDdp, kClipped[0], kClipped[1], kClipped[2]})),
    within(job("segments that grow", kFirst, 2, {"dist_env.expandable_segments=true"})),
    // Where they begin, the host has read.
    sample(job("documents, selective recomputation", kFirst, 2,
               {"dataset.packing=true", "dataset.document_end=7", kSelective})),
    // The first run trains on while it saves.
    sample({"hybrid, continued",
            kFirst,
            4,
            {"distributed.dp_replicate_size=2", "checkpoint.async=true"},
            kFloat,
            kWatchedSteps,
            2,
            {"checkpoint.every_steps=1"}}),
    sample(job("megatron_fsdp 1, two micro-batches", kMegatron, 2,
               {kLevel + "1", kNoMeta, kTwoMicroBatches})),
    sample(job("megatron_fsdp 2, double buffer", kMegatron, 2,
               {kLevel + "2", kNoMeta, of_megatron("fsdp_double_buffer=true"), kTwoMicroBatches})),
    sample(job("megatron_fsdp 3, meta device, registered buffers", kMegatron, 2,
               {of_megatron("nccl_ub=true"), kTwoMicroBatches})),
    within(job("tp, sequence parallel, offload", kFirst, 2, {kTp, kSp, kOffload})),
    // By all_gather, which costs less on a device; the CPU's are sent by all_to_all.
    sample(job("experts, ep 2, by what costs less", kExperts, 2, {kEp, kEp2})),
    // The sum of the embedding's and the head's gradient goes to the host, too.
    sample(job("pp, 1F1B, tied, offload", kFirst, 2,
               {"model.config=tests/data/nets/llama_tied_257/config.json", "dataset.seq_len=64",
                kPp, kSchedule + "1F1B", kPpBatch, kOffload})),
};

const Row& job_called(const std::string& name) {
  return *std::find_if(kJobs.begin(), kJobs.end(),
                       [&](const Row& one) { return one.name == name && one.ranks == 2; });
}

int64_t most_waits(const std::string& name, int ranks) {
  auto found = kMoreWaits.find(name + " on " + std::to_string(ranks));
  if (found == kMoreWaits.end()) found = kMoreWaits.find(name);
  return 2 + (found != kMoreWaits.end() ? found->second : 0);
}

}  // namespace fake_device_jobs
