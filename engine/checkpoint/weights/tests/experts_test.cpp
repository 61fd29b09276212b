// Experts' weights in memory and in files: names, boxes and runs, both forms, and what does not
// fit.
#include "engine/checkpoint/weights/read_region.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "engine/checkpoint/weights/safetensors.h"
#include "meshwright/error.h"

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::weights;

namespace {

constexpr int64_t kExperts = 3, kIn = 4, kOut = 2;
const std::string kUp = "model.layers.7.mlp.experts.gate_and_up_projs",
                  kDown = "model.layers.7.mlp.experts.down_projs";

struct File {
  fs::path path;
  explicit File(const std::string& name)
      : path(fs::temp_directory_path() /
             (name + "_" + std::to_string(::getpid()) + ".safetensors")) {}
  ~File() { fs::remove(path); }
  void write(const std::vector<std::pair<TensorSpec, std::vector<float>>>& tensors) const {
    std::vector<TensorSpec> specs;
    for (const auto& [spec, values] : tensors) specs.push_back(spec);
    SafetensorsWriter writer(path, specs, {}, [](std::span<const std::byte>) {});
    for (size_t i = 0; i < tensors.size(); ++i)
      writer.append(i, std::as_bytes(std::span(tensors[i].second)));
    writer.finish();
  }
};

// Any number that tells where it belongs: expert, part, row and column of the file's matrix.
float value(int64_t expert, int64_t part, int64_t row, int64_t column) {
  return static_cast<float>(((expert * 2 + part) * kOut + row) * 10 + column);
}

// The tensor in memory, [experts, in, 2 out], by the definition.
std::vector<float> in_memory() {
  std::vector<float> out;
  for (int64_t e = 0; e < kExperts; ++e)
    for (int64_t column = 0; column < kIn; ++column)
      for (int64_t part = 0; part < 2; ++part)
        for (int64_t row = 0; row < kOut; ++row) out.push_back(value(e, part, row, column));
  return out;
}

std::vector<float> matrix(int64_t expert, int64_t part) {
  std::vector<float> out;
  for (int64_t row = 0; row < kOut; ++row)
    for (int64_t column = 0; column < kIn; ++column)
      out.push_back(value(expert, part, row, column));
  return out;
}

std::vector<std::pair<TensorSpec, std::vector<float>>> one_by_one(const ExpertTensors& names) {
  std::vector<std::pair<TensorSpec, std::vector<float>>> out;
  for (int64_t e = 0; e < kExperts; ++e)
    for (int64_t part = 0; part < 2; ++part)
      out.push_back({{names.name(e, static_cast<size_t>(part)), DType::float32, {kOut, kIn}},
                     matrix(e, part)});
  std::sort(out.begin(), out.end(),
            [](const auto& a, const auto& b) { return a.first.name < b.first.name; });
  return out;
}

}  // namespace

TEST_CASE("names in files are those of the family") {
  auto mixtral = expert_tensors("MixtralForCausalLM", kUp),
       qwen = expert_tensors("Qwen3MoeForCausalLM", kDown);
  REQUIRE(mixtral);
  CHECK(mixtral->name(11, 0) == "model.layers.7.block_sparse_moe.experts.11.w1.weight");
  CHECK(mixtral->name(11, 1) == "model.layers.7.block_sparse_moe.experts.11.w3.weight");
  CHECK(mixtral->grouped == "model.layers.7.mlp.experts.gate_up_proj");
  REQUIRE(qwen);
  CHECK(qwen->parts.size() == 1);
  CHECK(qwen->name(0, 0) == "model.layers.7.mlp.experts.0.down_proj.weight");
  CHECK(expert_tensors("MixtralForCausalLM", kDown)->name(2, 0) ==
        "model.layers.7.block_sparse_moe.experts.2.w2.weight");
  CHECK(!expert_tensors("LlamaForCausalLM", kUp));
  CHECK(!expert_tensors("MixtralForCausalLM", "model.layers.7.mlp.gate.weight"));
  CHECK(file_name("MixtralForCausalLM", "model.layers.7.mlp.gate.weight") ==
        "model.layers.7.block_sparse_moe.gate.weight");
  CHECK(file_name("Qwen3MoeForCausalLM", "model.layers.7.mlp.gate.weight") ==
        "model.layers.7.mlp.gate.weight");
  CHECK(file_name("LlamaForCausalLM", "model.layers.7.mlp.gate.weight") ==
        "model.layers.7.mlp.gate.weight");
  CHECK(first_file_name("Qwen3MoeForCausalLM", kUp) ==
        "model.layers.7.mlp.experts.0.gate_proj.weight");
  CHECK(first_file_name("Qwen3MoeForCausalLM", "lm_head.weight") == "lm_head.weight");
  using Shape = std::vector<int64_t>;
  CHECK(fits(*mixtral, Shape{4, 3, 6}));
  for (const Shape& shape :
       {Shape{4, 3, 5}, Shape{4, 18}, Shape{0, 3, 6}, Shape{1 << 20, 1, 2}, Shape{4, 0, 6}})
    CHECK(!fits(*mixtral, shape));
}

