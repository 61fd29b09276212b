// What exists for backward: how many passes a pipeline holds at its fullest, and what each strategy
// recomputes of a layer.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "footprint_job.h"
#include "pipeline_cases.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/planning/footprint_parts.h"

using namespace meshwright;
using namespace meshwright::testing;

namespace {

using Kind = PipelineAction::Kind;

// Bytes that 16 tokens a micro-batch hold at the fullest moment, with the gradients that have begun
// to add up.
// By hand, in floats a token of a stage's two layers: 2 * 116 are kept, and as many while weights
// wait; one mlp's gradients are 68. The stage `head` has a norm and a head of 8 each, and 32
// logits, whose gradient comes before that of the layers, and waits with the head's weights.
// `gradients`: bytes, by stage. A message is 8; as many as ever lie here at once are there all the
// time, the inputs of first layers among them, and of those that were sent as many stay as the
// stage before the boundary has passes in flight.
int64_t peak_of(const PipelineRun& run, size_t rank, int64_t head,
                std::map<int64_t, int64_t> gradients) {
  constexpr int64_t kTokens = 16 * 4, kMessage = 8 * kTokens;
  std::map<int64_t, int64_t> came, went;  // by pass, by boundary and way
  std::set<int64_t> fed;
  int64_t here = 0, room = 0;
  for (const PipelineStep& step : run.steps[rank]) {
    if (step.kind == PipelineStep::Kind::receive && step.action.kind == Kind::forward)
      fed.insert(step.action.stage);
    int64_t& messages = came[100 * step.action.stage + step.action.micro_batch];
    if (step.kind == PipelineStep::Kind::receive) room = std::max(room, ++here), ++messages;
    if (step.kind == PipelineStep::Kind::compute &&
        (step.action.kind == Kind::backward || step.action.kind == Kind::weight))
      here -= std::exchange(messages, 0);
  }
  int64_t now = room * kMessage, most = now;
  for (const PipelineStep& step : run.steps[rank]) {
    const int64_t stage = step.action.stage;
    const Kind kind = step.action.kind;
    if (step.kind == PipelineStep::Kind::send) {
      const int64_t boundary = kind == Kind::forward ? stage : stage - 1;
      int64_t& stay = went[kind == Kind::forward ? boundary : -1 - boundary];
      if (stay < run.slots[static_cast<size_t>(boundary)]) ++stay, now += kMessage;
    }
    most = std::max(most, now);
    if (step.kind != PipelineStep::Kind::compute) continue;
    const int64_t ends = (stage == head ? 16 : 0) * kTokens,
                  logits = (stage == head ? 32 : 0) * kTokens, layers = 232 * kTokens,
                  kept = layers - (fed.contains(stage) ? kMessage : 0);
    int64_t turn = now;
    if (kind == Kind::forward) now += kept + ends + logits;
    if (kind == Kind::backward) turn = now + std::max(logits, 68 * kTokens - logits - ends);
    if (kind == Kind::input) {
      turn = now + std::max(logits, 68 * kTokens);
      now += layers - kept;  // what waits are inputs and gradients of Linears
    }
    if (kind == Kind::backward) now -= kept + ends + logits;
    if (kind == Kind::weight) now -= layers + ends + logits;
    if (kind == Kind::backward || kind == Kind::weight) now += std::exchange(gradients[stage], 0);
    most = std::max({most, now, turn});
  }
  return most;
}

// Bytes of rank `pp` of a small Llama, 16 tokens a micro-batch, two layers a stage. By hand, in
// floats a token and layer: 32 + 24 + 60 are kept (footprint_test.cpp), the Linears' outputs are 8
// + 4 + 4 + 8 + 20 + 20 + 8.
struct Pipeline {
  const char* schedule;
  int64_t size, local, micro_batches;

  // In the order of a file of actions, where one is named.
  int64_t bytes(int64_t rank, const std::string& file = "") const {
    ModelOutline whole = llama_outline({.layers = 2 * size * local});
    Job job{.outline = whole, .sizes = {.dp = {}, .pp = size}, .world = size};
    job.work = {.local_batch = micro_batches, .seq_len = 16};
    PipelineOptions& options = job.plan().config.shared().pipeline;
    if (file.empty()) {
      options.schedule = schedule;
      options.layers_per_stage = 2;
    }
    options.schedule_csv = file;
    options.batch_size = micro_batches;
    job.outline = stage_outline(whole, plan_pipeline(whole, size, options), rank);
    return job.rows({}, rank).bytes.activations;
  }
  PipelineLists lists() const {
    return make_actions(parse_schedule(schedule), size, local, micro_batches);
  }
  // What a rank holds, without the gradients.
  int64_t expected(int64_t rank) const {
    const ModelOutline whole = llama_outline({.layers = 2 * size * local});
    PipelineOptions options;
    options.schedule = schedule;
    options.layers_per_stage = 2;
    std::map<int64_t, int64_t> gradients;  // float32
    int64_t all = 0;
    for (const ParameterOutline& p :
         stage_outline(whole, plan_pipeline(whole, size, options), rank).parameters) {
      gradients[p.stage] += 4 * element_count(p.shape);
      all += 4 * element_count(p.shape);
    }
    const PipelineRun run = simulate_pipeline(lists());
    return peak_of(run, static_cast<size_t>(rank), size * local - 1, gradients) - all;
  }
};

}  // namespace

