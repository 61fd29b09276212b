#include "engine/checkpoint/weights/transposed.h"

#include <algorithm>
#include <cstddef>

#include "engine/checkpoint/weights/experts.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "engine/models/fused_rows.h"

namespace meshwright::weights {

void read_transposed(const TensorEntry& tensor, const std::optional<FusedRows>& fused,
                     std::span<const int64_t> offsets, std::span<const int64_t> sizes, DType target,
                     void* out) {
  const int64_t begin = offsets[0], end = begin + sizes[0], columns = sizes[1],
                element = dtype_size(target);
  const std::vector<RowRun> runs =
      fused ? runs_of_memory(*fused, begin, end) : std::vector<RowRun>{{begin, begin, end - begin}};
  std::vector<std::byte> part;
  for (const RowRun& run : runs) {
    if (run.count == 0 || columns == 0) continue;
    part.resize(static_cast<size_t>(columns * run.count * element));
    const int64_t at[] = {offsets[1], run.file}, count[] = {columns, run.count};
    read_slice(tensor, at, count, target, part.data());
    transpose(part.data(), columns, run.count, element,
              static_cast<std::byte*>(out) + (run.memory - begin) * columns * element, columns);
  }
}

void read_transposed_run(const TensorEntry& tensor, const std::optional<FusedRows>& fused,
                         std::span<const int64_t> shape, int64_t begin, int64_t end, DType target,
                         void* out) {
  const int64_t columns = shape[1];
  while (begin < end) {
    // The rest of a row, or whole rows.
    const int64_t row = begin / columns, column = begin % columns, rows = (end - begin) / columns;
    const bool whole = column == 0 && rows > 0;
    const int64_t count = whole ? rows * columns : std::min(end - begin, columns - column);
    const int64_t offsets[] = {row, column}, sizes[] = {whole ? rows : 1, whole ? columns : count};
    read_transposed(tensor, fused, offsets, sizes, target, out);
    out = static_cast<std::byte*>(out) + count * dtype_size(target);
    begin += count;
  }
}

std::vector<std::string> names_in_files(std::string_view architecture,
                                        const ParameterOutline& parameter) {
  if (!parameter.stored.names.empty()) return parameter.stored.names;
  std::vector<std::string> out{file_name(architecture, parameter.name)};
  if (out[0] != parameter.name) out.push_back(parameter.name);
  return out;
}

}  // namespace meshwright::weights
