#include "engine/generate/running/join_adapter.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "engine/trainer/local_state.h"
#include "engine/trainer/rank_agreement.h"
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
        {base_, at, adapter_.file(), factors, weight.stored.transposed}, dtype, count_);
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

// All that a rank does by itself.
checkpoint::MergeCount join_own(Trainer& trainer, const Source& source, Adapter& adapter) {
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
  return joined.count();
}

}  // namespace

checkpoint::MergeCount join_adapter(Trainer& trainer, const Source& source, Adapter& adapter) {
  c10::NoGradGuard no_grad;
  const int64_t stages = trainer.stages() != nullptr ? trainer.stages()->group()->rank() : 0;
  std::map<std::string, checkpoint::MergeCount> of_stages;
  // What follows may be a collective: it begins where all ranks have joined their parts.
  for (const std::string& text : train::agree_or_throw(trainer.world(), train::outcome_of([&] {
                                                         const checkpoint::MergeCount own =
                                                             join_own(trainer, source, adapter);
                                                         return std::to_string(stages) + " " +
                                                                std::to_string(own.elements) + " " +
                                                                std::to_string(own.unchanged);
                                                       }))) {
    std::istringstream words(text);
    std::string stage;
    checkpoint::MergeCount one;
    words >> stage >> one.elements >> one.unchanged;
    checkpoint::MergeCount& most = of_stages[stage];
    if (one.elements > most.elements) most = one;  // a rank without rows of a weight skips it
  }
  checkpoint::MergeCount count;
  for (const auto& [stage, one] : of_stages) {
    count.elements += one.elements;
    count.unchanged += one.unchanged;
  }
  trainer.tell_written({ValuesWritten::By::weights, 0});
  return count;
}

}  // namespace meshwright::generate
