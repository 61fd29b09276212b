// What a plan's styles come to in one model: real input layouts, who reduces, partial gradients,
// and what could not run.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "llama_outline.h"
#include "meshwright/tp_plan.h"

using namespace meshwright;
using meshwright::testing::llama_outline;
using meshwright::testing::LlamaSizes;
using meshwright::testing::Names;

namespace {

using Entries = std::vector<std::pair<std::string, TpStyle>>;

constexpr TpStyle kColumn{TpStyleKind::column, TpLayout::replicate, TpLayout::shard_last,
                          TpOutputKind::plain};
constexpr TpStyle kRow{TpStyleKind::row, TpLayout::shard_last, TpLayout::replicate,
                       TpOutputKind::plain};
constexpr TpStyle kRowScatter{TpStyleKind::row, TpLayout::shard_last, TpLayout::shard_1,
                              TpOutputKind::sharded};
constexpr TpStyle kRowWhole{TpStyleKind::row, TpLayout::replicate, TpLayout::replicate,
                            TpOutputKind::plain};
constexpr TpStyle kSequence{TpStyleKind::sequence, TpLayout::shard_1, TpLayout::shard_1,
                            TpOutputKind::sharded};
constexpr TpStyle kGather{TpStyleKind::sequence_all_gather, TpLayout::shard_1, TpLayout::replicate,
                          TpOutputKind::sharded};

std::map<std::string, TpModule> by_name(const std::vector<TpModule>& modules) {
  std::map<std::string, TpModule> out;
  for (const TpModule& module : modules) out.emplace(module.name, module);
  REQUIRE(out.size() == modules.size());
  return out;
}

TpPlan plan_of(const ModelOutline& outline, const Entries& entries) {
  TpPlan plan;
  plan.source = "custom";
  for (const auto& [pattern, style] : entries) {
    TpEntry entry{pattern, style, {}};
    for (const ModuleOutline& module : outline.modules)
      if (pattern_matches(pattern, module.name)) entry.modules.push_back(module.name);
    plan.entries.push_back(std::move(entry));
  }
  return plan;
}

Entries all_cut() {
  std::string layer = "model.layers.*.";
  return {{layer + "self_attn.[qkv]_proj", kColumn},
          {layer + "self_attn.o_proj", kRowScatter},
          {layer + "mlp.gate_proj", kColumn},
          {layer + "mlp.up_proj", kColumn},
          {layer + "mlp.down_proj", kRowScatter}};
}

Entries with(Entries entries, const Entries& more) {
  entries.insert(entries.end(), more.begin(), more.end());
  return entries;
}
Entries with_norms(const TpStyle& style) {
  return with(all_cut(), {{"model.layers.*.*_layernorm", style}});
}

Entries without(Entries entries, const std::string& ending) {
  std::erase_if(entries, [&](const auto& entry) { return entry.first.ends_with(ending); });
  return entries;
}

void check_refused(const TpPlan& plan, const ModelOutline& outline, const std::string& names) {
  for (bool gradients : {false, true}) {
    const Error error = meshwright::testing::refused(ErrorCode::tp_plan_does_not_fit, names, [&] {
      if (gradients)
        partial_gradient_parameters(plan, outline);
      else
        resolve_tp_modules(plan, outline);
    });
    CHECK(error.key() == "distributed.tp_plan");
    CHECK(!error.helps().empty());
  }
}

TpPlanRequest request(bool sequence_parallel) {
  TpPlanRequest out;
  out.tp_size = 2;
  out.sequence_parallel = sequence_parallel;
  return out;
}

}  // namespace

