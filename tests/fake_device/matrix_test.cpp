// The whole matrix: every strategy with its options on 1, 2, 4 and 8 fake devices, each with three
// seeds of delays, beside the CPU. tests/fake_device/matrix runs it and keeps the table. Long
// because of the rows.
#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "jobs.h"

namespace matrix_test {

using namespace fake_device_jobs;

const std::string kFirst = "first_fsdp2_cpu", kMegatron = "megatron_fsdp_cpu",
                  kExperts = "experts_cpu";
const std::string kBf16 = "distributed.mp_policy.param_dtype=bfloat16",
                  kBf16Out = "distributed.mp_policy.output_dtype=bfloat16";
const std::string kFloat8Linear = "model.float8_linear=true";
const std::string kTp = "distributed.tp_size=2", kSp = "distributed.sequence_parallel=true",
                  kAsyncTp = "distributed.enable_async_tensor_parallel=true";
const std::string kDdp = "distributed.strategy=ddp", kFsdp2 = "distributed.strategy=fsdp2",
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
const std::string kFewer = "step_scheduler.global_batch_size=16";  // of megatron_fsdp_cpu
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

const std::vector<Row> kMatrix{
    {"ddp", kFirst, 1, {kDdp}},
    {"ddp", kFirst, 2, {kDdp}},
    {"ddp", kFirst, 4, {kDdp}},
    {"ddp", kFirst, 8, {kDdp, kSmall}},
    {"ddp, bfloat16", kFirst, 2, {kDdp, kBf16, kBf16Out}, kHalf},
    {"ddp, recomputation", kFirst, 2, {kDdp, kFull}},
    {"ddp, no bucket views", kFirst, 2, {kDdp, "distributed.ddp.gradient_as_bucket_view=false"}},
    {"ddp, small buckets", kFirst, 2, {kDdp, "distributed.ddp.bucket_cap_mb=0.1"}},
    {"fsdp2", kFirst, 1, {}},
    {"fsdp2", kFirst, 2, {}},
    {"fsdp2", kFirst, 4, {}},
    {"fsdp2", kFirst, 8, {kSmall}},
    {"fsdp2, bfloat16", kFirst, 2, {kBf16, kBf16Out}, kHalf},
    {"fsdp2, bfloat16, float32 reduction",
     kFirst,
     2,
     {kBf16, kBf16Out, "distributed.mp_policy.reduce_dtype=float32"},
     kHalf},
    {"fsdp2, bfloat16, four layers", kFirst, 2, {kQuick, kBf16, kBf16Out}, kQuickHalf},
    {"fsdp2, bfloat16, float8", kFirst, 2, {kFloat8Linear, kBf16, kBf16Out}, kFloat8},
    {"fsdp2, bfloat16, float8, recomputation",
     kFirst,
     2,
     {kFloat8Linear, kBf16, kBf16Out, kFull},
     kFloat8},
    {"fsdp2, gathered once", kFirst, 2, {"distributed.fsdp2.reshard_after_forward=false"}},
    {"fsdp2, prefetch", kFirst, 2, {"distributed.fsdp2.enable_fsdp2_prefetch=true"}},
    {"fsdp2, reduction in every micro-batch",
     kFirst,
     2,
     {"distributed.fsdp2.defer_fsdp_grad_sync=false"}},
    {"fsdp2, offload", kFirst, 1, {kOffload}},
    {"fsdp2, offload", kFirst, 2, {kOffload}},
    {"fsdp2, offload, not pinned",
     kFirst,
     2,
     {kOffload, "distributed.fsdp2.offload_pin_memory=false"}},
    {"fsdp2, offload, bfloat16", kFirst, 2, {kOffload, kBf16, kBf16Out}, kHalf},
    {"fsdp2, recomputation", kFirst, 2, {kFull}},
    {"fsdp2, selective recomputation", kFirst, 2, {kSelective}},
    {"fsdp2, offload, recomputation", kFirst, 4, {kOffload, kFull}},
    {"fsdp2, frozen from below", kFirst, 2, {kFrozenBelow}},
    {"fsdp2, frozen tower", kFirst, 2, {kFrozenTower}},
    {"fsdp2, frozen tower, recomputation", kFirst, 2, {kFrozenTower, kFull}},
    {"HSDP", kFirst, 4, {"distributed.dp_replicate_size=2"}},
    {"HSDP", kFirst, 8, {"distributed.dp_replicate_size=2", kSmall}},
    {"HSDP, offload", kFirst, 4, {"distributed.dp_replicate_size=2", kOffload}},
    megatron("", "0", {}),
    megatron("", "1", {}),
    megatron("", "2", {}),
    megatron("", "3", {}),
    megatron("", "3", {}, 1),
    megatron("", "3", {}, 4),
    megatron("", "3", {}, 8),
    {"megatron_fsdp 3, meta device", kMegatron, 2, {kFewer}},
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
    {"megatron_fsdp 2, bfloat16",
     kMegatron,
     2,
     {kLevel + "2", kNoMeta, kFewer, kBf16, of_megatron("preserve_fp32_weights=true"),
      of_megatron("grad_reduce_in_fp32=true")},
     kHalf},
    {"megatron_fsdp 3, recomputation", kMegatron, 2, {kFewer, kFull}},
    {"tp", kFirst, 2, {kTp}},
    {"tp x fsdp2", kFirst, 4, {kTp}},
    {"tp x fsdp2", kFirst, 8, {kTp}},
    {"tp, sequence parallel", kFirst, 2, {kTp, kSp}},
    {"tp, sequence parallel, asynchronous", kFirst, 2, {kTp, kSp, kAsyncTp}},
    {"tp of 4, sequence parallel, asynchronous",
     kFirst,
     4,
     {kWide, "distributed.tp_size=4", kSp, kAsyncTp}},
    {"tp, sequence parallel, asynchronous, bfloat16",
     kFirst,
     2,
     {kTp, kSp, kAsyncTp, kBf16, kBf16Out},
     kHalf},
    {"tp x fsdp2, sequence parallel, recomputation", kFirst, 4, {kTp, kSp, kFull}},
    {"tp x fsdp2, recomputation, offload", kFirst, 4, {kTp, kFull, kOffload}},
    {"tp, bfloat16", kFirst, 2, {kTp, kBf16, kBf16Out}, kHalf},
    {"tp, bfloat16, float8", kFirst, 2, {kTp, kFloat8Linear, kBf16, kBf16Out}, kFloat8},
    {"experts, fsdp2", kExperts, 2, {}},
    {"experts, fsdp2, recomputation", kExperts, 2, {kFull}},
    {"experts, ep 2", kExperts, 2, {kEp, kEp2, kToAll}},
    {"experts, ep 2, all-gather", kExperts, 2, {kEp, kEp2, kGather}},
    {"experts, ep 2 of 4", kExperts, 4, {kEp, kEp2, kToAll}},
    {"experts, ep 2 of 4, all-gather", kExperts, 4, {kEp, kEp2, kGather}},
    {"experts, ep 4", kExperts, 4, {kEp, "distributed.ep_size=4", kToAll}},
    {"experts, ep 2 of 8", kExperts, 8, {kEp, kEp2, kToAll, kSmall}},
    {"experts, ep 2, recomputation", kExperts, 2, {kEp, kEp2, kToAll, kFull}},
    {"experts, fsdp2, bfloat16", kExperts, 2, {kBf16, kBf16Out}, kRouted},
    {"experts, ep 2, bfloat16", kExperts, 2, {kEp, kEp2, kToAll, kBf16, kBf16Out}, kRouted},
    {"experts, ep 2, all-gather, bfloat16",
     kExperts,
     2,
     {kEp, kEp2, kGather, kBf16, kBf16Out},
     kRouted},
    {"adapters", kFirst, 2, {"lora.r=4"}},
    {"windows", kFirst, 2, {kWindows}},
    {"windows, bfloat16", kFirst, 2, {kWindows, kBf16, kBf16Out}, kGemmaHalf},
    {"windows, tp", kFirst, 2, {kWindows, kTp}},
    {"cp, ring", kFirst, 2, {kCp, kRing}},
    {"cp, ulysses", kFirst, 2, {kCp, kUlysses}},
    {"cp, all-gather", kFirst, 2, {kCp, kAllKeys}},
    {"cp, ring of 4", kFirst, 4, {"distributed.cp_size=4", "distributed.context.ring_size=4"}},
    {"cp, ring, windows", kFirst, 2, {kWindows, kCp, kRing}},
    {"cp, ring x ulysses", kFirst, 4, {"distributed.cp_size=4", kRing, kUlysses}},
    {"cp x tp", kFirst, 4, {kTp, kCp}},
    {"cp, ring, bfloat16", kFirst, 2, {kCp, kRing, kBf16, kBf16Out}, kHalf},
    {"cp, ulysses, bfloat16", kFirst, 2, {kCp, kUlysses, kBf16, kBf16Out}, kHalf},
    {"cp, all-gather, bfloat16", kFirst, 2, {kCp, kAllKeys, kBf16, kBf16Out}, kHalf},
    {"pp, GPipe", kFirst, 2, {kPp, kPpBatch, kSchedule + "GPipe"}},
    {"pp, 1F1B", kFirst, 2, {kPp, kPpBatch, kSchedule + "1F1B"}},
    {"pp x fsdp2, 1F1B", kFirst, 4, {kPp, kPpBatch, kSchedule + "1F1B"}},
    {"pp x tp x fsdp2, 1F1B", kFirst, 8, {kPp, kPpBatch, kSchedule + "1F1B", kTp}},
    {"pp of 4, 1F1B", kFirst, 4, {kQuick, "distributed.pp_size=4", kPpOne, kSchedule + "1F1B"}},
    {"pp of 4, GPipe", kFirst, 4, {kQuick, "distributed.pp_size=4", kPpOne, kSchedule + "GPipe"}},
    {"pp, interleaved", kFirst, 2, {kQuick, kPp, kPpBatch, kSchedule + "Interleaved1F1B"}},
    {"pp, ZBV", kFirst, 2, {kQuick, kPp, kPpBatch, kSchedule + "ZBVZeroBubble"}},
    {"pp, 1F1B, bfloat16", kFirst, 2, {kPp, kPpBatch, kSchedule + "1F1B", kBf16, kBf16Out}, kHalf},
    {"pp x fsdp2, 1F1B, bfloat16",
     kFirst,
     4,
     {kPp, kPpBatch, kSchedule + "1F1B", kBf16, kBf16Out},
     kHalf},
    {"pp, ZBV, bfloat16",
     kFirst,
     2,
     {kQuick, kPp, kPpBatch, kSchedule + "ZBVZeroBubble", kBf16, kBf16Out},
     kQuickHalf},
    {"saved every step", kFirst, 2, {"checkpoint.every_steps=1"}},
    {"saved every step, asynchronous",
     kFirst,
     2,
     {"checkpoint.every_steps=1", "checkpoint.async=true"}},
    {"saved every step, asynchronous, offload",
     kFirst,
     2,
     {"checkpoint.every_steps=1", "checkpoint.async=true", kOffload}},
    continued("", kFirst, 2, {}),
    continued(", asynchronous save", kFirst, 2, {"checkpoint.async=true"}),
    continued(", ddp", kFirst, 2, {kDdp}),
    continued(", megatron_fsdp 3", kMegatron, 2, {kFewer}),
    continued(", experts, ep 2", kExperts, 2, {kEp, kEp2, kToAll}),
    continued(", tp x fsdp2", kFirst, 4, {kTp}),
};
constexpr int kSeeds = 3, kTokens = 16;
constexpr size_t kEmbedSteps = 11;

// Of the first ones.
double largest_difference(const std::vector<double>& got, const std::vector<double>& want,
                          size_t most = SIZE_MAX) {
  if (got.size() != want.size() || got.empty()) return INFINITY;
  double out = 0;
  for (size_t i = 0; i < std::min(got.size(), most); ++i) {
    const double difference = std::abs(got[i] - want[i]) / std::abs(want[i]);
    if (!(difference <= out)) out = difference;  // also what is not a number
  }
  return out;
}

// Of all seeds of a job.
struct Found {
  double loss = 0, norm = 0, seconds = 0;
  long races = 0, wrong = 0;
  StepCosts costs;
  bool has_steps = true;  // of training

