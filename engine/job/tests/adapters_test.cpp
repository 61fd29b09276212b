// Which Linears get an adapter, and what is said where none can be had.
#include "engine/job/adapters.h"

#include <doctest/doctest.h>

#include <cmath>
#include <tuple>

#include "engine/job/parameter_groups.h"
#include "engine/job/tests/configured.h"
#include "meshwright/footprint.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/shared_schemas.h"

namespace plan_adapters_test {

using namespace meshwright;
using plan::Adapters;

namespace {

config::Config config_of(const std::string& text) { return plan::job_of(text).config; }

ModelOutline small() {
  ModelOutline out;
  out.architecture = "Small";
  auto add = [&](const char* name, ModuleKind kind, std::vector<int64_t> shape, bool bias = false) {
    out.modules.push_back({name, kind, "X"});
    const std::string module = name;
    if (!shape.empty()) out.parameters.push_back({module + ".weight", shape});
    if (bias) out.parameters.push_back({module + ".bias", {shape[0]}});
  };
  add("model.embed", ModuleKind::embedding, {50, 8});
  add("model.layers", ModuleKind::list, {});
  for (const char* layer : {"model.layers.0", "model.layers.1"}) {
    const std::string name = layer;
    add(layer, ModuleKind::layer, {});
    add((name + ".attn.q_proj").c_str(), ModuleKind::linear, {8, 8}, true);
    add((name + ".attn.o_proj").c_str(), ModuleKind::linear, {8, 8});
    add((name + ".mlp.gate").c_str(), ModuleKind::router, {4, 8});
    add((name + ".mlp.experts").c_str(), ModuleKind::experts, {4, 8, 6});
    add((name + ".mlp.up_proj").c_str(), ModuleKind::linear, {6, 8});
    add((name + ".norm").c_str(), ModuleKind::norm, {8});
  }
  add("lm_head", ModuleKind::linear, {});  // tied
  return out;
}

struct Made {
  ModelOutline outline;
  Adapters adapters = {};
  std::vector<std::string> warnings = {};
  DType dtype_of(const std::string& name) const { return outline.find_parameter(name)->dtype; }
};
// With adapters, and with what does not train marked.
Made made(const std::string& text, ModelOutline outline = small()) {
  const config::Config config = config_of(text);
  Made out{std::move(outline)};
  out.adapters = plan::add_adapters(config, out.outline);
  plan::group_parameters(config, out.outline, out.warnings);
  return out;
}

std::string table(const std::string& keys) { return "[lora]\nr = 2\n" + keys + "\n"; }

std::vector<std::string> chosen(const std::string& keys) {
  ModelOutline outline = small();
  return plan::add_adapters(config_of(table(keys)), outline).modules;
}

std::string refusal(const std::string& keys) {
  ModelOutline outline = small();
  try {
    plan::add_adapters(config_of("[lora]\n" + keys + "\n"), outline);
  } catch (const Error& error) {
    std::string out = code_string(error.code()) + " " + error.key() + ": " + error.message();
    for (const std::string& help : error.helps()) out += "; " + help;
    return out;
  }
  return "";
}

}  // namespace

TEST_CASE("without a rank there are no adapters, and no setting to carry along") {
  ModelOutline outline = small();
  const size_t before = outline.parameters.size();
  const config::Config config = config_of("[lora]\nalpha = 3\n");
  CHECK_FALSE(plan::add_adapters(config, outline).any());
  CHECK(outline.parameters.size() == before);
  CHECK(plan::adapter_settings(config).empty());
}

TEST_CASE("last names, patterns, and all Linears but heads, routers and experts") {
  using Names = std::vector<std::string>;
  const Names all{"model.layers.0.attn.q_proj", "model.layers.0.attn.o_proj",
                  "model.layers.0.mlp.up_proj", "model.layers.1.attn.q_proj",
                  "model.layers.1.attn.o_proj", "model.layers.1.mlp.up_proj"};
  CHECK(chosen("") == all);
  CHECK(chosen("target_modules = [\"all-linear\"]") == all);
  CHECK(chosen("target_modules = \"q_proj\"") == Names{all[0], all[3]});
  CHECK(chosen("target_modules = [\"model.layers.1.attn.*\", \"up_proj\"]") ==
        Names{all[2], all[3], all[4], all[5]});
  CHECK(chosen("exclude_modules = [\"q_proj\", \"model.layers.0.*.*\"]") == Names{all[4], all[5]});
  // Last parts, whole ones alone, as peft has them.
  CHECK(chosen("target_modules = [\"attn.q_proj\"]") == Names{all[0], all[3]});
  CHECK(chosen("target_modules = [\"1.attn.q_proj\", \"mlp.up_proj\"]") ==
        Names{all[2], all[3], all[5]});
  CHECK(chosen("target_modules = \"model.layers.1.attn.q_proj\"") == Names{all[3]});
  CHECK(chosen("exclude_modules = [\"attn.q_proj\", \"layers.0.attn.o_proj\", \"lm_head\"]") ==
        Names{all[2], all[4], all[5]});
}

TEST_CASE("the outline lists adapters behind the parameters of their Linear") {
  ModelOutline outline = small();
  const Adapters adapters = plan::add_adapters(
      config_of(table("alpha = 3\ntarget_modules = [\"model.layers.0.*.[qu]*\"]")), outline);
  std::vector<std::string> names;
  for (const ParameterOutline& p : outline.parameters) names.push_back(p.name);
  CHECK(std::vector<std::string>(names.begin() + 1, names.begin() + 6) ==
        std::vector<std::string>{
            "model.layers.0.attn.q_proj.weight", "model.layers.0.attn.q_proj.bias",
            "model.layers.0.attn.q_proj.lora_A.weight", "model.layers.0.attn.q_proj.lora_B.weight",
            "model.layers.0.attn.o_proj.weight"});
  const ParameterOutline& a = *outline.find_parameter("model.layers.0.mlp.up_proj.lora_A.weight");
  const ParameterOutline& b = *outline.find_parameter("model.layers.0.mlp.up_proj.lora_B.weight");
  CHECK(a.shape == std::vector<int64_t>{2, 8});
  CHECK(b.shape == std::vector<int64_t>{6, 2});
  CHECK(adapters.hold(a.name));
  CHECK_FALSE(adapters.hold("model.layers.0.mlp.up_proj.weight"));
  CHECK(adapters.scale("model.layers.0.mlp.up_proj") == 1.5);
  CHECK(plan::initial_adapter(a, false).kind == InitialValue::Kind::uniform);
  CHECK(plan::initial_adapter(a, false).value == 1 / std::sqrt(8.0));
  CHECK(plan::initial_adapter(a, true).kind == InitialValue::Kind::normal);
  CHECK(plan::initial_adapter(a, true).value == 0.5);
  CHECK(plan::initial_adapter(b, true).value == 0);
  CHECK(outline.find_module("model.layers.0.mlp.up_proj.lora_B") != nullptr);
}

TEST_CASE("what selects nothing, or what has no adapter, is refused by name") {
  CHECK(refusal("r = 2\ntarget_modules = [\"q_prj\"]") ==
        "E0208 lora.target_modules: lora.target_modules: \"q_prj\" is no Linear of Small; did you "
        "mean \"q_proj\"?; its Linears are called \"o_proj\", \"q_proj\", \"up_proj\"; "
        "\"all-linear\" selects them all");
  CHECK(refusal("r = 2\nexclude_modules = [\"x\"]").starts_with("E0208 lora.exclude_modules: "));
  for (const auto& [name, what] :
       {std::pair("model.embed", "an embedding"), std::pair("gate", "a router"),
        std::pair("experts", "a block of experts"),
        std::pair("lm_head", "a head tied to the embedding")})
    CHECK(refusal("r = 2\ntarget_modules = \"" + std::string(name) + "\"")
              .find(std::string(" is ") + what + ", which can have no adapter") !=
          std::string::npos);
  for (const char* name : {"ttn.q_proj", "layers.*.attn.q_proj", "attn.q_prj"}) {
    CAPTURE(std::string(name));
    CHECK(refusal("r = 2\ntarget_modules = [\"" + std::string(name) + "\"]")
              .find("\" is no Linear of Small") != std::string::npos);
  }
  CHECK(refusal("r = 2\nexclude_modules = [\"*\"]") ==
        "E0208 lora.exclude_modules: lora.exclude_modules: \"*\" takes nothing away from what "
        "lora.target_modules selects; a pattern is of full names, * within a part: "
        "\"model.layers.0.attn.q_proj\" is one; take \"*\" out of lora.exclude_modules");
  CHECK(refusal("r = 2\ntarget_modules = \"q_proj\"\nexclude_modules = [\"*.*.*.mlp.*\"]")
            .starts_with("E0208 lora.exclude_modules: "));
  CHECK(refusal("r = 2\nexclude_modules = [\"lm_head\"]").empty());
  CHECK(refusal("r = 2\nexclude_modules = [\"model.layers.*.*.*\"]")
            .starts_with("E0208 lora.target_modules: no Linear of Small gets an adapter"));
  CHECK(refusal("r = 7") ==
        "E0204 lora.r: lora.r = 7 is above the smaller size of model.layers.0.mlp.up_proj.weight "
        "[6, 8]; set lora.r = 6; add \"model.layers.0.mlp.up_proj\" to lora.exclude_modules");
  CHECK(refusal("r = 6").empty());
}

TEST_CASE("adapters train alone, beside what a group thaws") {
  const Made made_here =
      made(table("target_modules = \"q_proj\"") +
           "[[optimizer.group]]\npattern = \"*norm.weight\"\nfrozen = false\nlr_factor = 2\n"
           "[[optimizer.group]]\npattern = \"model.embed.*\"\nlr_factor = 3\n"
           "[[optimizer.group]]\npattern = \"model.layers.1.*\"\nfrozen = true\n");
  const std::vector<std::string>& warnings = made_here.warnings;
  std::vector<std::string> trains;
  for (const ParameterOutline& p : made_here.outline.parameters)
    if (p.trainable) trains.push_back(p.name);
  CHECK(trains == std::vector<std::string>{"model.layers.0.attn.q_proj.lora_A.weight",
                                           "model.layers.0.attn.q_proj.lora_B.weight",
                                           "model.layers.0.norm.weight",
                                           "model.layers.1.norm.weight"});
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0] ==
        "[[optimizer.group]] with pattern = \"model.embed.*\" (line 9) has no effect: with [lora] "
        "the adapters train alone; write frozen = false in the group to train its 1 parameter as "
        "well");
}

