// A checkpoint or a Hugging Face folder, read the same way.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/weights/experts.h"
#include "engine/checkpoint/weights/safetensors.h"

namespace meshwright::checkpoint {

struct SourceTensor {
  std::string state;  // "" for weights, else the optimizer's: "exp_avg"
  std::string name;
  DType dtype = DType::float32;         // as stored
  DType export_dtype = DType::float32;  // of a Hugging Face folder made of it
  std::vector<int64_t> shape;
  bool transposed = false;  // the weight of a Linear, columns first
  bool of_base = false;     // of a checkpoint: it lies in the model that Meta::base names
  int64_t elements() const;
  int64_t bytes() const { return elements() * dtype_size(dtype); }
  // "model.norm.weight", "exp_avg of model.norm.weight"
  std::string text() const;
};

// Not thread-safe.
class Source {
 public:
  // `path`: what resolve() takes, or a Hugging Face folder, or one safetensors file. Throws what
  // Checkpoint and WeightFolder throw. `base`: where --base says that the model now is which a
  // checkpoint with adapters names; empty: there.
  explicit Source(const std::filesystem::path& path, const std::filesystem::path& base = {});
  ~Source();
  const std::filesystem::path& path() const { return path_; }  // what was found
  Checkpoint* checkpoint() { return checkpoint_.get(); }       // nullptr: a folder of weights
  const weights::WeightFolder* weights() const { return weights_.get(); }  // nullptr: a checkpoint
  const std::vector<SourceTensor>& tensors() const { return tensors_; }    // weights first
  // Elements [begin, end) of a tensor in row-major order, in `target`. Tensors of a checkpoint are
  // those of the Hugging Face folder that it makes: fused ones in its order of rows, experts one by
  // one; every byte is checked before it is used.
  void read(size_t tensor, int64_t begin, int64_t end, DType target, void* out);

 private:
  // Where a tensor lies in a checkpoint.
  struct Place {
    size_t record = 0;
    int64_t expert = -1;  // of a grouped tensor; -1: the whole
    int64_t column = 0;   // the first of its part
  };
  void add(size_t record);
  // Of a weight whose file has columns first.
  void read_transposed(const TensorRecord& record, int64_t begin, int64_t end, DType target,
                       void* out);
  void read_expert(const Place& place, const SourceTensor& tensor, int64_t begin, int64_t end,
                   DType target, void* out);
  std::filesystem::path path_;
  std::vector<Place> places_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<weights::WeightFolder> weights_;
  std::vector<SourceTensor> tensors_;
};

// A folder of weights as Hugging Face lays it out, or a safetensors file, rather than a checkpoint
// or a run.
bool is_weights(const std::filesystem::path& path);

}  // namespace meshwright::checkpoint
