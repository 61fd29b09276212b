// Runnable decoder models: Llama, Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE, Gemma 3 (text), Phi
// and Phi3 with Hugging Face's names and transformers' mathematics.
//
//   modules::CausalLM model = modules::build_model("folder", DType::float32, at::kMeta);   // names
//   and shapes, no memory at::Tensor logits = model(ids); // [batch, length] int64 -> [batch,
//   length, vocab]
//
// Every module has hooks (HookHost::of), the root included. named_parameters() has the outline's
// names in its order; with tied embeddings the one Parameter stands under model.embed_tokens.weight
// and, once more, under lm_head.weight. Rows of fused weights lie in memory as
// ParameterOutline::fused says. Not thread-safe.
#pragma once

#include <filesystem>
#include <memory>
#include <utility>

#include "meshwright/dtype.h"
#include "meshwright/model/model_family.h"
#include "meshwright/model/running_model.h"
#include "meshwright/nn/module.h"
#include "meshwright/outline.h"

namespace meshwright::outlines {
struct NetConfig;
}  // namespace meshwright::outlines

namespace meshwright::modules {

class CausalLMImpl : public torch::nn::Module {
 public:
  CausalLMImpl(outlines::NetConfig config, ModelOutline outline, const at::TensorOptions& options);
  ~CausalLMImpl() override;
  // Token ids [batch, length] int64 to logits [batch, length, vocab] in the dtype of the
  // parameters. Within a StageScope the current stage alone: hidden states [batch, length, hidden]
  // come in but to the first and out but of the last.
  at::Tensor forward(const at::Tensor& input);

  const ModelOutline& outline() const { return outline_; }
  int64_t max_positions() const;  // max_position_embeddings

 private:
  struct Parts;
  ModelOutline outline_;
  std::unique_ptr<Parts> parts_;
};
MESHWRIGHT_MODULE(CausalLM);

// While one lives, the logits of its thread's forwards are those of each sample's last row alone,
// [batch, 1, vocab]: whoever goes on with a text reads no others, and the head is a large part of a
// small model.
class LastRowScope {
 public:
  LastRowScope();
  ~LastRowScope();
  LastRowScope(const LastRowScope&) = delete;
  LastRowScope& operator=(const LastRowScope&) = delete;

 private:
  bool outer_;
};

// Builds the model of a config.json, or of a folder with one. Parameters hold no values yet: fill
// them with initialize() or from a folder's weights. On the meta device they take no memory. Throws
// Error(file_unreadable | bad_model_config | unknown_architecture), and Error(not_in_release) for
// what can be planned but not run.
CausalLM build_model(const std::filesystem::path& config_or_folder, DType storage,
                     at::Device device);

// The model as the engine runs it; what a plugin's family gives for its own.
class RunningCausalLM final : public RunningModel {
 public:
  explicit RunningCausalLM(CausalLM net) : net_(std::move(net)) {}
  std::shared_ptr<torch::nn::Module> module() override { return net_.ptr(); }
  at::Tensor forward(const at::Tensor& input) override { return net_(input); }
  int64_t max_positions() const override { return net_->max_positions(); }

 private:
  CausalLM net_;
};

// For outlines::HubFamily::made_by().
std::unique_ptr<RunningModel> make_hub_model(const ModelRequest& request);

}  // namespace meshwright::modules
