// Rows of fused weights in memory and in files.
#include "engine/models/models.h"

#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "engine/checkpoint/weights/read_region.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "meshwright/error.h"

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::weights;

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
  fs::path path = fs::temp_directory_path() /
                  ("meshwright_fused_" + std::to_string(::getpid()) + ".safetensors");
  SafetensorsWriter writer(path, {{"w", DType::float32, shape}}, {},
                           [](std::span<const std::byte>) {});
  writer.append(0, std::as_bytes(std::span(stored)));
  writer.finish();
  {
    SafetensorsFile file(path);
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
  fs::remove(path);
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
