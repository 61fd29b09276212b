// What the nets are made of, before any value exists.
#include <ATen/core/Tensor.h>
#include <doctest/doctest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <set>

#include "engine/models/models.h"
#include "engine/nets/causal_lm.h"
#include "meshwright/error.h"

using namespace meshwright;
namespace fs = std::filesystem;

TEST_CASE("every golden model of the four families has its outline's parameters and modules, without memory") {
  int count = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(MESHWRIGHT_SOURCE_DIR "/tests/data/models")) {
    ModelOutline outline = models::load_outline(entry.path(), DType::bfloat16);
    if (std::set<std::string>{"llama", "mistral", "qwen2", "qwen3"}.count(outline.model_type) == 0) continue;
    CAPTURE(entry.path().filename().string());
    nets::CausalLM model = nets::build_model(entry.path(), DType::bfloat16, at::kMeta);
    CHECK(model->outline().architecture == outline.architecture);
    std::set<void*> seen;
    size_t next = 0;
    for (const auto& item : model->named_parameters()) {
      CHECK(item.value().is_meta());
      CHECK(item.value().requires_grad());
      CHECK(item.value().scalar_type() == at::kBFloat16);
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
    for (const auto& item : model->named_modules()) ours.insert(item.key());
    for (const ModuleOutline& module : outline.modules) planned.insert(module.name);
    CHECK(ours == planned);
    ++count;
  }
  CHECK(count >= 14);
}