TEST_CASE("tensor parallelism cuts a factor as its Linear, and sums up the other's gradient") {
  const ModelOutline outline = made(table("")).outline;
  TpPlanRequest wanted;
  wanted.tp_size = 2;
  wanted.choice.kind = TpPlanChoice::Kind::custom;
  wanted.choice.patterns = {{"model.layers.*.attn.q_proj", "colwise"},
                            {"model.layers.*.attn.o_proj", "rowwise"}};
  const TpPlan tp = select_tp_plan(outline, wanted);
  CHECK(tp.warnings.empty());
  auto cut = [&](const std::string& name) {
    const std::optional<int64_t> dim = tp_shard_dim(tp, outline, "model.layers.1." + name);
    return dim ? std::to_string(*dim) : "whole";
  };
  CHECK(cut("attn.q_proj.lora_A.weight") == "whole");
  CHECK(cut("attn.q_proj.lora_B.weight") == "0");
  CHECK(cut("attn.o_proj.lora_A.weight") == "1");
  CHECK(cut("attn.o_proj.lora_B.weight") == "whole");
  CHECK(cut("mlp.up_proj.lora_A.weight") == "whole");
  CHECK(cut("mlp.up_proj.lora_B.weight") == "whole");
  CHECK(partial_gradient_parameters(tp, outline) ==
        std::vector<std::string>{"model.layers.0.attn.q_proj.lora_A.weight",
                                 "model.layers.0.attn.o_proj.lora_B.weight",
                                 "model.layers.1.attn.q_proj.lora_A.weight",
                                 "model.layers.1.attn.o_proj.lora_B.weight"});
  MeshPlan mesh;
  mesh.device_mesh.emplace(std::vector<MeshAxis>{{"tp", 2}});
  StrategyConfig shared;
  shared.shared().mp = {DType::float32, DType::float32, DType::float32, true};
  const ShardingRequest request{outline, mesh, tp, shared, {}, 1};
  const Footprint cost = footprint_of(request, fully_sharded_plan(request));
  REQUIRE(cost.wire.size() == 1);  // nothing is sent for tokens, of which there are none here
  CHECK(cost.wire[0].axis == "tp");
  CHECK(cost.wire[0].op == "all_reduce");
  CHECK(cost.wire[0].count == 1);
  CHECK(cost.wire[0].bytes == 2 * (2 * 8 + 8 * 2) * 4);
  for (const ParameterPlacement& p : cost.parameters) {
    if (p.name == "model.layers.0.attn.q_proj.lora_B.weight")
      CHECK(p.region == Region::box({4, 0}, {4, 2}));
    if (p.name == "model.layers.0.attn.o_proj.lora_A.weight")
      CHECK(p.region == Region::box({0, 4}, {2, 4}));
  }
  wanted.choice.patterns = {{"model.layers.*.attn.q_proj.lora_B", "colwise"}};
  try {
    select_tp_plan(outline, wanted);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::tp_plan_does_not_fit);
    CHECK(error.message() ==
          "the pattern \"model.layers.*.attn.q_proj.lora_B\" matches "
          "model.layers.0.attn.q_proj.lora_B, a part of an adapter, which is cut as its Linear is");
  }
}

