// A program's own module under lora.adapter. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/pair_model.h"
#include "engine/train/run/tests/small_models.h"
#include "meshwright/nn/layers.h"
#include "meshwright/parallel/testing.h"
#include "meshwright/trainer.h"

#include <ATen/ops/arange.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/adapters.h"
#include "engine/checkpoint/weights/export.h"

namespace adapters_of_program_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

using Factors = std::map<std::string, at::Tensor>;

// A folder of adapters of these modules, and what it holds.
Factors write_adapters(const fs::path& folder, const std::vector<std::string>& modules) {
  Factors out;
  std::vector<weights::ExportTensor> tensors;
  for (const std::string& module : modules)
    for (const bool in : {true, false}) {
      const bool up = module == "up";
      const std::string name = module + (in ? ".lora_A.weight" : ".lora_B.weight");
      const std::vector<int64_t> shape =
          in ? std::vector<int64_t>{2, up ? 6 : 10} : std::vector<int64_t>{up ? 10 : 3, 2};
      const at::Tensor values =
          at::arange(shape[0] * shape[1], at::kFloat).view(shape).add(up ? 1 : 2).cos();
      out[name] = values;
      tensors.push_back({{"base_model.model." + name, DType::float32, shape},
                         [values](const weights::ByteSink& sink) {
                           sink(std::as_bytes(std::span(values.const_data_ptr<float>(),
                                                        static_cast<size_t>(values.numel()))));
                         }});
    }
  weights::ExportOptions options;
  options.stem = "adapter_model";
  weights::write_folder(
      folder, std::move(tensors),
      {weights::text_of("adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3,
                                                   "target_modules": ["up", "down"]})")},
      options);
  return out;
}

// What the module's factors are when its Trainer is there, or the message of the refusal.
std::string begin(const fs::path& folder, const std::string& targets, Factors& factors) {
  std::string out;
  run_ranks(1, [&](const std::shared_ptr<World>& world) {
    Job job = pair_job({{"lora.adapter", "\"" + folder.string() + "\""}});
    if (!targets.empty()) job.set("lora.target_modules", targets);
    CHECK(job.table("lora").get_int("r") == 2);
    Pair net;
    try {
      Trainer trainer(job, world, net.ptr());
      for (const auto& item : net->named_parameters())
        if (item.key().find(".lora_") != std::string::npos)
          factors[item.key()] = item.value().detach().clone();
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::weights_mismatch);
      out = error.message();
    }
  });
  return out;
}

}  // namespace

TEST_CASE("a program's own module begins with the adapters of a folder") {
  TestFolder folder("adapters_of_program");
  const fs::path tuned = folder.path / "tuned";
  const Factors wanted = write_adapters(tuned, {"up", "down"});
  Factors factors;
  CHECK(begin(tuned, "", factors) == "");
  CHECK(factors.size() == wanted.size());
  for (const auto& [name, values] : wanted) {
    CAPTURE(name);
    REQUIRE(factors.contains(name));
    CHECK(factors.at(name).equal(values));
  }
  CHECK(begin(tuned, "\"up\"", factors).find("which no adapter of this job takes") !=
        std::string::npos);
  write_adapters(tuned, {"up"});
  CHECK(begin(tuned, "", factors).find("has no tensor \"base_model.model.down.lora_A.weight\"") !=
        std::string::npos);
}

TEST_CASE("a program's checkpoint of adapters knows their scale, and what they lie beside") {
  TestFolder folder("scale_of_program");
  run_ranks(1, [&](const std::shared_ptr<World>& world) {
    auto job_of = [](const char* alpha) {
      return pair_job({{"lora.r", "2"}, {"lora.alpha", alpha}});
    };
    Job job = job_of("8"), other = job_of("16");  // trainers need theirs
    auto trainer_of = [&](Job& of) { return std::make_unique<Trainer>(of, world, Pair().ptr()); };
    const std::string saved = (folder.path / "saved").string();
    trainer_of(job)->save(saved);
    trainer_of(job)->load(saved);
    try {
      trainer_of(other)->load(saved);
      FAIL("another scale was taken");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::checkpoint_mismatch);
      REQUIRE(!error.helps().empty());
      CHECK(error.helps()[0] == "set lora.alpha = 8");
    }
    checkpoint::Source source(saved);
    const std::optional<checkpoint::AdapterSet> adapters = checkpoint::adapters_of(source);
    REQUIRE(adapters.has_value());
    CHECK(adapters->of_weight.size() == 2);
    for (const auto& [weight, pair] : adapters->of_weight) CHECK(pair.scale == 4);
  });
}

}  // namespace adapters_of_program_test
