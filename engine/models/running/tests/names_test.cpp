// What the nets are made of: names, what configurations may say, and hooks on every module.
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/models/models.h"
#include "engine/models/net_config.h"
#include "engine/models/running/activation.h"
#include "engine/models/running/causal_lm.h"
#include "engine/models/running/initialize.h"
#include "meshwright/error.h"

namespace names_test {

using namespace meshwright;
using at::Tensor;
namespace fs = std::filesystem;

TEST_CASE("every golden model has its outline's parameters and modules, without memory") {
  int count = 0;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(MESHWRIGHT_SOURCE_DIR "/tests/data/models")) {
    ModelOutline outline = outlines::load_outline(entry.path(), DType::bfloat16);
    CAPTURE(entry.path().filename().string());
    modules::CausalLM model = modules::build_model(entry.path(), DType::bfloat16, at::kMeta);
    CHECK(model->outline().architecture == outline.architecture);
    std::set<void*> seen;
    size_t next = 0;
    for (const auto& item : model->named_parameters()) {
      CHECK(item.value().is_meta());
      CHECK(item.value().requires_grad());
      CHECK((item.value().scalar_type() == at::kBFloat16));
      if (!seen.insert(item.value().unsafeGetTensorImpl()).second) {
        CHECK(item.key() == "lm_head.weight");
        CHECK(outline.tied_embeddings);
        continue;
      }
      REQUIRE(next < outline.parameters.size());
      CHECK(item.key() == outline.parameters[next].name);
      CHECK(item.value().sizes().vec() == outline.parameters[next].shape);
      ++next;
    }
    CHECK(next == outline.parameters.size());
    CHECK(model->buffers().empty());
    std::set<std::string> ours, planned;
    // Files know nothing of the cores of attention, which have no parameters.
    for (const auto& item : model->named_modules())
      if (!item.key().ends_with(".self_attn.core")) ours.insert(item.key());
    for (const ModuleOutline& module : outline.modules) planned.insert(module.name);
    CHECK(ours == planned);
    ++count;
  }
  CHECK(count >= 34);
}

namespace {

// Writes a config.json and gives the error of building it, as "E0210 message".
std::string refusal(const std::string& fields, const std::string& architecture) {
  fs::path folder = fs::temp_directory_path() / ("meshwright_nets_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "config.json")
      << "{\"architectures\":[\"" << architecture
      << R"("],"hidden_size":16,"num_attention_heads":2,)"
      << R"("num_key_value_heads":2,"intermediate_size":8,"vocab_size":5,"num_hidden_layers":2)"
      << fields << "}";
  std::string out = "ok";
  try {
    modules::build_model(folder, DType::float32, at::kMeta);
  } catch (const Error& error) {
    CHECK(error.key() == "model.config");
    out = code_string(error.code()) + " " + error.message();
  }
  fs::remove_all(folder);
  return out;
}

}  // namespace

TEST_CASE("every activation that a configuration may name is there") {
  for (const std::string& name : outlines::known_activations()) {
    CAPTURE(name);
    CHECK((modules::find_activation(name) != nullptr));
  }
  CHECK((modules::find_activation("swoosh") == nullptr));
}

