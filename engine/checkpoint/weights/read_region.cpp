#include "engine/checkpoint/weights/read_region.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "engine/checkpoint/weights/safetensors.h"
#include "engine/models/models.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::weights {

namespace {

const TensorEntry& find(const WeightFolder& folder, const std::string& path,
                        const std::string& name, std::span<const int64_t> shape) {
  return find_tensor(folder, path, {&name, 1}, shape);
}

constexpr std::string_view kGateAndUp = ".mlp.experts.gate_and_up_projs",
                           kDown = ".mlp.experts.down_projs";
constexpr int64_t kMostExperts = 1 << 16;

struct Family {
  std::string_view architecture, block;  // the block's name in files
  const char *gate, *up, *down;
};
constexpr Family kFamilies[] = {
    {"MixtralForCausalLM", ".block_sparse_moe", "w1", "w3", "w2"},
    {"Qwen3MoeForCausalLM", ".mlp", "gate_proj", "up_proj", "down_proj"}};

const Family* family_of(std::string_view architecture) {
  for (const Family& family : kFamilies)
    if (family.architecture == architecture) return &family;
  return nullptr;
}

template <class T>
void transpose_elements(const std::byte* from, int64_t rows, int64_t columns, std::byte* to,
                        int64_t stride) {
  constexpr int64_t kBlock = 32;  // both sides of a block stay in the cache
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock)
    for (int64_t c0 = 0; c0 < columns; c0 += kBlock)
      for (int64_t c = c0; c < std::min(c0 + kBlock, columns); ++c)
        for (int64_t r = r0; r < std::min(r0 + kBlock, rows); ++r) {
          T element;
          std::memcpy(&element, from + (r * columns + c) * static_cast<int64_t>(sizeof(T)),
                      sizeof(T));
          std::memcpy(to + (c * stride + r) * static_cast<int64_t>(sizeof(T)), &element, sizeof(T));
        }
}

// Whether the folder has all experts in one tensor. Throws for more than the configuration has:
// another model's, or two versions of one.
bool is_grouped(const WeightFolder& folder, const std::string& path, const ExpertTensors& tensors,
                std::span<const int64_t> shape) {
  const bool single = folder.find(tensors.name(0, 0)) != nullptr;
  const std::string surplus = single && folder.find(tensors.grouped) != nullptr ? tensors.grouped
                              : folder.find(tensors.name(shape[0], 0)) != nullptr
                                  ? tensors.name(shape[0], 0)
                                  : "";
  if (!surplus.empty())
    throw Error(ErrorCode::weights_mismatch, path + " holds " + surplus + ", which a model of " +
                                                 std::to_string(shape[0]) +
                                                 " experts, one matrix each, has no use for")
        .key("model.pretrained")
        .help("use the config.json that belongs to these weights")
        .help("remove the tensor from the folder");
  return !single && folder.find(tensors.grouped) != nullptr;
}

}  // namespace

const TensorEntry& find_tensor(const WeightFolder& folder, const std::string& path,
                               std::span<const std::string> names, std::span<const int64_t> shape) {
  const TensorEntry* entry = nullptr;
  for (const std::string& name : names)
    if (entry == nullptr) entry = folder.find(name);
  auto mismatch = [&](const std::string& what) {
    return Error(ErrorCode::weights_mismatch, what)
        .key("model.pretrained")
        .help("check that config.json and the safetensors files belong together");
  };
  if (entry == nullptr)
    throw mismatch(path + " has no tensor \"" + names[0] +
                   "\", which the model of its config.json needs");
  if (!std::ranges::equal(entry->shape, shape))
    throw mismatch(entry->file->path() + ": \"" + entry->name + "\" has the shape " +
                   report::shape_text(entry->shape) + ", the model of config.json " +
                   report::shape_text(shape));
  return *entry;
}