  void add(const Ended& device);
  void add(const StepCosts& more) {
    costs.waits = std::max(costs.waits, more.waits);
    costs.left = std::max(costs.left, more.left);
    costs.grown = std::max(costs.grown, more.grown);
  }
};

// The table, or nothing where nobody asked for it.
struct Table {
  FILE* file = nullptr;
  Table() {
    if (const char* path = std::getenv("FAKE_DEVICE_RESULTS")) file = std::fopen(path, "ae");
  }
  ~Table() {
    if (file != nullptr) std::fclose(file);
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  void write(const std::string& name, int ranks, const Found& found) const {
    if (file == nullptr) return;
    std::fprintf(file, "%-48s %7d %10.1e %10.1e %6ld %6ld %7.1f %6lld", name.c_str(), ranks,
                 found.loss, found.norm, found.races, found.wrong, found.seconds,
                 static_cast<long long>(found.costs.waits));
    if (found.has_steps)
      std::fprintf(file, " %7lld %7lld\n", static_cast<long long>(found.costs.left),
                   static_cast<long long>(found.costs.grown));
    else
      std::fprintf(file, " %7s %7s\n", "-", "-");
    std::fflush(file);
  }
};

long wrong_lines_of(const Ended& ended) {
  long out = 0;
  for (const std::string& log : ended.logs)
    for (const std::string& line : wrong_lines(log)) {
      MESSAGE(line);
      ++out;
    }
  return out;
}

void Found::add(const Ended& device) {
  seconds += device.seconds;
  races += fake_device_jobs::races(device);
  wrong += wrong_lines_of(device);
}

// Of all ranks, in all that it did.
int64_t most_waits_of(const Ended& ended) {
  int64_t out = 0;
  for (const boost::json::object& rank : ended.counters) {
    int64_t waits = 0;
    for (const boost::json::value& step : rank.at("steps").as_array())
      waits += step.at("host_waits").to_number<int64_t>();
    out = std::max(out, waits);
  }
  return out;
}

}  // namespace matrix_test

using namespace matrix_test;

TEST_CASE("the whole matrix of training jobs, with seeds of delays" * doctest::skip()) {
  const Table table;
  for (const Row& known : kMatrix) {
    DOCTEST_SUBCASE((known.name + " on " + std::to_string(known.ranks)).c_str()) {
      Row row = known;
      row.steps = std::max(row.steps, kWatchedSteps);
      CAPTURE(row.name);
      CAPTURE(row.ranks);
      const Ended host = train(row, On::host);
      CHECK_MESSAGE(host.code == 0, host.said);
      Found found;
      for (int seed = 1; seed <= kSeeds; ++seed) {
        CAPTURE(seed);
        const Ended device = train(row, On::device, {"FAKE_DEVICE_DELAYS=" + std::to_string(seed)});
        CHECK_MESSAGE(device.code == 0, device.said);
        const size_t most = compared_steps(row);
        found.loss = std::max(found.loss, largest_difference(device.losses, host.losses, most));
        found.norm = std::max(found.norm, largest_difference(device.norms, host.norms, most));
        found.add(device);
        found.add(check_steps(device, row));
      }
      CHECK(host.losses.size() == row.steps);
      CHECK(found.loss <= row.tolerance);
      CHECK(found.norm <= std::max(row.tolerance, kFloat));
      CHECK(found.wrong == 0);
      table.write(row.name, row.ranks, found);
    }
  }
}

namespace {

struct Generation {
  std::string name;
  int ranks;
  Strings sets;
};

// Ids are the CPU's, and the host waits so often for each token.
void check_generation(const Generation& job, int seeds, const Table& table) {
  CAPTURE(job.name);
  auto generate = [&](On on, const Strings& variables, int tokens) {
    const Folder folder;
    Strings words{"generate",
                  "tests/data/parity/llama",
                  "--tokens",
                  "1,2,3",
                  "--max-new",
                  std::to_string(tokens),
                  "--json",
                  "--nproc",
                  std::to_string(job.ranks)};
    Strings sets{on == On::device ? "dist_env.device=cuda" : "dist_env.device=cpu"};
    sets.insert(sets.end(), job.sets.begin(), job.sets.end());
    for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
    return run_program(folder.path, words, on, variables);
  };
  auto ids = [](const Ended& ended) {
    const size_t at = ended.said.find("\"new_ids\"");
    return at == std::string::npos ? ended.said
                                   : ended.said.substr(at, ended.said.find(']', at) - at);
  };
  auto count_of = [&](const Ended& ended) {
    const std::string found = ids(ended);
    return std::count(found.begin(), found.end(), ',') + int64_t{1};
  };
  const Ended host = generate(On::host, {}, kTokens);
  CHECK_MESSAGE(host.code == 0, host.said);
  Found found;
  found.has_steps = false;
  int64_t waits = 0, tokens = 0;  // of the last seed's run
  for (int seed = 1; seed <= seeds; ++seed) {
    const Ended device =
        generate(On::device, {"FAKE_DEVICE_DELAYS=" + std::to_string(seed)}, kTokens);
    CHECK_MESSAGE(device.code == 0, device.said);
    CHECK(ids(device) == ids(host));
    found.add(device);
    waits = most_waits_of(device);
    tokens = count_of(device);
  }
  // Of a token: for its ids to the device and its logits back. A longer text takes more memory.
  const Ended longer = generate(On::device, {}, 2 * kTokens);
  CHECK_MESSAGE(longer.code == 0, longer.said);
  const int64_t more = count_of(longer) - tokens, waited = most_waits_of(longer) - waits;
  CHECK(more > 0);
  CHECK(waited > 0);
  CHECK(waited <= more * most_waits(job.name, job.ranks));
  found.costs.waits = more > 0 ? waited / more : 0;
  CHECK(found.wrong == 0);
  table.write(job.name, job.ranks, found);
}

}  // namespace

TEST_CASE("ranks that share out a model's tensors generate on the fake device what the CPU does") {
  check_generation({"generate, tp", 2, {kFsdp2, kTp}}, /*seeds=*/1, Table());
}

TEST_CASE("the whole matrix of generation, with seeds of delays" * doctest::skip()) {
  const Table table;
  for (const Generation& job :
       {Generation{"generate", 1, {}}, Generation{"generate, fsdp2", 2, {kFsdp2}},
        Generation{"generate, tp", 2, {kFsdp2, kTp}}}) {
    DOCTEST_SUBCASE(job.name.c_str()) { check_generation(job, kSeeds, table); }
  }
}

namespace {

struct Embedded {
  std::string name;
  int ranks;
  Strings sets;
};

// The example of a program of one's own, whose model is built on the host.
void check_embedded(const Embedded& job, int seeds, const Table& table) {
  CAPTURE(job.name);
  auto embed = [&](On on, const Strings& variables) {
    const Folder folder;
    Strings words{MESHWRIGHT_BUILD_DIR "/bin/fake_device_embed", "examples/embed/job.toml",
                  on == On::device ? "dist_env.device=cuda" : "dist_env.device=cpu",
                  "step_scheduler.max_steps=" + std::to_string(kEmbedSteps)};
    words.insert(words.end(), job.sets.begin(), job.sets.end());
    return run_ranks(folder.path, words, job.ranks, on, variables);
  };
  // Of the first and the last step.
  auto losses = [](const Ended& ended) {
    std::vector<double> out;
    for (size_t at = 0; (at = ended.said.find("  loss ", at)) != std::string::npos; ++at)
      out.push_back(std::strtod(ended.said.c_str() + at + 7, nullptr));
    return out;
  };
  const Ended host = embed(On::host, {});
  CHECK_MESSAGE(host.code == 0, host.said);
  CHECK(losses(host).size() == 2);
  Found found;
  for (int seed = 1; seed <= seeds; ++seed) {
    const Ended device = embed(On::device, {"FAKE_DEVICE_DELAYS=" + std::to_string(seed)});
    CHECK_MESSAGE(device.code == 0, device.said);
    CHECK(device.logs.size() >= static_cast<size_t>(job.ranks));
    found.loss = std::max(found.loss, largest_difference(losses(device), losses(host)));
    found.add(device);
    Row row;
    row.name = job.name, row.ranks = job.ranks, row.sets = job.sets, row.steps = kEmbedSteps;
    found.add(check_steps(device, row));
  }
  CHECK(found.loss <= 2e-6);  // six digits are printed
  CHECK(found.wrong == 0);
  table.write(job.name, job.ranks, found);
}

}  // namespace

TEST_CASE("a program of one's own trains on the fake device, on two ranks") {
  check_embedded({"embed", 2, {}}, /*seeds=*/1, Table());
}

TEST_CASE("the whole matrix of embedded training, with seeds of delays" * doctest::skip()) {
  const Table table;
  for (const Embedded& job :
       {Embedded{"embed", 1, {}}, Embedded{"embed", 2, {}}, Embedded{"embed, ddp", 4, {kDdp}},
        Embedded{"embed, pp", 2, {kPp, "distributed.pipeline.pp_microbatch_size=4"}}}) {
    DOCTEST_SUBCASE((job.name + " on " + std::to_string(job.ranks)).c_str()) {
      check_embedded(job, kSeeds, table);
    }
  }
}
