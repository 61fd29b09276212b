// What exists for backward: how many passes a pipeline holds at its fullest, and what each strategy
// recomputes of a layer.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <unistd.h>

#include "footprint_job.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/planning/footprint_parts.h"

using namespace meshwright;
using namespace meshwright::testing;

namespace {

using Kind = PipelineAction::Kind;

// One row of actions (semantics 11.2): "0F0 2F1 (0F3+3B1) 3I0 3W0"; "0F0-3" and "2B3-0"
// are runs of micro-batches.
PipelineList parse(const std::string& row) {
  PipelineList out;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] != 'F' && row[i] != 'B' && row[i] != 'I' && row[i] != 'W') continue;
    size_t digits = i;
    while (digits > 0 && std::isdigit(row[digits - 1]) != 0) --digits;
    const int64_t stage = std::stoll(row.substr(digits, i - digits));
    int first = row[i + 1] - '0', until = first;
    if (i + 3 < row.size() && row[i + 2] == '-') until = row[i + 3] - '0';
    for (int j = std::min(first, until); j <= std::max(first, until); ++j)
      out.push_back(
          {Kind{row[i]}, stage, row[i + 2] == '-' && until < first ? first + until - j : j});
  }
  return out;
}

std::string named(PipelineList list) {
  for (PipelineAction& action : list) action.paired = false;
  return actions_row(list);
}

struct Peak {
  int64_t passes = 0, waiting = 0;
  int64_t bytes = 0;  // of 16 tokens; with the gradients that have begun to add up
};
// By hand, in floats a token of a stage's two layers: 2 * 116 are kept, and as many while weights
// wait; one mlp's gradients are 68. The stage `head` has a norm and a head of 8 each, and 32
// logits, whose gradient comes before that of the layers, and waits with the head's weights.
// `gradients`: bytes, by stage. A message is 8; as many as ever lie here at once are there all the
// time, the inputs of first layers among them, and of those that were sent as many stay as the
// stage before the boundary has passes in flight.
Peak peak_of(const PipelineRun& run, size_t rank, int64_t head = -1,
             std::map<int64_t, int64_t> gradients = {}) {
  constexpr int64_t kTokens = 16 * 4, kMessage = 8 * kTokens;
  Peak now, most;
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
  now.bytes = most.bytes = room * kMessage;
  for (const PipelineStep& step : run.steps[rank]) {
    const int64_t stage = step.action.stage;
    const Kind kind = step.action.kind;
    if (step.kind == PipelineStep::Kind::send) {
      const int64_t boundary = kind == Kind::forward ? stage : stage - 1;
      int64_t& stay = went[kind == Kind::forward ? boundary : -1 - boundary];
      if (stay < run.slots[static_cast<size_t>(boundary)]) ++stay, now.bytes += kMessage;
    }
    most.bytes = std::max(most.bytes, now.bytes);
    if (step.kind != PipelineStep::Kind::compute) continue;
    const int64_t ends = (stage == head ? 16 : 0) * kTokens,
                  logits = (stage == head ? 32 : 0) * kTokens, layers = 232 * kTokens,
                  kept = layers - (fed.contains(stage) ? kMessage : 0);
    now.passes += kind == Kind::forward ? 1 : kind == Kind::input ? 0 : -1;
    now.waiting += kind == Kind::input ? 1 : kind == Kind::weight ? -1 : 0;
    int64_t turn = now.bytes;
    if (kind == Kind::forward) now.bytes += kept + ends + logits;
    if (kind == Kind::backward) turn = now.bytes + std::max(logits, 68 * kTokens - logits - ends);
    if (kind == Kind::input) {
      turn = now.bytes + std::max(logits, 68 * kTokens);
      now.bytes += layers - kept;  // what waits are inputs and gradients of Linears
    }
    if (kind == Kind::backward) now.bytes -= kept + ends + logits;
    if (kind == Kind::weight) now.bytes -= layers + ends + logits;
    if (kind == Kind::backward || kind == Kind::weight)
      now.bytes += std::exchange(gradients[stage], 0);
    most = {std::max(most.passes, now.passes), std::max(most.waiting, now.waiting),
            std::max({most.bytes, now.bytes, turn})};
  }
  CHECK(now.passes == 0);
  CHECK(now.waiting == 0);
  return most;
}

// Bytes of rank `pp` of a small Llama, 16 tokens a micro-batch, two layers a stage. By hand, in
// floats a token and layer: 32 + 24 + 60 are kept (footprint_test.cpp), the Linears' outputs are 8
// + 4 + 4 + 8 + 20 + 20 + 8.
struct Pipeline {
  const char* schedule;
  int64_t size, local, micro_batches;

