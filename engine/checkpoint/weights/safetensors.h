// The names that safetensors files give to element types.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meshwright/dtype.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"

namespace meshwright::weights {

struct ElementType {
  std::string_view name;  // "BF16"
  DType dtype;
};

// In the order in which safetensors' own library lays tensors out (largest alignment first), and
// the first of a dtype is the name it is written with. U8 is read as int8: the bytes are the same,
// and nothing here computes with them.
inline constexpr ElementType kElementTypes[] = {
    {"I64", DType::int64},   {"F64", DType::float64},   {"F32", DType::float32},
    {"I32", DType::int32},   {"BF16", DType::bfloat16}, {"F16", DType::float16},
    {"I16", DType::int16},   {"I8", DType::int8},       {"U8", DType::int8},
    {"BOOL", DType::boolean}};

constexpr std::optional<DType> parse_element_type(std::string_view name) {
  for (const ElementType& type : kElementTypes)
    if (type.name == name) return type.dtype;
  return std::nullopt;
}
constexpr size_t element_type_rank(DType dtype) {
  size_t at = 0;
  while (kElementTypes[at].dtype != dtype) ++at;
  return at;
}
constexpr std::string_view element_type_name(DType dtype) {
  return kElementTypes[element_type_rank(dtype)].name;
}
// Bytes of a whole tensor; nothing for a negative size, and for more than 2^63 where each size of 0
// counts as 1: who computes strides must not overflow either.
inline std::optional<int64_t> tensor_bytes(DType dtype, std::span<const int64_t> shape) {
  int64_t product = dtype_size(dtype);
  bool empty = false;
  for (int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product))
      return std::nullopt;
    empty = empty || size == 0;
  }
  return empty ? 0 : product;
}

// Floating element types turned into each other as PyTorch does (round to nearest even; float64 to
// a narrow type by way of float32).

bool is_floating(DType dtype);
// Neither side needs to be aligned; they may not overlap. Both are floating, or equal.
void convert_elements(const std::byte* from, DType from_type, std::byte* to, DType to_type,
                      int64_t count);

// Help for weights of other types.
inline constexpr const char* kNotQuantized =
    "quantized weights are not read: take the model's weights in bfloat16 or float32, or "
    "dequantize them with the library that quantized them";

// Safetensors files and Hugging Face folders of them, read through memory maps; written for
// untrusted files.

struct TensorEntry {
  std::string name;
  DType dtype = DType::float32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;  // row-major, little-endian, not aligned
  int64_t bytes = 0;
  const base::MappedFile* file = nullptr;
  int64_t offset = 0;  // in the file
};

// One file: 8 bytes header length, JSON header, data. Checked as a whole before anything of it is
// used: bounded header, known dtypes, sizes that match, no overlap, no hole, no duplicate, nothing
// behind the last tensor.
class SafetensorsFile {
 public:
  // Throws Error(bad_safetensors) naming file and byte.
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }

 private:
  std::unique_ptr<base::MappedFile> file_;
  std::vector<TensorEntry> tensors_;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

// A Hugging Face folder: model.safetensors, or model.safetensors.index.json and the files it names;
// or one file.
class WeightFolder {
 public:
  // Throws Error(bad_safetensors) for damage, files of the index that are absent, and names or
  // links that lead out of the folder, but for those that Hugging Face's download cache makes
  // (snapshots/<revision>/NAME -> ../../blobs/<hash>).
  explicit WeightFolder(const std::filesystem::path& path);
  const TensorEntry* find(std::string_view name) const;  // nullptr: none
  std::vector<std::string> names() const;                // sorted

 private:
  void add(const std::filesystem::path& path, const std::map<std::string, std::string>* index);
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const TensorEntry*, std::less<>> tensors_;
};

// Reads rows, columns ... [offsets, offsets + sizes) of a tensor into contiguous memory of
// `target`, touching only those bytes of the file. Floating dtypes convert among each other as
// PyTorch does (round to nearest even). Throws Error(weights_mismatch) when the slice lies outside
// of the tensor or a dtype is not floating.
void read_slice(const TensorEntry& tensor, std::span<const int64_t> offsets,
                std::span<const int64_t> sizes, DType target, void* out);

// Writes safetensors files front to back, without ever holding a tensor.
//
//   SafetensorsWriter writer(path, {{"w", DType::float32, {2, 3}}, {"b", DType::float32, {2}}},
//   {{"format", "pt"}}); writer.append(0, bytes_of_w); writer.append(1, bytes_of_b);
//   writer.finish();

struct TensorSpec {
  std::string name;
  DType dtype = DType::float32;
  std::vector<int64_t> shape;
};

// Sees bytes in their order; the span is valid during the call.
using ByteSink = std::function<void(std::span<const std::byte>)>;
using Metadata = std::vector<std::pair<std::string, std::string>>;

// A file that is not finished is removed by the destructor. Not thread-safe.
class SafetensorsWriter {
 public:
  // Writes the header. Tensors lie one after the other in the order given; the file is byte for
  // byte what safetensors' own save_file makes of the same order and metadata. `sink` sees every
  // byte of the file, header too, in pieces as large as they are written. Throws
  // Error(bad_safetensors) for a name that stands twice, is longer than 4096 bytes or not UTF-8,
  // for more than 16 dimensions and for a header above the bounds of readers;
  // Error(output_unwritable) as NewFile does.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                    const Metadata& metadata = {}, ByteSink sink = {});
  // The next bytes of tensor number `tensor`, in pieces of any size. Small ones are gathered, large
  // ones go straight to the file. Throws Error(internal) when a tensor before is not complete, or
  // this one gets more than its bytes.
  void append(size_t tensor, std::span<const std::byte> bytes);
  // Throws Error(internal) when bytes are missing. The file is synced; its folder is not.
  void finish();

  int64_t size() const {
    return ends_.empty() ? data_begin_ : data_begin_ + ends_.back();
  }  // of the finished file
  int64_t offset(size_t tensor) const {
    return data_begin_ + (tensor == 0 ? 0 : ends_[tensor - 1]);
  }  // in the file

 private:
  void gather(std::span<const std::byte> bytes);
  void put(std::span<const std::byte> bytes);

  base::NewFile file_;
  std::vector<TensorSpec> tensors_;
  std::vector<int64_t> ends_;  // of each tensor in the data
  int64_t data_begin_ = 0, written_ = 0;
  ByteSink sink_;
  std::vector<std::byte> gathered_;
};

// The order in which safetensors' own save_file lays tensors out: by element type, then by name.
bool as_save_file(const TensorSpec& a, const TensorSpec& b);  // a before b

}  // namespace meshwright::weights
