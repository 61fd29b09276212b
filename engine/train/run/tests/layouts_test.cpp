// N ranks take the steps of one process, send what their plan says, and go on from what any others
// saved: one table of strategies, axes, dtypes, options and models, in which every two values that
// can be planned together meet in some row. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/pipeline_layouts.h"
#include "engine/train/run/tests/saved.h"

#include <doctest/doctest.h>

#include <array>
#include <map>
#include <optional>
#include <random>

#include "engine/train/run/tests/traffic.h"
#include "sdk/comm/tests/covering.h"

namespace layouts_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

enum Factor : size_t { strategy, data, tp, cp, ep, pp, dtype, option, micro, model, kFactors };

struct Value {
  std::string name;
  std::vector<std::string> sets = {};
  int64_t ranks = 1;  // how many times as many
};

Value level(int n) {
  return {"megatron_fsdp", {"distributed.megatron_fsdp.zero_dp_strategy=" + std::to_string(n)}};
}
Value staged(const std::string& name) { return {name, {kPp2, schedule(name)}, 2}; }
// Models with what each of them has of its own: sizes that nothing divides, fewer words than ranks,
// tied and padded embeddings, heads as wide as models of that size have none, biases, windows,
// layers of two kinds, each kind of rotary embedding.
const std::vector<SmallModel> kModels = {
    // The last of four ranks has none of five words; 41 / 4 leaves it eight of the MLP's columns
    // where the others have eleven.
    {"llama", "LlamaForCausalLM", "llama", 32, 4, 4, 5,
     R"(, "attention_bias": true, "mlp_bias": true, "intermediate_size": 41, "tie_word_embeddings": false)"},
    {"mistral", "MistralForCausalLM", "mistral", 32, 4, 2, 64,
     R"(, "sliding_window": 3, "tie_word_embeddings": false)"},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", 96, 6, 2, 5,
     R"(, "tie_word_embeddings": true, "intermediate_size": 41, "pad_token_id": 4, "head_dim": 32)"},
    {"gemma3", "Gemma3ForCausalLM", "gemma3_text", 32, 4, 4, 64,
     R"(, "sliding_window": 4, "rope_local_base_freq": 100.0, "final_logit_softcapping": 8.0, "tie_word_embeddings": true,
"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"])"},
    {"odd gemma3", "Gemma3ForCausalLM", "gemma3_text", 96, 6, 2, 257,
     R"(, "tie_word_embeddings": false, "attention_bias": true, "sliding_window": 3, "head_dim": 32)"},
    {"phi3", "Phi3ForCausalLM", "phi3", 96, 6, 2, 257,
     R"(, "pad_token_id": 200, "sliding_window": 3, "partial_rotary_factor": 0.75, "tie_word_embeddings": false,
"original_max_position_embeddings": 4, "rope_scaling": {"type": "longrope",
"short_factor": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0], "long_factor": [1.0, 1.2, 1.5, 2.0, 3.0, 4.0]})"},
    {"mixtral", "MixtralForCausalLM", "mixtral", 32, 4, 2, 64,
     R"(, "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 24, "sliding_window": null,
"tie_word_embeddings": false)"},
    {"qwen3_moe", "Qwen3MoeForCausalLM", "qwen3_moe", 32, 4, 4, 64,
     R"(, "num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "norm_topk_prob": true,
"mlp_only_layers": [1], "intermediate_size": 40, "tie_word_embeddings": false)"},
    {"balanced", "Qwen3MoeForCausalLM", "qwen3_moe", 32, 4, 4, 64,
     R"(, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": true,
"output_router_logits": true, "router_aux_loss_coef": 0.02, "mlp_only_layers": [], "intermediate_size": 40,
"tie_word_embeddings": false)"}};
constexpr size_t kExperts = 3;  // the last of them

std::vector<Value> models() {
  std::vector<Value> out;
  for (const SmallModel& m : kModels) out.push_back({m.name});
  return out;
}

