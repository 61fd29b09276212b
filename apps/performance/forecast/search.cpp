#include "apps/performance/forecast/search.h"

#include <algorithm>
#include <string_view>

#include "apps/performance/forecast/layouts.h"
#include "engine/config/config.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::forecast {
namespace {

// Of a step: no training has as many, and pipelines would be planned for all of them.
constexpr int64_t kMostSamples = int64_t{1} << 20;

int64_t samples_of(const plan::Job& job, const Wanted& wanted) {
  const Options& steps = job.config.table("step_scheduler");
  const int64_t samples = wanted.global_batch.value_or(steps.get_int("global_batch_size"));
  if (samples >= 1 && samples <= kMostSamples) return samples;
  Error error(ErrorCode::out_of_range, "a step of " + std::to_string(samples) + " samples; 1 to " +
                                           std::to_string(kMostSamples) + " can be searched");
  if (wanted.global_batch)
    error.key("--global-batch");
  else
    error.key("step_scheduler.global_batch_size").at(steps.origin("global_batch_size"));
  // About as many as a large step has, and a multiple of the ranks, so that every layout takes it.
  const int64_t each = std::max<int64_t>(1, 1024 / std::max<int64_t>(1, wanted.world_size));
  throw error.help("--global-batch " +
                   std::to_string(std::min(each * wanted.world_size, kMostSamples)));
}

steptime::SearchRequest request_of(plan::Job& job, const steptime::Machine& machine,
                                   const Wanted& wanted) {
  const int64_t samples = samples_of(job, wanted);
  const Trained model = [&] {
    try {
      return trained_model(job);
    } catch (const Error& error) {  // of adapters and groups
      throw config::placed(error, job.config);
    }
  }();
  const Options& data = job.config.table("dataset");
  const int64_t length = data.is_set("seq_len") ? data.get_int("seq_len") : 0;
  if (length <= 0)
    throw Error(ErrorCode::missing_key, "a search needs the length of a sample")
        .key("dataset.seq_len")
        .help("set dataset.seq_len = 4096");
  steptime::SearchRequest out;
  out.machine = machine;
  out.shape = shape_of(model.outline);
  steptime::Job& base = out.base;
  base.length = static_cast<double>(length);
  base.fusion = steptime::Fusion::fused;
  base.loss = steptime::Loss::fused;
  base.optimizer_bytes =
      steptime::optimizer_bytes_of(static_cast<double>(model.work.optimizer_states));
  base.logits = 4;  // in bfloat16, with their gradient; the loss makes no copy
  base.engine_memory = true;
  base.tf32 = asks_for_tf32(job);
  base.fp8 = multiplies_in_float8(job, machine);
  base.engine_casts = true;
  const ContextOptions& context = job.config.shared.context;
  if (context.method == ContextMethod::ring) base.context = steptime::ContextWay::ring;
  if (context.method == ContextMethod::ulysses)
    out.exchange = steptime::Exchange::always;
  else if (!context.method && !context.ring_size && !context.ulysses_size)
    out.exchange = steptime::Exchange::where_it_sends_less;
  out.ways = strategy_ways(job, model, wanted.free, wanted.world_size);
  if (machine.overlap.adds)  // the ranks compute on the host
    for (steptime::Way& way : out.ways) way.on_host = false;
  out.global_batch = static_cast<double>(samples);
  const double usable = machine.memory - machine.outside;
  out.memory = std::min(usable, wanted.max_memory.value_or(usable));
  out.fixed = wanted.fixed;
  out.ranks = static_cast<double>(wanted.world_size);
  base.ranks_per_host = std::min(machine.network.ranks_per_host, out.ranks);
  out.schedules = {PipelineSchedule::interleaved_zero_bubble, PipelineSchedule::zbv_zero_bubble,
                   PipelineSchedule::dual_pipe_v};
  return out;
}

// What --fix says of a size holds for --why as well.
void check_words(const LayoutWords& words, const Wanted& wanted) {
  constexpr std::pair<const char*, const char*> kNames[] = {{"tp_size", "tp"},
                                                            {"cp_size", "cp"},
                                                            {"pp_size", "pp"},
                                                            {"ep_size", "ep"},
                                                            {"stages_per_rank", "v"},
                                                            {"dp_replicate_size", "replicas"},
                                                            {"local_batch_size", "micro"}};
  for (const auto& [key, name] : kNames) {
    const auto fixed = wanted.fixed.find(key);
    const auto asked = words.sizes.find(name);
    if (fixed == wanted.fixed.end() || asked == words.sizes.end()) continue;
    const auto value = static_cast<int64_t>(asked->second);
    if (value == fixed->second) continue;
    const bool samples = std::string_view(key) == "local_batch_size";
    auto word = [samples, before = std::string(name)](int64_t size) {
      return samples ? "micro " + std::to_string(size) + "xM" : before + std::to_string(size);
    };
    const std::string here = word(fixed->second);
    throw Error(ErrorCode::usage, "--why " + report::printable(*wanted.why) + " has " +
                                      word(value) + ", and --fix " + key + "=" +
                                      std::to_string(fixed->second) + " leaves " + here + " alone")
        .help("name " + here + " in --why" + (samples ? "" : "; a size that is not named is 1"))
        .help("leave out --fix " + std::string(key));
  }
}

}  // namespace

Found search(plan::Job& job, const steptime::Machine& machine, const Wanted& wanted) {
  const steptime::SearchRequest request = request_of(job, machine, wanted);
  std::optional<LayoutWords> words;
  if (wanted.why) {
    words = words_of(*wanted.why, request);
    check_words(*words, wanted);
  }
  Found out = planned_layouts(job, machine, wanted, request);
  out.beside_sets = wanted.beside_sets;
  if (out.result.best.empty()) {
    if (words) out.why = why_of(job, machine, wanted, request, *words, out);
    refuse_search(job, machine, wanted, request, out);
  }
  out.families = refused_families(request, out.result.families);
  out.crossovers = crossovers_of(out);
  if (words) out.why = why_of(job, machine, wanted, request, *words, out);
  return out;
}

}  // namespace meshwright::forecast