// pipeline_actions_test.cpp holds the lists, pipeline_simulation_test.cpp the passes in flight.
TEST_CASE("a pipeline rank holds what its list of actions says, also where a file has the list") {
  for (const Pipeline& of : {Pipeline{"GPipe", 2, 1, 4},
                             {"1F1B", 2, 1, 4},
                             {"LoopedBFS", 2, 2, 4},
                             {"Interleaved1F1B", 2, 2, 4},
                             {"InterleavedZeroBubble", 2, 2, 4},
                             {"ZBVZeroBubble", 2, 2, 4},
                             {"DualPipeV", 2, 2, 4},
                             {"1F1B", 4, 1, 8},
                             {"1F1B", 4, 1, 3},
                             {"LoopedBFS", 4, 2, 8},
                             {"Interleaved1F1B", 4, 3, 8},
                             {"Interleaved1F1B", 4, 2, 10},  // two rounds of five
                             {"InterleavedZeroBubble", 4, 3, 8},
                             {"ZBVZeroBubble", 4, 2, 8},
                             {"ZBVZeroBubble", 4, 2, 3},  // too few to fill the V
                             {"DualPipeV", 4, 2, 8}}) {
    CAPTURE(of.schedule);
    CAPTURE(of.size);
    CAPTURE(of.micro_batches);
    const ActionFile file(of.lists());
    for (int64_t rank = 0; rank < of.size; ++rank) {
      CAPTURE(rank);
      CHECK(of.bytes(rank) == of.expected(rank));
      CHECK(of.bytes(rank, file.path) == of.bytes(rank));
    }
  }
}

TEST_CASE(
    "Llama 3 405B holds somewhat more under interleaved stages than under 1F1B, as published runs "
    "do") {
  ModelOutline whole = llama_outline(
      {.layers = 126, .hidden = 16384, .ffn = 53248, .heads = 128, .kv_heads = 8, .vocab = 128256});
  auto total = [&](const char* schedule) {
    Job job{.outline = whole, .sizes = {.dp = {}, .tp = 8, .pp = 8}, .world = 512};
    job.mp = {DType::bfloat16, DType::float32, DType::bfloat16, true};
    job.work = {.local_batch = 32, .seq_len = 8192};
    job.sequence_parallel = true;
    job.plan();
    job.config.shared().activation_checkpointing = ActivationCheckpointing::full;
    job.config.shared().pipeline.schedule = schedule;
    job.config.shared().pipeline.batch_size = 32;
    PipelinePlan plan = plan_pipeline(whole, 8, job.config.shared().pipeline);
    int64_t most = 0;
    for (int64_t stage = 0; stage < 8; ++stage) {
      job.outline = stage_outline(whole, plan, stage);
      Bytes b = job.rows({}, stage * 64).bytes;
      most = std::max(most, b.weights + b.gradients + b.optimizer + b.transient + b.activations);
    }
    return static_cast<double>(most) / static_cast<double>(int64_t{1} << 30);
  };
  double single = total("1F1B"), interleaved = total("Interleaved1F1B");
  MESSAGE("1F1B ", single, " GiB, Interleaved1F1B ", interleaved, " GiB");
  CHECK(interleaved > single);
  CHECK(interleaved < 1.25 * single);  // torchtitan's runs: 72.7 and 82.5, 1.13 times
}

TEST_CASE(
    "replicas that recompute blocks keep the inputs of each, and the scope says which layers do") {
  Job job{.outline = llama_outline({.layers = 4}), .world = 2};
  job.work = {.local_batch = 2, .seq_len = 16};
  SharedOptions& shared = job.plan_ddp().config.shared();
  auto bytes = [&](bool whole_layers) { return activation_bytes(job.request(), whole_layers); };
  // `turn`: gradients of the two halves of the last mlp and of its output, when the head is done.
  const int64_t outside = 16 + 32 + 32, turn = 2 * 20 + 8, token = 32 * 4;
  const int64_t none = token * (4 * (32 + 24 + 60) + outside),
                selective = token * (4 * (32 + 24) + 60 + turn);
  const int64_t layers = token * (4 * 8 + (32 + 24 + 60) + turn),
                blocks = token * (4 * 32 + 60 + turn);
  using Scope = std::vector<std::string>;
  struct Row {
    ActivationCheckpointing mode;
    Scope scope;
    int64_t with_layers, with_blocks;
  };
  for (const Row& row :
       {Row{ActivationCheckpointing::none, {"all"}, none, none},
        Row{ActivationCheckpointing::full, {"all"}, layers, blocks},
        Row{ActivationCheckpointing::full, {"language"}, blocks, blocks},
        Row{ActivationCheckpointing::full, {"vision", "language"}, blocks, blocks},
        Row{ActivationCheckpointing::full, {"vision"}, none, none},
        Row{ActivationCheckpointing::full, {"multimodal"}, none, none},
        Row{ActivationCheckpointing::selective, {"all"}, selective, selective},
        Row{ActivationCheckpointing::selective, {"language"}, selective, selective},
        Row{ActivationCheckpointing::selective, {"audio"}, none, none}}) {
    CAPTURE(static_cast<int>(row.mode));
    CAPTURE(row.scope.front());
    shared.activation_checkpointing = row.mode;
    shared.activation_checkpointing_scope = row.scope;
    CHECK(bytes(true) == row.with_layers);
    CHECK(job.copies().bytes.activations == row.with_layers);
    CHECK(bytes(false) == row.with_blocks);
  }
}

