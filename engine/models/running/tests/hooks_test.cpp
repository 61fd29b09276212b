// Strategies find a hook host on every module, the root included.
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <map>

#include "engine/models/running/causal_lm.h"
#include "engine/models/running/initialize.h"

namespace hooks_test {

using namespace meshwright;
using at::Tensor;

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

}  // namespace hooks_test
