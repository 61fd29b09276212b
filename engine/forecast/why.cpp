// One layout that a user asks about, and the sizes that no way of theirs makes fit.
#include <algorithm>
#include <cmath>

#include "engine/forecast/layouts.h"
#include "sdk/base/words.h"

namespace meshwright::forecast {
namespace {

using steptime::Layout;
using steptime::SearchRequest;

constexpr size_t kMostFamilies = 3;

// Sizes that make a family, with their keys of SearchRequest::fixed.
struct Cut {
  const char *name, *key;
  double steptime::Job::* size;
};
constexpr Cut kCuts[] = {{"tp", "tp_size", &steptime::Job::tp},
                         {"cp", "cp_size", &steptime::Job::cp},
                         {"pp", "pp_size", &steptime::Job::pp},
                         {"ep", "ep_size", &steptime::Job::ep}};

// "dp32"
std::optional<std::pair<std::string, double>> size_in(const std::string& word) {
  static const std::set<std::string> kNames = {"tp", "cp", "pp", "v", "ep", "dp", "replicas"};
  const size_t at = word.find_first_of("0123456789");
  if (at == std::string::npos || !kNames.contains(word.substr(0, at))) return std::nullopt;
  const std::string digits = word.substr(at);
  if (digits.size() > 7 || digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  const auto size = static_cast<double>(std::stoll(digits));
  if (size < 1) return std::nullopt;
  return std::pair{word.substr(0, at), size};
}

bool has_options(const LayoutWords& words, const std::vector<std::string>& options) {
  return std::all_of(words.options.begin(), words.options.end(), [&](const std::string& wanted) {
    return std::any_of(options.begin(), options.end(),
                       [&](const std::string& option) { return option_text(option) == wanted; });
  });
}

bool matches(const LayoutWords& words, const Layout& layout) {
  const steptime::Job& job = layout.job;
  const std::pair<const char*, double> sizes[] = {{"tp", job.tp},
                                                  {"cp", job.cp},
                                                  {"pp", job.pp},
                                                  {"ep", job.ep},
                                                  {"dp", job.dp()},
                                                  {"v", job.stages},
                                                  {"replicas", job.shard > 1 ? job.replicas() : 1}};
  for (const auto& [name, size] : sizes)
    if (const auto at = words.sizes.find(name); at != words.sizes.end() && at->second != size)
      return false;
  return (words.strategy.empty() || words.strategy == layout.strategy) &&
         (!words.schedule || *words.schedule == job.schedule) && has_options(words, layout.options);
}

// Families that fit and have more of one size than `job`, and of the others as much; the nearest
// first.
std::vector<std::pair<Cut, Layout>> larger(const std::vector<Layout>& families,
                                           const steptime::Job& job) {
  std::vector<std::pair<Cut, Layout>> out;
  for (const Layout& family : families) {
    if (family.use > 1) continue;
    std::vector<Cut> others;
    for (const Cut& cut : kCuts)
      if (family.job.*cut.size != job.*cut.size) others.push_back(cut);
    if (others.size() == 1 && family.job.*others[0].size > job.*others[0].size)
      out.emplace_back(others[0], family);
  }
  std::stable_sort(out.begin(), out.end(), [&](const auto& a, const auto& b) {
    return a.second.job.*a.first.size / job.*a.first.size <
           b.second.job.*b.first.size / job.*b.first.size;
  });
  return out;
}

std::string size_text(const Cut& cut, const Layout& layout) {
  return std::string(cut.name) + " " + std::to_string(std::llround(layout.job.*cut.size));
}

class Asked {
 public:
  Asked(const plan::Job& job, const steptime::Machine& machine, const Wanted& wanted,
        const SearchRequest& request, const LayoutWords& words)
      : job_(job), machine_(machine), words_(words), wanted_(wanted), request_(request) {
    wanted_.most = 1;
    std::erase_if(request_.ways, [&](const steptime::Way& way) {
      return (!words.strategy.empty() && way.strategy != words.strategy) ||
             !has_options(words, way.options);
    });
    for (const Cut& cut : kCuts) fix(cut.key, cut.name);
    fix("stages_per_rank", "v");
    fix("dp_replicate_size", "replicas");
    if (words.schedule) {
      request_.schedules = {*words.schedule};
      request_.only_schedules = true;
    }
  }

  void look(Why& out) {
    const double dp = request_.ranks / (size("tp") * size("cp") * size("pp"));
    if (const auto asked = words_.sizes.find("dp");
        asked != words_.sizes.end() && asked->second != dp) {
      const std::string key = "distributed.dp_size=";
      out.refused = said_by_plan(job_, machine_, wanted_, request_,
                                 {key + std::to_string(std::llround(asked->second))});
      if (!out.refused) out.refused = not_searched({});
      return;
    }
    const Found found = planned_layouts(job_, machine_, wanted_, request_);
    if (!found.result.best.empty() && matches(words_, found.result.best.front())) {
      out.layout = found.result.best.front();
      out.forecast = found.forecasts.front();
      out.set = found.sets.front();
    } else if (found.result.enumerated == 0) {
      out.refused = said_by_plan(job_, machine_, wanted_, request_);
      if (!out.refused) out.refused = not_searched(found.result.rejected);
    } else if (found.result.best.empty() && found.least) {
      too_large(*found.result.smallest, out);
    } else {
      out.refused = found.refused ? *found.refused : not_searched(found.result.rejected);
    }
  }

 private:
  double size(const char* name) const { return words_.sizes.at(name); }
  void fix(const char* key, const char* name) {
    if (const auto at = words_.sizes.find(name); at != words_.sizes.end())
      request_.fixed[key] = std::llround(at->second);
    wanted_.fixed = request_.fixed;
  }

  static Error not_searched(const std::map<std::string, int64_t>& reasons) {
    std::string why;
    for (const auto& [reason, count] : reasons) why += (why.empty() ? ": " : "; ") + reason;
    return {ErrorCode::model_does_not_fit, "no such layout is looked at" + why};
  }

  void too_large(const Layout& smallest, Why& out) {
    const std::vector<std::string> settings =
        settings_of(job_, smallest, request_.shape.layers, request_.global_batch);
    PlannedLayout planned =
        plan_layout(job_, machine_, wanted_.reload, wanted_.world_size, settings);
    if (!planned.forecast) {
      out.refused = std::move(planned.refused);
      return;
    }
    std::string parts;
    for (const auto& [name, bytes] : parts_of(*planned.forecast->bytes))
      if (bytes > 0)
        parts += (parts.empty() ? ": " : ", ") + name + " " + report::human_bytes(bytes);
    out.refused = Error(ErrorCode::memory_exceeded,
                        "at its smallest it takes " + bytes_text(planned.forecast->memory) +
                            " of " + bytes_text(request_.memory) + " a rank" + parts);
    if (const std::string with = fits_with(smallest.job); !with.empty())
      out.refused->help("fits with " + with);
    out.layout = smallest;
    out.forecast = std::move(planned.forecast);
    out.set = set_line(settings);
  }

  // Of the first few that fit by the model, the first that does so by its plan.
  std::string fits_with(const steptime::Job& job) const {
    constexpr size_t kTried = 3;
    SearchRequest all = request_;
    all.schedules.clear();
    all.only_schedules = false;
    for (const Cut& cut : kCuts) all.fixed.erase(cut.key);
    all.fixed.erase("stages_per_rank");
    std::vector<std::pair<Cut, Layout>> found = larger(steptime::search(all, 1).families, job);
    if (found.size() > kTried) found.resize(kTried);
    for (const auto& [cut, layout] : found) {
      SearchRequest one = all;
      for (const Cut& each : kCuts) one.fixed[each.key] = std::llround(layout.job.*each.size);
      if (!planned_layouts(job_, machine_, wanted_, one).result.best.empty())
        return size_text(cut, layout);
    }
    return "";
  }

  const plan::Job& job_;
  const steptime::Machine& machine_;
  const LayoutWords& words_;
  Wanted wanted_;
  SearchRequest request_;
};

}  // namespace

LayoutWords words_of(const std::string& asked, const SearchRequest& request) {
  std::set<std::string> strategies, options;
  for (const steptime::Way& way : request.ways) {
    strategies.insert(way.strategy);
    for (const std::string& option : way.options) options.insert(option_text(option));
  }
  std::map<std::string, PipelineSchedule> schedules;
  for (const PipelineSchedule schedule : request.schedules)
    schedules.emplace(schedule_name(schedule), schedule);
  auto refuse = [&](const std::string& what) {
    std::vector<std::string> known(strategies.begin(), strategies.end());
    for (const auto& [name, schedule] : schedules) known.push_back(name);
    known.insert(known.end(), options.begin(), options.end());
    return Error(ErrorCode::usage, "--why " + report::printable(asked) + ": " + what)
        .help(
            "a layout in words of the table, as in --why 'tp8 pp2'; known are tpN, cpN, ppN, vN, "
            "epN, dpN, replicasN, " +
            text::join(known, ", "));
  };
  LayoutWords out;
  const std::vector<std::string> words = text::split_names(asked.c_str(), ' ');
  if (words.empty()) throw refuse("names no layout");
  for (const std::string& word : words) {
    bool first = true;
    if (strategies.contains(word)) {
      first = out.strategy.empty();
      out.strategy = word;
    } else if (const auto schedule = schedules.find(word); schedule != schedules.end()) {
      first = !out.schedule;
      out.schedule = schedule->second;
    } else if (options.contains(word)) {
      out.options.push_back(word);
    } else if (const auto size = size_in(word)) {
      first = out.sizes.insert(*size).second;
    } else {
      throw refuse("no layout has the word " + report::printable(word));
    }
    if (!first) throw refuse(word + " stands beside another one of its kind");
  }
  for (const Cut& cut : kCuts) out.sizes.try_emplace(cut.name, 1);
  if (out.sizes.at("pp") == 1 && (out.schedule || out.sizes.contains("v")))
    throw refuse("stages and a schedule are of a pipeline: name its ppN");
  if (std::none_of(request.ways.begin(), request.ways.end(), [&](const steptime::Way& way) {
        return (out.strategy.empty() || way.strategy == out.strategy) &&
               has_options(out, way.options);
      }))
    throw refuse("no strategy is searched with all of these options");
  return out;
}

Why why_of(const plan::Job& job, const steptime::Machine& machine, const Wanted& wanted,
           const SearchRequest& request, const LayoutWords& words, const Found& found) {
  Why out;
  out.asked = *wanted.why;
  const std::vector<Layout>& best = found.result.best;
  for (size_t i = 0; i < best.size() && !out.listed; ++i) {
    if (!matches(words, best[i])) continue;
    out.layout = best[i];
    out.forecast = found.forecasts[i];
    out.set = found.sets[i];
    out.listed = true;
    out.before = i;
  }
  if (out.listed) return out;
  Asked(job, machine, wanted, request, words).look(out);
  if (!out.refused)
    out.before =
        static_cast<size_t>(std::count_if(best.begin(), best.end(), [&](const Layout& layout) {
          return layout.score() <= out.layout->score();
        }));
  return out;
}

std::vector<RefusedFamily> refused_families(const SearchRequest& request,
                                            const std::vector<Layout>& families) {
  std::vector<RefusedFamily> out;
  for (const Layout& family : families) {
    if (family.use <= (family.job.pp > 1 ? kPipelineMargin : 1)) continue;
    Layout layout = family;
    layout.predicted = steptime::predict(request.machine, request.shape, layout.job,
                                         steptime::Bubble::closed_form);
    out.push_back({std::move(layout), ""});
  }
  std::stable_sort(out.begin(), out.end(), [](const RefusedFamily& a, const RefusedFamily& b) {
    return a.smallest.predicted.seconds < b.smallest.predicted.seconds;
  });
  if (out.size() > kMostFamilies) out.resize(kMostFamilies);
  for (RefusedFamily& family : out)
    if (const auto found = larger(families, family.smallest.job); !found.empty())
      family.fits_with = size_text(found.front().first, found.front().second);
  return out;
}

}  // namespace meshwright::forecast
