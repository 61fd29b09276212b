#include "engine/checkpoint/source.h"

#include "engine/checkpoint/folder.h"
#include "engine/weights/fused_rows.h"

namespace meshwright::checkpoint {

namespace fs = std::filesystem;

int64_t SourceTensor::elements() const {
  int64_t out = 1;
  for (int64_t size : shape) out *= size;
  return out;
}

std::string SourceTensor::text() const { return state.empty() ? name : state + " of " + name; }

bool is_weights(const fs::path& path) {
  std::error_code failed;
  if (fs::is_regular_file(path, failed)) return path.extension() == ".safetensors";
  return !fs::exists(path / "meta.json", failed) &&
         (fs::exists(path / "model.safetensors", failed) || fs::exists(path / "model.safetensors.index.json", failed));
}

Source::Source(const fs::path& path) : path_(path) {
  if (is_weights(path)) {
    weights_ = std::make_unique<weights::WeightFolder>(path);
    for (const std::string& name : weights_->names()) {
      const weights::TensorEntry& entry = *weights_->find(name);
      tensors_.push_back({"", name, entry.dtype, entry.dtype, entry.shape});
    }
    return;
  }
  path_ = resolve(path);
  checkpoint_ = std::make_unique<Checkpoint>(path_);
  for (const TensorRecord& tensor : checkpoint_->meta().tensors)
    tensors_.push_back({tensor.state, tensor.name, tensor.dtype, tensor.export_dtype, tensor.shape});
}

Source::~Source() = default;

void Source::read(size_t index, int64_t begin, int64_t end, DType target, void* out) {
  if (checkpoint_) {
    const TensorRecord& tensor = checkpoint_->meta().tensors[index];
    if (!tensor.fused) return checkpoint_->read(tensor, Region::run(begin, end), target, out);
    for (const weights::RowRun& run : weights::runs_of_file(weights::fused_elements(*tensor.fused, tensor.shape), begin, end))
      checkpoint_->read(tensor, Region::run(run.memory, run.memory + run.count), target,
                        static_cast<std::byte*>(out) + (run.file - begin) * dtype_size(target));
    return;
  }
  weights::TensorEntry flat = *weights_->find(tensors_[index].name);
  flat.shape = {tensors_[index].elements()};
  int64_t count = end - begin;
  weights::read_slice(flat, std::span(&begin, 1), std::span(&count, 1), target, out);
}

}  // namespace meshwright::checkpoint
