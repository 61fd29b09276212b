#include "apps/inference/running/loaded.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <sstream>
#include <string_view>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/weights/model_tensors.h"
#include "engine/checkpoint/weights/read_region.h"
#include "engine/job/plan.h"
#include "engine/launch/ranks.h"
#include "engine/launch/rendezvous/rendezvous.h"
#include "engine/train/step/load_weights.h"
#include "engine/train/step/local_state.h"
#include "engine/train/step/rank_agreement.h"
#include "engine/train/step/stages.h"
#include "sdk/base/files/hash.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::generate {

namespace {

// Adapters that join the weights of a model, which runs without them then: the weights of a folder
// or a checkpoint, with the adapters in them.
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

// Collective. Once the model is filled from the source: each weight beside which an adapter lies
// becomes W + scale B A, of the digits of the source, with one rounding to its dtype. Returns what
// was merged on all ranks. A rank that throws makes all throw: Error(weights_mismatch |
// bad_checkpoint).
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

// The configuration, refused when no such model can be made here.
Job job_of(const Source& source, const Request& request, const std::optional<Adapter>& adapter) {
  launch::RankEnvironment ranks =
      launch::detect_ranks(launch::process_environment()).value_or(launch::RankEnvironment{});
  Settings settings =
      generate::settings(source, request.sets, ranks.world_size,
                         adapter ? adapter->settings() : std::vector<std::string>());
  Job job = Job::from_text(settings.toml, settings.sets);
  Diagnostics problems;
  plan::check_trainable(job.impl(), problems);
  problems.throw_if_any();
  return job;
}

// What all ranks must mean alike.
rendezvous::Facts facts_of(const Ask& ask, const std::vector<int64_t>& prompt) {
  std::string words;
  constexpr size_t kShown = 4096;
  if (prompt.size() <= kShown) {
    for (int64_t id : prompt) words += std::to_string(id) + " ";
  } else {
    base::Hash hash;
    for (int64_t id : prompt) hash.add(id);
    words = std::to_string(prompt.size()) + ", of hash " + base::to_hex(hash.value());
  }
  return {{"the prompt's tokens", words},
          {"--max-new", std::to_string(ask.max_new)},
          {"--temperature", text::format("%.17g", ask.temperature)},
          {"--top-k", std::to_string(ask.top_k)},
          {"--top-p", text::format("%.17g", ask.top_p)},
          {"--min-p", text::format("%.17g", ask.min_p)},
          {"--repetition-penalty", text::format("%.17g", ask.repetition_penalty)},
          {"--seed", std::to_string(ask.seed)},
          {"--stop", ask.stop.value_or("")},
          {"--stop-text", text::join(ask.stop_texts, "\n")},
          {"--batch", ask.prompts ? std::to_string(ask.batch) : ""},
          {"--adapter", ask.adapter.value_or("")},
          {"--merge", ask.merge ? "given" : ""}};
}

// Collective. Fills the model; returns the checkpoint that its weights came from, if it was one,
// else nullptr.
std::unique_ptr<checkpoint::Checkpoint> load(
    Trainer& trainer, const train::Model& model, const Source& source,
    std::optional<Adapter>& adapter, const std::function<void(const std::string&)>& notice) {
  std::unique_ptr<checkpoint::Checkpoint> from;
  const std::string beside = adapter && !adapter->merged() ? adapter->folder().string() : "";
  if (source.is_checkpoint()) {
    train::agree_or_throw(trainer.world(), train::outcome_of([&] {
                            from = std::make_unique<checkpoint::Checkpoint>(source.folder());
                            return std::string();
                          }));
    train::load_weights(trainer, *from, beside);
  } else {
    train::load_weights(
        trainer, source.folder().string(),
        [&](const ParameterOutline& p) { return model.initial_value(p); }, 0, beside);
    const std::string folder = source.folder().string();
    if (trainer.world().rank() == 0)
      if (const std::string unused =
              weights::unused_tensors(weights::WeightFolder(folder), folder, trainer.outline());
          !unused.empty())
        notice(unused);
  }
  if (!adapter || !adapter->merged()) return from;
  const checkpoint::MergeCount count = join_adapter(trainer, source, *adapter);
  if (trainer.world().rank() == 0 && count.elements > 0) notice(checkpoint::merge_text(count));
  return from;
}

// A checkpoint tells on what length its model has learned; further back it looks at nothing, as
// train --sample does. A Hugging Face model looks at everything that it has positions for, as in
// transformers.
int64_t context_of(const train::Model& model, const checkpoint::Checkpoint* from) {
  const int64_t most = model.running->max_positions();
  if (from == nullptr)
    return model.outline.positions_end ? most : std::numeric_limits<int64_t>::max();
  return from->meta().seq_len > 0 ? std::min(most, from->meta().seq_len) : most;
}

// Every rank, before it meets the others.
Job ready_job(const Source& source, const Ask& ask, const std::optional<Adapter>& adapter) {
  Job job = job_of(source, ask, adapter);
  train::set_threads(job);
  train::keep_freed_memory();
  return job;
}

}  // namespace

Loaded::Loaded(const Source& source, const Ask& ask, const std::vector<int64_t>& prompt,
               rendezvous::Ending& ending, const std::function<void(const std::string&)>& notice)
    : adapter_(adapter_of(source, ask)),
      job_(ready_job(source, ask, adapter_)),
      world_(train::join_world(job_, facts_of(ask, prompt), &ending)),
      model_(train::make_model(job_)) {
  train::check_generates(model_);
  job_.impl().fills_adapters = true;
  trainer_ = std::make_unique<Trainer>(job_, world_, model_.module(), model_.outline);
  const std::unique_ptr<checkpoint::Checkpoint> from =
      load(*trainer_, model_, source, adapter_, notice);
  context_ = context_of(model_, from.get());
}

}  // namespace meshwright::generate