// The first value of each is the plain one.
const std::array<std::vector<Value>, kFactors> kValues = {{
    {{"fsdp2"}, {"ddp"}, level(0), level(1), level(2), level(3), {"moe_ep"}},
    {{"1"}, {"2", {}, 2}, {"3", {}, 3}, {"2 x 2", {kReplicate2}, 4}},
    {{"whole"},
     {"cut", {kTp2}, 2},
     {"logits gathered", {kTp2, kBase}, 2},
     {"sequence", {kTp2, kSequence, kAsync}, 2},
     {"sequence", {kTp2, kSequence, kBase}, 2},
     {"plan",
      {kTp2,
       "distributed.tp_plan={\"model.layers.*.self_attn.[qkv]_proj\"=\"colwise\","
       "\"model.layers.*.self_attn.o_proj\"=\"rowwise\"}"},
      2},
     {"sequence", {kTp4, kSequence}, 4}},
    {{"whole"},
     {"gather", {kCp2, kGather}, 2},
     {"ring", {kCp2, kRing}, 2},
     {"ulysses", {kCp2, kUlysses}, 2},
     {"padded", {kCp3, kRing}, 3},  // eight tokens to twelve
     {"both", {kCp4, kRing, "distributed.context.ulysses_size=2"}, 4}},
    {{"whole"},
     {"all to all", {kEp2}},
     {"all_gather", {kEp2, "distributed.moe.dispatcher=\"all_gather\""}},
     {"gathered again", {"distributed.ep_size=4", "distributed.moe.reshard_after_forward=true"}}},
    // Those of one stage a rank alone: pipeline_test.cpp.
    {{"whole"},
     staged("LoopedBFS"),
     staged("Interleaved1F1B"),
     staged("ZBVZeroBubble"),
     staged("DualPipeV")},
    {{"float32"},
     {"bfloat16",
      {"distributed.mp_policy.param_dtype=\"bfloat16\"",
       "distributed.mp_policy.output_dtype=\"bfloat16\""}}},
    {{"plain"},
     {"full", {"distributed.activation_checkpointing=\"full\""}},
     {"selective", {"distributed.activation_checkpointing=\"selective\""}},
     {"offload", {"distributed.fsdp2.offload_policy=\"cpu\""}},
     {"gathered again", {"distributed.fsdp2.reshard_after_forward=true"}},
     {"gathered once", {"distributed.fsdp2.reshard_after_forward=false"}},
     {"prefetched", {"distributed.fsdp2.enable_fsdp2_prefetch=true"}},
     {"each reduced", {"distributed.fsdp2.defer_fsdp_grad_sync=false"}}},
    {{"one"}, {"several"}},
    models(),
}};

using Row = CoveringRow;

const Value& value(const Row& row, Factor f) { return kValues[f][row[f]]; }
int64_t ranks_of(const Row& row) {
  int64_t out = 1;
  for (size_t f = 0; f < kFactors; ++f) out *= kValues[f][row[f]].ranks;
  return out;
}
bool has_experts(const Row& row) { return row[model] + kExperts >= kModels.size(); }
bool tied(const Row& row) {
  return std::string(kModels[row[model]].more).find("embeddings\": true") != std::string::npos;
}

// What no plan has, as far as names tell; a pipeline always has several micro-batches.
bool can_be(const Row& row) {
  const std::string &with = value(row, strategy).name, &cut = value(row, tp).name;
  if (ranks_of(row) > 8 || (row[ep] != 0 && !has_experts(row))) return false;
  if (row[pp] != 0 && row[model] + 1 == kModels.size())
    return false;                                           // stages add up no balance loss
  if (cut == "sequence" && has_experts(row)) return false;  // routers need whole tokens
  if (cut == "plan" && value(row, model).name == "phi3") return false;  // its rows are fused
  if (row[option] > 2 && with != "fsdp2") return false;                 // of its own table
  if (with == "ddp") return row[tp] + row[cp] + row[ep] + row[pp] == 0 && row[data] < 3;
  if (with == "moe_ep") return cut != "sequence";
  return with == "fsdp2" ||
         (row[ep] + row[pp] == 0 && row[data] < 3 && (row[tp] == 0 || cut == "cut"));
}