TEST_CASE("what cannot run is refused by its field") {
  struct Row {
    const char *fields, *code, *words;
  };
  const std::pair<const char*, std::vector<Row>> families[] = {
      {"Qwen2ForCausalLM",
       {{"", "ok", ""},
        {R"(,"rope_scaling":{"rope_type":"ntk","factor":4.0})", "E0390", "rope_type = \"ntk\""},
        {R"(,"rope_scaling":{"rope_type":"yarn","factor":4.0})", "ok", ""},
        {R"(,"rope_scaling":{"rope_type":"yarn"})", "E0210", "factor is missing"},
        {R"(,"rope_scaling":{"rope_type":"yarn","factor":null,"original_max_position_embeddings":64})",
         "ok", ""},
        {R"(,"rope_scaling":{"rope_type":"yarn","factor":4,"beta_fast":"32"})", "E0210",
         "beta_fast must be a number"},
        {R"(,"rope_scaling":{"rope_type":"yarn","factor":4,"truncate":1})", "E0210",
         "truncate must be true or false"},
        {R"(,"rope_scaling":{"rope_type":"yarn","factor":4,"attention_factor":-1})", "E0210",
         "attention_factor"},
        {R"(,"rope_theta":1,"rope_scaling":{"rope_type":"yarn","factor":4})", "E0210",
         "needs a rope_theta above 1"},
        {R"(,"rope_parameters":{"type":"longrope"})", "E0390", "rope_type = \"longrope\""},
        {R"(,"rope_parameters":{"rope_type":"linear"})", "E0210", "factor is missing"},
        {R"(,"rope_parameters":{"rope_type":"linear","factor":"2"})", "E0210",
         "factor must be a number"},
        {R"(,"rope_parameters":{"full_attention":{"rope_theta":5}})", "E0390", "layer types"},
        {R"(,"rope_parameters":{"rope_type":"llama3","factor":2,"low_freq_factor":4,"high_freq_factor":1})",
         "E0210", "high_freq_factor"},
        {R"(,"rope_parameters":{"rope_type":"linear","factor":2,"partial_rotary_factor":0.5})",
         "E0390", "partial_rotary_factor"},
        {R"(,"rope_theta":-1)", "E0210", "rope_theta = -1 is out of range"},
        {R"(,"head_dim":7)", "E0210", "head_dim = 7 is odd"},
        {R"(,"hidden_act":"swoosh")", "E0210", "known are gelu, "},
        {R"(,"rms_norm_eps":"small")", "E0210", "rms_norm_eps"},
        {R"(,"pad_token_id":5)", "E0210", "pad_token_id = 5"},
        {R"(,"pad_token_id":-1)", "ok", ""},
        {R"(,"attention_dropout":2)", "E0210", "attention_dropout"},
        {R"(,"layer_types":["full_attention"])", "E0210", "1 entries for num_hidden_layers = 2"},
        {R"(,"layer_types":["full_attention","chunked_attention"])", "E0210", "chunked_attention"},
        {R"(,"layer_types":["full_attention","sliding_attention"])", "E0210",
         "use_sliding_window is false"},
        {R"(,"layer_types":["full_attention","sliding_attention"],"use_sliding_window":true)", "ok",
         ""},
        {R"(,"max_position_embeddings":0)", "E0210", "max_position_embeddings"}}},
      {"Gemma3ForCausalLM",
       {{"", "ok", ""},
        {R"(,"attn_logit_softcapping":50.0)", "E0390", "attn_logit_softcapping"},
        {R"(,"attn_logit_softcapping":null,"final_logit_softcapping":30.0)", "ok", ""},
        {R"(,"final_logit_softcapping":0)", "E0210", "final_logit_softcapping"},
        {R"(,"use_bidirectional_attention":true)", "E0390", "use_bidirectional_attention"},
        {R"(,"query_pre_attn_scalar":0)", "E0210", "query_pre_attn_scalar"},
        {R"(,"hidden_activation":"swoosh")", "E0210", "hidden_activation = \"swoosh\""},
        {R"(,"sliding_window":null)", "E0210", "sliding_window is null"},
        {R"(,"sliding_window":null,"sliding_window_pattern":1)", "ok", ""},
        {R"(,"sliding_window_pattern":0)", "E0210", "sliding_window_pattern"},
        {R"(,"layer_types":["full_attention"])", "E0210", "1 entries for num_hidden_layers = 2"},
        {R"(,"rope_parameters":{"rope_theta":5})", "E0210", "full_attention or sliding_attention"},
        {R"(,"rope_parameters":{"full_attention":{"rope_type":"ntk"}})", "E0390",
         "full_attention: rope_type = \"ntk\""},
        {R"(,"rope_parameters":{"full_attention":{"rope_type":"yarn","factor":8}})", "ok", ""},
        {R"(,"rope_parameters":{"full_attention":{}},"rope_scaling":{"rope_type":"linear","factor":8})",
         "E0210", "twice"},
        {R"(,"rope_local_base_freq":"many")", "E0210", "rope_local_base_freq"}}},
      {"Phi3ForCausalLM",
       {{R"(,"pad_token_id":null)", "ok", ""},
        {"", "E0210", "pad_token_id is 32000"},
        {R"(,"pad_token_id":null,"resid_pdrop":0.1)", "E0390", "resid_pdrop above 0"},
        {R"(,"pad_token_id":null,"embd_pdrop":0.1)", "E0390", "embd_pdrop above 0"},
        {R"(,"pad_token_id":null,"embd_pdrop":0.0,"attention_dropout":0.1)", "ok", ""},
        {R"(,"pad_token_id":null,"sliding_window":0)", "E0210", "sliding_window"},
        {R"(,"pad_token_id":null,"partial_rotary_factor":0.75)", "ok", ""},
        {R"(,"pad_token_id":null,"partial_rotary_factor":0.4)", "E0210", "turns 3 of head_dim = 8"},
        {R"(,"pad_token_id":null,"partial_rotary_factor":0)", "E0210", "turns 0 of head_dim = 8"},
        {R"(,"pad_token_id":null,"rope_scaling":{"type":"linear","factor":2})", "E0210",
         "Phi3 has default and longrope"},
        {R"(,"pad_token_id":null,"rope_scaling":{"type":"longrope","short_factor":[1,1,1,1],"long_factor":[1,2,3]})",
         "E0210", "long_factor has 3 numbers"},
        {R"(,"pad_token_id":null,"rope_scaling":{"type":"su","short_factor":[1,1,1,0],"long_factor":[1,2,3,4]})",
         "E0210", "short_factor must be a list of numbers"},
        {R"(,"pad_token_id":null,"rope_scaling":{"type":"su","short_factor":[1,1,1,1],"long_factor":[1,2,3,4]})",
         "ok", ""}}},
      {"MixtralForCausalLM",
       {{"", "ok", ""},
        {R"(,"router_jitter_noise":0.1)", "E0390", "router_jitter_noise above 0"},
        {R"(,"hidden_act":"relu")", "E0390", "hidden_act = \"relu\" does not run in experts"},
        {R"(,"hidden_act":"gelu")", "ok", ""},
        {R"(,"num_local_experts":2,"num_experts_per_tok":3)", "E0210",
         "num_experts_per_tok = 3 is more than the 2 experts"},
        {R"(,"sliding_window":0)", "E0210", "sliding_window"},
        {R"(,"router_aux_loss_coef":"some")", "E0210", "router_aux_loss_coef"}}},
      {"Qwen3MoeForCausalLM",
       {{R"(,"num_experts":4,"num_experts_per_tok":2)", "ok", ""},
        {R"(,"num_experts":0,"hidden_act":"relu")", "ok", ""},
        {R"(,"num_experts":4,"num_experts_per_tok":5)", "E0210", "num_experts_per_tok"},
        {R"(,"decoder_sparse_step":0)", "E0210", "decoder_sparse_step"}}},
      {"PhiForCausalLM",
       {{"", "ok", ""},
        {R"(,"head_dim":10,"partial_rotary_factor":0.4)", "ok", ""},
        {R"(,"partial_rotary_factor":0.4)", "E0210", "turns 3 of head_dim = 8"},
        {R"(,"head_dim":2)", "E0210",
         "turns 1 of head_dim = 2"},  // half of it, where the file does not say
        {R"(,"resid_pdrop":0.1)", "E0390", "resid_pdrop above 0"},
        {R"(,"embd_pdrop":0.1)", "E0390", "embd_pdrop above 0"},
        {R"(,"attention_dropout":0.1)", "ok", ""},
        {R"(,"layer_norm_eps":"small")", "E0210", "layer_norm_eps"},
        {R"(,"hidden_act":"swoosh")", "E0210", "hidden_act = \"swoosh\""},
        {R"(,"rope_scaling":{"type":"longrope"})", "E0390", "rope_type = \"longrope\""},
        {R"(,"rope_scaling":{"type":"linear","factor":2})", "ok", ""},
        {R"(,"rope_scaling":{"type":"yarn","factor":2})", "ok", ""},
        {R"(,"pad_token_id":5)", "E0210", "pad_token_id = 5"}}},
  };
  for (const auto& [architecture, rows] : families)
    for (const Row& row : rows) {
      const std::string found = refusal(row.fields, architecture);
      INFO(architecture, row.fields, "\n", found);
      CHECK(found.starts_with(row.code));
      CHECK(found.find(row.words) != std::string::npos);
    }
}