TEST_CASE("what trains beside a base is float32 at least, but where units hold one dtype each") {
  for (const auto& [architecture, stored, wanted] :
       {std::tuple("Small", DType::bfloat16, DType::float32),
        std::tuple("Small", DType::float16, DType::float32),
        std::tuple("Small", DType::float32, DType::float32),
        std::tuple("Small", DType::float64, DType::float64),
        std::tuple("DeepseekV4ForCausalLM", DType::bfloat16, DType::bfloat16)}) {
    CAPTURE(architecture);
    CAPTURE(std::string(dtype_name(stored)));
    ModelOutline outline = small();
    outline.architecture = architecture;
    for (ParameterOutline& p : outline.parameters) p.dtype = stored;
    const Made made_here =
        made(table("target_modules = \"q_proj\"") +
                 "[[optimizer.group]]\npattern = \"*norm.weight\"\nfrozen = false\n",
             outline);
    for (const ParameterOutline& p : made_here.outline.parameters) {
      CAPTURE(p.name);
      if (p.trainable) CHECK(p.dtype == wanted);
      if (!p.trainable && stored == DType::bfloat16) CHECK(p.dtype == stored);
    }
  }
}

TEST_CASE("a base is stored in what it computes in where that is narrower, or as asked") {
  auto stored = [](const std::string& lora, const std::string& param,
                   const std::string& more = "") {
    const Made out = made(table("target_modules = \"q_proj\"\n" + lora) +
                          "[distributed.mp_policy]\nparam_dtype = \"" + param + "\"\n" + more);
    CHECK(out.dtype_of("model.layers.0.attn.q_proj.lora_A.weight") == DType::float32);
    return out.dtype_of("model.layers.1.norm.weight");
  };
  CHECK(stored("", "bfloat16") == DType::bfloat16);
  CHECK(stored("", "float32") == DType::float32);
  CHECK(stored("base_dtype = \"float32\"", "bfloat16") == DType::float32);
  CHECK(stored("base_dtype = \"float16\"", "float32") == DType::float16);
  CHECK(stored("base_dtype = \"bfloat16\"", "float32",
               "[[optimizer.group]]\npattern = \"*norm.weight\"\nfrozen = false\n") ==
        DType::float32);
  CHECK(stored("base_sharding = \"replicate\"", "bfloat16") == DType::bfloat16);
  ModelOutline ruled = small();
  ruled.architecture = "Qwen3_5ForCausalLM";
  const std::string whole = "base_sharding = \"replicate\"\n",
                    computes = "[distributed.mp_policy]\nparam_dtype = \"bfloat16\"\n";
  struct Refused {
    ModelOutline outline;
    std::string lora, more;
    ErrorCode code;
    const char *key, *help;
  };
  for (const Refused& row :
       {Refused{small(), whole + "base_dtype = \"float32\"\n", computes, ErrorCode::conflict,
                "lora.base_sharding", "set lora.base_dtype = \"bfloat16\""},
        Refused{ruled, "base_dtype = \"bfloat16\"\n", "", ErrorCode::not_in_release,
                "lora.base_dtype", "set lora.base_dtype = \"auto\": "},
        Refused{ruled, whole, computes, ErrorCode::conflict, "lora.base_sharding",
                "set model.torch_dtype = \"bfloat16\""}}) {
    CAPTURE(row.lora);
    try {
      made(table("target_modules = \"q_proj\"\n" + row.lora) + row.more, row.outline);
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.code() == row.code);
      CHECK(error.key() == row.key);
      CHECK(error.helps().at(0).starts_with(row.help));
    }
  }
}

