// Models stage by stage: each with the modules of its stage alone, put behind each other, equal the
// model as a whole to the bit.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/models/running/causal_lm.h"
#include "engine/models/running/initialize.h"
#include "meshwright/error.h"
#include "meshwright/nn/moe.h"
#include "meshwright/nn/stage.h"

namespace stages_test {

using namespace meshwright;
using at::Tensor;

namespace {

modules::CausalLM make(const std::string& name) {
  modules::CausalLM model = modules::build_model(
      std::string(MESHWRIGHT_SOURCE_DIR "/tests/data/nets/") + name, DType::float32, at::kCPU);
  modules::initialize(*model, 1);
  // The auxiliary loss of a whole model knows all its layers.
  for (auto& [block, moe] : find_moe_blocks(*model)) moe->gate()->load_balance = nullptr;
  return model;
}

int64_t layers_of(const modules::CausalLM& model) {
  int64_t count = 0;
  for (const ModuleOutline& module : model->outline().modules)
    count += module.kind == ModuleKind::layer ? 1 : 0;
  return count;
}

// Two stages: the first one has the embedding and `head` layers.
std::vector<std::string> modules_of(const modules::CausalLM& model, bool first, int64_t head) {
  std::vector<std::string> out;
  std::set<std::string> seen;
  for (const auto& item : model->named_parameters()) {
    const std::string& name = item.key();
    std::string top = name.substr(0, name.find('.', name.find('.') + 1));
    bool mine = first == (name.find("embed_tokens") != std::string::npos);
    if (const size_t at = name.find(".layers."); at != std::string::npos) {
      const size_t number = at + 8;
      top = name.substr(0, name.find('.', number));
      mine = first == (std::stoll(name.substr(number)) < head);
    }
    if (name.starts_with("lm_head")) top = "lm_head", mine = !first;
    if (mine && seen.insert(top).second) out.push_back(top);
  }
  return out;
}

}  // namespace

TEST_CASE("two stages behind each other equal the whole model to the bit, with gradients") {
  namespace fs = std::filesystem;
  int models = 0;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(MESHWRIGHT_SOURCE_DIR "/tests/data/nets")) {
    const std::string name = entry.path().filename().string();
    modules::CausalLM whole = make(name);
    if (whole->outline().tied_embeddings) continue;  // one weight on both stages
    CAPTURE(name);
    ++models;
    const int64_t layers = layers_of(whole);
    const Tensor ids = (at::arange(24, at::kLong).view({2, 12}) * 7).remainder(60);
    const Tensor logits = whole(ids);
    logits.square().mean().backward();
    for (int64_t head = 0; head <= layers; ++head) {
      CAPTURE(head);
      modules::CausalLM first = make(name), last = make(name);
      keep_modules(*first, modules_of(first, true, head));
      keep_modules(*last, modules_of(last, false, head));
      Tensor hidden, out;
      {
        StageScope scope({.first = true, .last = false, .begin = 0, .end = head});
        hidden = first(ids);
      }
      const Tensor input = hidden.detach().requires_grad_();
      {
        StageScope scope({.first = false, .last = true, .begin = head});
        out = last(input);
      }
      CHECK(out.equal(logits));
      out.square().mean().backward();
      hidden.backward(input.grad());
      std::map<std::string, Tensor> parts;
      for (const auto* stage : {&first, &last})
        for (const auto& item : (*stage)->named_parameters())
          CHECK(parts.emplace(item.key(), item.value().grad()).second);
      for (const auto& item : whole->named_parameters()) {
        REQUIRE_MESSAGE(parts.contains(item.key()), item.key());
        CHECK_MESSAGE(parts.at(item.key()).equal(item.value().grad()), item.key());
      }
      CHECK(parts.size() == whole->named_parameters().size());
    }
  }
  CHECK(models >= 20);
}

TEST_CASE("what a stage does not keep has no memory and no name; tied weights stay") {
  modules::CausalLM model = make("llama");
  auto before = model->named_parameters();
  keep_modules(*model, {"model.layers.1", "lm_head"});
  for (const auto& item : model->named_parameters())
    CHECK_MESSAGE((item.key().starts_with("model.layers.1.") || item.key() == "lm_head.weight"),
                  item.key());
  for (const auto& item : before) {
    const bool kept = model->named_parameters().contains(item.key());
    CHECK_MESSAGE((item.value().numel() > 0) == kept, item.key());
  }
  std::set<std::string> names;
  for (const auto& item : model->named_modules()) names.insert(item.key());
  CHECK(names.contains("model.rotary_emb"));  // has nothing that could be divided
  CHECK_FALSE(names.contains("model.layers.0"));

  modules::CausalLM tied = make("llama_tied_257");
  keep_modules(*tied, {"lm_head"});
  CHECK(tied->named_parameters()["lm_head.weight"].numel() > 0);

  CHECK_THROWS_AS(keep_modules(*model, {"model.layers.7"}), Error);
}

TEST_CASE("outside of a scope, and after one, a model is whole") {
  CHECK(current_stage().first);
  {
    StageScope outer({.first = true, .last = false, .end = 2});
    {
      StageScope inner({.first = false, .last = true, .begin = 1});
      CHECK_FALSE(current_stage().first);
      CHECK(current_stage().end_of(4) == 4);
    }
    CHECK(current_stage().end_of(4) == 2);
    CHECK_FALSE(current_stage().last);
  }
  CHECK(current_stage().last);
}

}  // namespace stages_test