TEST_CASE("every family that is known runs") {
  for (const std::string& architecture : outlines::known_architectures()) {
    CAPTURE(architecture);
    CHECK(refusal(R"(,"pad_token_id":null)", architecture) == "ok");
  }
}

TEST_CASE("every module but lists has hooks, which run once a forward") {
  for (const char* name : {"qwen3", "llama_tied_257", "qwen2_window"}) {
    CAPTURE(name);
    modules::CausalLM model = modules::build_model(
        std::string(MESHWRIGHT_SOURCE_DIR "/tests/data/nets/") + name, DType::float32, at::kCPU);
    modules::initialize(*model, 1);
    std::map<std::string, int> before, after;
    int hosts = 0;
    for (const auto& item : model->named_modules()) {
      HookHost* host = HookHost::of(*item.value());
      if (item.key() == "model.layers") continue;
      CAPTURE(item.key());
      REQUIRE(host != nullptr);
      ++hosts;
      host->before_forward.push_back(
          [&before, key = item.key()](torch::nn::Module&, TensorRefs&) { ++before[key]; });
      host->after_forward.push_back(
          [&after, key = item.key()](torch::nn::Module&, TensorRefs& refs) {
            ++after[key];
            CHECK(!refs.empty());
          });
    }
    model(at::zeros({1, 12}, at::kLong)).sum().backward();
    CHECK(static_cast<int>(before.size()) == hosts);
    CHECK(before == after);
    for (const auto& [key, count] : before) CHECK_MESSAGE(count == 1, key);
    CHECK(before.count("") == 1);
    CHECK(before.count("model.layers.1.self_attn.q_proj") == 1);
  }
}

TEST_CASE("tied embeddings are one parameter in both places") {
  modules::CausalLM model = modules::build_model(
      MESHWRIGHT_SOURCE_DIR "/tests/data/nets/llama_tied_257", DType::float32, at::kCPU);
  auto parameters = model->named_parameters();
  CHECK(parameters["lm_head.weight"].is_same(parameters["model.embed_tokens.weight"]));
  modules::initialize(*model, 1);
  Tensor ids = at::zeros({1, 3}, at::kLong), before = model(ids);
  {
    c10::NoGradGuard no_grad;
    parameters["model.embed_tokens.weight"].mul_(2);
  }
  CHECK_FALSE(model(ids).equal(before));
}

}  // namespace names_test