TEST_CASE(
    "any box and any run of experts is read from one matrix an expert, and from transformers' "
    "grouped form") {
  ExpertTensors names = *expert_tensors("MixtralForCausalLM", kUp);
  const std::vector<int64_t> shape = {kExperts, kIn, 2 * kOut};
  const std::vector<float> memory = in_memory();
  std::vector<float> grouped;
  for (int64_t e = 0; e < kExperts; ++e)
    for (int64_t part = 0; part < 2; ++part)
      for (float v : matrix(e, part)) grouped.push_back(v);
  File split("experts_split"), whole("experts_whole");
  split.write(one_by_one(names));
  whole.write({{{names.grouped, DType::float32, {kExperts, 2 * kOut, kIn}}, grouped}});
  for (const File* file : {&split, &whole}) {
    WeightFolder folder(file->path);
    int checked = 0;
    for (int64_t e0 = 0; e0 < kExperts; ++e0)
      for (int64_t e1 = e0; e1 <= kExperts; ++e1)
        for (int64_t r0 = 0; r0 < kIn; ++r0)
          for (int64_t r1 = r0; r1 <= kIn; ++r1)
            for (int64_t c0 = 0; c0 < 2 * kOut; ++c0)
              for (int64_t c1 = c0; c1 <= 2 * kOut; ++c1) {
                const int64_t offsets[] = {e0, r0, c0}, sizes[] = {e1 - e0, r1 - r0, c1 - c0};
                std::vector<float> expected,
                    found(static_cast<size_t>(sizes[0] * sizes[1] * sizes[2]) + 1, -1);
                for (int64_t e = e0; e < e1; ++e)
                  for (int64_t r = r0; r < r1; ++r)
                    for (int64_t c = c0; c < c1; ++c)
                      expected.push_back(memory[static_cast<size_t>((e * kIn + r) * 2 * kOut + c)]);
                expected.push_back(-1);  // nothing is written behind it
                read_experts(folder, file->path, names, shape, offsets, sizes, DType::float32,
                             found.data());
                CHECK(found == expected);
                ++checked;
              }
    CHECK(checked > 1000);
    auto all = static_cast<int64_t>(memory.size());
    for (int64_t begin = 0; begin < all; ++begin)
      for (int64_t end = begin; end <= all; ++end) {
        std::vector<float> found(static_cast<size_t>(end - begin));
        read_experts_run(folder, file->path, names, shape, begin, end, DType::float32,
                         found.data());
        CHECK(std::equal(found.begin(), found.end(), memory.begin() + begin));
      }
    // Converted on the way.
    std::vector<double> wide(memory.size());
    read_experts_run(folder, file->path, names, shape, 0, all, DType::float64, wide.data());
    CHECK(std::equal(wide.begin(), wide.end(), memory.begin()));
  }
}

TEST_CASE("a matrix that is missing or of another shape is named") {
  ExpertTensors names = *expert_tensors("MixtralForCausalLM", kUp);
  auto refusal = [&](const std::vector<std::pair<TensorSpec, std::vector<float>>>& tensors) {
    File file("experts_damaged");
    file.write(tensors);
    WeightFolder folder(file.path);
    std::vector<float> out(static_cast<size_t>(kExperts * kIn * 2 * kOut));
    try {
      const std::vector<int64_t> shape = {kExperts, kIn, 2 * kOut};
      read_experts_run(folder, "models/small", names, shape, 0, static_cast<int64_t>(out.size()),
                       DType::float32, out.data());
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::weights_mismatch);
      CHECK(error.key() == "model.pretrained");
      return error.message();
    }
    return std::string("read");
  };
  auto tensors = one_by_one(names);
  CHECK(refusal(tensors) == "read");
  auto fewer = tensors;
  fewer.erase(fewer.begin() + 3);
  CHECK(refusal(fewer) == "models/small has no tensor \"" + tensors[3].first.name +
                              "\", which the model of its config.json needs");
  tensors[4].first.shape = {kIn, kOut};
  CHECK(refusal(tensors).find("\"" + tensors[4].first.name +
                              "\" has the shape [4, 2], the model of config.json [2, 4]") !=
        std::string::npos);
}
