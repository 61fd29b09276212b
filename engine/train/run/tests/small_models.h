// config.json of small models, written down where tests can read them.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace meshwright {

struct TestFolder {
  std::filesystem::path path;
  explicit TestFolder(const std::string& name)
      : path(std::filesystem::temp_directory_path() / (name + "_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  ~TestFolder() { std::filesystem::remove_all(path); }
};

// Two layers, with weights large enough that the gradients of all are; `more`: further fields of
// the config.json.
struct SmallModel {
  const char* name;
  const char* architecture;
  const char* model_type;
  int hidden = 32, heads = 4, kv_heads = 4, vocab = 64;
  const char* more = "";
};

// The path of its config.json below `folder`.
inline std::string write_model(const std::filesystem::path& folder, const SmallModel& m) {
  std::filesystem::path file = folder / (std::string(m.name) + ".json");
  std::ofstream out(file);
  out << R"({"architectures": [")" << m.architecture << R"("], "model_type": ")" << m.model_type
      << R"(", "vocab_size": )" << m.vocab << R"(, "hidden_size": )" << m.hidden
      << R"(, "num_hidden_layers": 2, "num_attention_heads": )" << m.heads
      << R"(, "num_key_value_heads": )" << m.kv_heads
      << R"(, "max_position_embeddings": 64, "initializer_range": 0.15, "rms_norm_eps": 1e-06)"
      << m.more;
  const std::string more = m.more;
  if (more.find("intermediate_size") == std::string::npos)
    out << R"(, "intermediate_size": )" << m.hidden * 3 / 2;
  if (more.find("head_dim") == std::string::npos) out << R"(, "head_dim": )" << m.hidden / m.heads;
  out << "}\n";
  return file.string();
}

inline const SmallModel kLlama{
    "llama", "LlamaForCausalLM", "llama", 32, 4, 4, 64, R"(, "tie_word_embeddings": false)"};
inline const SmallModel kBiases{"biases", "LlamaForCausalLM",
                                "llama",  32,
                                4,        4,
                                64,       R"(, "attention_bias": true, "mlp_bias": true)"};
inline const SmallModel kQwen3{"qwen3", "Qwen3ForCausalLM", "qwen3"};
inline const SmallModel kGemma3{"gemma3", "Gemma3ForCausalLM",       "gemma3_text", 32, 4, 4,
                                64,       R"(, "sliding_window": 4)"};
inline const SmallModel kMixtral{
    "mixtral",
    "MixtralForCausalLM",
    "mixtral",
    32,
    4,
    2,
    64,
    R"(, "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 24, "sliding_window": null)"};
inline const SmallModel kQwen3Moe{
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    "qwen3_moe",
    32,
    4,
    4,
    64,
    R"(, "num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "norm_topk_prob": true,
"mlp_only_layers": [1], "num_hidden_layers": 3, "intermediate_size": 40)"};
inline const SmallModel kPhi3{"phi3", "Phi3ForCausalLM",          "phi3", 32, 4, 4,
                              64,     R"(, "pad_token_id": null)"};

}  // namespace meshwright