// Samples of a micro-batch of a rank.
int64_t rows_of(const Row& row) {
  const int64_t dp = value(row, data).ranks;
  return row[micro] + row[pp] == 0 ? kBatch / dp : dp == 1 ? 3 : 1;
}

Layout layout_of(const Row& row, const std::vector<std::string>& files) {
  const std::string rows = std::to_string(rows_of(row));
  Layout out{value(row, strategy).name.c_str(),
             ranks_of(row),
             {"optimizer.eps=1e-5", "step_scheduler.local_batch_size=" + rows},
             files[row[model]]};
  for (size_t f = 0; f < kFactors; ++f)
    out.sets.insert(out.sets.end(), kValues[f][row[f]].sets.begin(), kValues[f][row[f]].sets.end());
  if (row[pp] != 0) out.sets.push_back("distributed.pipeline.pp_microbatch_size=" + rows);
  return out;
}

bool is_planned(const Row& row, const std::vector<std::string>& files) {
  const Layout layout = layout_of(row, files);
  try {
    Job job = Rank::make(layout);
    plan::make_plan(job.impl(), {.world_size = layout.ranks});
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Rows in which every two values meet that meet in any plan.
Covering table_of(const std::vector<std::string>& files, unsigned seed) {
  CoveringFactors factors;
  for (const std::vector<Value>& values : kValues) factors.sizes.push_back(values.size());
  factors.can_be = can_be;
  factors.is = [&](const Row& row) { return is_planned(row, files); };
  factors.bring = [](Row& row, const CoveringPair& wanted, std::mt19937& random) {
    if (row[ep] != 0 && wanted[2] != model) row[model] = kModels.size() - 1 - random() % kExperts;
  };
  return covering(factors, seed);
}

// The same without stages and without what changes no bit; nullopt where there is nothing to leave
// out or what is left adds up in another order.
std::optional<Row> bare_of(Row row) {
  const std::string &stages = value(row, pp).name, &with = value(row, option).name;
  const bool each = with == "each reduced";
  if (row[pp] == 0 && (row[option] == 0 || each)) return std::nullopt;
  if (stages == "LoopedBFS" || (row[pp] != 0 && (row[cp] != 0 || tied(row)))) return std::nullopt;
  if (row[pp] != 0 && row[dtype] != 0) return std::nullopt;  // rounded at other places
  // At a v's turn a unit of both stages reduces what has come of either by then.
  if (each && (stages == "ZBVZeroBubble" || stages == "DualPipeV")) return std::nullopt;
  if (row[pp] != 0) row[micro] = 1;  // as a pipeline always has
  row[pp] = 0;
  if (!each) row[option] = 0;
  return row;
}

constexpr int kBefore = 2;  // steps of one process that all go on from

struct Found {
  Curve curve;
  std::string unplanned;  // what a rank sent beside its plan
};

// Some steps after loading `from` (empty: of fresh weights). In `to`: what is saved of the fresh
// weights, of what was loaded, and after the last step, which fails where copies of a part have
// come to differ by a bit.
Found found_of(const Layout& layout, const fs::path& from, const fs::path& to, int steps) {
  Found out;
  std::mutex mutex;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    Trainer& trainer = rank.trainer;
    rank.initialize();
    trainer.save((to / "fresh").string());
    if (!from.empty()) {
      trainer.load(from.string());
      trainer.save((to / "loaded").string());
    }
    Found mine;
    for (int i = 0; i < steps; ++i) {
      world->traffic().clear();
      const StepResult result = rank.step();
      mine.curve.losses.push_back(result.loss);
      mine.curve.norms.push_back(result.grad_norm);
      mine.unplanned += unplanned(*world, planned_rows(trainer), /*routed=*/true);
    }
    for (const ParallelParameter& p : trainer.model().parameters())
      mine.curve.parameters[p.name] = trainer.model().full_tensor(p.name).clone();
    trainer.save((to / "last").string());
    std::lock_guard lock(mutex);
    if (world->rank() == 0)
      out.curve.losses = mine.curve.losses, out.curve.norms = mine.curve.norms;
    out.curve.parameters.merge(mine.curve.parameters);  // stages of a pipeline have others each
    out.unplanned += mine.unplanned;
  });
  return out;
}

