// Tensor-parallel plans: style strings, patterns, the tables by architecture, selection, and what
// does not fit.
// Long because it holds every row of the published plans.
#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "llama_outline.h"
#include "meshwright/plugin_main.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/checks.h"
#include "sdk/planning/tp_tables.h"

namespace tp_plan_test {

using namespace meshwright;

namespace {

TpPlanEntries head_alone(const ModelOutline&, bool) {
  return {{"lm_head", *parse_style("colwise")}};
}
TpPlanEntries nowhere(const ModelOutline&, bool) { return {{"nowhere", *parse_style("colwise")}}; }

// "colwise r -> s(-1) plain": a style on one line.
std::string text(const TpStyle& s) {
  return std::string(style_name(s.kind)) + " " + std::string(layout_name(s.input)) + " -> " +
         std::string(layout_name(s.output)) +
         (s.output_kind == TpOutputKind::plain ? " plain" : " sharded");
}

std::map<std::string, std::string> as_map(const TpPlanEntries& entries) {
  std::map<std::string, std::string> out;
  for (const auto& [pattern, style] : entries) {
    CHECK_MESSAGE(out.emplace(pattern, text(style)).second, pattern);
  }
  return out;
}

constexpr const char* kCol = "colwise replicate -> shard(-1) plain";
constexpr const char* kColRep = "colwise replicate -> replicate plain";
constexpr const char* kRow = "rowwise shard(-1) -> replicate plain";
constexpr const char* kRowRep = "rowwise replicate -> replicate plain";
constexpr const char* kRowScatter = "rowwise shard(-1) -> shard(1) sharded";
constexpr const char* kEmbedScatter = "rowwise replicate -> shard(1) sharded";
constexpr const char* kLogits = "colwise replicate -> shard(-1) sharded";
constexpr const char* kSpLogits = "colwise shard(1) -> shard(-1) sharded";
constexpr const char* kSeq = "sequence_parallel shard(1) -> shard(1) sharded";
constexpr const char* kSeqGather = "sequence_parallel_allgather shard(1) -> replicate sharded";

using Plan = std::map<std::string, std::string>;

// Embedding, q k v, output, up and gate, down, head, under a prefix.
Plan lq(bool sp, bool fused, const std::string& prefix = "model",
        const std::string& head = "lm_head") {
  std::string l = prefix + ".layers.*.";
  Plan p = {{prefix + ".embed_tokens", sp ? kEmbedScatter : kRowRep},
            {l + "self_attn.q_proj", kCol},
            {l + "self_attn.k_proj", kCol},
            {l + "self_attn.v_proj", kCol},
            {l + "self_attn.o_proj", sp ? kRowScatter : kRow},
            {l + "mlp.up_proj", kCol},
            {l + "mlp.gate_proj", kCol},
            {l + "mlp.down_proj", sp ? kRowScatter : kRow},
            {head, sp ? kSpLogits : kLogits}};
  if (fused) p[l + "self_attn.qkv_proj"] = p[l + "mlp.gate_up_proj"] = kCol;
  return p;
}

Plan with_norms(Plan p, const char* layer_style, const std::vector<std::string>& norms,
                const std::string& final_norm = "model.norm", const std::string& prefix = "model") {
  p[final_norm] = kSeq;
  for (const std::string& norm : norms) p[prefix + ".layers.*." + norm] = layer_style;
  return p;
}

Plan table(const std::string& architecture, bool sp, const std::string& model_type = "") {
  ModelOutline o;
  o.architecture = architecture;
  o.model_type = model_type;
  std::vector<std::string> notices;
  auto entries = architecture_tp_plan(o, sp, notices);
  REQUIRE(entries.has_value());
  return as_map(*entries);
}

TpPlanRequest request(int64_t tp, bool sp = false) { return {tp, sp, {}}; }

template <class F>
ErrorCode code_of(F&& f) {
  const std::optional<Error> error = testing::refusal(f);
  REQUIRE(error.has_value());
  return error->code();
}

TpPlanRequest custom_request(StringMap patterns = {}) {
  return {2, false, {TpPlanChoice::Kind::custom, "", std::move(patterns)}};
}

}  // namespace

TEST_CASE("every style string means what the table says") {
  const std::map<std::string, std::string> rows = {
      {"colwise", kCol},        {"rowwise", kRow},           {"colwise_rep", kColRep},
      {"rowwise_rep", kRowRep}, {"sequence_parallel", kSeq}, {"colwise_gather_output", kColRep}};
  for (const auto& [name, meaning] : rows) {
    CHECK(text(*parse_style(name)) == meaning);
    CHECK(text(*parse_style(name, StyleContext::own_plan)) == meaning);
  }
  for (StyleContext context : {StyleContext::alone, StyleContext::own_plan})
    CHECK(!parse_style("replicated_with_grad_allreduce", context));
  for (const char* skipped :
       {"ep_router", "ep_something", "local_colwise", "local_rowwise", "gather"}) {
    CHECK(!parse_style(skipped, StyleContext::own_plan));
    CHECK(code_of([&] { parse_style(skipped); }) == ErrorCode::bad_tp_plan);
  }
  for (const char* unknown : {"", "columnwise", "Colwise", "colwise ", "sharded"})
    for (StyleContext context : {StyleContext::alone, StyleContext::own_plan})
      CHECK(code_of([&] { parse_style(unknown, context); }) == ErrorCode::bad_tp_plan);
  // Values, not shared objects: changing one leaves the next alone.
  TpStyle changed = *parse_style("colwise");
  changed.output = TpLayout::partial;
  CHECK(text(changed) != kCol);
  CHECK(text(*parse_style("colwise")) == kCol);
}

TEST_CASE("the base plan is Llama shaped, with and without sequence parallel") {
  Plan plain = lq(false, true);
  plain["lm_head"] = kColRep;
  CHECK(as_map(base_tp_plan(false)) == plain);
  Plan sp = with_norms(lq(true, true), kSeq, {"input_layernorm", "post_attention_layernorm"});
  sp["lm_head"] = "colwise shard(1) -> replicate plain";
  CHECK(as_map(base_tp_plan(true)) == sp);
}

TEST_CASE("every architecture of the table has its plan, with and without sequence parallel") {
  const std::vector<std::string> two = {"input_layernorm", "post_attention_layernorm"};
  for (const char* name : {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
                           "NemotronFlashForCausalLM", "Phi3ForCausalLM"}) {
    CAPTURE(name);
    CHECK(table(name, false) == lq(false, true));
    CHECK(table(name, true) == with_norms(lq(true, true), kSeqGather, two));
  }
  CHECK(table("Ministral3ForCausalLM", false) == lq(false, false));
  CHECK(table("Ministral3ForCausalLM", true) == with_norms(lq(true, false), kSeqGather, two));
  for (bool sp : {false, true}) {  // sequence parallel is ignored
    CHECK(table("Mistral3ForConditionalGeneration", sp) ==
          lq(false, false, "model.language_model"));
    CHECK(table("BaichuanForCausalLM", sp) == Plan{{"model.layers.*.mlp.gate_proj", kCol},
                                                   {"model.layers.*.mlp.up_proj", kCol},
                                                   {"model.layers.*.mlp.down_proj", kRow}});
    Plan muse = lq(false, false);
    muse["model.layers.*.self_attn.output_gate_proj"] = kCol;
    CHECK(table("MuseGlimmerForCausalLM", sp) == muse);
    Plan falcon = {{"model.embed_tokens", kRowRep}, {"lm_head", kColRep}};
    for (const char* p : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                          "feed_forward.gate_proj", "feed_forward.up_proj"})
      falcon[std::string("model.layers.*.") + p] = kCol;
    falcon["model.layers.*.self_attn.o_proj"] = falcon["model.layers.*.feed_forward.down_proj"] =
        kRow;
    CHECK(table("FalconH1ForCausalLM", sp) == falcon);
  }
  for (const auto& [name, prefix] : std::map<std::string, std::string>{
           {"Gemma3ForCausalLM", "model"},
           {"Gemma3ForConditionalGeneration", "model.language_model"}}) {
    CHECK(table(name, false) == lq(false, false, prefix));
    Plan sp = with_norms(lq(true, false, prefix), kSeq,
                         {"input_layernorm", "post_attention_layernorm",
                          "pre_feedforward_layernorm", "post_feedforward_layernorm"},
                         prefix + ".norm", prefix);
    sp[prefix + ".rotary_emb"] = sp[prefix + ".rotary_emb_local"] =
        "rotary shard(1) -> replicate plain";
    CHECK(table(name, true) == sp);
  }
  Plan phi = {{"model.embed_tokens", kRowRep}, {"lm_head", kLogits}};
  for (const char* p : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.fc1"})
    phi[std::string("model.layers.*.") + p] = kCol;
  phi["model.layers.*.self_attn.dense"] = phi["model.layers.*.mlp.fc2"] = kRow;
  CHECK(table("PhiForCausalLM", false) == phi);
  phi["model.embed_tokens"] = kEmbedScatter;
  phi["lm_head"] = kSpLogits;
  phi["model.layers.*.self_attn.dense"] = phi["model.layers.*.mlp.fc2"] = kRowScatter;
  CHECK(table("PhiForCausalLM", true) ==
        with_norms(phi, kSeq, {"input_layernorm"}, "model.final_layernorm"));
  CHECK(table("NemotronLabsDiffusionForCausalLM", false) ==
        lq(false, false, "encoder", "diffusion_head"));
  CHECK(table("NemotronLabsDiffusionForCausalLM", true) ==
        with_norms(lq(true, false, "encoder", "diffusion_head"), kSeqGather, two, "encoder.norm",
                   "encoder"));
  CHECK(table("NemotronHForCausalLM", false) == Plan{{"lm_head", kLogits},
                                                     {"backbone.layers.*.mixer.up_proj", kCol},
                                                     {"backbone.layers.*.mixer.down_proj", kRow}});
  CHECK(code_of([] { table("NemotronHForCausalLM", true); }) == ErrorCode::option_refused);
  Plan deci = lq(false, false);
  deci["lm_head"] = kColRep;
  CHECK(table("DeciLMForCausalLM", false, "nemotron-nas") == deci);
  Plan deci_sp = with_norms(lq(true, false), kSeq, two);
  deci_sp["lm_head"] = "colwise shard(1) -> replicate plain";
  CHECK(table("DeciLMForCausalLM", true, "nemotron-nas") == deci_sp);
  CHECK(code_of([] { table("DeciLMForCausalLM", false, "other"); }) == ErrorCode::bad_tp_plan);
  std::vector<std::string> notices;
  for (const char* name : {"MistralForCausalLM", "MixtralForCausalLM", "OlmoForCausalLM", ""}) {
    ModelOutline o;
    o.architecture = name;
    CHECK(!architecture_tp_plan(o, false, notices));
  }
}

TEST_CASE(
    "Qwen3 for sequence classification needs a score and no head, else its own plan is asked") {
  ModelOutline o;
  o.architecture = "Qwen3ForSequenceClassification";
  o.modules = {{"", ModuleKind::other, "Q"}, {"score", ModuleKind::linear, "Linear"}};
  std::vector<std::string> notices;
  Plan plan = as_map(*architecture_tp_plan(o, false, notices));
  CHECK(plan["score"] == kColRep);
  CHECK(!plan.contains("lm_head"));
  o.modules.push_back({"lm_head", ModuleKind::linear, "Linear"});
  CHECK_THROWS_AS(architecture_tp_plan(o, false, notices), Error);
  // The row fails, the own plan fails too: its failure stands, no base plan.
  CHECK(code_of([&] { select_tp_plan(o, request(2)); }) == ErrorCode::tp_plan_does_not_fit);
  o.own_tp_plan = {{"score", "colwise_rep"}};
  TpPlan chosen = select_tp_plan(o, request(2));
  CHECK(chosen.source == "own plan");
}

TEST_CASE("patterns match level by level and never across dots") {
  struct Row {
    const char *pattern, *name;
    bool matches;
  };
  for (const Row& row : {Row{"model.layers.*.mlp.up_proj", "model.layers.12.mlp.up_proj", true},
                         {"model.*.up_proj", "model.layers.0.mlp.up_proj", false},
                         {"*", "lm_head", true},
                         {"*", "model.norm", false},
                         {"", "", true},
                         {"", "model", false},
                         {"*", "", false},
                         {"model.layers.?.mlp", "model.layers.3.mlp", true},
                         {"model.layers.?.mlp", "model.layers.13.mlp", false},
                         {"l.[0-3].x", "l.2.x", true},
                         {"l.[0-3].x", "l.4.x", false},
                         {"l.[!0].x", "l.1.x", true},
                         {"l.[!0].x", "l.0.x", false},
                         {"l.[ab", "l.[ab", true},
                         {"l.1.x", "l.1.x", true},
                         {"l.1.x", "l.11.x", false},
                         {"l.1*.x", "l.11.x", true},
                         {"l.[a.b]", "l.[a.b]", true},
                         {"l.[a.b]", "l.a", false},
                         {"a.b.c", "a.b", false},
                         {"a.b", "a.b.c", false},
                         {"b.c", "a.b.c", false},
                         {"*.c", "a.b.c", false},
                         {"c", "a.b.c", false},
                         {"a.b.c", "c", false},
                         {"a.*", "a.", true},
                         {"a.b", "a.", false},
                         {"a..c", "a..c", true},
                         {"a..c", "a.c", false},
                         {"*_proj", "q_proj", true},
                         {"q*j", "q_proj", true}}) {
    INFO(row.pattern, " and ", row.name);
    CHECK(pattern_matches(row.pattern, row.name) == row.matches);
  }
  // Many stars cost no more than the product of the lengths.
  CHECK(!glob_matches(std::string(200, '*') + "b", std::string(5000, 'a')));
  std::string stars;
  for (int i = 0; i < 100; ++i) stars += "*a";
  CHECK(!glob_matches(stars + "b", std::string(3000, 'a')));
}

TEST_CASE("heads must divide by tp, and the help names sizes that do") {
  struct Row {
    int64_t heads, kv, tp;
    bool fits;
  };
  for (const Row& row :
       {Row{32, 8, 1, true}, Row{32, 8, 2, true}, Row{32, 8, 4, true}, Row{32, 8, 8, true},
        Row{32, 8, 16, false}, Row{40, 10, 4, false}, Row{40, 10, 5, true}, Row{6, 2, 4, false},
        Row{6, 2, 2, true}, Row{0, 0, 7, true}, Row{6, 6, 4, false}}) {
    ModelOutline o;
    o.architecture = "LlamaForCausalLM";
    o.attention_heads = row.heads;
    o.key_value_heads = row.kv;
    CAPTURE(row.heads);
    CAPTURE(row.tp);
    if (row.fits) {
      CHECK_NOTHROW(check_heads(o, row.tp));
      continue;
    }
    const Error error =
        testing::refused(ErrorCode::heads_not_divisible, "", [&] { check_heads(o, row.tp); });
    CHECK(error.key() == "distributed.tp_size");
    REQUIRE(!error.helps().empty());
    for (const std::string& help : error.helps())
      CHECK_NOTHROW(check_heads(o, std::stoll(help.substr(help.rfind(' ') + 1))));
  }
}

TEST_CASE("the groups of fused rows must divide by tp") {
  ModelOutline o;
  o.architecture = "Phi3ForCausalLM";
  o.attention_heads = o.key_value_heads = 4;
  o.parameters = {{"mlp.gate_up_proj.weight", {100, 8}, DType::float32, FusedRows{2, {25, 25}}}};
  CHECK_NOTHROW(check_heads(o, 1));
  CHECK_NOTHROW(check_heads(o, 2));
  const Error error = testing::refused(
      ErrorCode::heads_not_divisible,
      "the rows of mlp.gate_up_proj.weight lie in 2 groups, which do not divide by tp 4; a rank "
      "needs whole groups of them",
      [&] { check_heads(o, 4); });
  CHECK(error.helps() ==
        testing::Names{"set distributed.tp_size = 2", "set distributed.tp_size = 1"});
}

TEST_CASE("the plan is chosen in the order of semantics 2.1") {
  ModelOutline llama = testing::llama_outline({});
  CHECK(select_tp_plan(llama, request(1)).source == "none");
  CHECK(select_tp_plan(llama, request(1)).entries.empty());
  CHECK(select_tp_plan(llama, request(2)).source == "table LlamaForCausalLM");

  TpPlanRequest custom = custom_request();
  CHECK(select_tp_plan(llama, custom)
            .entries.empty());  // the empty map: nothing is sharded, no error
  custom.choice.patterns = {{"model.layers.*.mlp.up_proj", "colwise_rep"},
                            {"model.layers.*.nowhere", "rowwise"}};
  TpPlan plan = select_tp_plan(llama, custom);
  CHECK(plan.source == "custom");
  REQUIRE(plan.entries.size() == 1);
  CHECK(plan.entries[0].modules.size() == static_cast<size_t>(llama.layers));
  REQUIRE(plan.warnings.size() == 1);
  CHECK(plan.warnings[0].find("nowhere") != std::string::npos);
  custom.choice.patterns = {{"lm_head", "sideways"}};
  CHECK(code_of([&] { select_tp_plan(llama, custom); }) == ErrorCode::bad_tp_plan);

  TpPlanRequest named = request(2);
  named.choice.kind = TpPlanChoice::Kind::named;
  named.choice.name = "llama_nemotron_super_tp_plan";
  CHECK(select_tp_plan(llama, named).source == "named llama_nemotron_super_tp_plan");
  CHECK(
      select_tp_plan(llama, named).warnings.empty());  // its fused projections are another model's
  CHECK(as_map(architecture_tp_plan(llama, false, plan.notices).value()).size() == 11);
  named.choice.name = "llama_nemotron_supper_tp_plan";
  const Error unknown =
      testing::refused(ErrorCode::unknown_tp_plan, "", [&] { select_tp_plan(llama, named); });
  CHECK(unknown.helps().front().find("llama_nemotron_super_tp_plan") != std::string::npos);
  // Plans that a strategy's description brings; again the same ones, as a second instance does.
  constexpr std::array kPlans = {named_tp_plan<head_alone>("test_plan"),
                                 named_tp_plan<nowhere>("test_plan_of_nothing")};
  constexpr std::array kOthers = {named_tp_plan<nowhere>("test_plan")};
  constexpr std::array kBuiltIn = {named_tp_plan<nowhere>("base")};
  auto bring = [](std::span<const meshwright_tp_plan> plans) {
    meshwright_strategy strategy{};
    strategy.tp_plans = plans.data();
    strategy.tp_plan_count = plans.size();
    tp::register_plans(strategy);
  };
  bring(kPlans);
  bring(kPlans);
  for (std::span<const meshwright_tp_plan> taken : {std::span(kOthers), std::span(kBuiltIn)})
    CHECK(code_of([&] { bring(taken); }) == ErrorCode::conflict);
  // Of a strategy that is refused nothing stays.
  constexpr std::array kHalf = {named_tp_plan<head_alone>("test_plan_of_half"), kBuiltIn[0]};
  CHECK(code_of([&] { bring(kHalf); }) == ErrorCode::conflict);
  CHECK(std::ranges::count(tp::plan_names(), "test_plan_of_half") == 0);
  CHECK(std::ranges::count(tp::plan_names(), "base") == 1);
  named.choice.name = "test_plan";
  CHECK(select_tp_plan(llama, named).entries.size() == 1);
  named.choice.name = "test_plan_of_nothing";
  CHECK(select_tp_plan(llama, named).warnings.size() == 1);

  ModelOutline mistral = llama;
  mistral.architecture = "MistralForCausalLM";
  mistral.own_tp_plan.clear();
  TpPlan base = select_tp_plan(mistral, request(2));
  CHECK(base.source == "base plan");
  CHECK(!base.warnings.empty());
  mistral.own_tp_plan = {{"lm_head", "colwise_gather_output"},
                         {"model.layers.*.self_attn.q_proj", "colwise"},
                         {"model.layers.*.self_attn.q_norm", "replicated_with_grad_allreduce"}};
  // Its norms are cut along the sequence, and so is what its rows and its embedding give.
  ModelOutline cut = mistral;
  cut.own_tp_plan = {{"model.layers.*.self_attn.q_proj", "colwise"},
                     {"model.layers.*.self_attn.k_proj", "colwise"},
                     {"model.layers.*.self_attn.v_proj", "colwise"},
                     {"model.layers.*.self_attn.o_proj", "rowwise"},
                     {"model.layers.*.mlp.gate_proj", "colwise"},
                     {"model.layers.*.mlp.up_proj", "colwise"},
                     {"model.layers.*.mlp.down_proj", "rowwise"},
                     {"lm_head", "colwise_rep"}};
  cut.own_sequence_plan = {{"model.layers.*.input_layernorm", "sequence_parallel"},
                           {"model.layers.*.post_attention_layernorm", "sequence_parallel"},
                           {"model.norm", "sequence_parallel"}};
  CHECK(own_tp_plan(cut).size() == 9);  // without the norms, with the embedding
  const TpPlanEntries whole = own_tp_plan(cut), parts = own_tp_plan(cut, true);
  REQUIRE(parts.size() == 12);
  for (size_t i = 0; i < whole.size(); ++i)
    if (whole[i].second.kind == TpStyleKind::row)
      CHECK(parts[i].second.output == TpLayout::shard_1);
    else
      CHECK(parts[i].second == whole[i].second);
  TpPlanRequest sequence = request(2);
  sequence.sequence_parallel = true;
  CHECK(select_tp_plan(cut, sequence).source == "own plan");
  // What a family's plan names for other sizes of it is no mistake; in the plan of a user's model
  // it may be.
  ModelOutline other = mistral;
  other.own_tp_plan[1].second = "colwise_rep";  // right by itself
  other.own_tp_plan.emplace_back("model.layers.*.nowhere", "colwise");
  CHECK(select_tp_plan(other, request(2)).warnings.empty());
  other.remote_code = true;
  CHECK(select_tp_plan(other, request(2)).warnings.size() == 1);
  TpPlan own = select_tp_plan(mistral, request(2));
  CHECK(own.source == "own plan");
  Plan entries;
  for (const TpEntry& e : own.entries) entries[e.pattern] = text(e.style);
  // The head keeps its logits sharded, the embedding is added, skipped strings leave no entry.
  CHECK(entries == Plan{{"lm_head", kLogits},
                        {"model.layers.*.self_attn.q_proj", kCol},
                        {"model.embed_tokens", kRowRep}});
  mistral.own_tp_plan.clear();
  mistral.remote_code = true;
  CHECK(code_of([&] { select_tp_plan(mistral, request(2)); }) == ErrorCode::tp_plan_does_not_fit);
}

TEST_CASE(
    "a style that cannot be, and two styles for one module, are errors that name the patterns") {
  ModelOutline llama = testing::llama_outline({});
  TpPlanRequest custom = custom_request();
  for (const char* pattern : {"model.layers.0.mlp", "model.norm", "", "model.layers"}) {
    custom.choice.patterns = {{pattern, "colwise"}};
    CAPTURE(pattern);
    CHECK(code_of([&] { select_tp_plan(llama, custom); }) == ErrorCode::tp_plan_does_not_fit);
  }
  custom.choice.patterns = {{"model.layers.*.mlp.up_proj", "colwise"},
                            {"model.layers.1.mlp.*_proj", "colwise"}};
  const Error twice =
      testing::refused(ErrorCode::tp_plan_does_not_fit, "model.layers.*.mlp.up_proj",
                       [&] { select_tp_plan(llama, custom); });
  CHECK(twice.message().find("model.layers.1.mlp.*_proj") != std::string::npos);
}

TEST_CASE("tensor parallelism on a mixture of experts leaves experts and router alone") {
  ModelOutline moe = testing::llama_outline({});
  moe.architecture = "MixtralForCausalLM";
  moe.moe = MoeOutline{4, 2, 64, 0};
  moe.own_tp_plan = {{"model.layers.*.self_attn.q_proj", "colwise"},
                     {"model.layers.*.mlp.experts.down_proj", "rowwise"}};
  moe.modules.push_back({"model.layers.0.mlp.gate", ModuleKind::linear, "Linear"});
  moe.modules.push_back({"model.layers.0.mlp.experts", ModuleKind::experts, "Experts"});
  CHECK(select_tp_plan(moe, request(2)).source == "own plan");
  CHECK(code_of([&] { select_tp_plan(moe, request(2, true)); }) == ErrorCode::option_refused);
  TpPlanRequest custom = custom_request();
  CHECK(code_of([&] { select_tp_plan(moe, custom); }) == ErrorCode::tp_plan_does_not_fit);  // empty
  for (const char* bad :
       {"model.layers.*.mlp.gate", "model.layers.*.mlp.experts", "model.layers.*.mlp",
        "model.layers.*.nothing", "model.layers.*.router"}) {
    CAPTURE(bad);
    custom.choice.patterns = {{bad, "colwise"}};
    CHECK(code_of([&] { select_tp_plan(moe, custom); }) == ErrorCode::tp_plan_does_not_fit);
  }
  custom.choice.patterns = {{"model.layers.*.self_attn.q_proj", "colwise"}};
  CHECK(select_tp_plan(moe, custom).entries.size() == 1);
  moe.own_tp_plan.clear();
  CHECK(code_of([&] { select_tp_plan(moe, request(2)); }) == ErrorCode::tp_plan_does_not_fit);
}

TEST_CASE("a plan says along which dimension each parameter is cut") {
  ModelOutline llama = testing::llama_outline({});
  TpPlan plan = select_tp_plan(llama, request(2));
  CHECK(tp_shard_dim(plan, llama, "model.embed_tokens.weight") == 0);
  CHECK(tp_shard_dim(plan, llama, "model.layers.0.self_attn.q_proj.weight") == 0);
  CHECK(tp_shard_dim(plan, llama, "model.layers.0.self_attn.q_proj.bias") == 0);
  CHECK(tp_shard_dim(plan, llama, "model.layers.0.self_attn.o_proj.weight") == 1);
  CHECK(tp_shard_dim(plan, llama, "model.layers.0.self_attn.o_proj.bias") == std::nullopt);
  CHECK(tp_shard_dim(plan, llama, "model.layers.0.input_layernorm.weight") == std::nullopt);
  const footprint::CutDims cuts(plan, llama);
  for (const ParameterOutline& p : llama.parameters)
    CHECK(cuts.find(p.name) == tp_shard_dim(plan, llama, p.name));
  struct Row {
    int64_t size, count;
    std::vector<int64_t> rows;
  };
  for (const Row& row : {Row{10, 4, {3, 3, 3, 1}}, Row{5, 4, {2, 2, 1, 0}}, Row{1, 4, {1, 0, 0, 0}},
                         Row{257, 2, {129, 128}}, Row{0, 2, {0, 0}}})
    for (size_t i = 0; i < row.rows.size(); ++i) {
      Chunk c = ceil_chunk(row.size, row.count, static_cast<int64_t>(i));
      CHECK(c.end - c.begin == row.rows[i]);
    }
}

TEST_CASE(
    "a plan that would combine a part with a whole is drawn with a warning and does not run") {
  ModelOutline llama = testing::llama_outline({});
  struct Row {
    StringMap patterns;
    const char* said;  // nullptr: the plan is right
  };
  const std::string attention = "model.layers.*.self_attn.", mlp = "model.layers.*.mlp.";
  const Row rows[] = {
      {{{attention + "q_proj", "colwise"}, {attention + "o_proj", "rowwise"}},
       "in model.layers.0.self_attn, q_proj has colwise"},
      {{{attention + "q_proj", "colwise"},
        {attention + "k_proj", "colwise"},
        {attention + "v_proj", "colwise"}},
       "but o_proj has no style"},
      {{{attention + "q_proj", "colwise"},
        {attention + "k_proj", "colwise"},
        {attention + "v_proj", "colwise"},
        {attention + "o_proj", "rowwise_rep"}},
       "but o_proj has rowwise (replicate to replicate)"},
      {{{mlp + "down_proj", "rowwise"}}, "down_proj has rowwise (shard(-1) to replicate)"},
      {{{mlp + "gate_proj", "rowwise"}}, "but its input is whole"},
      {{{"lm_head", "rowwise"}}, "but its input is whole"},
      {{{"model.embed_tokens", "colwise"}}, "cut along its width"},
      {{{"model.norm", "sequence_parallel"},
        {"model.embed_tokens", "rowwise_rep"},
        {"lm_head", "colwise_rep"}},
       "they cannot be added"},
      {{{mlp + "up_proj", "colwise"},
        {mlp + "gate_proj", "colwise"},
        {mlp + "down_proj", "rowwise"}},
       nullptr},
      {{{mlp + "up_proj", "colwise_rep"},
        {attention + "o_proj", "rowwise_rep"},
        {"model.embed_tokens", "colwise_rep"}},
       nullptr},
  };
  for (const Row& row : rows) {
    CAPTURE(row.patterns[0].first);
    const TpPlan plan = select_tp_plan(llama, custom_request(row.patterns));
    if (row.said == nullptr) {
      CHECK(plan.warnings.empty());
      CHECK_NOTHROW(check_tp_blocks(plan, llama));
      continue;
    }
    REQUIRE(plan.warnings.size() == 1);
    CHECK(plan.warnings[0].find(row.said) != std::string::npos);
    CHECK(plan.warnings[0].ends_with("; train refuses this plan"));
    testing::refused(ErrorCode::tp_plan_does_not_fit, row.said,
                     [&] { check_tp_blocks(plan, llama); });
  }
}

TEST_CASE(
    "of several blocks that do not fit the first by name is told, whichever layers they are in") {
  const ModelOutline llama = testing::llama_outline({.layers = 12});
  // Names are compared as text: 10 comes before 2.
  const TpPlan plan =
      select_tp_plan(llama, custom_request({{"model.layers.[2-9].mlp.up_proj", "colwise"},
                                            {"model.layers.1?.mlp.up_proj", "colwise"}}));
  REQUIRE(plan.entries.size() == 2);
  CHECK(plan.entries[0].modules.size() == 8);
  CHECK(plan.entries[1].modules ==
        std::vector<std::string>{"model.layers.10.mlp.up_proj", "model.layers.11.mlp.up_proj"});
  REQUIRE(plan.warnings.size() == 1);
  CHECK(plan.warnings[0] ==
        "in model.layers.10.mlp, up_proj has colwise (replicate to shard(-1)), but gate_proj has "
        "no style: a rank would combine a part with a whole; train refuses this plan");
}

TEST_CASE("a pattern may name one layer by its number") {
  const ModelOutline llama = testing::llama_outline({.layers = 12});
  const TpPlan plan =
      select_tp_plan(llama, custom_request({{"model.layers.1.mlp.gate_proj", "colwise"},
                                            {"model.layers.1.mlp.up_proj", "colwise"},
                                            {"model.layers.1.mlp.down_proj", "rowwise"}}));
  CHECK(plan.warnings.empty());
  REQUIRE(plan.entries.size() == 3);
  for (const TpEntry& entry : plan.entries)
    CHECK(entry.modules == std::vector<std::string>{entry.pattern});
}

}  // namespace tp_plan_test