TEST_CASE(
    "columns behind norms that leave the sequence cut get a part of it, whatever the plan says") {
  ModelOutline llama = llama_outline({});
  llama.architecture = "SomethingForCausalLM";
  llama.own_tp_plan.clear();
  TpPlan plan = select_tp_plan(llama, request(true));
  REQUIRE(plan.source == "base plan");
  auto modules = by_name(resolve_tp_modules(plan, llama));
  CHECK(modules.size() == 21);  // nine in each layer, embedding, final norm, head
  for (const char* name :
       {"model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj", "lm_head"}) {
    CAPTURE(name);
    CHECK(modules.at(name).style.input == TpLayout::shard_1);
    CHECK(!modules.at(name).gathers_for_columns);
  }
  CHECK(modules.at("model.layers.0.self_attn.o_proj").style.input == TpLayout::shard_last);
  CHECK(modules.at("model.embed_tokens").style.input == TpLayout::replicate);
  // A head annotated whole behind a final norm that leaves the sequence cut is no different.
  modules = by_name(resolve_tp_modules(
      plan_of(llama,
              with(with_norms(kSequence), {{"model.norm", kSequence}, {"lm_head", kColumn}})),
      llama));
  CHECK(modules.at("lm_head").style.input == TpLayout::shard_1);
  CHECK(modules.at("lm_head").style.output == TpLayout::shard_last);
}

TEST_CASE(
    "a norm that gathers for columns alone reduces for them all; otherwise the columns reduce") {
  ModelOutline llama = llama_outline({});
  TpPlan plan = select_tp_plan(llama, request(true));
  auto modules = by_name(resolve_tp_modules(plan, llama));
  for (const char* name :
       {"model.layers.0.input_layernorm", "model.layers.1.post_attention_layernorm",
        "model.layers.0.self_attn.k_proj", "model.layers.1.mlp.gate_proj"})
    CHECK_MESSAGE(modules.at(name).gathers_for_columns, name);
  for (const char* name :
       {"model.norm", "lm_head", "model.layers.0.self_attn.o_proj", "model.embed_tokens"})
    CHECK_MESSAGE(!modules.at(name).gathers_for_columns, name);
  CHECK(modules.at("model.layers.0.self_attn.q_proj").style.input == TpLayout::replicate);
  CHECK(modules.at("lm_head").style.input == TpLayout::shard_1);
  // A projection without a style, or a row that cuts a whole input, reads the gathered norm too.
  for (const Entries& entries : {without(with_norms(kGather), "up_proj"),
                                 with(without(with_norms(kGather), "gate_proj"),
                                      {{"model.layers.*.mlp.gate_proj", kRowWhole}})}) {
    modules = by_name(resolve_tp_modules(plan_of(llama, entries), llama));
    for (const char* name : {"model.layers.0.input_layernorm", "model.layers.0.self_attn.q_proj"}) {
      CHECK_MESSAGE(!modules.at(name).gathers_for_columns, name);
    }
    CHECK(modules.at("model.layers.0.self_attn.q_proj").style.input == TpLayout::replicate);
  }
  // Without sequence parallelism nothing gathers.
  for (const TpModule& module : resolve_tp_modules(select_tp_plan(llama, request(false)), llama)) {
    CHECK_MESSAGE(!module.gathers_for_columns, module.name);
    CHECK_MESSAGE(module.style.input != TpLayout::shard_1, module.name);
  }
}

