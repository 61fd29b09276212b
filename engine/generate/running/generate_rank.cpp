#include "engine/generate/running/generate_rank.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <chrono>
#include <cstdio>
#include <limits>
#include <optional>

#include "engine/generate/running/sample.h"
#include "engine/launch/ranks.h"
#include "engine/plan/plan.h"
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

// A checkpoint tells on what length its model has learned; further back it looks at nothing, as
// train --sample does. A Hugging Face model looks at everything, as in transformers.
int64_t context_of(modules::CausalLM& net, const checkpoint::Checkpoint* from) {
  if (from == nullptr) return std::numeric_limits<int64_t>::max();
  return from->meta().seq_len > 0 ? std::min(net->max_positions(), from->meta().seq_len)
                                  : net->max_positions();
}

}  // namespace

int generate_rank(const Request& request, rendezvous::Ending& ending) {
  Source source(request.folder);
  std::vector<int64_t> prompt = source.prompt(request), stops = source.stops(request);
  launch::RankEnvironment ranks =
      launch::detect_ranks(launch::process_environment()).value_or(launch::RankEnvironment{});
  Settings settings = generate::settings(source, request.sets, ranks.world_size);
  Job job = Job::from_text(settings.toml, settings.sets);
  Diagnostics problems;
  plan::check_trainable(job.impl(), problems);
  problems.throw_if_any();
  train::set_threads(job);
  train::keep_freed_memory();
  std::string words;
  for (int64_t id : prompt) words += std::to_string(id) + " ";
  std::shared_ptr<World> world =
      train::join_world(job,
                        {{"the prompt's tokens", words},
                         {"--max-new", std::to_string(request.max_new)},
                         {"--temperature", std::to_string(request.temperature)},
                         {"--top-k", std::to_string(request.top_k)},
                         {"--top-p", std::to_string(request.top_p)},
                         {"--seed", std::to_string(request.seed)},
                         {"--stop", request.stop.value_or("")}},
                        &ending);
  modules::CausalLM net = modules::build_model(
      source.config(), *job.table("model").find_dtype("torch_dtype"), at::kMeta);
  Trainer trainer(job, world, net.ptr(), net->outline());
  std::optional<checkpoint::Checkpoint> from;
  train::agree_or_throw(*world, train::outcome_of([&] {
    if (source.is_checkpoint()) {
      from.emplace(source.folder());
      train::load_weights(trainer, *from);
    } else {
      train::load_weights(trainer, source.folder().string(), net, 0);
    }
    return std::string();
  }));

  std::optional<Writer> writer;
  if (world->rank() == 0) writer.emplace(source, request);
  GenerateOptions options;
  options.max_new_tokens = request.max_new;
  options.temperature = request.temperature;
  options.top_k = request.top_k;
  options.top_p = request.top_p;
  options.seed = request.seed;
  options.context = context_of(net, from ? &*from : nullptr);
  options.stop = stops;
  // The token that ends a text is no part of it.
  auto ends = [&](int64_t id) { return std::find(stops.begin(), stops.end(), id) != stops.end(); };
  if (writer) {
    if (static_cast<int64_t>(prompt.size()) > options.context)
      std::fprintf(stderr,
                   "notice: the prompt has %zu tokens, of which the model sees the last %lld\n",
                   prompt.size(), static_cast<long long>(options.context));
    for (int64_t id : prompt) writer->add(id);
    options.each = [&](int64_t id) {
      if (!ends(id)) writer->add(id);
    };
  }
  net->eval();
  std::vector<int64_t> made;
  Clock::time_point begin = Clock::now();
  trainer.model().summon_full_parameters([&] {
    begin = Clock::now();
    made =
        generate_tokens([&](const at::Tensor& ids) { return train::logits_of(trainer, net, ids); },
                        prompt, options);
  });
  double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  double rate = seconds > 0 ? static_cast<double>(made.size()) / seconds : 0;
  world->everyone()->barrier();
  if (!writer) return 0;
  writer->finish();
  bool ended = !made.empty() && ends(made.back());
  if (request.json) {
    boost::json::object out{
        {"prompt_ids", json_ids(prompt)}, {"new_ids", json_ids(made)}, {"text", nullptr}};
    if (source.tokenizer() || source.bytes()) {
      Text text(source, Text::Form::text);
      std::string all;
      for (int64_t id : prompt) all += text.add(id);
      for (int64_t id : made)
        if (!ends(id)) all += text.add(id);
      out["text"] = all + text.finish();
    }
    out["stopped"] = ended ? "stop" : "length";
    out["seconds"] = seconds;
    out["tokens_per_second"] = rate;
    report::Output(stdout, "standard output").write(report::pretty_json(out));
  }
  std::fflush(stdout);
  std::fprintf(stderr, "%s in %.2f s, %.1f tokens/s%s\n",
               report::counted(static_cast<int64_t>(made.size()), "token", "tokens").c_str(),
               seconds, rate,
               ended                                                  ? ""
               : request.max_new == static_cast<int64_t>(made.size()) ? " (--max-new reached)"
                                                                      : "");
  return 0;
}

}  // namespace meshwright::generate
