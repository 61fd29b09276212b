#include "engine/trainer/load_weights.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <set>
#include <thread>

#include "engine/launch/ranks.h"
#include "engine/modules/initialize.h"
#include "engine/report/report.h"
#include "engine/trainer/local_state.h"
#include "engine/trainer/stages.h"
#include "engine/weights/experts.h"
#include "engine/weights/fused_rows.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/transposed.h"

namespace meshwright::train {

using at::Tensor;

// Every step takes the memory again that the one before has freed. By default glibc gives large
// blocks back to the system in between, and new pages cost up to a sixth of a step.
void keep_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the largest that glibc takes
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

void set_threads(const Job& job) {
  const Options& run = job.table("run");
  int64_t threads = run.find_int("threads").value_or(0);
  if (threads == 0) {
    const char* omp = std::getenv("OMP_NUM_THREADS");
    if (omp != nullptr) threads = std::atoll(omp);
  }
  if (threads <= 0) {
    std::optional<launch::RankEnvironment> ranks =
        launch::detect_ranks(launch::process_environment());
    threads = std::max<int64_t>(1, static_cast<int64_t>(std::thread::hardware_concurrency()) /
                                       (ranks ? ranks->local_world_size : 1));
  }
  at::set_num_threads(static_cast<int>(threads));
}

void load_weights(Trainer& trainer, const std::string& pretrained, const InitialValueOf& initial,
                  uint64_t seed) {
  c10::NoGradGuard no_grad;
  const ModelOutline& outline = trainer.outline();
  std::optional<weights::WeightFolder> folder;
  if (!pretrained.empty()) folder.emplace(pretrained);
  ParallelModel& model = trainer.model();
  std::vector<UpdatePlace> places = update_places(model);
  for (size_t i = 0; i < places.size(); ++i) {
    // Main weights start with all the digits that there are.
    ParallelParameter p = model.parameters()[i];
    p.local = updated_part(p, places[i], model, optimizer_of(trainer));
    if (trainer.stages() != nullptr) p.name = stored_name(trainer.stages()->outline(), p.name);
    const ParameterOutline* outlined = outline.find_parameter(p.name);
    const ParameterOutline parameter =
        outlined != nullptr ? *outlined : ParameterOutline{p.name, p.global_shape};
    if (!folder) {
      modules::initialize(p, initial(parameter), seed);
      continue;
    }
    const bool transposed = parameter.stored.transposed;
    std::vector<int64_t> shape = p.global_shape;
    std::optional<FusedRows> fused = parameter.fused;
    Region region = region_of(p);
    std::vector<Region> boxes{region};
    if (region.flat()) {  // a run of the flattened parameter
      if (fused && !transposed) fused = weights::fused_elements(*fused, shape);
      shape = {element_count(shape)};
      boxes = {Region::box({region.begin}, {region.end - region.begin})};
    } else {
      boxes = as_boxes(region, shape);
    }
    Tensor local = p.local.is_cpu() && p.local.is_contiguous()
                       ? p.local
                       : at::empty(p.local.sizes(), p.local.options().device(at::kCPU));
    if (auto experts = weights::expert_tensors(outline.architecture, p.name)) {
      auto* memory = static_cast<std::byte*>(local.mutable_data_ptr());
      if (region.flat()) {
        weights::read_experts_run(*folder, pretrained, *experts, p.global_shape, region.begin,
                                  region.end, dtype_of(local), memory);
      } else {
        for (const Region& box : boxes) {
          weights::read_experts(*folder, pretrained, *experts, p.global_shape, box.offsets,
                                box.sizes, dtype_of(local), memory);
          memory += box.count() * dtype_size(dtype_of(local));
        }
      }
      if (!local.is_same(p.local)) p.local.copy_(local);
      continue;
    }
    // transformers' own names are read as well as those of its files.
    const std::vector<std::string> names = weights::names_in_files(outline.architecture, parameter);
    const weights::TensorEntry* entry = nullptr;
    for (const std::string& name : names)
      if (entry == nullptr) entry = folder->find(name);
    if (entry == nullptr)
      throw Error(ErrorCode::weights_mismatch, pretrained + " has no tensor \"" + names[0] +
                                                   "\", which the model of its config.json needs")
          .key("model.pretrained")
          .help("check that config.json and the safetensors files belong together");
    std::vector<int64_t> in_file = p.global_shape;
    if (transposed) std::reverse(in_file.begin(), in_file.end());
    if (entry->shape != in_file)
      throw Error(ErrorCode::weights_mismatch,
                  entry->file->path() + ": \"" + entry->name + "\" has the shape " +
                      report::shape_text(entry->shape) + ", the model of config.json " +
                      report::shape_text(in_file))
          .key("model.pretrained")
          .help("check that config.json and the safetensors files belong together");
    weights::TensorEntry view = *entry;
    if (!transposed) view.shape = shape;
    auto* memory = static_cast<std::byte*>(local.mutable_data_ptr());
    for (const Region& box : boxes) {
      if (transposed && region.flat())
        weights::read_transposed_run(view, fused, p.global_shape, region.begin, region.end,
                                     dtype_of(local), memory);
      else if (transposed)
        weights::read_transposed(view, fused, box.offsets, box.sizes, dtype_of(local), memory);
      else if (fused)
        weights::read_fused_slice(view, *fused, box.offsets, box.sizes, dtype_of(local), memory);
      else
        weights::read_slice(view, box.offsets, box.sizes, dtype_of(local), memory);
      memory += box.count() * dtype_size(dtype_of(local));
    }
    if (!local.is_same(p.local)) p.local.copy_(local);
  }
  optimizer_of(trainer).round_weights(model.update_groups());
  trainer.tell_written(
      {folder ? ValuesWritten::By::weights : ValuesWritten::By::initialization, 0});
}

std::string unused_tensors(const std::string& pretrained, const ModelOutline& outline) {
  std::set<std::string> used;
  for (const ParameterOutline& p : outline.parameters) {
    used.insert(p.name);
    for (const std::string& name : weights::names_in_files(outline.architecture, p))
      used.insert(name);
    auto experts = weights::expert_tensors(outline.architecture, p.name);
    if (!experts) continue;
    used.insert(experts->grouped);
    for (int64_t e = 0; e < p.shape[0]; ++e)
      for (size_t part = 0; part < experts->parts.size(); ++part)
        used.insert(experts->name(e, part));
  }
  if (outline.tied_embeddings) used.insert("lm_head.weight");
  std::vector<std::string> left;
  for (const std::string& name : weights::WeightFolder(pretrained).names())
    if (!used.contains(name) && !name.ends_with("rotary_emb.inv_freq"))
      left.push_back(name);  // that is computed
  if (left.empty()) return {};
  constexpr size_t kShown = 3;
  std::string text = pretrained + " has " + std::to_string(left.size()) +
                     (left.size() == 1 ? " tensor" : " tensors") +
                     " without a place in the model of its config.json, not read: ";
  for (size_t i = 0; i < std::min(left.size(), kShown); ++i) text += (i ? ", " : "") + left[i];
  return text + (left.size() > kShown ? ", ..." : "");
}

void load_weights(Trainer& trainer, checkpoint::Checkpoint& from) {
  c10::NoGradGuard no_grad;
  for (ParallelParameter p : trainer.model().parameters()) {
    if (trainer.stages() != nullptr) p.name = stored_name(trainer.stages()->outline(), p.name);
    const checkpoint::TensorRecord* record = from.meta().find("", p.name);
    auto mismatch = [&](const std::string& what) {
      return Error(ErrorCode::weights_mismatch,
                   from.folder().string() + what + " the model of its config.json")
          .help("meshwright checkpoint verify " + from.folder().string());
    };
    if (record == nullptr) throw mismatch(" has no parameter \"" + p.name + "\", which is one of");
    if (record->shape != p.global_shape)
      throw mismatch(": \"" + p.name + "\" has the shape " + report::shape_text(record->shape) +
                     ", not the " + report::shape_text(p.global_shape) + " of");
    if (record->fused != fused_rows(trainer.outline(), p.name))
      throw mismatch(": \"" + p.name + "\" has its rows in another order than");
    if (p.local.numel() > 0) read_into(from, *record, region_of(p), p.local);
  }
  trainer.tell_written({ValuesWritten::By::weights, 0});
}

std::optional<FusedRows> fused_rows(const ModelOutline& outline, std::string_view parameter) {
  const ParameterOutline* found = outline.find_parameter(parameter);
  return found != nullptr ? found->fused : std::nullopt;
}

void read_into(checkpoint::Checkpoint& from, const checkpoint::TensorRecord& record,
               const Region& region, const Tensor& to) {
  Tensor host =
      to.is_cpu() && to.is_contiguous() ? to : at::empty(to.sizes(), to.options().device(at::kCPU));
  from.read(record, region, dtype_of(to), host.mutable_data_ptr());
  if (!host.is_same(to)) to.copy_(host);
}

}  // namespace meshwright::train