std::optional<ExpertTensors> expert_tensors(std::string_view architecture,
                                            std::string_view parameter) {
  const Family* family = family_of(architecture);
  bool up = parameter.ends_with(kGateAndUp), down = parameter.ends_with(kDown);
  if (family == nullptr || (!up && !down)) return std::nullopt;
  std::string layer(parameter.substr(0, parameter.size() - (up ? kGateAndUp : kDown).size()));
  ExpertTensors out{layer + std::string(family->block) + ".experts.",
                    {},
                    layer + ".mlp.experts." + (up ? "gate_up_proj" : "down_proj")};
  if (up)
    out.parts = {family->gate, family->up};
  else
    out.parts = {family->down};
  return out;
}

std::string file_name(std::string_view architecture, std::string_view parameter) {
  constexpr std::string_view kGate = ".mlp.gate.weight";
  const Family* family = family_of(architecture);
  if (family == nullptr || !parameter.ends_with(kGate)) return std::string(parameter);
  return std::string(parameter.substr(0, parameter.size() - kGate.size())) +
         std::string(family->block) + ".gate.weight";
}

std::string first_file_name(std::string_view architecture, std::string_view parameter) {
  std::optional<ExpertTensors> experts = expert_tensors(architecture, parameter);
  return experts ? experts->name(0, 0) : file_name(architecture, parameter);
}

bool fits(const ExpertTensors& tensors, std::span<const int64_t> shape) {
  return shape.size() == 3 && shape[0] >= 1 && shape[0] <= kMostExperts && shape[1] >= 1 &&
         shape[2] >= 1 && shape[2] % static_cast<int64_t>(tensors.parts.size()) == 0;
}

void transpose(const std::byte* from, int64_t rows, int64_t columns, int64_t element, std::byte* to,
               int64_t stride) {
  switch (element) {
    case 2:
      return transpose_elements<uint16_t>(from, rows, columns, to, stride);
    case 4:
      return transpose_elements<uint32_t>(from, rows, columns, to, stride);
    case 8:
      return transpose_elements<uint64_t>(from, rows, columns, to, stride);
    default:
      return transpose_elements<uint8_t>(from, rows, columns, to, stride);
  }
}

std::vector<const TensorEntry*> find_experts(const WeightFolder& folder, const std::string& path,
                                             const ExpertTensors& tensors,
                                             std::span<const int64_t> shape) {
  std::vector<const TensorEntry*> out;
  const int64_t width = shape[2] / static_cast<int64_t>(tensors.parts.size());
  const int64_t grouped_shape[] = {shape[0], shape[2], shape[1]}, one_shape[] = {width, shape[1]};
  if (is_grouped(folder, path, tensors, shape)) {
    out.push_back(&find(folder, path, tensors.grouped, grouped_shape));
    return out;
  }
  for (int64_t e = 0; e < shape[0]; ++e)
    for (size_t part = 0; part < tensors.parts.size(); ++part)
      out.push_back(&find(folder, path, tensors.name(e, part), one_shape));
  return out;
}

void read_experts(const WeightFolder& folder, const std::string& path, const ExpertTensors& tensors,
                  std::span<const int64_t> shape, std::span<const int64_t> offsets,
                  std::span<const int64_t> sizes, DType target, void* out) {
  const int64_t parts = static_cast<int64_t>(tensors.parts.size()), width = shape[2] / parts,
                element = dtype_size(target);
  const int64_t grouped_shape[] = {shape[0], shape[2], shape[1]}, one_shape[] = {width, shape[1]};
  const bool grouped = is_grouped(folder, path, tensors, shape);
  std::vector<std::byte> rows;
  auto* to = static_cast<std::byte*>(out);
  for (int64_t e = offsets[0]; e < offsets[0] + sizes[0]; ++e, to += sizes[1] * sizes[2] * element)
    for (int64_t part = 0; part < parts; ++part) {
      int64_t from = std::max(offsets[2], part * width),
              end = std::min(offsets[2] + sizes[2], (part + 1) * width);
      if (from >= end || sizes[1] == 0) continue;
      rows.resize(static_cast<size_t>((end - from) * sizes[1] * element));
      if (grouped) {
        const int64_t at[] = {e, from, offsets[1]}, count[] = {1, end - from, sizes[1]};
        read_slice(find(folder, path, tensors.grouped, grouped_shape), at, count, target,
                   rows.data());
      } else {
        const int64_t at[] = {from - part * width, offsets[1]}, count[] = {end - from, sizes[1]};
        read_slice(find(folder, path, tensors.name(e, static_cast<size_t>(part)), one_shape), at,
                   count, target, rows.data());
      }
      transpose(rows.data(), end - from, sizes[1], element, to + (from - offsets[2]) * element,
                sizes[2]);
    }
}

