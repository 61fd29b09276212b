#include "engine/generate/running/generate_rank.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>

#include "engine/generate/running/sample.h"
#include "engine/launch/ranks.h"
#include "engine/plan/plan.h"
#include "engine/rendezvous/rendezvous.h"
#include "engine/report/report.h"
#include "engine/trainer/join_world.h"
#include "engine/trainer/load_weights.h"
#include "engine/trainer/logits.h"
#include "engine/trainer/rank_agreement.h"

namespace meshwright::generate {

namespace {

using Clock = std::chrono::steady_clock;

boost::json::array json_ids(const std::vector<int64_t>& ids) {
  boost::json::array out;
  for (int64_t id : ids) out.emplace_back(id);
  return out;
}

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
    out_.write(request_.live ? report::printable(text) : text);
    out_.flush();
  }
  const Request& request_;
  Text text_;
  report::Output out_{stdout, "standard output"};
};

// The configuration, refused when no such model can be made here.
Job job_of(const Source& source, const Request& request) {
  launch::RankEnvironment ranks =
      launch::detect_ranks(launch::process_environment()).value_or(launch::RankEnvironment{});
  Settings settings = generate::settings(source, request.sets, ranks.world_size);
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
          {"--temperature", std::to_string(request.temperature)},
          {"--top-k", std::to_string(request.top_k)},
          {"--top-p", std::to_string(request.top_p)},
          {"--seed", std::to_string(request.seed)},
          {"--stop", request.stop.value_or("")}};
}

// Collective. Fills the model; returns the checkpoint that its weights came from, if it was one,
// else nullptr.
std::unique_ptr<checkpoint::Checkpoint> load(Trainer& trainer, modules::CausalLM& net,
                                             const Source& source) {
  std::unique_ptr<checkpoint::Checkpoint> from;
  train::agree_or_throw(trainer.world(), train::outcome_of([&] {
                          if (source.is_checkpoint()) {
                            from = std::make_unique<checkpoint::Checkpoint>(source.folder());
                            train::load_weights(trainer, *from);
                          } else {
                            train::load_weights(trainer, source.folder().string(), net, 0);
                          }
                          return std::string();
                        }));
  return from;
}

// A checkpoint tells on what length its model has learned; further back it looks at nothing, as
// train --sample does. A Hugging Face model looks at everything, as in transformers.
int64_t context_of(modules::CausalLM& net, const checkpoint::Checkpoint* from) {
  if (from == nullptr) return std::numeric_limits<int64_t>::max();
  return from->meta().seq_len > 0 ? std::min(net->max_positions(), from->meta().seq_len)
                                  : net->max_positions();
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

// The tokens behind the prompt, and how long they took.
struct Generated {
  std::vector<int64_t> tokens;
  bool ended = false;  // the last one is a stop token
  double seconds = 0;
  double rate() const { return seconds > 0 ? static_cast<double>(tokens.size()) / seconds : 0; }
};

// Collective.
Generated continue_prompt(Trainer& trainer, modules::CausalLM& net,
                          const std::vector<int64_t>& prompt, const GenerateOptions& options) {
  Generated out;
  net->eval();
  Clock::time_point begin = Clock::now();
  trainer.model().summon_full_parameters([&] {
    begin = Clock::now();
    out.tokens =
        generate_tokens([&](const at::Tensor& ids) { return train::logits_of(trainer, net, ids); },
                        prompt, options);
  });
  out.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  out.ended = !out.tokens.empty() && ends_text(out.tokens.back(), options.stop);
  return out;
}

void write_json(const Source& source, const std::vector<int64_t>& prompt,
                const std::vector<int64_t>& stops, const Generated& made) {
  boost::json::object out{
      {"prompt_ids", json_ids(prompt)}, {"new_ids", json_ids(made.tokens)}, {"text", nullptr}};
  if (source.tokenizer() || source.bytes()) {
    Text text(source, Text::Form::text);
    std::string all;
    for (int64_t id : prompt) all += text.add(id);
    for (int64_t id : made.tokens)
      if (!ends_text(id, stops)) all += text.add(id);
    out["text"] = all + text.finish();
  }
  out["stopped"] = made.ended ? "stop" : "length";
  out["seconds"] = made.seconds;
  out["tokens_per_second"] = made.rate();
  report::Output(stdout, "standard output").write(report::pretty_json(out));
}

// On standard error, behind what was written.
void tell_speed(const Generated& made, int64_t max_new) {
  auto count = static_cast<int64_t>(made.tokens.size());
  std::fflush(stdout);
  std::fprintf(stderr, "%s in %.2f s, %.1f tokens/s%s\n",
               report::counted(count, "token", "tokens").c_str(), made.seconds, made.rate(),
               !made.ended && count == max_new ? " (--max-new reached)" : "");
}

}  // namespace

int generate_rank(const Request& request, rendezvous::Ending& ending) {
  Source source(request.folder);
  std::vector<int64_t> prompt = source.prompt(request), stops = source.stops(request);
  Job job = job_of(source, request);
  train::set_threads(job);
  train::keep_freed_memory();
  std::shared_ptr<World> world = train::join_world(job, facts_of(request, prompt), &ending);
  modules::CausalLM net = modules::build_model(
      source.config(), *job.table("model").find_dtype("torch_dtype"), at::kMeta);
  Trainer trainer(job, world, net.ptr(), net->outline());
  std::unique_ptr<checkpoint::Checkpoint> from = load(trainer, net, source);
  GenerateOptions options = options_of(request, stops, context_of(net, from.get()));
  std::optional<Writer> writer;
  if (world->rank() == 0) {
    writer.emplace(source, request);
    if (const std::string notice = train::whole_text_notice(trainer); !notice.empty())
      std::fprintf(stderr, "notice: %s\n", notice.c_str());
    if (static_cast<int64_t>(prompt.size()) > options.context)
      std::fprintf(stderr,
                   "notice: the prompt has %zu tokens, of which the model sees the last %lld\n",
                   prompt.size(), static_cast<long long>(options.context));
    for (int64_t id : prompt) writer->add(id);
    options.each = [&](int64_t id) {
      if (!ends_text(id, stops)) writer->add(id);
    };
  }
  const Generated made = continue_prompt(trainer, net, prompt, options);
  world->everyone()->barrier();
  if (!writer) return 0;
  writer->finish();
  if (request.json) write_json(source, prompt, stops, made);
  tell_speed(made, request.max_new);
  return 0;
}

}  // namespace meshwright::generate
