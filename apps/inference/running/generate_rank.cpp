// A prompt and what the model of a folder, loaded for it, makes of it.
#include "apps/inference/running/generate_rank.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "apps/inference/adapter.h"
#include "apps/inference/generate_here.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/weights/model_tensors.h"
#include "engine/checkpoint/weights/read_region.h"
#include "engine/job/plan.h"
#include "engine/launch/ranks.h"
#include "engine/launch/rendezvous/error_exchange.h"
#include "engine/launch/rendezvous/rendezvous.h"
#include "engine/train/preflight/source.h"
#include "engine/train/step/load_weights.h"
#include "engine/train/step/local_state.h"
#include "engine/train/step/logits.h"
#include "engine/train/step/model.h"
#include "engine/train/step/rank_agreement.h"
#include "engine/train/step/sample.h"
#include "engine/train/step/stages.h"
#include "meshwright/trainer.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"

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
rendezvous::Facts facts_of(const Request& request, const std::vector<int64_t>& prompt) {
  std::string words;
  for (int64_t id : prompt) words += std::to_string(id) + " ";
  return {{"the prompt's tokens", words},
          {"--max-new", std::to_string(request.max_new)},
          {"--temperature", text::format("%f", request.temperature)},
          {"--top-k", std::to_string(request.top_k)},
          {"--top-p", text::format("%f", request.top_p)},
          {"--seed", std::to_string(request.seed)},
          {"--stop", request.stop.value_or("")},
          {"--adapter", request.adapter.value_or("")},
          {"--merge", request.merge ? "given" : ""}};
}

// Collective. Fills the model; returns the checkpoint that its weights came from, if it was one,
// else nullptr.
std::unique_ptr<checkpoint::Checkpoint> load(Trainer& trainer, const train::Model& model,
                                             const Source& source, std::optional<Adapter>& adapter,
                                             const Listener& listener) {
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
        listener.notice(unused);
  }
  if (!adapter || !adapter->merged()) return from;
  const checkpoint::MergeCount count = join_adapter(trainer, source, *adapter);
  if (trainer.world().rank() == 0 && count.elements > 0)
    listener.notice(checkpoint::merge_text(count));
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

}  // namespace

// Collective, without the rank's end: joins the ranks and fills the model. Throws Error.
Continued continue_folder(const Source& source, const Request& request, rendezvous::Ending& ending,
                          const Listener& listener) {
  std::vector<int64_t> prompt = source.prompt(request), stops = source.stops(request);
  std::optional<Adapter> adapter = adapter_of(source, request);
  Job job = job_of(source, request, adapter);
  train::set_threads(job);
  train::keep_freed_memory();
  std::shared_ptr<World> world = train::join_world(job, facts_of(request, prompt), &ending);
  const train::Model model = train::make_model(job);
  train::check_generates(model);
  job.impl().fills_adapters = true;
  Trainer trainer(job, world, model.module(), model.outline);
  std::unique_ptr<checkpoint::Checkpoint> from = load(trainer, model, source, adapter, listener);
  Continued out = continue_prompt(trainer, *model.running, prompt, request, stops,
                                  context_of(model, from.get()), listener);
  world->everyone()->barrier();
  return out;
}

void generate_here(const GenerateHere& here) {
  rendezvous::Ending ending;
  std::optional<Error> failed;
  try {
    const Source source(here.request.folder, here.request.sets);
    TextPieces pieces(source, here.tell, here.token);
    continue_folder(source, here.request, ending, pieces.listener());
    pieces.finish();
    ending.finish();
  } catch (...) {
    failed = train::error_being_handled();
  }
  if (!failed) return;
  ending.tell(*failed);
  throw *failed;
}

namespace {

// What rank 0 shows: the prompt and what follows, as text or as ids.
class Writer {
 public:
  Writer(const Source& source, const Request& request)
      : request_(request), text_(source, request.tokens ? Text::Form::ids : Text::Form::text) {}
  void add(int64_t id) {
    if (!request_.json) put(text_.add(id));
  }
  void finish() {
    if (!request_.json) put(text_.finish() + "\n");
  }

 private:
  // On a terminal nothing that could steer it; elsewhere the text as it is.
  void put(const std::string& text) {
    if (text.empty()) return;
    request_.live ? out_.write(text) : out_.write_data(text);
    out_.flush();
  }
  const Request& request_;
  Text text_;
  report::Output out_{stdout, "standard output"};
};

void write_json(const Source& source, const Continued& made) {
  boost::json::object out{
      {"prompt_ids", boost::json::array(made.prompt.begin(), made.prompt.end())},
      {"new_ids", boost::json::array(made.tokens.begin(), made.tokens.end())},
      {"text", nullptr}};
  if (source.tokenizer() || source.bytes()) {
    Text text(source, Text::Form::text);
    std::string all;
    for (int64_t id : made.prompt) all += text.add(id);
    for (size_t i = 0; i + (made.ended ? 1 : 0) < made.tokens.size(); ++i)
      all += text.add(made.tokens[i]);
    out["text"] = all + text.finish();
  }
  out["stopped"] = made.ended ? "stop" : "length";
  out["seconds"] = made.seconds;
  out["tokens_per_second"] = made.rate();
  report::Output(stdout, "standard output").write(report::pretty_json(out));
}

// On standard error, behind what was written.
void tell_speed(const Continued& made, int64_t max_new) {
  auto count = static_cast<int64_t>(made.tokens.size());
  std::fflush(stdout);
  std::fputs(
      text::format("%s in %.2f s, %.1f tokens/s%s\n",
                   report::counted(count, "token", "tokens").c_str(), made.seconds, made.rate(),
                   !made.ended && count == max_new ? " (--max-new reached)" : "")
          .c_str(),
      stderr);
}

}  // namespace

int generate_rank(const Request& request, rendezvous::Ending& ending) {
  Source source(request.folder, request.sets);
  std::optional<Writer> writer;
  Listener listener;
  listener.notice = [](const std::string& text) {
    std::fprintf(stderr, "notice: %s\n", report::printable(text).c_str());
  };
  listener.begin = [&](int64_t rank, const std::vector<int64_t>& prompt) {
    if (rank != 0) return;
    writer.emplace(source, request);
    for (int64_t id : prompt) writer->add(id);
  };
  listener.token = [&](int64_t id, bool ends) {
    if (writer && !ends) writer->add(id);
  };
  const Continued made = continue_folder(source, request, ending, listener);
  if (!writer) return 0;
  writer->finish();
  if (request.json) write_json(source, made);
  tell_speed(made, request.max_new);
  return 0;
}

}  // namespace meshwright::generate