void read_experts_run(const WeightFolder& folder, const std::string& path,
                      const ExpertTensors& tensors, std::span<const int64_t> shape, int64_t begin,
                      int64_t end, DType target, void* out) {
  const int64_t columns = shape[2], expert = shape[1] * columns;
  while (begin < end) {
    // The rest of a row, or whole rows of one expert.
    int64_t e = begin / expert, row = begin % expert / columns, column = begin % columns;
    int64_t stop = std::min(end, (e + 1) * expert), rows = (stop - begin) / columns;
    bool whole = column == 0 && rows > 0;
    int64_t count = whole ? rows * columns : std::min(stop - begin, columns - column);
    const int64_t offsets[] = {e, row, column},
                  sizes[] = {1, whole ? rows : 1, whole ? columns : count};
    read_experts(folder, path, tensors, shape, offsets, sizes, target, out);
    out = static_cast<std::byte*>(out) + count * dtype_size(target);
    begin += count;
  }
}

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

void read_fused_slice(const TensorEntry& tensor, const FusedRows& fused,
                      std::vector<int64_t> offsets, std::vector<int64_t> sizes, DType target,
                      void* out) {
  int64_t begin = offsets.at(0), row = dtype_size(target);
  for (size_t d = 1; d < sizes.size(); ++d) row *= sizes[d];
  for (const RowRun& run : runs_of_memory(fused, begin, begin + sizes.at(0))) {
    offsets[0] = run.file;
    sizes[0] = run.count;
    read_slice(tensor, offsets, sizes, target,
               static_cast<std::byte*>(out) + (run.memory - begin) * row);
  }
}

void read_region(const TensorEntry& tensor, std::span<const int64_t> shape,
                 const std::optional<FusedRows>& fused, bool transposed, const Region& region,
                 DType target, void* out) {
  if (region.flat()) {  // a run of the flattened parameter
    if (transposed)
      return read_transposed_run(tensor, fused, shape, region.begin, region.end, target, out);
    const int64_t begin = region.begin, count = region.end - region.begin;
    TensorEntry flat = tensor;
    flat.shape = {element_count({shape.begin(), shape.end()})};
    if (fused)
      return read_fused_slice(flat, fused_elements(*fused, shape), {begin}, {count}, target, out);
    return read_slice(flat, std::span(&begin, 1), std::span(&count, 1), target, out);
  }
  auto* memory = static_cast<std::byte*>(out);
  for (const Region& box : as_boxes(region, shape)) {
    if (transposed)
      read_transposed(tensor, fused, box.offsets, box.sizes, target, memory);
    else if (fused)
      read_fused_slice(tensor, *fused, box.offsets, box.sizes, target, memory);
    else
      read_slice(tensor, box.offsets, box.sizes, target, memory);
    memory += box.count() * dtype_size(target);
  }
}

void read_region_of_experts(const WeightFolder& folder, const std::string& path,
                            const ExpertTensors& experts, std::span<const int64_t> shape,
                            const Region& region, DType target, void* out) {
  if (region.flat())
    return read_experts_run(folder, path, experts, shape, region.begin, region.end, target, out);
  auto* memory = static_cast<std::byte*>(out);
  for (const Region& box : as_boxes(region, shape)) {
    read_experts(folder, path, experts, shape, box.offsets, box.sizes, target, memory);
    memory += box.count() * dtype_size(target);
  }
}

std::string name_in(const WeightFolder& folder, std::string_view architecture,
                    const ParameterOutline& parameter) {
  std::vector<std::string> names = names_in_files(architecture, parameter);
  if (const std::optional<ExpertTensors> experts = expert_tensors(architecture, parameter.name))
    names = {experts->name(0, 0), experts->grouped};
  for (std::string& name : names)
    if (folder.find(name) != nullptr) return std::move(name);
  return "";
}

}  // namespace meshwright::weights
