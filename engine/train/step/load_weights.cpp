#include "engine/train/step/load_weights.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <malloc.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdlib>
#include <latch>
#include <limits>
#include <system_error>
#include <thread>

#include "engine/checkpoint/weights/model_tensors.h"
#include "engine/checkpoint/weights/read_region.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "engine/launch/ranks.h"
#include "engine/models/running/initialize.h"
#include "engine/train/step/local_state.h"
#include "engine/train/step/rank_agreement.h"
#include "engine/train/step/stages.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/used_up.h"

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

namespace {

// LibTorch waits for ever for threads that it could not start.
void check_threads(int64_t count) {
  std::latch done(1);
  std::vector<std::thread> threads;
  std::optional<Error> refused;
  try {
    for (int64_t i = 1; i < count; ++i) threads.emplace_back([&] { done.wait(); });
  } catch (const std::system_error& error) {
    refused = detail::used_up(error);
  }
  done.count_down();
  for (std::thread& thread : threads) thread.join();
  if (refused) throw *refused;
}

}  // namespace

void set_threads(const Job& job) {
  const Options& run = job.table("run");
  int64_t threads = run.find_int("threads").value_or(0);
  if (const char* omp = std::getenv("OMP_NUM_THREADS"); threads == 0 && omp != nullptr)
    threads = std::atoll(omp);
  if (threads <= 0) {
    std::optional<launch::RankEnvironment> ranks =
        launch::detect_ranks(launch::process_environment());
    threads = std::max<int64_t>(1, static_cast<int64_t>(std::thread::hardware_concurrency()) /
                                       (ranks ? ranks->local_world_size : 1));
  }
  check_threads(threads);
  at::set_num_threads(static_cast<int>(threads));
}

namespace {

// Files to read parameters from, and what to say of them.
struct Files {
  std::string path;
  const char* key;
  weights::WeightFolder opened;
  const char *needs, *wants, *help;
};

Error mismatch(const Files& files, const std::string& what) {
  return Error(ErrorCode::weights_mismatch, what).key(files.key).help(files.help);
}

// The first of these names that the files have, in the shape that they must have it in.
const weights::TensorEntry& find(const Files& files, const std::vector<std::string>& names,
                                 const std::vector<int64_t>& shape) {
  const weights::TensorEntry* entry = nullptr;
  for (const std::string& name : names)
    if (entry == nullptr) entry = files.opened.find(name);
  if (entry == nullptr)
    throw mismatch(
        files, files.path + " has no tensor \"" + names[0] + "\", which " + files.needs + " needs");
  if (entry->shape != shape)
    throw mismatch(files, entry->file->path() + ": \"" + entry->name + "\" has the shape " +
                              report::shape_text(entry->shape) + ", " + files.wants + " " +
                              report::shape_text(shape));
  return *entry;
}

// transformers' own names are read as well as those of its files.
std::vector<std::string> names_of(const ModelOutline& outline, const ParameterOutline& parameter,
                                  bool adapter) {
  return adapter ? weights::adapter_names_in_files(outline.architecture, parameter)
                 : weights::names_in_files(outline.architecture, parameter);
}

// `fill` gets memory on the host: the tensor's own, or what is copied to a tensor on a device.
template <class Fill>
void fill_over_host(const Tensor& to, const Fill& fill) {
  const Tensor host =
      to.is_cpu() && to.is_contiguous() ? to : at::empty(to.sizes(), to.options().device(at::kCPU));
  fill(dtype_of(host), host.mutable_data_ptr());
  if (!host.is_same(to)) to.copy_(host);
}

// This rank's part of a parameter.
void read_parameter(const Files& files, const ModelOutline& outline,
                    const ParameterOutline& parameter, const ParallelParameter& p, bool adapter) {
  fill_over_host(p.local, [&](DType dtype, void* memory) {
    const Region region = region_of(p);
    if (auto experts = weights::expert_tensors(outline.architecture, p.name))
      return weights::read_region_of_experts(files.opened, files.path, *experts, p.global_shape,
                                             region, dtype, memory);
    std::vector<int64_t> in_file = p.global_shape;
    if (parameter.stored.transposed) std::ranges::reverse(in_file);
    weights::read_region(find(files, names_of(outline, parameter, adapter), in_file),
                         p.global_shape, parameter.fused, parameter.stored.transposed, region,
                         dtype, memory);
  });
}

Files adapter_files(const std::string& folder, const ModelOutline& outline) {
  return {folder,
          "lora.adapter",
          weights::open_adapter_tensors(folder, outline),
          "an adapter of this job",
          "the adapter of this job",
          "take adapter_config.json and adapter_model.safetensors from one save"};
}

// A base beside adapters that is stored in other digits than those of its files
// (lora.base_dtype). "": there is none.
std::string rounding_of(const Files& base, const ModelOutline& outline) {
  if (std::ranges::none_of(outline.parameters, [](const ParameterOutline& p) {
        return low_rank_factor(p.name).has_value();
      }))
    return {};
  for (const ParameterOutline& p : outline.parameters) {
    if (p.trainable || low_rank_factor(p.name)) continue;
    for (const std::string& name : weights::names_in_files(outline.architecture, p)) {
      const weights::TensorEntry* entry = base.opened.find(name);
      if (entry == nullptr) continue;
      if (entry->dtype == p.dtype || dtype_size(entry->dtype) < dtype_size(p.dtype)) break;
      return rounded_base(base.path, entry->dtype, p.dtype);
    }
  }
  return {};
}

void fill(Trainer& trainer, const std::string& pretrained, const InitialValueOf& initial,
          uint64_t seed, const std::string& adapter) {
  const ModelOutline& outline = trainer.outline();
  std::optional<Files> base, tuned;
  if (!pretrained.empty())
    base.emplace(Files{pretrained, "model.pretrained",
                       weights::open_model_tensors(pretrained, outline),
                       "the model of its config.json", "the model of config.json",
                       "check that config.json and the safetensors files belong together"});
  if (!adapter.empty()) tuned.emplace(adapter_files(adapter, outline));
  // It reads all of both, which one rank does for all.
  if (base && trainer.world().rank() == 0)
    weights::check_tied_head(base->opened, pretrained, outline);
  if (const std::string rounds = base ? rounding_of(*base, outline) : ""; !rounds.empty())
    trainer.world().notice(rounds);
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
    const bool of_adapter = low_rank_factor(p.name).has_value();
    if (const std::optional<Files>& files = of_adapter ? tuned : base)
      read_parameter(*files, outline, parameter, p, of_adapter);
    else
      modules::initialize(p, initial(parameter), seed);
  }
  optimizer_of(trainer).round_weights(model.update_groups());
}