// Of one process.
struct Truth {
  Curve curve;
  fs::path before;  // its checkpoint after kBefore steps
  std::map<std::string, std::string> fresh, kept;
};

}  // namespace

TEST_CASE(
    "layouts: every two of strategy, axes, dtype, option and model take the steps of one process") {
  TestFolder folder("layouts");
  std::vector<std::string> files;
  for (const SmallModel& m : kModels) {
    SmallModel deep = m;
    const std::string more = std::string(m.more) + R"(, "num_hidden_layers": 4)";
    deep.more = more.c_str();
    files.push_back(write_model(folder.path, deep));
  }
  const int steps = steps_of(2, 8);
  std::map<std::tuple<size_t, size_t, int64_t>, Truth> truths;
  // The balance loss is one of each pass, and half precision is rounded in each.
  auto truth_of = [&](const Row& row) -> const Truth& {
    const bool passes = row[pp] != 0 || row[dtype] != 0 || value(row, model).name == "balanced";
    const std::tuple key(row[model], row[dtype], passes ? rows_of(row) : kBatch);
    const auto [at, added] = truths.try_emplace(key);
    Truth& out = at->second;
    if (!added) return out;
    Layout alone{"fsdp2", 1, value(row, dtype).sets, files[row[model]]};
    alone.sets.insert(alone.sets.end(),
                      {"optimizer.eps=1e-5",
                       "step_scheduler.local_batch_size=" + std::to_string(std::get<2>(key))});
    const fs::path mine = folder.path / ("truth " + std::to_string(truths.size()));
    found_of(alone, {}, mine, kBefore);
    out.before = mine / "last";
    out.fresh = contents(mine / "fresh" / "step_00000000");
    out.kept = contents(out.before / "step_00000002");
    out.curve = found_of(alone, out.before, mine / "on", steps).curve;
    return out;
  };
  for (unsigned seed = 1; seed <= (all_layouts() ? 3 : 1); ++seed) {
    const Covering table = table_of(files, seed);
    MESSAGE(table.rows.size() << " rows, without " << table.apart.size()
                              << " pairs that no plan has");
    for (const Row& row : table.rows) {
      const Layout layout = layout_of(row, files);
      INFO(value(row, model).name << ": " << layout.text());
      const Truth& truth = truth_of(row);
      const fs::path saved = folder.path / "row";
      fs::remove_all(saved);
      Found found;
      std::string threw, other_bits;
      try {
        found = found_of(layout, truth.before, saved, steps);
        if (const std::optional<Row> bare = bare_of(row))
          other_bits =
              unlike(found.curve,
                     found_of(layout_of(*bare, files), truth.before, saved / "bare", steps).curve);
      } catch (const std::exception& error) {
        threw = error.what();
      }
      CHECK(threw == "");
      if (!threw.empty()) continue;
      Curve& curve = found.curve;
      CHECK(found.unplanned == "");
      CHECK(contents(saved / "fresh" / "step_00000000") == truth.fresh);
      CHECK(contents(saved / "loaded" / "step_00000002") == truth.kept);
      CHECK(checkpoint::verify_checkpoint(saved / "loaded" / "step_00000002", [](int64_t) {
            }).damage.empty());
      CHECK(other_bits == "");
      if (!truth.curve.parameters.contains("lm_head.weight"))
        curve.parameters.erase("lm_head.weight");  // the last stage's copy
      // Half precision rounds to 4e-3, elsewhere on another mesh.
      const bool half = row[dtype] != 0;
      CHECK(farthest(curve.norms, truth.curve.norms) < (half ? 3e-2 : 2e-6));
      curve.norms = truth.curve.norms;
      CHECK(strays(curve, truth.curve, half ? 5e3 : 2) == "");
    }
  }
}

}  // namespace layouts_test
