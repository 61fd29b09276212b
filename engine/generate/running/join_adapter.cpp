#include "engine/generate/running/join_adapter.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string_view>

#include "engine/trainer/local_state.h"
#include "engine/trainer/stages.h"
#include "engine/weights/read_region.h"
#include "engine/weights/transposed.h"

namespace meshwright::generate {
namespace {

// The weights of a folder or a checkpoint, with the adapters in them.
class Joined {
 public:
  Joined(const Source& source, Adapter& adapter) : base_(source.folder()), adapter_(adapter) {
    for (size_t i = 0; i < base_.tensors().size(); ++i)
      if (base_.tensors()[i].state.empty()) places_.emplace(base_.tensors()[i].name, i);
  }

  // This rank's part of a weight, to memory on the host.
  void read(const ModelOutline& outline, const ParameterOutline& weight,
            const checkpoint::AdapterPair& factors, const ParallelParameter& p, DType dtype,
            void* memory) {
    const size_t at = place_of(outline, weight);
    std::vector<std::byte> all;
    const weights::ExportTensor made = checkpoint::merged_tensor(
        {base_, at, adapter_.file(), factors, adapter_.scale(), weight.stored.transposed}, dtype,
        count_);
    made.stream([&](std::span<const std::byte> bytes) {
      all.insert(all.end(), bytes.begin(), bytes.end());
    });
    weights::TensorEntry entry = *adapter_.file().weights()->find(
        adapter_.file().tensors()[factors.out].name);  // its file is one that stays open
    entry.name = made.spec.name;
    entry.dtype = dtype;
    entry.shape = made.spec.shape;
    entry.data = all.data();
    entry.bytes = static_cast<int64_t>(all.size());
    weights::read_region(entry, p.global_shape, weight.fused, weight.stored.transposed,
                         train::region_of(p), dtype, memory);
  }
  const checkpoint::MergeCount& count() const { return count_; }

 private:
  // The model was filled from it: it is there.
  size_t place_of(const ModelOutline& outline, const ParameterOutline& weight) const {
    std::vector<int64_t> shape = weight.shape;
    if (weight.stored.transposed) std::reverse(shape.begin(), shape.end());
    for (const std::string& name : weights::names_in_files(outline.architecture, weight))
      if (const auto at = places_.find(name);
          at != places_.end() && base_.tensors()[at->second].shape == shape)
        return at->second;
    throw Error(ErrorCode::weights_mismatch, base_.path().string() +
                                                 " has no tensor of the shape of " + weight.name +
                                                 ", which an adapter joins");
  }
  checkpoint::Source base_;
  Adapter& adapter_;
  std::map<std::string, size_t, std::less<>> places_;
  checkpoint::MergeCount count_;
};

}  // namespace

checkpoint::MergeCount join_adapter(Trainer& trainer, const Source& source, Adapter& adapter) {
  c10::NoGradGuard no_grad;
  Joined joined(source, adapter);
  const ModelOutline& outline = trainer.outline();
  for (ParallelParameter p : trainer.model().parameters()) {
    if (trainer.stages() != nullptr)
      p.name = train::stored_name(trainer.stages()->outline(), p.name);
    const Adapter::Weight* found = adapter.find(p.name);
    if (found == nullptr || p.local.numel() == 0) continue;
    const at::Tensor host = p.local.is_cpu() && p.local.is_contiguous()
                                ? p.local
                                : at::empty(p.local.sizes(), p.local.options().device(at::kCPU));
    joined.read(outline, *outline.find_parameter(p.name), found->factors, p, train::dtype_of(host),
                host.mutable_data_ptr());
    if (!host.is_same(p.local)) p.local.copy_(host);
  }
  trainer.tell_written({ValuesWritten::By::weights, 0});
  return joined.count();
}

}  // namespace meshwright::generate
