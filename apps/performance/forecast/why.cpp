// One layout that a user asks about, and the sizes that no way of theirs makes fit.
#include <algorithm>
#include <cmath>

#include "apps/performance/forecast/layouts.h"
#include "engine/job/before_start.h"
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

// A whole number of 1 or more; 0: it is none.
double count_in(const std::string& digits) {
  if (digits.empty() || digits.size() > 7 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return 0;
  return static_cast<double>(std::stoll(digits));
}

// "dp32"
std::optional<std::pair<std::string, double>> size_in(const std::string& word) {
  static const std::set<std::string> kNames = {"tp", "cp", "pp", "v", "ep", "dp", "replicas"};
  const size_t at = word.find_first_of("0123456789");
  if (at == std::string::npos || !kNames.contains(word.substr(0, at))) return std::nullopt;
  const double size = count_in(word.substr(at));
  if (size < 1) return std::nullopt;
  return std::pair{word.substr(0, at), size};
}

// "4x1": samples of a micro-batch, and how many there are.
std::optional<std::pair<double, double>> micro_in(const std::string& word) {
  const size_t at = word.find('x');
  if (at == std::string::npos) return std::nullopt;
  const std::pair out{count_in(word.substr(0, at)), count_in(word.substr(at + 1))};
  if (out.first < 1 || out.second < 1) return std::nullopt;
  return out;
}

std::optional<steptime::Recompute> recompute_in(const std::string& word) {
  for (const steptime::Recompute one :
       {steptime::Recompute::none, steptime::Recompute::selective, steptime::Recompute::full})
    if (word == recompute_word(one)) return one;
  return std::nullopt;
}

bool has_options(const LayoutWords& words, const std::vector<std::string>& options) {
  return std::ranges::all_of(words.options, [&](const std::string& wanted) {
    return std::ranges::any_of(
        options, [&](const std::string& option) { return option_text(option) == wanted; });
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
                                                  {"micro", job.micro_batch},
                                                  {"replicas", job.shard > 1 ? job.replicas() : 1}};
  for (const auto& [name, size] : sizes)
    if (const auto at = words.sizes.find(name); at != words.sizes.end() && at->second != size)
      return false;
  return (words.micro_batches == 0 || words.micro_batches == job.micro_batches) &&
         (!words.recompute || *words.recompute == job.recompute) &&
         (words.strategy.empty() || words.strategy == layout.strategy) &&
         (!words.schedule || *words.schedule == job.schedule) && has_options(words, layout.options);
}

// Whether every word that the table has of it was given.
bool has_words_of(const std::string& asked, const Layout& layout) {
  const std::vector<std::string> given = text::split_names(asked.c_str(), ' '),
                                 own = text::split_names(layout_text(layout).c_str(), ' ');
  return std::ranges::all_of(
      own, [&](const std::string& word) { return std::ranges::find(given, word) != given.end(); });
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
  std::ranges::stable_sort(out, [&](const auto& a, const auto& b) {
    return a.second.job.*a.first.size / job.*a.first.size <
           b.second.job.*b.first.size / job.*b.first.size;
  });
  return out;
}

std::string size_text(const Cut& cut, const Layout& layout) {
  return std::string(cut.name) + " " + text::whole_number(layout.job.*cut.size);
}

class Asked {
 public:
  Asked(const plan::Job& job, const Wanted& wanted, const SearchRequest& request,
        const LayoutWords& words)
      : job_(job), words_(words), wanted_(wanted), all_(request), request_(request) {
    std::erase_if(request_.ways, [&](const steptime::Way& way) {
      return (!words.strategy.empty() && way.strategy != words.strategy) ||
             !has_options(words, way.options);
    });
    for (const auto& [key, name] : kSizeWords)
      if (const auto at = words.sizes.find(name); at != words.sizes.end())
        request_.fixed[key] = std::llround(at->second);
    if (words.recompute) request_.recompute = words.recompute;
    if (!words.schedule) return;
    request_.schedules = {*words.schedule};
    request_.only_schedules = true;
    // What one stage a rank has anyhow, which words_of() makes of it.
    if (*words.schedule == PipelineSchedule::one_f_one_b) {
      request_.schedules.clear();
      request_.only_schedules = false;
    }
  }

  void look(Why& out) const {
    const double dp = request_.ranks / (size("tp") * size("cp") * size("pp"));
    if (const auto asked = words_.sizes.find("dp");
        asked != words_.sizes.end() && asked->second != dp) {
      const std::string key = "distributed.dp_size=";
      out.refused =
          said_by_plan(job_, wanted_.reload, request_, {key + text::whole_number(asked->second)});
      if (!out.refused) out.refused = not_searched({});
      return;
    }
    if (dp == std::floor(dp)) out.refused = other_micro_batches(request_.global_batch / dp);
    if (out.refused) return;
    const Found found = planned_layouts(job_, wanted_.reload, request_, 1);
    if (!found.result.best.empty() && matches(words_, found.result.best.front())) {
      out.layout = found.result.best.front();
      out.forecast = found.forecasts.front();
      out.set = found.sets.front();
    } else if (found.result.enumerated == 0) {
      out.refused = said_by_plan(job_, wanted_.reload, request_);
      if (!out.refused) out.refused = not_searched(found.result.rejected);
    } else if (found.result.best.empty() && found.least) {
      too_large(*found.result.smallest, out);
    } else {
      out.refused = found.refused ? *found.refused : not_searched(found.result.rejected);
    }
  }

  // The refusal of `look` with what makes a layout of it: other words, and flags of the search.
  Error told(const Error& said) const {
    std::vector<std::string> helps, ones, steps;
    auto add = [](std::vector<std::string>& to, const std::string& help) {
      if (std::ranges::find(to, help) == to.end()) to.push_back(help);
    };
    for (const std::string& help : said.helps()) {
      if (help.starts_with("--why ")) {  // of other_micro_batches()
        add(helps, help);
        continue;
      }
      const std::optional<Proposal> flag = proposal_of(help, wanted_, all_);
      steps.push_back(flag ? flag->text : help);
      std::string found;
      if (flag && finds(flag->request, words_))
        found = flag->text;
      else if (const std::optional<LayoutWords> other = flag ? std::nullopt : other_words(help);
               other && finds(all_, *other))
        found = why_text(*other);
      if (found.empty()) continue;
      const std::vector<std::string> sets = plan::settings_in(help);
      add(sets.size() == 1 && sets[0].ends_with("=1") ? ones : helps, found);
    }
    // Another batch of the file is no word: a micro-batch that divides this one comes before it.
    // That a size of 1 would do is said behind what is nearer to what was asked.
    const bool in_words = std::ranges::any_of(
        helps, [](const std::string& help) { return help.starts_with("--why "); });
    if (helps.empty() || (asked_for("micro") && !in_words)) {
      std::vector<std::string> near = near_words();
      near.insert(near.end(), helps.begin(), helps.end());
      helps = std::move(near);
    }
    for (const std::string& one : ones) add(helps, one);
    if (helps.empty()) helps = steps;  // each is one of several
    Error out(said.code(), said.message());
    out.key(said.key());
    for (const std::string& help : helps) out.help(help);
    return out;
  }

 private:
  double size(const char* name) const { return words_.sizes.at(name); }
  bool asked_for(const std::string& name) const {
    const auto at = words_.sizes.find(name);
    return at != words_.sizes.end() && at->second > 1;
  }

  bool finds(const SearchRequest& request, const LayoutWords& words) const {
    const Asked other(job_, wanted_, request, words);
    const Found found = planned_layouts(job_, wanted_.reload, other.request_, 1);
    return !found.result.best.empty() && matches(words, found.result.best.front());
  }

  // Where the words have another number of micro-batches than `samples` of a rank make. Samples
  // that are no whole number are refused as without these words.
  std::optional<Error> other_micro_batches(double samples) const {
    const auto micro = words_.sizes.find("micro");
    if (micro == words_.sizes.end() || words_.micro_batches == 0 ||
        std::fmod(samples, micro->second) != 0 || micro->second * words_.micro_batches == samples)
      return std::nullopt;
    LayoutWords other = words_;
    other.micro_batches = samples / micro->second;
    Error out(ErrorCode::batch_not_divisible,
              "micro-batches of " + text::whole_number(micro->second) + " make " +
                  text::whole_number(other.micro_batches) + " of the " +
                  text::whole_number(samples) + " samples that a rank has of a step, not " +
                  text::whole_number(words_.micro_batches));
    out.help(why_text(other));
    return out;
  }

  // With another size than was asked for; that of dp follows.
  LayoutWords with_size(const std::string& name, double value) const {
    LayoutWords out = words_;
    out.sizes[name] = value;
    if (name != "dp") out.sizes.erase("dp");
    out.micro_batches = 0;
    if (out.sizes.at("pp") > 1) return out;
    out.sizes.erase("v");
    out.schedule.reset();
    return out;
  }

  // What a help about a size or the strategy makes of the words.
  std::optional<LayoutWords> other_words(const std::string& help) const {
    const std::vector<std::string> sets = plan::settings_in(help);
    if (sets.size() != 1) return std::nullopt;
    const size_t at = sets[0].find('=');
    const std::string key = sets[0].substr(0, at);
    std::string value = sets[0].substr(at + 1);
    if (key == "distributed.strategy") {
      std::erase(value, '"');
      LayoutWords out = words_;
      out.strategy = value;
      return out;
    }
    for (const auto& [size_key, name] : kSizeWords)
      if (const auto other =
              key == "distributed." + std::string(size_key) ? size_in(name + value) : std::nullopt)
        return with_size(other->first, other->second);
    if (const auto dp = key == "distributed.dp_size" ? size_in("dp" + value) : std::nullopt)
      return with_size(dp->first, dp->second);
    return std::nullopt;
  }

  // Other values of the sizes that were asked for, one at a time, with which there is a layout.
  std::vector<std::string> near_words() const {
    constexpr size_t kNamed = 3, kNear = 3;  // of all sizes; of each
    std::vector<std::string> out;
    const double samples = all_.global_batch * size("tp") * size("cp") * size("pp") / all_.ranks;
    for (const std::string name : {"micro", "replicas", "v", "tp", "cp", "pp", "ep"}) {
      if (!asked_for(name)) continue;
      const double asked = size(name.c_str()), whole = name == "v"       ? all_.shape.layers
                                                       : name == "micro" ? samples
                                                                         : all_.ranks;
      size_t tried = 0;
      for (const int64_t near :
           text::divisors_near(std::max(std::llround(whole), 1LL), std::llround(asked))) {
        if (out.size() == kNamed || tried == kNear) break;
        if (static_cast<double>(near) == asked) continue;
        const LayoutWords other = with_size(name, static_cast<double>(near));
        if (!may_fit(Asked(job_, wanted_, all_, other).request_)) continue;
        ++tried;
        if (finds(all_, other)) out.push_back(why_text(other));
      }
    }
    return out;
  }

  std::string why_text(const LayoutWords& words) const {
    std::vector<std::string> out;
    if (!words.strategy.empty()) out.push_back(words.strategy);
    for (const char* name : {"tp", "cp", "pp", "v", "ep", "dp", "replicas"})
      if (const auto at = words.sizes.find(name); at != words.sizes.end() && at->second > 1)
        out.push_back(name + text::whole_number(at->second));
    if (words.schedule) out.emplace_back(schedule_name(*words.schedule));
    if (const auto micro = words.sizes.find("micro"); micro != words.sizes.end()) {
      const double dp = all_.ranks /
                        (words.sizes.at("tp") * words.sizes.at("cp") * words.sizes.at("pp")),
                   count = all_.global_batch / dp / micro->second;
      out.push_back(text::whole_number(micro->second) + "x" +
                    text::whole_number(words.micro_batches > 0 ? words.micro_batches : count));
    }
    if (words.recompute) out.emplace_back(recompute_word(*words.recompute));
    out.insert(out.end(), words.options.begin(), words.options.end());
    return "--why '" + (out.empty() ? "tp1" : text::join(out, " ")) + "'";
  }

  static Error not_searched(const std::map<std::string, int64_t>& reasons) {
    std::string why;
    for (const auto& [reason, count] : reasons) why += (why.empty() ? ": " : "; ") + reason;
    return {ErrorCode::model_does_not_fit, "no such layout is looked at" + why};
  }

  void too_large(const Layout& smallest, Why& out) const {
    const std::vector<std::string> settings =
        settings_of(job_, smallest, request_.shape.layers, request_.global_batch);
    PlannedLayout planned = plan_layout(job_, wanted_.reload, request_, settings);
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

  // Of the first few that fit by the model, the first that does so by its plan, with the other
  // words as they are.
  std::string fits_with(const steptime::Job& job) const {
    constexpr size_t kTried = 3;
    SearchRequest all = request_;
    all.schedules.clear();
    all.only_schedules = false;
    for (const Cut& cut : kCuts) all.fixed.erase(cut.key);
    all.fixed.erase("stages_per_rank");
    std::vector<std::pair<Cut, Layout>> found = larger(steptime::search(all, 1).families, job);
    if (found.size() > kTried) found.resize(kTried);
    for (const auto& [cut, layout] : found)
      if (finds(all_, with_size(cut.name, layout.job.*cut.size))) return size_text(cut, layout);
    return "";
  }

  const plan::Job& job_;
  const LayoutWords& words_;
  const Wanted& wanted_;
  const SearchRequest& all_;
  SearchRequest request_;  // that, for these words alone
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
  for (const PipelineSchedule usual :
       {PipelineSchedule::one_f_one_b, PipelineSchedule::interleaved_1f1b})
    schedules.emplace(schedule_name(usual), usual);
  auto refuse = [&](const std::string& what) {
    std::vector<std::string> known(strategies.begin(), strategies.end());
    for (const auto& [name, schedule] : schedules) known.push_back(name);
    known.insert(known.end(), options.begin(), options.end());
    return Error(ErrorCode::usage, "--why " + report::printable(asked) + ": " + what)
        .help(
            "a layout in words of the table, as in --why 'tp8 pp2'; known are tpN, cpN, ppN, vN, "
            "epN, dpN, replicasN, NxM (micro), none, selective, full (recompute), " +
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
    } else if (const auto recompute = recompute_in(word)) {
      first = !out.recompute;
      out.recompute = recompute;
    } else if (const auto micro = micro_in(word)) {
      first = out.sizes.emplace("micro", micro->first).second;
      out.micro_batches = micro->second;
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
  const auto stages = out.sizes.find("v");
  const bool one = stages != out.sizes.end() && stages->second == 1;
  if (out.schedule == PipelineSchedule::one_f_one_b && stages != out.sizes.end() && !one)
    throw refuse("1F1B has one stage a rank");
  if (out.schedule == PipelineSchedule::interleaved_1f1b && one)
    throw refuse("Interleaved1F1B has several stages a rank");
  if (out.schedule == PipelineSchedule::one_f_one_b) out.sizes["v"] = 1;
  if (std::ranges::none_of(request.ways, [&](const steptime::Way& way) {
        return (out.strategy.empty() || way.strategy == out.strategy) &&
               has_options(out, way.options);
      }))
    throw refuse("no strategy is searched with all of these options");
  return out;
}

Why why_of(const plan::Job& job, const Wanted& wanted, const SearchRequest& request,
           const LayoutWords& words, const Found& found) {
  Why out;
  out.asked = *wanted.why;
  const std::vector<Layout>& best = found.result.best;
  // A row that is named in full is meant, though one with an option more may stand before it.
  std::optional<size_t> listed;
  for (const bool in_full : {true, false})
    for (size_t i = 0; i < best.size() && !listed; ++i)
      if (matches(words, best[i]) && (!in_full || has_words_of(*wanted.why, best[i]))) listed = i;
  if (listed) {
    out.layout = best[*listed];
    out.forecast = found.forecasts[*listed];
    out.set = found.sets[*listed];
    out.listed = true;
    out.before = *listed;
    return out;
  }
  const Asked asked(job, wanted, request, words);
  asked.look(out);
  // Where nothing is found, no words are either.
  if (out.refused && !out.layout && !best.empty()) out.refused = asked.told(*out.refused);
  if (!out.refused)
    out.before = static_cast<size_t>(std::ranges::count_if(
        best, [&](const Layout& layout) { return layout.score() <= out.layout->score(); }));
  return out;
}

std::vector<RefusedFamily> refused_families(const SearchRequest& request,
                                            const std::vector<Layout>& families) {
  std::vector<RefusedFamily> out;
  std::vector<Layout> by_model = families;
  for (Layout& family : by_model) family.use = family.memory.peak() / request.memory;
  for (const Layout& family : by_model) {
    if (family.use * kUnknownKind <= 1) continue;
    Layout layout = family;
    layout.predicted = steptime::predict(request.machine, request.shape, layout.job,
                                         steptime::Bubble::closed_form);
    out.push_back({std::move(layout), ""});
  }
  std::ranges::stable_sort(out, [](const RefusedFamily& a, const RefusedFamily& b) {
    return a.smallest.predicted.seconds < b.smallest.predicted.seconds;
  });
  if (out.size() > kMostFamilies) out.resize(kMostFamilies);
  for (RefusedFamily& family : out)
    if (const auto found = larger(by_model, family.smallest.job); !found.empty())
      family.fits_with = size_text(found.front().first, found.front().second);
  return out;
}

}  // namespace meshwright::forecast
