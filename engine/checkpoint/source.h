// A checkpoint or a Hugging Face folder, read the same way.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/weights/read_region.h"
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

// Which checkpoint a run continues.

// Whether a launcher has started these ranks again after a failure (MESHWRIGHT_RESTART,
// TORCHELASTIC_RESTART_COUNT).
bool restarted();

struct Start {
  std::filesystem::path from;  // a checkpoint's folder; empty: afresh
  bool own = false;            // it is one of the run's own: metrics go on where it was made
  std::vector<std::string> told = {};  // of checkpoints that were passed over
};
// `resume`: auto, none, or a path; `own`: the run's folder of checkpoints. After a restart the
// run's own newest one wins over what was asked for at first. Throws Error(no_checkpoint |
// bad_checkpoint).
Start choose_start(const std::string& resume, const std::filesystem::path& own, bool restarted);
// Moves own checkpoints that the run will not continue out of its way (folder.h), and tidies
// the rest; the folder they are in now, or "".
std::string set_aside(const Start& start, const std::filesystem::path& own);

}  // namespace meshwright::checkpoint
