// Writes safetensors files front to back, without ever holding a tensor.
//
//   SafetensorsWriter writer(path, {{"w", DType::float32, {2, 3}}, {"b", DType::float32, {2}}},
//   {{"format", "pt"}}); writer.append(0, bytes_of_w); writer.append(1, bytes_of_b);
//   writer.finish();
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/dtype.h"
#include "sdk/base/files/durable.h"

namespace meshwright::weights {

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