TEST_CASE("between the factors of an adapter lie r elements a token") {
  Job job{.outline = llama_outline({.layers = 4}), .world = 2};
  job.work = {.local_batch = 2, .seq_len = 16};
  job.plan_ddp();
  const auto bytes = [&] { return activation_bytes(job.request(), /*whole_layers=*/true); };
  const int64_t before = bytes(), tokens = 32;
  add_adapter(job.outline, "model.layers.2.mlp.down_proj");
  CHECK(bytes() == before + tokens * 3 * 4);
}

TEST_CASE("a norm of a family's own kind is counted by the width that it says") {
  const auto bytes = [](int64_t width, const char* parameter) {
    Job job{.outline = llama_outline({.layers = 4}), .world = 2};
    for (ModuleOutline& module : job.outline.modules)
      if (module.name == "model.layers.2.input_layernorm") module.width = width;
    for (ParameterOutline& p : job.outline.parameters)
      if (p.name == "model.layers.2.input_layernorm.weight") {
        p.name = std::string("model.layers.2.input_layernorm.") + parameter;
        p.shape = {1};
      }
    job.work = {.local_batch = 2, .seq_len = 16};
    job.plan_ddp();
    return activation_bytes(job.request(), /*whole_layers=*/true);
  };
  const int64_t hidden = llama_outline({.layers = 4}).hidden_size, tokens = 32;
  CHECK(bytes(hidden, "gain") == bytes(0, "weight"));
  CHECK(bytes(hidden, "gain") - bytes(hidden / 2, "gain") == tokens * hidden / 2 * 4);
}

TEST_CASE("what is frozen from the beginning on keeps nothing; a frozen layer behind it does") {
  Job job{.outline = llama_outline({.layers = 4}), .world = 2};
  job.work = {.local_batch = 2, .seq_len = 16};
  SharedOptions& shared = job.plan_ddp().config.shared();
  auto bytes = [&] { return activation_bytes(job.request(), /*whole_layers=*/true); };
  auto set = [&](const std::string& prefix, bool trainable) {
    for (ParameterOutline& p : job.outline.parameters)
      if (p.name.starts_with(prefix)) p.trainable = trainable;
  };
  const int64_t token = 32 * 4, outside = 16 + 32 + 32, turn = 2 * 20 + 8;
  const ActivationCheckpointing none = ActivationCheckpointing::none,
                                full = ActivationCheckpointing::full;
  struct Row {
    std::vector<const char*> frozen;
    ActivationCheckpointing mode;
    int64_t floats;  // a token
  };
  for (const Row& row :
       {Row{{}, none, 4 * 116 + outside}, Row{{}, full, 4 * 8 + 116 + turn},
        Row{{"model.embed", "model.layers.0."}, none, 3 * 116 + outside},
        Row{{"model.embed", "model.layers.0."}, full, 3 * 8 + 116 + turn},
        Row{{"model.embed", "model.layers.2."}, none, 4 * 116 + outside},
        Row{{"model.layers.0.", "model.layers.2."}, full, 4 * 8 + 116 + turn},
        Row{{"model.embed", "model.layers."}, full, outside}, Row{{"model."}, none, outside - 8}}) {
    set("", true);
    for (const char* prefix : row.frozen) set(prefix, false);
    shared.activation_checkpointing = row.mode;
    CHECK(bytes() == token * row.floats);
  }
}

TEST_CASE("layers out of the checkpointing scope send nothing a second time") {
  Job job{.outline = llama_outline({.layers = 4}), .sizes = {.dp = {}, .tp = 2}, .world = 2};
  job.work = {.local_batch = 2, .seq_len = 16};
  job.plan();
  auto sent = [&](ActivationCheckpointing mode, const char* scope) {
    job.config.shared().activation_checkpointing = mode;
    job.config.shared().activation_checkpointing_scope = {scope};
    return find_row(job.rows().wire, "tp", "all_reduce")->count;
  };
  int64_t once = sent(ActivationCheckpointing::none, "all");
  CHECK(sent(ActivationCheckpointing::full, "all") > once);
  CHECK(sent(ActivationCheckpointing::full, "language") ==
        sent(ActivationCheckpointing::full, "all"));
  CHECK(sent(ActivationCheckpointing::full, "vision") == once);
  CHECK(sent(ActivationCheckpointing::selective, "vision") == once);
}
