// Safetensors files and Hugging Face folders of them, read through memory maps; written for
// untrusted files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/dtype.h"
#include "sdk/base/files/mapped_file.h"

namespace meshwright::weights {

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

}  // namespace meshwright::weights