TEST_CASE(
    "gradients that are sums over tp are those of sequence-parallel norms, head norms and "
    "scattered biases") {
  LlamaSizes sizes;
  sizes.layers = 1;
  ModelOutline llama = llama_outline(sizes);
  CHECK(partial_gradient_parameters(select_tp_plan(llama, request(false)), llama).empty());
  Names norms = {"model.layers.0.input_layernorm.weight",
                 "model.layers.0.post_attention_layernorm.weight", "model.norm.weight"};
  CHECK(partial_gradient_parameters(select_tp_plan(llama, request(true)), llama) == norms);
  CHECK(partial_gradient_parameters(plan_of(llama, with_norms(kSequence)), llama) ==
        Names(norms.begin(), norms.begin() + 2));

  sizes.head_norms = true;
  ModelOutline qwen = llama_outline(sizes);
  qwen.architecture = "Qwen3ForCausalLM";
  Names heads = {"model.layers.0.self_attn.q_norm.weight",
                 "model.layers.0.self_attn.k_norm.weight"};
  CHECK(partial_gradient_parameters(select_tp_plan(qwen, request(false)), qwen) == heads);
  Names all = heads;
  all.insert(all.end(), norms.begin(), norms.end());
  CHECK(partial_gradient_parameters(select_tp_plan(qwen, request(true)), qwen) == all);
  // Heads that are put together again are whole.
  TpStyle gathered = kColumn;
  gathered.output = TpLayout::replicate;
  CHECK(partial_gradient_parameters(
            plan_of(qwen, {{"model.layers.*.self_attn.[qkv]_proj", gathered}}), qwen)
            .empty());

  // What they are of is declared, whatever their shapes: heads may be as wide as the stream.
  sizes.head_dim = sizes.hidden;
  ModelOutline wide = llama_outline(sizes);
  wide.architecture = "Qwen3ForCausalLM";
  const TpPlan cut = select_tp_plan(wide, request(false));
  CHECK(cut.warnings.empty());
  CHECK(partial_gradient_parameters(cut, wide) == heads);
  // Of the stream: the later row wins.
  ModelOutline of_stream = wide;
  of_stream.own_tp_plan.emplace_back("model.layers.*.self_attn.q_norm", "replicated");
  CHECK(partial_gradient_parameters(cut, of_stream) == Names(heads.begin() + 1, heads.end()));
  CHECK_NOTHROW(check_tp_blocks(cut, of_stream));

  // A bias is added once, after the sum: to the rank's own part of the sequence, or to the whole.
  llama.parameters.push_back(
      {"model.layers.0.self_attn.o_proj.bias", {sizes.hidden}, DType::float32});
  llama.parameters.push_back(
      {"model.layers.0.self_attn.q_proj.bias", {sizes.hidden}, DType::float32});
  CHECK(partial_gradient_parameters(plan_of(llama, all_cut()), llama) ==
        Names{"model.layers.0.self_attn.o_proj.bias"});
  CHECK(partial_gradient_parameters(plan_of(llama, {{"model.layers.*.self_attn.o_proj", kRow}}),
                                    llama)
            .empty());

  // A final norm beside the head is not one of heads.
  ModelOutline flat;
  flat.modules = {{"", ModuleKind::other, "M"},
                  {"norm", ModuleKind::norm, "Norm"},
                  {"lm_head", ModuleKind::linear, "Linear"}};
  flat.parameters = {{"norm.weight", {8}, DType::float32},
                     {"lm_head.weight", {32, 8}, DType::float32}};
  CHECK(partial_gradient_parameters(plan_of(flat, {{"lm_head", kColumn}}), flat).empty());
}

TEST_CASE("what would see only a part of the sequence is refused by name") {
  ModelOutline llama = llama_outline({});
  check_refused(plan_of(llama, without(with_norms(kSequence), "mlp.up_proj")), llama,
                "model.layers.0.mlp.up_proj has no style");
  check_refused(plan_of(llama, with(all_cut(), {{"model.layers.*.input_layernorm", kSequence}})),
                llama, "model.layers.0.post_attention_layernorm has no style");
  check_refused(plan_of(llama, with(with_norms(kSequence), {{"model.norm", kSequence}})), llama,
                "lm_head has no style");
  check_refused(plan_of(llama, with(without(with_norms(kSequence), "mlp.up_proj"),
                                    {{"model.layers.*.mlp.up_proj", kRowWhole}})),
                llama, "model.layers.0.mlp.up_proj is a row style with a whole input");
  check_refused(
      plan_of(llama, with(all_cut(), {{"model.layers.*.input_layernorm", kSequence},
                                      {"model.layers.*.post_attention_layernorm", kGather}})),
      llama, "model.layers.0 has norms of both kinds");
  // The selection says so too, before anything runs, with a setting that works.
  ModelOutline wider = llama;
  wider.architecture = "SomethingForCausalLM";
  wider.modules.push_back({"model.layers.1.mlp.router_proj", ModuleKind::linear, "Linear"});
  CHECK_NOTHROW(select_tp_plan(wider, request(false)));
  CHECK(meshwright::testing::refused(ErrorCode::tp_plan_does_not_fit, "", [&] {
          select_tp_plan(wider, request(true));
        }).helps() == Names{"set distributed.sequence_parallel = false"});
}