  int64_t bytes(int64_t rank) const {
    ModelOutline whole = llama_outline({.layers = 2 * size * local});
    Job job{.outline = whole, .sizes = {.dp = {}, .pp = size}, .world = size};
    job.work = {.local_batch = micro_batches, .seq_len = 16};
    job.plan();
    job.config.shared().pipeline.schedule = schedule;
    job.config.shared().pipeline.batch_size = micro_batches;
    job.config.shared().pipeline.layers_per_stage = 2;
    PipelinePlan plan = plan_pipeline(whole, size, job.config.shared().pipeline);
    job.outline = stage_outline(whole, plan, rank);
    return fully_sharded_footprint(job.request(rank), {}).bytes.activations;
  }
  // The same stages in the order of a file that has the schedule's lists.
  int64_t bytes_of_file(int64_t rank, const std::string& file) const {
    std::ofstream out(file);
    for (const PipelineList& list : lists()) out << actions_row(list) << "\n";
    out.close();
    ModelOutline whole = llama_outline({.layers = 2 * size * local});
    Job job{.outline = whole, .sizes = {.dp = {}, .pp = size}, .world = size};
    job.work = {.local_batch = micro_batches, .seq_len = 16};
    job.plan();
    job.config.shared().pipeline.schedule_csv = file;
    job.config.shared().pipeline.batch_size = micro_batches;
    PipelinePlan plan = plan_pipeline(whole, size, job.config.shared().pipeline);
    job.outline = stage_outline(whole, plan, rank);
    return fully_sharded_footprint(job.request(rank), {}).bytes.activations;
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
    return peak_of(run, static_cast<size_t>(rank), size * local - 1, gradients).bytes - all;
  }
};

}  // namespace

TEST_CASE(
    "a pipeline rank holds what its list of actions says, at two ranks and four micro-batches") {
  struct Row {
    const char *schedule, *first, *second;
    int64_t local;
  };
  for (const Row& row : {
           Row{"GPipe", "0F0-3 0B0-3", "1F0-3 1B0-3", 1},
           Row{"1F1B", "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3", "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3", 1},
           Row{"LoopedBFS", "0F0-3 2F0-3 2B3-0 0B3-0", "1F0-3 3F0-3 3B3-0 1B3-0", 2},
           Row{"Interleaved1F1B", "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
               "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3", 2},
           Row{"InterleavedZeroBubble",
               "0F0 0F1 2F0 2F1 2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 2I3 2W3 "
               "0I2 0W2 0I3 0W3",
               "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1I2 "
               "3W3 1I3 1W2 1W3",
               2},
           Row{"ZBVZeroBubble",
               "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 "
               "0I2 0W2 0I3 0W3",
               "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 "
               "1I3 1W2 2W3 1W3",
               2},
           Row{"DualPipeV",
               "0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3+3B1) (3F2+0B0) 3B2 (3F3+0B1) 3B3 0I2 0W2 0I3 0W3",
               "1F0 2F0 1F1 2F1 1F2 2B0 (2F2+1B0) (1F3+2B1) (2F3+1B1) 2B2 1B2 2I3 1I3 2W3 1W3", 2},
       }) {
    CAPTURE(row.schedule);
    Pipeline pipeline{row.schedule, 2, row.local, 4};
    for (int64_t rank : {0, 1}) {
      CAPTURE(rank);
      CHECK(named(pipeline.lists()[static_cast<size_t>(rank)]) ==
            named(parse(rank == 0 ? row.first : row.second)));
      CHECK(pipeline.bytes(rank) == pipeline.expected(rank));
    }
  }
}

