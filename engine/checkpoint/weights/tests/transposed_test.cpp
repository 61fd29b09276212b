// Weights whose files have columns first, read as they lie in memory.
#include "engine/checkpoint/weights/read_region.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/checkpoint/weights/safetensors.h"
#include "engine/models/models.h"

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::weights;

TEST_CASE("any box and any run of a transposed weight is read, fused or not") {
  constexpr int64_t kRows = 12, kColumns = 5;
  const fs::path file =
      fs::temp_directory_path() / ("meshwright_transposed_" + std::to_string(::getpid()));
  // Element [column, row] of the file is 100 row + column.
  std::vector<float> values;
  for (int64_t c = 0; c < kColumns; ++c)
    for (int64_t r = 0; r < kRows; ++r) values.push_back(static_cast<float>(100 * r + c));
  {
    SafetensorsWriter writer(file, {{"w", DType::float32, {kColumns, kRows}}}, {});
    writer.append(0, std::as_bytes(std::span(values)));
    writer.finish();
  }
  WeightFolder folder(file);
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
  fs::remove(file);
}

TEST_CASE("a parameter's names in files are its own, or those that its outline says") {
  const ParameterOutline plain{"model.norm.weight", {4}};
  CHECK(names_in_files("LlamaForCausalLM", plain) == std::vector<std::string>{"model.norm.weight"});
  ParameterOutline other{"net.w", {4, 4}};
  other.stored.names = {"transformer.w", "w"};
  CHECK(names_in_files("GPT2LMHeadModel", other) == std::vector<std::string>{"transformer.w", "w"});
}
