// What of a config.json a run may not go on without.
#include "engine/models/config_changes.h"

#include <doctest/doctest.h>

namespace config_changes_test {

using namespace meshwright::outlines;

namespace {

std::string llama(const std::string& more) {
  return R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32,
             "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2)" +
         (more.empty() ? "" : ", " + more) + "}";
}

std::string changes(const std::string& before, const std::string& now) {
  std::string out;
  for (const ConfigChange& one : changes_of_model(before, now))
    out += (out.empty() ? "" : ", ") + one.field + ": " + one.before + " -> " + one.now;
  return out;
}

}  // namespace

TEST_CASE("a config.json that computes otherwise is told by its fields, and no other is") {
  struct Row {
    std::string before, now, told;
  };
  const std::string llama3 =
      R"("rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4)";
  const Row rows[] = {
      // The same model in other words.
      {"", "", ""},
      {"", R"("rms_norm_eps": 0.000001, "rope_theta": 1e4, "hidden_act": "silu")", ""},
      {R"("hidden_act": "silu")", R"("hidden_act": "swish")", ""},
      {R"("rope_theta": 5e5)",
       R"("rope_parameters": {"rope_type": "default", "rope_theta": 500000})", ""},
      {"", R"("torch_dtype": "float16", "transformers_version": "9", "eos_token_id": 2)", ""},
      {"", R"("initializer_range": 0.5, "use_cache": false, "max_position_embeddings": 9)", ""},
      {R"("hidden_act": "silu", "rms_norm_eps": 1e-5)", R"("rms_norm_eps": 1e-5)", ""},
      // Another one of the same names and shapes.
      {"", R"("rms_norm_eps": 1e-5)", "rms_norm_eps:  -> 1e-05"},
      {R"("rope_theta": 10000.0)", R"("rope_theta": 500000.0)", "rope_theta: 10000 -> 500000"},
      {R"("hidden_act": "silu", "eos_token_id": 1)", R"("hidden_act": "gelu", "eos_token_id": 2)",
       "hidden_act: \"silu\" -> \"gelu\""},
      {R"("attention_dropout": 0.1)", "", "attention_dropout: 0.1 -> "},
      {"\"rope_scaling\": {" + llama3 + "}",
       "\"rope_scaling\": {" + llama3 + R"(, "original_max_position_embeddings": 64})",
       "rope_scaling.original_max_position_embeddings:  -> 64"},
      {R"("rope_scaling": {"rope_type": "dynamic", "factor": 2})",
       R"("rope_scaling": {"rope_type": "dynamic", "factor": 2}, "max_position_embeddings": 9)",
       "max_position_embeddings:  -> 9"},
      {"", R"("pad_token_id": 0)", "pad_token_id:  -> 0"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.now);
    CHECK(changes(llama(row.before), llama(row.now)) == row.told);
  }
  auto heads = [](const char* many) {
    return std::string(R"({"model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 1,
                            "num_attention_heads": )") +
           many + "}";
  };
  CHECK(changes(heads(R"(4, "num_key_value_heads": 4, "head_dim": 8)"),
                heads(R"(8, "num_key_value_heads": 8, "head_dim": 4)")) ==
        "num_attention_heads: 4 -> 8, num_key_value_heads: 4 -> 8, head_dim: 8 -> 4");
  // Experts: the loss has a part of it.
  auto experts = [](const char* more) {
    return std::string(R"({"model_type": "mixtral", "hidden_size": 32, "num_hidden_layers": 1,
                            "output_router_logits": true)") +
           more + "}";
  };
  CHECK(changes(experts(""), experts(R"(, "router_aux_loss_coef": 0.02)")) ==
        "router_aux_loss_coef:  -> 0.02");
  CHECK(changes(experts(""), experts(R"(, "num_experts_per_tok": 1)")) ==
        "num_experts_per_tok:  -> 1");
}

TEST_CASE("of a file that a plugin reads every field counts that says something of a model") {
  auto fields = [](const char* before, const char* now) {
    std::string out;
    for (const ConfigChange& one : changes_of_file(before, now)) out += one.field + " ";
    return out;
  };
  CHECK(fields(R"({"n_head": 4, "a": {"b": [1, 2.0]}})",
               R"({"a": {"b": [1.0, 2]}, "n_head": 4.0})") == "");
  CHECK(fields(R"({"n_head": 4, "torch_dtype": "float32"})", R"({"n_head": 4, "dtype": "half"})") ==
        "");
  CHECK(fields(R"({"n_head": 4, "a": {"b": 1, "c": 2}})",
               R"({"n_head": 8, "a": {"b": 3, "c": 2}})") == "n_head a.b ");
}

}  // namespace config_changes_test