TEST_CASE("peft's configuration names modules by their last part where that is enough") {
  ModelOutline outline = small();
  const config::Config config = config_of(table("alpha = 3.5\ntarget_modules = \"q_proj\""));
  const Adapters adapters = plan::add_adapters(config, outline);
  const std::string text = plan::peft_config(adapters, outline, "models/base");
  CHECK(text.find("\"target_modules\": [\"q_proj\"]") != std::string::npos);
  CHECK(text.find("\"lora_alpha\": 3.5") != std::string::npos);
  CHECK(text.find("\"base_model_name_or_path\": \"models/base\"") != std::string::npos);
  CHECK(text.find("\"fan_in_fan_out\": false") != std::string::npos);
  for (ParameterOutline& p : outline.parameters)
    p.stored.transposed = p.name.ends_with("q_proj.weight");
  CHECK(plan::peft_config(adapters, outline, "").find("\"fan_in_fan_out\": true") !=
        std::string::npos);
  ModelOutline other = small();
  const Adapters one = plan::add_adapters(
      config_of(table("target_modules = \"model.layers.0.attn.q_proj\"")), other);
  CHECK(plan::peft_config(one, other, "")
            .find("\"target_modules\": [\"model.layers.0.attn.q_proj\"]") != std::string::npos);
  CHECK(plan::adapter_settings(config) ==
        "lora.r=2\nlora.alpha=3.5\nlora.target_modules=\"q_proj\"\nlora.exclude_modules=[]\n"
        "lora.rslora=false\n");
}