TEST_CASE("what trains whole among cut projections says what it sees, or is not run") {
  ModelOutline llama = llama_outline({});
  const TpPlan plan = select_tp_plan(llama, request(false));
  CHECK_NOTHROW(check_tp_blocks(plan, llama));
  struct Row {
    const char *module, *parameter;  // the module is added, but where it is the block itself
    ModuleKind kind;
    bool refused;
  };
  const std::string attention = "model.layers.1.self_attn";
  for (const Row& row : {Row{".q_norm", ".weight", ModuleKind::norm, true},
                         {".inner.scale", ".weight", ModuleKind::other, true},
                         {".kv_a_proj", ".weight", ModuleKind::linear, true},
                         {".position_bias", ".weight", ModuleKind::embedding, true},
                         {"", ".sinks", ModuleKind::other, true},
                         {".router", ".weight", ModuleKind::router, false},
                         {".q_proj.lora_A", ".weight", ModuleKind::other, false}}) {
    const std::string name = attention + row.module;
    CAPTURE(name);
    for (const std::string sees : {"", "replicated", "replicated_with_grad_allreduce"})
      for (const bool trainable : {true, false}) {
        ModelOutline outline = llama;
        if (*row.module != '\0') outline.modules.push_back({name, row.kind, "Added"});
        if (!sees.empty()) outline.own_tp_plan = {{name, sees}};
        outline.parameters.push_back({name + row.parameter, {4}, DType::float32});
        outline.parameters.back().trainable = trainable;
        const bool refused = row.refused && sees.empty() && trainable;
        std::string said;
        try {
          check_tp_blocks(plan, outline);
        } catch (const Error& error) {
          said = error.message();
          CHECK(error.code() == ErrorCode::tp_plan_does_not_fit);
          CHECK(error.helps().size() == 3);
        }
        CHECK((said.find(name + " stands whole among the projections of " + attention) !=
               std::string::npos) == refused);
        if (!refused) CHECK(said.empty());
        const Names partial = partial_gradient_parameters(plan, outline);
        if (row.refused)
          CHECK(partial == (sees.ends_with("allreduce") ? Names{name + row.parameter} : Names{}));
      }
  }
  // Where a layer's own projections are cut, what stands beside them is asked, and no block below.
  ModelOutline flat = llama;
  flat.modules.push_back({"model.layers.1.query", ModuleKind::linear, "Linear"});
  flat.parameters.push_back({"model.layers.1.query.weight", {8, 8}, DType::float32});
  const TpPlan query = plan_of(flat, {{"model.layers.*.query", kColumn}});
  CHECK_THROWS_AS(check_tp_blocks(query, flat), Error);
  flat.own_tp_plan = {{"model.layers.*.input_layernorm", "replicated"}};
  flat.own_sequence_plan = {{"model.layers.*.post_attention_layernorm", "sequence_parallel"}};
  CHECK_NOTHROW(check_tp_blocks(query, flat));
  CHECK(partial_gradient_parameters(query, flat).empty());
  // A norm of heads may lie beside the sequence-parallel norms of its layer: it says so.
  ModelOutline heads = llama;
  heads.modules.push_back({"model.layers.1.query_norm", ModuleKind::norm, "Norm"});
  heads.parameters.push_back({"model.layers.1.query_norm.weight", {8}, DType::float32});
  const TpPlan norms = plan_of(heads, with_norms(kSequence));
  check_refused(norms, heads, "model.layers.1.query_norm has no style");
  heads.own_tp_plan = {{"model.layers.*.query_norm", "replicated_with_grad_allreduce"}};
  CHECK_NOTHROW(resolve_tp_modules(norms, heads));
}