void fill(Trainer& trainer, checkpoint::Checkpoint& from, const std::string& adapter) {
  const ModelOutline& outline = trainer.outline();
  std::optional<Files> tuned;
  if (!adapter.empty()) tuned.emplace(adapter_files(adapter, outline));
  for (ParallelParameter p : trainer.model().parameters()) {
    if (trainer.stages() != nullptr) p.name = stored_name(trainer.stages()->outline(), p.name);
    if (tuned && low_rank_factor(p.name)) {
      read_parameter(*tuned, outline, *outline.find_parameter(p.name), p, true);
      continue;
    }
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
    if (record->fused != fused_rows(outline, p.name))
      throw mismatch(": \"" + p.name + "\" has its rows in another order than");
    if (p.local.numel() > 0) read_into(from, *record, region_of(p), p.local);
  }
}

// What follows may be a collective: it begins where all ranks have read their parts.
template <class... From>
void fill_together(Trainer& trainer, ValuesWritten::By by, From&&... from) {
  c10::NoGradGuard no_grad;
  agree_or_throw(trainer.world(), [&] { fill(trainer, from...); });
  trainer.tell_written({by, 0});
}

}  // namespace

void load_weights(Trainer& trainer, const std::string& pretrained, const InitialValueOf& initial,
                  uint64_t seed, const std::string& adapter) {
  fill_together(trainer,
                pretrained.empty() ? ValuesWritten::By::initialization : ValuesWritten::By::weights,
                pretrained, initial, seed, adapter);
}

void load_weights(Trainer& trainer, checkpoint::Checkpoint& from, const std::string& adapter) {
  fill_together(trainer, ValuesWritten::By::weights, from, adapter);
}

void read_adapters(const std::string& folder, const ModelOutline& outline,
                   torch::nn::Module& model) {
  c10::NoGradGuard no_grad;
  const Files files = adapter_files(folder, outline);
  auto parameters = model.named_parameters();
  for (const ParameterOutline& p : outline.parameters) {
    if (!low_rank_factor(p.name)) continue;
    Tensor& values = parameters[p.name];
    if (values.is_meta())
      throw Error(
          ErrorCode::bad_module,
          "lora.adapter is read into a module that holds values, and " + p.name + " has none")
          .key("lora.adapter")
          .help("make the module on a device, not on meta")
          .help("set lora.adapter = \"none\", and fill the module by hand");
    fill_over_host(values, [&](DType dtype, void* memory) {
      weights::read_region(find(files, names_of(outline, p, /*adapter=*/true), p.shape), p.shape,
                           p.fused, p.stored.transposed, Region::whole(p.shape), dtype, memory);
    });
  }
}

std::string rounded_base(const std::string& folder, DType then, DType now) {
  return "the weights of " + folder + " are " + std::string(dtype_name(then)) +
         ", and beside the adapters they are stored in " + std::string(dtype_name(now)) +
         " (lora.base_dtype): each is rounded once";
}

std::optional<FusedRows> fused_rows(const ModelOutline& outline, std::string_view parameter) {
  const ParameterOutline* found = outline.find_parameter(parameter);
  return found != nullptr ? found->fused : std::nullopt;
}

void read_into(checkpoint::Checkpoint& from, const checkpoint::TensorRecord& record,
               const Region& region, const Tensor& to) {
  fill_over_host(to, [&](DType dtype, void* memory) { from.read(record, region, dtype, memory); });
}

}  // namespace meshwright::train
