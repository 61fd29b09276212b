// Why a search finds nothing, and what would have to change.
#include <algorithm>
#include <cmath>

#include "apps/performance/forecast/layouts.h"
#include "engine/job/before_start.h"
#include "sdk/base/words.h"

namespace meshwright::forecast {
namespace {

using steptime::Layout;

constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr int64_t kMostWorld = 65'536;
constexpr const char* kBatchKey = "step_scheduler.global_batch_size";

bool is_of_the_plan(const Error& error) { return exit_status(error.code()) == 3; }

}  // namespace

std::optional<Proposal> proposal_of(const std::string& help, const Wanted& wanted,
                                    const steptime::SearchRequest& request) {
  Proposal out{request, help};
  if (const std::optional<int64_t> world = plan::world_in(help)) {
    out.request.ranks = static_cast<double>(*world);
    out.text = "--world-size " + std::to_string(*world);
    return out;
  }
  const std::vector<std::string> sets = plan::settings_in(help);
  if (sets.size() != 1) return std::nullopt;
  const size_t at = sets[0].find('=');
  const std::string key = sets[0].substr(0, at), value = sets[0].substr(at + 1);
  if (value.empty() || value.size() > 9 ||
      value.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  const int64_t number = std::stoll(value);
  if (key == kBatchKey) {
    out.request.global_batch = static_cast<double>(number);
    if (wanted.global_batch) out.text = "--global-batch " + value;
    return out;
  }
  for (const auto& [name, size] : request.fixed) {
    if (key != "distributed." + name && key != "step_scheduler." + name) continue;
    out.request.fixed[name] = number;
    out.text = "--fix " + name + "=" + value;
    return out;
  }
  return std::nullopt;
}

bool finds_layout(const plan::Job& job, const Reload& reload,
                  const steptime::SearchRequest& request) {
  return !planned_layouts(job, reload, request, 1, /*any=*/true).result.best.empty();
}

bool may_fit(steptime::SearchRequest request) {
  request.unknown = kUnknownKind;
  return steptime::search(request, 1).fitting > 0;
}

namespace {

// The help of a plan that makes the search find something.
std::vector<std::string> helps_that_find(const plan::Job& job, const Wanted& wanted,
                                         const steptime::SearchRequest& request,
                                         const Error& said) {
  std::vector<std::string> out;
  for (const std::string& help : said.helps())
    if (const std::optional<Proposal> proposal = proposal_of(help, wanted, request);
        proposal && finds_layout(job, wanted.reload, proposal->request))
      out.push_back(proposal->text);
  return out;
}

// "--fix pp_size=8": 1 is none to speak of.
bool names_size(const std::string& help) {
  return help.starts_with("--fix ") && !help.ends_with("=1");
}

// What a size that is fixed divides at best.
int64_t whole_of(const std::string& key, const steptime::SearchRequest& request) {
  const double whole = key == "tp_size"
                           ? std::min(request.machine.network.ranks_per_host, request.ranks)
                       : key == "ep_size"          ? request.shape.experts
                       : key == "local_batch_size" ? request.global_batch
                                                   : request.ranks;
  return std::max<int64_t>(std::llround(whole), 1);
}

// Near values of the sizes that are fixed, one at a time, with which something is found.
std::vector<std::string> other_sizes(const plan::Job& job, const Wanted& wanted,
                                     const steptime::SearchRequest& request) {
  constexpr size_t kNamed = 3, kTried = 3;  // of all sizes; of each
  std::vector<std::string> out;
  for (const auto& [key, asked] : request.fixed) {
    size_t tried = 0;
    for (const int64_t size : text::divisors_near(whole_of(key, request), asked)) {
      if (out.size() == kNamed || tried == kTried) break;
      if (size == asked) continue;
      steptime::SearchRequest other = request;
      other.fixed[key] = size;
      if (!may_fit(other)) continue;
      ++tried;
      if (finds_layout(job, wanted.reload, other))
        out.push_back("--fix " + key + "=" + std::to_string(size));
    }
  }
  return out;
}

std::string fixed_text(const Wanted& wanted) {
  std::string out;
  for (const auto& [key, size] : wanted.fixed) out += " --fix " + key + "=" + std::to_string(size);
  return out;
}

// Whether the search finds something without the sizes that are fixed.
bool finds_without_fixed(const plan::Job& job, const Wanted& wanted,
                         steptime::SearchRequest request) {
  request.fixed.clear();
  return finds_layout(job, wanted.reload, request);
}

// The flag that gave the value of a key, else the key.
std::string flag_of(const std::string& key, const Wanted& wanted) {
  if (wanted.global_batch && key == kBatchKey) return "--global-batch";
  for (const auto& [name, size] : wanted.fixed)
    if (key == "distributed." + name || key == "step_scheduler." + name) return "--fix";
  return key;
}

}  // namespace

std::optional<Error> said_by_plan(const plan::Job& job, const Reload& reload,
                                  const steptime::SearchRequest& request,
                                  const std::vector<std::string>& more) {
  auto asked = [&](const char* key) {
    const auto found = request.fixed.find(key);
    return found == request.fixed.end() ? 1.0 : static_cast<double>(found->second);
  };
  Layout layout;
  layout.job = request.base;
  steptime::Job& sizes = layout.job;
  sizes.ranks = request.ranks;
  sizes.tp = asked("tp_size");
  sizes.cp = asked("cp_size");
  sizes.pp = asked("pp_size");
  sizes.ep = asked("ep_size");
  sizes.stages = asked("stages_per_rank");
  if (sizes.stages > 1) sizes.schedule = PipelineSchedule::interleaved_1f1b;
  sizes.shard = std::max(1.0, sizes.ranks / (sizes.tp * sizes.pp)) / asked("dp_replicate_size");
  sizes.micro_batch = asked("local_batch_size");
  const double samples = request.global_batch / std::max(1.0, sizes.dp());
  sizes.micro_batches = std::max(1.0, std::floor(samples / sizes.micro_batch));
  sizes.sequence_parallel = false;
  std::optional<Error> out;
  for (const steptime::Way& way : request.ways) {
    if (way.strategy == layout.strategy) continue;
    layout.strategy = way.strategy;
    std::vector<std::string> settings =
        settings_of(job, layout, request.shape.layers, request.global_batch);
    settings.insert(settings.end(), more.begin(), more.end());
    PlannedLayout planned = plan_layout(job, reload, request, settings);
    // What the others lack is then no reason.
    if (!planned.refused) return std::nullopt;
    if (!is_of_the_plan(*planned.refused)) continue;
    // The job's own strategy comes first. That one strategy lacks a size says less than what all
    // would say.
    const bool lacks = planned.refused->code() == ErrorCode::size_not_supported;
    if (!out || (!lacks && out->code() == ErrorCode::size_not_supported))
      out = std::move(planned.refused);
  }
  return out;
}

namespace {

// Sizes, model, batch and world have no layout in common.
[[noreturn]] void refuse_sizes_asked(const plan::Job& job, const Wanted& wanted,
                                     const steptime::SearchRequest& request, const Found& found) {
  const std::string asked = fixed_text(wanted);
  std::optional<Error> said;
  std::vector<std::string> helps;
  if (!asked.empty()) {
    said = said_by_plan(job, wanted.reload, request);
    if (said) helps = helps_that_find(job, wanted, request, *said);
    if (std::ranges::none_of(helps, names_size)) {
      for (const std::string& near : other_sizes(job, wanted, request))
        if (std::ranges::find(helps, near) == helps.end()) helps.push_back(near);
      std::ranges::stable_partition(helps, names_size);
    }
  }
  if (helps.empty()) {
    steptime::SearchRequest batch = request;
    batch.global_batch =
        request.ranks * std::max(1.0, std::round(request.global_batch / request.ranks));
    // Without sizes it is what there is to change.
    if (asked.empty() || finds_layout(job, wanted.reload, batch))
      helps.push_back("--global-batch " + text::whole_number(batch.global_batch));
  }
  if (!asked.empty() && (helps.empty() || finds_without_fixed(job, wanted, request)))
    helps.push_back("leave out" + asked);
  std::string why;
  for (const auto& [reason, count] : found.result.rejected)
    why += (why.empty() ? ": " : "; ") + reason;
  const bool batch = asked.empty() && std::fmod(request.global_batch, request.ranks) != 0;
  Error error = said ? Error(said->code(), "no layout has" + asked + ": " + said->message())
                     : Error(batch ? ErrorCode::batch_not_divisible : ErrorCode::model_does_not_fit,
                             "no layout of this model has " + std::to_string(wanted.world_size) +
                                 " ranks, a batch of " + text::whole_number(request.global_batch) +
                                 (asked.empty() ? "" : " and" + asked) + why);
  error.key(asked.empty() ? "--world-size" : "--fix");
  for (const std::string& help : helps) error.help(help);
  throw error;
}

// The smallest world, by doublings, that has a layout that fits; nullopt: none that is looked at.
std::optional<int64_t> larger_world(const plan::Job& job, const Wanted& wanted,
                                    steptime::SearchRequest request) {
  for (int64_t world = 2 * wanted.world_size; world <= kMostWorld; world *= 2) {
    request.ranks = static_cast<double>(world);
    if (finds_layout(job, wanted.reload, request)) return world;
  }
  return std::nullopt;
}

// A tenth of the unit that a number of bytes is told in.
double tenth_of_unit(double bytes) {
  double unit = 1;
  while (bytes >= 1023.9 * unit) unit *= 1024;
  return unit / 10;
}

// Memory of a rank that is enough for the smallest layout of `found`: its bytes, rounded up to
// whole steps, and more where the search does not come to it otherwise.
double enough_memory(const plan::Job& job, const Wanted& wanted, steptime::SearchRequest request,
                     const Found& found, double bytes, double step) {
  constexpr int kTries = 8;
  const double least = std::ceil(bytes / step) * step;
  if (!found.least) return least;  // no layout can be planned
  for (int i = 0; i < kTries; ++i) {
    request.memory = least + i * step;
    if (finds_layout(job, wanted.reload, request)) return request.memory;
  }
  return least;
}

std::string smallest_text(const plan::Job& job, const Layout& layout,
                          const steptime::SearchRequest& request) {
  const steptime::Job& sizes = layout.job;
  const char* recompute =
      sizes.recompute == steptime::Recompute::none ? "no" : recompute_word(sizes.recompute);
  return layout.strategy + " with tp " + text::whole_number(sizes.tp) + ", cp " +
         text::whole_number(sizes.cp) + ", pp " + text::whole_number(sizes.pp) + ", " + recompute +
         " recomputation and micro-batches of " + text::whole_number(sizes.micro_batch) + ": " +
         set_line(settings_of(job, layout, request.shape.layers, request.global_batch));
}

}  // namespace

void refuse_search(const plan::Job& job, const Wanted& wanted,
                   const steptime::SearchRequest& request, const Found& found) {
  if (found.result.enumerated == 0) refuse_sizes_asked(job, wanted, request, found);
  const std::string all = report::human_count(found.result.enumerated) + " layouts";
  if (!found.least && found.refused && found.result.fitting > 0) {
    Error error(found.refused->code(),
                "none of " + all + " can be planned: " + found.refused->message());
    error.key(flag_of(found.refused->key(), wanted));
    std::vector<std::string> helps = helps_that_find(job, wanted, request, *found.refused);
    if (helps.empty())  // each is a step of several
      for (const std::string& help : found.refused->helps()) {
        const std::optional<Proposal> flag = proposal_of(help, wanted, request);
        helps.push_back(flag ? flag->text : help);
      }
    for (const std::string& help : helps) error.help(help);
    throw error;
  }
  const Layout& smallest = *found.result.smallest;
  const double least = found.least.value_or(smallest.memory.peak());
  const double usable = request.machine.memory - request.machine.outside;
  const bool limited = wanted.max_memory && *wanted.max_memory < usable;
  Error error(ErrorCode::memory_exceeded, "none of " + all + " fits: the smallest needs " +
                                              bytes_text(least) + " of " +
                                              bytes_text(found.memory) + " a rank");
  std::vector<std::string> others;  // that fit, where it is the sizes asked for that do not
  if (!wanted.fixed.empty()) {
    others = other_sizes(job, wanted, request);
    if (finds_without_fixed(job, wanted, request))
      others.push_back("leave out" + fixed_text(wanted));
  }
  error.key(!others.empty() ? "--fix" : limited ? "--max-memory" : "--machine");
  if (found.why && found.why->refused)
    error.help("--why " + report::printable(found.why->asked) + ": " +
               found.why->refused->message());
  for (const std::string& other : others) error.help(other);
  auto enough = [&](double step) {
    return enough_memory(job, wanted, request, found, least, step);
  };
  if (limited && least <= usable)
    error.help("--max-memory " + text::whole_number(enough(kGib) / kGib));
  error.help(
      (limited && least <= usable
           ? std::string("the smallest is ")
           : "a device with " + bytes_text(enough(tenth_of_unit(least))) + " for a rank takes ") +
      smallest_text(job, smallest, request));
  if (const std::optional<int64_t> world = larger_world(job, wanted, request))
    error.help("take more ranks: --world-size " + std::to_string(*world));
  else
    error.help("no world of up to " + report::human_count(kMostWorld) +
               " ranks, by doubling, has a layout that fits this batch");
  throw error;
}

}  // namespace meshwright::forecast
