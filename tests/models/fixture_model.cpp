// A model of an embedding and a head that does one thing that none may: what FIXTURE_MODEL says.
//   throw in PLACE | other shape | surplus | nothing | other batch | no output | narrow output |
//   vector loss | no loss | detached loss | wild batch | wild target batch | twice | no width |
//   wide | nan value | no positions | exit
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "meshwright/model/running_model.h"
#include "meshwright/nn/layers.h"
#include "meshwright/parallel/scalar_type.h"
#include "meshwright/plugin_main.h"

namespace {

using namespace meshwright;
using at::Tensor;

std::string asked() {
  const char* fault = std::getenv("FIXTURE_MODEL");
  return fault != nullptr ? fault : "";
}
void at(const std::string& place) {
  if (asked() == "throw in " + place) throw std::runtime_error("made of glass");
}

constexpr int64_t kWidth = 8, kVocabulary = 256;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const at::TensorOptions& options) {
    tokens = register_module("tokens", Embedding(torch::nn::EmbeddingOptions(1, 1)));
    reallocate(tokens->weight, {kVocabulary, asked() == "other shape" ? kWidth / 2 : kWidth},
               options);
    head = register_module("head", make_linear(kWidth, kVocabulary, asked() == "surplus", options));
  }
  Tensor forward(const Tensor& ids) { return head(tokens(ids)); }
  Embedding tokens{nullptr};
  Linear head{nullptr};
};
MESHWRIGHT_MODULE(Net);

class Running final : public RunningModel {
 public:
  explicit Running(const at::TensorOptions& options) : net_(options) {}
  std::shared_ptr<torch::nn::Module> module() override { return net_.ptr(); }
  Tensor forward(const Tensor& input) override {
    at("forward");
    if (asked() == "exit") ::_exit(0);
    if (asked() == "no output") return {};
    const Tensor out = net_(input);
    return asked() == "narrow output" ? out.narrow(2, 0, 4) : out;
  }
  Tensor loss_sum(const Tensor& output, const Tensor& targets, const Tensor& weights,
                  const VocabularyShard* shard) override {
    at("loss_sum");
    if (asked() == "no loss") return {};
    const Tensor out = RunningModel::loss_sum(output, targets, weights, shard);
    return asked() == "vector loss"     ? out.view({1})
           : asked() == "detached loss" ? out.detach()
                                        : out;
  }
  int64_t max_positions() const override {
    at("max_positions");
    return asked() == "no positions" ? 0 : RunningModel::max_positions();
  }
  bool changes_batches() const override { return asked().ends_with("batch"); }
  void change_batch(HostBatch& batch) const override {
    at("change_batch");
    if (asked() == "wild batch") batch.tokens.fill_(kVocabulary);
    if (asked() == "wild target batch") batch.targets.fill_(-7);
    if (asked() == "other batch") batch.tokens = at::zeros({1, 1}, at::kLong);
  }

 private:
  Net net_;
};

class Family final : public ModelFamily {
 public:
  ModelOutline outline(const ModelRequest& request) const override {
    at("outline");
    ModelOutline o;
    o.architecture = "FixtureNet";
    o.hidden_size = kWidth;
    o.vocab_size = kVocabulary;
    o.attention_heads = o.key_value_heads = 1;
    o.head_dim = kWidth;
    o.inner_prefix = "";
    o.modules = {{"", ModuleKind::other, "Net"},
                 {"tokens", ModuleKind::embedding, "Embedding"},
                 {"head", ModuleKind::linear, "Linear"}};
    o.parameters = {{"tokens.weight", {kVocabulary, kWidth}, request.storage},
                    {"head.weight", {kVocabulary, kWidth}, request.storage}};
    if (asked() == "no width") o.hidden_size = 0;
    if (asked() == "twice") o.parameters.push_back(o.parameters[0]);
    if (asked() == "nan value")
      o.parameters[0].init = InitialValue{InitialValue::Kind::constant, std::nan("")};
    if (asked() == "wide") o.parameters[0].shape = {int64_t{1} << 62, 8};
    return o;
  }
  std::unique_ptr<RunningModel> make(const ModelRequest& request) const override {
    at("make");
    if (asked() == "nothing") return nullptr;
    return std::make_unique<Running>(
        at::TensorOptions().dtype(scalar_type(request.storage)).device(at::kMeta));
  }
};

const meshwright_component kModels[] = {
    describe_model<Family>({.name = "fixture_model", .summary = "An embedding and a head"})};

}  // namespace

MESHWRIGHT_MODEL_PLUGIN("fixture_model", "1.0.0", "Tests", "Apache-2.0", "An embedding and a head",
                        kModels)
