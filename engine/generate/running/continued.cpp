#include "engine/generate/running/continued.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "engine/checkpoint/checkpoint.h"
#include "engine/generate/adapter.h"
#include "engine/generate/running/join_adapter.h"
#include "engine/generate/running/sample.h"
#include "engine/launch/ranks.h"
#include "engine/plan/plan.h"
#include "engine/rendezvous/rendezvous.h"
#include "engine/trainer/join_world.h"
#include "engine/trainer/load_weights.h"
#include "engine/trainer/logits.h"
#include "engine/trainer/model.h"
#include "engine/trainer/rank_agreement.h"
#include "engine/weights/model_tensors.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/read_by_host.h"

namespace meshwright::generate {

namespace {

using Clock = std::chrono::steady_clock;

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

GenerateOptions options_of(const Request& request, const std::vector<int64_t>& stops,
                           int64_t context) {
  GenerateOptions options;
  options.max_new_tokens = request.max_new;
  options.temperature = request.temperature;
  options.top_k = request.top_k;
  options.top_p = request.top_p;
  options.seed = request.seed;
  options.context = context;
  options.stop = stops;
  return options;
}

// The token that ends a text is no part of it.
bool ends_text(int64_t id, const std::vector<int64_t>& stops) {
  return std::find(stops.begin(), stops.end(), id) != stops.end();
}

}  // namespace

Continued continue_prompt(Trainer& trainer, RunningModel& net, const std::vector<int64_t>& prompt,
                          const Request& request, const std::vector<int64_t>& stops,
                          int64_t context, const Listener& listener) {
  Continued out;
  out.prompt = prompt;
  GenerateOptions options = options_of(request, stops, context);
  if (trainer.world().rank() == 0) {
    if (const std::string notice = train::whole_text_notice(trainer); !notice.empty())
      listener.notice(notice);
    if (static_cast<int64_t>(prompt.size()) > options.context)
      listener.notice("the prompt has " + std::to_string(prompt.size()) +
                      " tokens, of which the model sees the last " +
                      std::to_string(options.context));
  }
  listener.begin(trainer.world().rank(), prompt);
  options.each = [&](int64_t id) { listener.token(id, ends_text(id, stops)); };
  const bool training = net.module()->is_training();
  net.module()->eval();
  Clock::time_point begin = Clock::now();
  // No others are read.
  auto last_logits = [&](const at::Tensor& ids) {
    const at::Tensor all = train::logits_of(trainer, net, ids);
    return detail::read_by_host(*trainer.world().everyone(), all.narrow(1, all.size(1) - 1, 1));
  };
  trainer.model().summon_full_parameters([&] {
    begin = Clock::now();
    out.tokens = generate_tokens(last_logits, prompt, options);
  });
  net.module()->train(training);
  out.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  out.ended = !out.tokens.empty() && ends_text(out.tokens.back(), options.stop);
  return out;
}

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

}  // namespace meshwright::generate
