// Models that differ from Llama on the way through a run: loaded from a Hugging Face folder on any
// layout, saved, and exported again.
#include "engine/train/step/load_weights.h"

// Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/small_run.h"
#include "sdk/comm/tests/sampled.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/checkpoint/export.h"
#include "engine/checkpoint/inspect.h"
#include "engine/checkpoint/weights/model_tensors.h"
#include "engine/models/models.h"
#include "engine/train/step/tests/causal_loss.h"
#include "meshwright/error.h"
#include "meshwright/parallel/testing.h"
#include "sdk/base/files/durable.h"

namespace families_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / ("families_" + std::to_string(::getpid()));
  Folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
};

const std::string kTensorParallel = "distributed.tp_size=2",
                  kSequenceParallel = "distributed.sequence_parallel=true";

std::string model_folder(const std::string& name) {
  return MESHWRIGHT_SOURCE_DIR "/tests/data/nets/" + name;
}

// Losses of two steps from a folder's weights or a checkpoint; saved before them when `save` is
// set.
std::vector<double> run(Layout layout, const std::string& model, const fs::path& checkpoint,
                        const fs::path& save) {
  std::vector<double> out;
  layout.model = model;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    if (checkpoint.empty())
      train::load_weights_of(rank.trainer, model, rank.net, 0);
    else
      rank.trainer.load(checkpoint.string());
    if (!save.empty()) rank.trainer.save(save.string());
    std::vector<double> losses;
    for (int i = 0; i < 2; ++i) losses.push_back(rank.step().loss);
    if (world->rank() == 0) out = losses;
  });
  return out;
}

std::string unused_without(const std::string& model, size_t parameter) {
  ModelOutline outline =
      outlines::load_outline(fs::path(model_folder(model)) / "config.json", DType::float32);
  if (parameter < outline.parameters.size())
    outline.parameters.erase(outline.parameters.begin() + static_cast<int64_t>(parameter));
  return weights::unused_tensors(weights::WeightFolder(model_folder(model)), model_folder(model),
                                 outline);
}

// As many elements as differ between the weights of two sources of possibly different dtypes.
int64_t differing(const fs::path& a, const fs::path& b) {
  checkpoint::Source first(a), second(b);
  checkpoint::Difference difference = checkpoint::compare(first, second, [](int64_t) {});
  CHECK(difference.only_a.empty());
  CHECK(difference.only_b.empty());
  int64_t out = 0;
  for (const checkpoint::TensorDifference& t : difference.both)
    out += t.same_shape() ? t.differing : 1;
  return out;
}

}  // namespace

TEST_CASE(
    "tensors of a folder that its model has no place for are named, and those of all families have "
    "one") {
  for (const char* model : {"llama", "mistral_window", "qwen3_layer_types", "gemma3_layer_types",
                            "phi3", "mixtral", "qwen3_moe"}) {
    CAPTURE(model);
    REQUIRE(fs::exists(fs::path(model_folder(model)) / "model.safetensors"));
    CHECK(unused_without(model, SIZE_MAX) == "");
  }
  CHECK(unused_without("llama", 1)
            .find(" has 1 tensor without a place in the model of its config.json, not read: "
                  "model.layers.0.") != std::string::npos);
  CHECK(unused_without("mixtral", 0).find("not read: model.embed_tokens.weight") !=
        std::string::npos);
}

TEST_CASE(
    "models that differ from Llama are loaded, saved and exported bitwise identical on every "
    "layout, and "
    "train alike on all of them") {
  Folder folder;
  size_t number = 0;  // half: each family on every second layout, each layout with every second one
  for (const char* name : {"phi", "phi_normed", "phi3", "phi3_tied", "gemma3", "gemma3_layer_types",
                           "qwen3_yarn", "mixtral", "qwen3_moe_mixed"}) {
    bool experts = std::string(name).find("mix") !=
                   std::string::npos;  // which leave no room for sequence parallelism
    CAPTURE(name);
    std::string model = model_folder(name);
    std::vector<double> expected;
    fs::path first;
    size_t turn = number++;
    int count = 0;
    for (const Layout& layout : {Layout{"fsdp2", 1}, Layout{"fsdp2", 3},
                                 Layout{"fsdp2", 4, {"distributed.dp_replicate_size=2"}},
                                 Layout{"ddp", 2}, Layout{"fsdp2", 2, {kTensorParallel}},
                                 Layout{"fsdp2", 4, {kTensorParallel, kSequenceParallel}}}) {
      INFO(layout.text());
      if (experts && layout.sets.size() == 2) continue;
      if (!expected.empty() && !sampled(turn++, 2)) continue;
      fs::path saved = folder.path / (std::string(name) + std::to_string(count++)),
               exported = saved / "hf";
      std::vector<double> losses = run(layout, model, {}, saved);
      if (expected.empty()) {
        expected = losses;
        first = saved / "step_00000000";
      }
      for (size_t i = 0; i < losses.size(); ++i)
        CHECK(losses[i] == doctest::Approx(expected[i]).epsilon(1e-6));
      checkpoint::Source source(saved / "step_00000000");
      checkpoint::export_folder(source, exported, {});
      CHECK(differing(exported, model) == 0);
      CHECK(differing(saved / "step_00000000", model) ==
            0);  // `checkpoint diff` against the folder
      // In the model's own order between checkpoints, too.
      std::vector<double> resumed = run(layout, model, first, {});
      for (size_t i = 0; i < resumed.size(); ++i)
        CHECK(resumed[i] == doctest::Approx(expected[i]).epsilon(1e-6));
    }
  }
}

TEST_CASE("a checkpoint whose rows lie in another order than the model's is refused") {
  Folder folder;
  std::string model = model_folder("phi3_window");
  run({"fsdp2", 1}, model, {}, folder.path);
  fs::path saved = folder.path / "step_00000000";
  checkpoint::Meta meta = checkpoint::read_meta(saved);
  int fused = 0;
  for (checkpoint::TensorRecord& tensor : meta.tensors) {
    if (!tensor.fused) continue;
    ++fused;
    tensor.fused.reset();
  }
  CHECK(fused == 4);  // two weights per layer; there is no optimizer's state yet
  base::write_durably(saved / "meta.json", checkpoint::to_json(meta));
  try {
    run({"fsdp2", 1}, model, saved, {});
    FAIL("loaded");
  } catch (const Error& error) {
    CHECK(error.message().find("rows in another order") != std::string::npos);
  }
}

}  // namespace families_test
