// Which modules an adapter_config.json is for: the rules of peft's check_target_module_exists().
#include "engine/job/adapters.h"

#include <doctest/doctest.h>

#include <boost/json/parse.hpp>
#include <string>
#include <vector>

namespace adapter_targets_test {

using namespace meshwright;

namespace {

const std::vector<std::string> kModules{
    "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.q_proj",
    "model.layers.1.self_attn.q_proj", "model.layers.11.self_attn.q_proj", "lm_head"};

// The places of those that are held, "0 2".
std::string held(const std::string& members) {
  const plan::AdapterTargets targets(boost::json::parse("{" + members + "}").as_object());
  std::string out;
  for (size_t i = 0; i < kModules.size(); ++i)
    if (targets.hold(kModules[i])) out += (out.empty() ? "" : " ") + std::to_string(i);
  return out;
}

}  // namespace

TEST_CASE("targets are names, last parts of names, expressions and layers, as in peft") {
  CHECK(held(R"("target_modules": ["q_proj"])") == "0 1 2 3");
  CHECK(held(R"("target_modules": ["self_attn.q_proj"])") == "0 2 3");
  CHECK(held(R"("target_modules": ["attn.q_proj", "1.self_attn.q_proj"])") == "2");
  CHECK(held(R"("target_modules": ["model.layers.0.mlp.q_proj", "lm_head"])") == "1 4");
  CHECK(held(R"("target_modules": "all-linear")") == "0 1 2 3");
  CHECK(held(R"("target_modules": ".*\\.1\\..*")") == "2");
  CHECK(held(R"("target_modules": "q_proj")") == "");
  CHECK(held(R"("target_modules": [])") == "");
  CHECK(held(R"("target_modules": null)") == "0 1 2 3 4");
  // Not read here, and so for all.
  CHECK(held(R"("target_modules": "model\\.layers\\.[0-9]{1,}.*")") == "0 1 2 3 4");
  CHECK(held(R"("target_modules": ["q_proj"], "exclude_modules": ["mlp.q_proj"])") == "0 2 3");
  CHECK(held(R"("target_modules": ["q_proj"], "exclude_modules": ".*self_attn.*")") == "1");
  CHECK(held(R"("target_modules": ["q_proj", "lm_head"], "layers_to_transform": [1])") == "2 4");
  CHECK(held(R"("target_modules": ["q_proj"], "layers_to_transform": 0)") == "0 1");
  CHECK(held(R"("target_modules": ["q_proj"], "layers_to_transform": [0, 11],
                "layers_pattern": ["h", "layers"])") == "0 1 3");
  CHECK(held(R"("target_modules": ["q_proj"], "layers_to_transform": [0],
                "layers_pattern": "h")") == "");
  CHECK(plan::AdapterTargets().hold("anything"));
  const plan::AdapterTargets some(
      boost::json::parse(R"({"r": 2, "layers_to_transform": [1], "target_modules": ["q_proj"]})")
          .as_object());
  CHECK(some.are_names());
  CHECK(some.text() == R"(target_modules = ["q_proj"], layers_to_transform = [1])");
}

}  // namespace adapter_targets_test