TEST_CASE(
    "what a module of the model's own holds by head is cut by rows, and has whole gradients") {
  ModelOutline llama = llama_outline({});
  llama.own_tp_plan = {{"model.layers.*.self_attn", "colwise"},
                       {"model.layers.*.self_attn.scales", "colwise"},
                       {"model.layers.*.self_attn.q_proj", "colwise"},
                       {"model.layers.*.self_attn.k_proj", "colwise"},
                       {"model.layers.*.self_attn.v_proj", "colwise"},
                       {"model.layers.*.self_attn.o_proj", "rowwise"}};
  const std::string attention = "model.layers.1.self_attn", scales = attention + ".scales";
  llama.modules.push_back({scales, ModuleKind::other, "Scales"});
  llama.parameters.push_back({attention + ".sinks", {4}, DType::float32});
  llama.parameters.push_back({scales + ".weight", {4, 3}, DType::float32});
  TpPlanRequest own = request(false);
  own.tp_size = 2;
  own.choice.kind = TpPlanChoice::Kind::named;
  own.choice.name = "own";
  // The first layer's attention has nothing of its own to cut.
  CHECK_THROWS_WITH_AS(select_tp_plan(llama, own),
                       doctest::Contains("gives colwise to model.layers.0.self_attn"), Error);
  llama.own_tp_plan[0].first = attention;
  const TpPlan plan = select_tp_plan(llama, own);
  CHECK_NOTHROW(check_tp_blocks(plan, llama));
  CHECK(partial_gradient_parameters(plan, llama).empty());
  CHECK(tp_shard_dim(plan, llama, attention + ".sinks") == 0);
  CHECK(tp_shard_dim(plan, llama, scales + ".weight") == 0);
  CHECK(tp_shard_dim(plan, llama, attention + ".o_proj.weight") == 1);
  for (const char* other : {"rowwise", "colwise_rep"}) {
    llama.own_tp_plan[0].second = other;
    const Error error = meshwright::testing::refused(ErrorCode::tp_plan_does_not_fit, attention,
                                                     [&] { select_tp_plan(llama, own); });
    REQUIRE(!error.helps().empty());
    CHECK(error.helps()[0].starts_with(
        "give it the style \"colwise\" if its own parameters have rows by head"));
  }
}

TEST_CASE("a tied head and embedding are cut alike or not at all") {
  LlamaSizes sizes;
  sizes.tied = true;
  ModelOutline tied = llama_outline(sizes);
  TpStyle by_width = kColumn;  // an embedding's columns are its width
  CHECK_NOTHROW(select_tp_plan(tied, request(false)));
  CHECK_NOTHROW(select_tp_plan(tied, request(true)));
  CHECK_NOTHROW(resolve_tp_modules(plan_of(tied, {{"model.layers.*.mlp.up_proj", kColumn}}), tied));
  CHECK_NOTHROW(resolve_tp_modules(
      plan_of(tied, {{"lm_head", kColumn}, {"model.embed_tokens", kRowWhole}}), tied));
  CHECK_NOTHROW(resolve_tp_modules(
      plan_of(tied, {{"lm_head", kRowWhole}, {"model.embed_tokens", by_width}}), tied));
  check_refused(plan_of(tied, {{"lm_head", kColumn}}), tied, "the embedding not at all");
  check_refused(plan_of(tied, {{"model.embed_tokens", kRowWhole}}), tied, "the head not at all");
  check_refused(plan_of(tied, {{"lm_head", kColumn}, {"model.embed_tokens", by_width}}), tied,
                "the embedding by width");
  // Two weights of their own are free to differ, and a stage with one of the two knows nothing of
  // the other.
  ModelOutline apart = llama_outline({});
  CHECK_NOTHROW(resolve_tp_modules(plan_of(apart, {{"lm_head", kColumn}}), apart));
  ModelOutline stage = tied;
  std::erase_if(stage.modules,
                [](const ModuleOutline& module) { return module.name == "lm_head"; });
  std::vector<TpModule> there = resolve_tp_modules(
      plan_of(tied, {{"lm_head", kColumn}, {"model.embed_tokens", kRowWhole}}), stage);
  REQUIRE(there.size() == 1);
  CHECK(there[0].name == "model.embed_tokens");
}
