// Parts of weights as they lie in memory, of experts, of fused rows and of columns first in files:
// any box and any run.
#include "engine/checkpoint/weights/read_region.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "engine/checkpoint/weights/safetensors.h"
#include "engine/models/models.h"
#include "sdk/base/tests/scratch.h"

namespace read_region_test {

using namespace meshwright;
using namespace meshwright::weights;

namespace {

constexpr int64_t kExperts = 3, kIn = 4, kOut = 2;
const std::string kUp = "model.layers.7.mlp.experts.gate_and_up_projs",
                  kDown = "model.layers.7.mlp.experts.down_projs";

using Tensors = std::vector<std::pair<TensorSpec, std::vector<float>>>;

// A file of these tensors.
struct File {
  scratch::Folder folder;
  std::filesystem::path path = folder.path / "model.safetensors";
  explicit File(const Tensors& tensors) {
    std::vector<TensorSpec> specs;
    for (const auto& [spec, values] : tensors) specs.push_back(spec);
    SafetensorsWriter writer(path, specs);
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

Tensors one_by_one(const ExpertTensors& names) {
  Tensors out;
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
  const File split(one_by_one(names)),
      whole({{{names.grouped, DType::float32, {kExperts, 2 * kOut, kIn}}, grouped}});
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
  auto refusal = [&](const Tensors& tensors) {
    const File file(tensors);
    WeightFolder folder(file.path);
    std::vector<float> out(static_cast<size_t>(kExperts * kIn * 2 * kOut));
    const std::vector<int64_t> shape = {kExperts, kIn, 2 * kOut};
    const Error error = scratch::caught([&] {
      read_experts_run(folder, "models/small", names, shape, 0, std::ssize(out), DType::float32,
                       out.data());
    });
    if (!error.message().empty()) {
      CHECK(error.code() == ErrorCode::weights_mismatch);
      CHECK(error.key() == "model.pretrained");
    }
    return error.message();
  };
  auto tensors = one_by_one(names);
  CHECK(refusal(tensors) == "");
  auto fewer = tensors;
  fewer.erase(fewer.begin() + 3);
  CHECK(refusal(fewer) == "models/small has no tensor \"" + tensors[3].first.name +
                              "\", which the model of its config.json needs");
  tensors[4].first.shape = {kIn, kOut};
  CHECK(refusal(tensors).ends_with("\"" + tensors[4].first.name +
                                   "\" has the shape [4, 2], the model of config.json [2, 4]"));
}

namespace {

// For each row in memory its row in the file, written down part by part as the definition has it.
std::vector<int64_t> definition(const FusedRows& fused) {
  std::vector<int64_t> out;
  for (int64_t group = 0; group < fused.groups; ++group) {
    int64_t whole = 0;  // rows of the parts before this one
    for (int64_t rows : fused.parts) {
      for (int64_t row = 0; row < rows; ++row) out.push_back(whole + group * rows + row);
      whole += fused.groups * rows;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("every range of rows is mapped both ways as the definition has it") {
  for (const FusedRows& fused :
       {FusedRows{1, {3, 2}}, FusedRows{2, {4, 1, 1}}, FusedRows{3, {2, 2}}, FusedRows{5, {1}}}) {
    std::vector<int64_t> file_of = definition(fused), memory_of(file_of.size());
    for (size_t i = 0; i < file_of.size(); ++i)
      memory_of[static_cast<size_t>(file_of[i])] = static_cast<int64_t>(i);
    auto rows = static_cast<int64_t>(file_of.size());
    for (int64_t begin = 0; begin <= rows; ++begin)
      for (int64_t end = begin; end <= rows; ++end) {
        int64_t next = begin;
        for (const RowRun& run : runs_of_memory(fused, begin, end)) {
          CHECK(run.memory == next);
          CHECK(run.count > 0);
          for (int64_t i = 0; i < run.count; ++i)
            CHECK(file_of[static_cast<size_t>(run.memory + i)] == run.file + i);
          next += run.count;
        }
        CHECK(next == end);
        next = begin;
        for (const RowRun& run : runs_of_file(fused, begin, end)) {
          CHECK(run.file == next);
          CHECK(run.count > 0);
          for (int64_t i = 0; i < run.count; ++i)
            CHECK(memory_of[static_cast<size_t>(run.file + i)] == run.memory + i);
          next += run.count;
        }
        CHECK(next == end);
      }
    CHECK(runs_of_memory(fused, 0, rows).size() ==
          static_cast<size_t>(fused.groups) * fused.parts.size());
  }
}

TEST_CASE(
    "any box of rows and columns and any run of elements of a fused weight is read in the order of "
    "memory") {
  const FusedRows fused{2, {2, 1, 1}};
  const std::vector<int64_t> shape = {8, 3};
  std::vector<float> stored(24), memory;
  std::iota(stored.begin(), stored.end(), 0.0F);
  for (int64_t row : definition(fused))
    for (int64_t column = 0; column < 3; ++column)
      memory.push_back(static_cast<float>(row * 3 + column));
  const File written({{{"w", DType::float32, shape}, stored}});
  SafetensorsFile file(written.path);
  TensorEntry whole = file.tensors()[0], flat = whole;
  flat.shape = {24};
  std::vector<float> out(24);
  for (int64_t begin = 0; begin < 8; ++begin)
    for (int64_t end = begin + 1; end <= 8; ++end)
      for (int64_t column = 0; column < 3; ++column) {
        int64_t columns = 3 - column;
        read_fused_slice(whole, fused, {begin, column}, {end - begin, columns}, DType::float32,
                         out.data());
        for (int64_t i = 0; i < (end - begin) * columns; ++i)
          CHECK(out[static_cast<size_t>(i)] ==
                memory[static_cast<size_t>((begin + i / columns) * 3 + column + i % columns)]);
      }
  for (int64_t begin = 0; begin < 24; ++begin)
    for (int64_t end = begin + 1; end <= 24; ++end) {
      read_fused_slice(flat, fused_elements(fused, shape), {begin}, {end - begin}, DType::float32,
                       out.data());
      CHECK(std::equal(memory.begin() + begin, memory.begin() + end, out.begin()));
    }
  // Rows that are not there are refused as read_slice refuses them.
  CHECK_THROWS_AS(read_fused_slice(whole, fused, {0, 1}, {8, 3}, DType::float32, out.data()),
                  Error);
}

TEST_CASE("groups must make up the rows of the tensor") {
  using Shape = std::vector<int64_t>;
  CHECK(fits({2, {4, 1, 1}}, Shape{12, 5}));
  CHECK(fits({2, {4, 1, 1}}, Shape{12}));
  for (const auto& [fused, shape] : {std::pair(FusedRows{2, {4, 1, 1}}, Shape{13, 5}),
                                     {FusedRows{2, {4, 1}}, Shape{12}},
                                     {FusedRows{2, {4, 3}}, Shape{12}},
                                     {FusedRows{0, {4}}, Shape{0}},
                                     {FusedRows{1, {}}, Shape{0}},
                                     {FusedRows{2, {7, -1}}, Shape{12}},
                                     {FusedRows{1, {1}}, Shape{}}})
    CHECK_FALSE(fits(fused, shape));
  CHECK(fused_elements({2, {4, 1, 1}}, Shape{12, 5, 3}) == FusedRows{2, {60, 15, 15}});
}

TEST_CASE("any box and any run of a transposed weight is read, fused or not") {
  constexpr int64_t kRows = 12, kColumns = 5;
  // Element [column, row] of the file is 100 row + column.
  std::vector<float> values;
  for (int64_t c = 0; c < kColumns; ++c)
    for (int64_t r = 0; r < kRows; ++r) values.push_back(static_cast<float>(100 * r + c));
  const File file({{{"w", DType::float32, {kColumns, kRows}}, values}});
  WeightFolder folder(file.path);
  const TensorEntry& entry = *folder.find("w");
  for (const std::optional<FusedRows>& fused :
       {std::optional<FusedRows>(), std::optional<FusedRows>(FusedRows{2, {3, 2, 1}})}) {
    // The row of the file's order that lies at each row of memory.
    std::vector<int64_t> row_of(kRows);
    for (int64_t r = 0; r < kRows; ++r)
      row_of[static_cast<size_t>(r)] = fused ? runs_of_memory(*fused, r, r + 1).at(0).file : r;
    std::vector<float> memory;
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kColumns; ++c)
        memory.push_back(static_cast<float>(100 * row_of[static_cast<size_t>(r)] + c));
    for (int64_t r0 = 0; r0 <= kRows; ++r0)
      for (int64_t r1 = r0; r1 <= kRows; ++r1)
        for (int64_t c0 = 0; c0 <= kColumns; ++c0)
          for (int64_t c1 = c0; c1 <= kColumns; ++c1) {
            const int64_t offsets[] = {r0, c0}, sizes[] = {r1 - r0, c1 - c0};
            std::vector<float> found(static_cast<size_t>(sizes[0] * sizes[1]), -1), truth;
            read_transposed(entry, fused, offsets, sizes, DType::float32, found.data());
            for (int64_t r = r0; r < r1; ++r)
              for (int64_t c = c0; c < c1; ++c)
                truth.push_back(memory[static_cast<size_t>(r * kColumns + c)]);
            REQUIRE(found == truth);
          }
    const int64_t shape[] = {kRows, kColumns};
    for (int64_t begin = 0; begin <= kRows * kColumns; ++begin)
      for (int64_t end = begin; end <= kRows * kColumns; ++end) {
        std::vector<float> found(static_cast<size_t>(end - begin), -1);
        read_transposed_run(entry, fused, shape, begin, end, DType::float32, found.data());
        REQUIRE(found == std::vector<float>(memory.begin() + begin, memory.begin() + end));
      }
  }
}

TEST_CASE("a parameter's names in files are its own, or those that its outline says") {
  const ParameterOutline plain{"model.norm.weight", {4}};
  CHECK(names_in_files("LlamaForCausalLM", plain) == std::vector<std::string>{"model.norm.weight"});
  ParameterOutline other{"net.w", {4, 4}};
  other.stored.names = {"transformer.w", "w"};
  CHECK(names_in_files("GPT2LMHeadModel", other) == std::vector<std::string>{"transformer.w", "w"});
}

}  // namespace read_region_test