TEST_CASE(
    "the peaks of longer pipelines are those of the table, and no more than there is in a run") {
  struct Row {
    Pipeline pipeline;
    int64_t rank;
    Peak peak;
  };
  for (const Row& row : {
           Row{{"GPipe", 4, 1, 8}, 1, {8, 0}},
           Row{{"1F1B", 4, 1, 8}, 0, {4, 0}},
           Row{{"1F1B", 4, 1, 8}, 2, {2, 0}},
           Row{{"1F1B", 4, 1, 3}, 0, {3, 0}},  // min(m, p - r)
           Row{{"LoopedBFS", 4, 2, 8}, 1, {16, 0}},
           Row{{"Interleaved1F1B", 4, 2, 8}, 0, {4 + 6 + 1, 0}},  // (v - 1) g + 2 (p - 1 - r) + 1
           Row{{"Interleaved1F1B", 4, 2, 8}, 1, {4 + 4 + 1, 0}},
           Row{{"Interleaved1F1B", 4, 3, 8}, 1, {8 + 4 + 1, 0}},
           Row{{"Interleaved1F1B", 4, 2, 12}, 0, {4 + 6 + 1, 0}},
           Row{{"Interleaved1F1B", 4, 2, 10}, 0, {5 + 6 + 1, 0}},   // two rounds of five
           Row{{"Interleaved1F1B", 4, 2, 4}, 0, {8, 0}},            // v m
           Row{{"InterleavedZeroBubble", 4, 2, 8}, 0, {4 + 4, 1}},  // (v - 1) g + p
           Row{{"InterleavedZeroBubble", 4, 3, 8}, 2, {8 + 4, 3}},
           Row{{"ZBVZeroBubble", 4, 2, 8}, 1, {8, 3}},
           Row{{"ZBVZeroBubble", 4, 2, 3}, 2, {6, 1}},  // too few to fill the V
           Row{{"ZBVZeroBubble", 4, 2, 3}, 1, {5, 1}},
           Row{{"DualPipeV", 4, 2, 8}, 1, {9, 2}},
           Row{{"DualPipeV", 4, 2, 8}, 2, {9, 3}},
       }) {
    CAPTURE(row.pipeline.schedule);
    CAPTURE(row.pipeline.local);
    CAPTURE(row.pipeline.micro_batches);
    CAPTURE(row.rank);
    const Pipeline& of = row.pipeline;
    const Peak peak = peak_of(simulate_pipeline(of.lists()), static_cast<size_t>(row.rank));
    CHECK(peak.passes == row.peak.passes);
    CHECK(peak.waiting == row.peak.waiting);
    CHECK(of.bytes(row.rank) == of.expected(row.rank));
  }
}

TEST_CASE("a file of actions is counted by its own lists") {
  const std::string file = (std::filesystem::temp_directory_path() /
                            ("meshwright_activations_" + std::to_string(getpid()) + ".csv"))
                               .string();
  for (const Pipeline& p : {Pipeline{"1F1B", 4, 1, 8}, Pipeline{"Interleaved1F1B", 2, 2, 4},
                            Pipeline{"ZBVZeroBubble", 4, 2, 8}, Pipeline{"DualPipeV", 2, 2, 4}})
    for (int64_t rank = 0; rank < p.size; ++rank) {
      CAPTURE(p.schedule);
      CAPTURE(rank);
      CHECK(p.bytes_of_file(rank, file) == p.bytes(rank));
    }
  std::filesystem::remove(file);
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
      Bytes b = fully_sharded_footprint(job.request(stage * 64), {}).bytes;
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
    CHECK(replicated_footprint(job.request()).bytes.activations == row.with_layers);
    CHECK(bytes(false) == row.with_blocks);
  }
}

TEST_CASE("between the factors of an adapter lie r elements a token") {
  Job job{.outline = llama_outline({.layers = 4}), .world = 2};
  job.work = {.local_batch = 2, .seq_len = 16};
  job.plan_ddp();
  const auto bytes = [&] { return activation_bytes(job.request(), /*whole_layers=*/true); };
  const int64_t before = bytes(), tokens = 32;
  ModelOutline& outline = job.outline;
  const std::string linear = "model.layers.2.mlp.down_proj";
  const std::vector<int64_t> shape = outline.find_parameter(linear + ".weight")->shape;
  const auto at =
      std::find_if(outline.parameters.begin(), outline.parameters.end(),
                   [&](const ParameterOutline& p) { return p.name == linear + ".weight"; });
  outline.parameters.insert(at + 1, {ParameterOutline{linear + ".lora_A.weight", {3, shape[1]}},
                                     ParameterOutline{linear + ".lora_B.weight", {shape[0], 3}}});
  for (const char* part : {".lora_A", ".lora_B"})
    outline.modules.push_back({linear + part, ModuleKind::other, "Linear"});
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
    return find_row(fully_sharded_footprint(job.request(), {}).wire, "tp", "all_reduce")->count;
  };
  int64_t once = sent(ActivationCheckpointing::none, "all");
  CHECK(sent(ActivationCheckpointing::full, "all") > once);
  CHECK(sent(ActivationCheckpointing::full, "language") ==
        sent(ActivationCheckpointing::full, "all"));
  CHECK(sent(ActivationCheckpointing::full, "vision") == once);
  CHECK(sent(ActivationCheckpointing::selective, "vision") == once);
}