TEST_CASE("modules with a rank or an alpha of their own are written down as peft has them") {
  ModelOutline outline = small();
  const config::Config config = config_of(
      table("alpha = 3\nrslora = true\nrank_pattern = {q_proj = 4, \"layers.1.mlp.up_proj\" = 1}\n"
            "alpha_pattern = {\"model\\\\.layers\\\\.0\\\\..*\" = 5.5, \"o_proj\" = 7}"));
  const Adapters adapters = plan::add_adapters(config, outline);
  struct Wanted {
    const char* module;
    int64_t r;
    double alpha;
  };
  for (const auto& [module, r, alpha] :
       {Wanted{"model.layers.0.attn.q_proj", 4, 5.5}, Wanted{"model.layers.1.attn.q_proj", 4, 3},
        Wanted{"model.layers.0.attn.o_proj", 2, 5.5}, Wanted{"model.layers.1.attn.o_proj", 2, 7},
        Wanted{"model.layers.0.mlp.up_proj", 2, 5.5}, Wanted{"model.layers.1.mlp.up_proj", 1, 3}}) {
    CAPTURE(std::string(module));
    CHECK(outline.find_parameter(std::string(module) + ".lora_A.weight")->shape[0] == r);
    CHECK(outline.find_parameter(std::string(module) + ".lora_B.weight")->shape[1] == r);
    CHECK(adapters.size(module) == plan::AdapterSize{r, alpha});
    CHECK(adapters.scale(module) == alpha / std::sqrt(static_cast<double>(r)));
  }
  const std::string text = plan::peft_config(adapters, outline, "");
  for (const char* part :
       {R"("r": 2)", R"("lora_alpha": 3)", R"("q_proj": 4)", R"("model.layers.1.mlp.up_proj": 1)",
        R"("model.layers.0.attn.q_proj": 5.5)", R"("model.layers.1.attn.o_proj": 7)"}) {
    CAPTURE(std::string(part));
    CHECK(text.find(part) != std::string::npos);
  }
  CHECK(text.find("model.layers.0.mlp.up_proj\": 2") == std::string::npos);
  CHECK(plan::adapter_settings(config).find("lora.rank_pattern={\"q_proj\" = \"4\", ") !=
        std::string::npos);
}

TEST_CASE("a rank of one module that cannot be, and names that mean nothing, are refused") {
  CHECK(refusal("r = 2\nrank_pattern = {up_proj = 7}")
            .starts_with("E0204 lora.rank_pattern: lora.rank_pattern: r = 7 is above the smaller "
                         "size of model.layers.0.mlp.up_proj.weight [6, 8]; set lora.rank_pattern "
                         "to at most 6 for model.layers.0.mlp.up_proj"));
  CHECK(refusal("r = 2\nrank_pattern = {q_prj = 4}")
            .starts_with("E0208 lora.rank_pattern: lora.rank_pattern: \"q_prj\" is no module that "
                         "has an adapter; did you mean \"q_proj\"?"));
  CHECK(refusal("r = 2\nalpha_pattern = {up_prj = 4}").starts_with("E0208 lora.alpha_pattern: "));
  // It may not be one that gets no adapter, either.
  CHECK(refusal("r = 2\ntarget_modules = \"q_proj\"\nalpha_pattern = {up_proj = 4}")
            .starts_with("E0208 lora.alpha_pattern: "));
  for (const char* wrong :
       {"{q_proj = 1.5}", "{q_proj = 0}", "{q_proj = -2}", "{q_proj = \"x\"}"}) {
    CAPTURE(std::string(wrong));
    CHECK(refusal(std::string("r = 2\nrank_pattern = ") + wrong)
              .starts_with("E0204 lora.rank_pattern: \"q_proj\" = "));
  }
  CHECK(refusal("r = 2\nalpha_pattern = {q_proj = 1.5}") == "");
  CHECK(refusal("r = 2\nalpha_pattern = {\"(q_proj\" = 2}")
            .starts_with("E0208 lora.alpha_pattern: "));
}

}  // namespace plan_adapters_test
