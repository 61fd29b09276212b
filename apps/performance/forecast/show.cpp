#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>
#include <iterator>

#include "apps/performance/forecast/forecast.h"
#include "apps/performance/forecast/layouts.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::forecast {

namespace {

namespace json = boost::json;

std::string number(double value, int digits) { return text::format("%.*f", digits, value); }
std::string percent(double share) { return number(100 * share, 0) + "%"; }

std::string memory_text(const Forecast& f) {
  const std::string used = report::human_bytes(std::llround(f.memory)),
                    usable = report::human_bytes(std::llround(f.usable));
  if (f.room() < 0)
    return "does not fit: " + used + " of " + usable + ", " +
           report::human_bytes(std::llround(f.memory - f.usable)) + " too much";
  return used + " of " + usable + ", " + percent(f.room()) + " to spare (" + f.fit() + ")";
}

json::array strings(const std::vector<std::string>& all) {
  return json::array(all.begin(), all.end());
}

template <class Value>
json::object object_of(const std::vector<std::pair<std::string, Value>>& parts) {
  json::object out;
  for (const auto& [name, value] : parts) out[name] = value;
  return out;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out = text::split(text, '\n');
  if (out.back().empty()) out.pop_back();
  return out;
}

json::value json_of(const std::optional<Place>& place) {
  if (!place) return nullptr;
  return json::object{
      {"rank", place->rank},
      {"pp", place->stage_rank ? json::value(*place->stage_rank) : json::value(nullptr)}};
}

}  // namespace

const char* Forecast::fit() const {
  if (room() < 0) return "too large";
  if (is_very_tight()) return "very tight";
  return room() < 1 - steptime::kComfortable ? "tight" : "comfortable";
}

std::string Place::text() const {
  return "rank " + std::to_string(rank) +
         (stage_rank ? " (pp " + std::to_string(*stage_rank) + ")" : "");
}

std::vector<std::pair<std::string, double>> parts_of(const steptime::Parts& p) {
  return {{"products", p.products},
          {"attention", p.attention},
          {"element-wise kernels", p.elementwise},
          {"recompute", p.recompute},
          {"tp", p.tp},
          {"cp", p.cp},
          {"ep", p.ep},
          {"shards", p.shard},
          {"pipeline bubble", p.bubble},
          {"optimizer", p.optimizer},
          {"host", p.host},
          {"stragglers", p.stragglers}};
}

std::vector<std::pair<std::string, int64_t>> parts_of(const Bytes& b) {
  return {{"weights", b.weights},
          {"gradients", b.gradients},
          {"optimizer", b.optimizer},
          {"transient", b.transient},
          {"activations", b.activations}};
}

std::vector<std::pair<std::string, int64_t>> parts_of(const steptime::Memory& m) {
  return {{"states", std::llround(m.states)},
          {"transient", std::llround(m.transient)},
          {"activations", std::llround(m.activations)},
          {"working", std::llround(m.working)}};
}

std::string draw(const report::Style& style, const Forecast& f) {
  report::Style narrow = style;
  narrow.width = std::max(20, style.width - 2);
  std::string out = "\n" + report::paint(style, report::Tone::bold, "Predicted") + "\n";
  auto add = [&](const std::string& text) {
    for (const std::string& line : report::wrap(text, static_cast<size_t>(narrow.width)))
      out += "  " + line + "\n";
  };
  add("on " + f.machine.name + ", " + number(f.job.ranks_per_host, 0) + " a host" +
      (f.rough.empty() ? "" : " (rough)"));
  std::vector<std::vector<std::string>> rows = {
      {"step", report::human_seconds(f.time.seconds)},
      {"tokens a second and device", report::human_count(std::llround(f.tokens_a_second))},
      {"MFU", percent(f.mfu)},
      {"memory", memory_text(f)}};
  if (f.host_memory > 0)
    rows.push_back({"memory of the host",
                    report::human_bytes(std::llround(f.host_memory)) + " a rank, for its states"});
  if (f.fullest && f.fullest->stage_rank) {
    rows.push_back({"fullest", f.fullest->text()});
    rows.push_back({"slowest", f.slowest->text()});
  }
  rows.push_back({"bound by", f.bound + " " + percent(f.bound_share)});
  rows.insert(rows.begin(), {"", "predicted"});
  std::string parts;
  for (const auto& [name, seconds] : parts_of(f.time.parts))
    if (seconds / f.time.seconds >= 0.005)
      parts += (parts.empty() ? "" : ", ") + name + " " + percent(seconds / f.time.seconds);
  for (const std::string& line : lines_of(report::table(narrow, rows))) out += "  " + line + "\n";
  add(parts);
  for (const std::string& why : f.rough) add("rough: " + why);
  return out;
}

json::object to_json(const Forecast& f) {
  return {{"machine", json::object{{"name", f.machine.name},
                                   {"ranks_per_host", std::llround(f.job.ranks_per_host)},
                                   {"guessed", strings(f.machine.guessed)}}},
          {"seconds", f.time.seconds},
          {"parts", object_of(parts_of(f.time.parts))},
          {"tokens_per_second_per_device", f.tokens_a_second},
          {"mfu", f.mfu},
          {"slowest", json_of(f.slowest)},
          {"memory", json::object{{"bytes", std::llround(f.memory)},
                                  {"parts", f.bytes ? json::value(object_of(parts_of(*f.bytes)))
                                                    : json::value(nullptr)},
                                  {"host", std::llround(f.host_memory)},
                                  {"fullest", json_of(f.fullest)},
                                  {"usable", std::llround(f.usable)},
                                  {"room", f.room()},
                                  {"fits", f.room() >= 0},
                                  {"fit", f.fit()}}},
          {"bound", json::object{{"part", f.bound}, {"share", f.bound_share}}},
          {"rough", strings(f.rough)}};
}

namespace {

using steptime::Layout;

std::string whole_percent(double share) { return text::whole_number(100 * share) + "%"; }

}  // namespace

std::string bytes_text(double bytes) { return report::human_bytes(std::llround(bytes)); }

std::string option_text(const std::string& option) {
  return option.substr(option.rfind('.', option.find('=')) + 1);
}

std::string layout_text(const Layout& layout) {
  const steptime::Job& job = layout.job;
  std::string out = layout.strategy;
  auto add = [&](const char* name, double size) {
    if (size > 1) out += std::string(" ") + name + text::whole_number(size);
  };
  add("tp", job.tp);
  add("cp", job.cp);
  add("pp", job.pp);
  add("v", job.stages);
  if (job.pp > 1 && job.schedule != PipelineSchedule::one_f_one_b &&
      job.schedule != PipelineSchedule::interleaved_1f1b)
    out += " " + std::string(schedule_name(job.schedule));
  add("ep", job.ep);
  add("dp", job.dp());
  if (job.shard > 1) add("replicas", job.replicas());
  for (const std::string& option : layout.options) out += " " + option_text(option);
  return out;
}

namespace {

std::string micro_text(const Layout& layout) {
  return text::whole_number(layout.job.micro_batch) + "x" +
         text::whole_number(layout.job.micro_batches);
}

// How close the second is, where it says something.
std::string second_text(const Found& found) {
  const double first = found.result.best[0].predicted.seconds,
               second = found.result.best[1].predicted.seconds, off = second / first - 1;
  if (std::abs(off) <= 0.03) return "The first two are equal: within 3% of each other.";
  if (off < 0) return "";  // tight_text() says so
  return text::format("The second is %.0f%% slower.", 100 * off);
}

// Which layouts are faster than the first, and why they stand behind it; and whether the first
// leaves next to no memory.
std::string tight_text(const Found& found) {
  const std::vector<Layout>& best = found.result.best;
  const double first = best.front().predicted.seconds;
  double most = 0;
  std::vector<std::string> faster;
  for (size_t i = 1; i < best.size(); ++i) {
    if (best[i].predicted.seconds >= first) continue;
    faster.push_back(std::to_string(i + 1));
    most = std::max(most, 1 - best[i].predicted.seconds / first);
  }
  std::string out;
  if (!faster.empty()) {
    const bool one = faster.size() == 1;
    const std::string by = text::format("%.1f%%", 100 * most);
    out = text::join(faster, ", ") + (one ? " is " : " are up to ") + by +
          " faster than 1, but tight: above " + whole_percent(steptime::kComfortable) +
          " of what a rank may take a layout ranks behind comfortable ones within 5%.";
  }
  if (const Forecast f = limited(found, found.forecasts.front()); f.is_very_tight())
    out += (out.empty() ? "" : " ") + std::string("1 is very tight: it takes ") +
           whole_percent(1 - f.room()) +
           " of what a rank may take, so that its allocator may stall.";
  return out;
}

// What would change their order, the nearest three.
std::string crossovers_text(const Found& found) {
  constexpr size_t kMost = 3;
  if (found.crossovers.empty()) {
    const size_t compared = std::min(kMostAlternatives, found.result.best.size());
    return "None of the figures that are tried, halved or doubled, would put " +
           (compared == 2 ? std::string("the second")
                          : "another of the first " + std::to_string(compared)) +
           " first.";
  }
  std::string out = "Another would be first if ";
  for (size_t i = 0; i < std::min(kMost, found.crossovers.size()); ++i)
    out += (i > 0 ? ", or " : "") + found.crossovers[i].name + (i > 0 ? " " : " were ") +
           found.crossovers[i].off + " (" + std::to_string(found.crossovers[i].first) + ")";
  return out + ".";
}

// A column of the table. `give`: the higher, the sooner it gives its place to what is narrow, and
// stands in words under the figures; 0: never.
struct Column {
  const char* name;
  int give = 0;
  bool right = false;
  std::vector<std::string> cells = {};  // one a layout
};

std::vector<Column> columns_of(const Found& found) {
  std::vector<Column> out = {{"#"},
                             {"layout", 4},
                             {"micro", 1},
                             {"recompute", 2},
                             {"tokens/s", 0, true},
                             {"MFU", 0, true},
                             {"memory"},
                             {"room", 0, true},
                             {"bound by", 3}};
  for (size_t i = 0; i < found.result.best.size(); ++i) {
    const Layout& layout = found.result.best[i];
    const Forecast f = limited(found, found.forecasts[i]);
    const std::string cells[] = {
        std::to_string(i + 1),
        layout_text(layout),
        micro_text(layout),
        recompute_word(layout.job.recompute),
        (f.rough.empty() ? "" : "~") + report::human_count(std::llround(f.tokens_a_second)),
        whole_percent(f.mfu),
        report::human_bytes(std::llround(f.memory)),
        whole_percent(f.room()),
        f.bound + " " + whole_percent(f.bound_share)};
    for (size_t c = 0; c < out.size(); ++c) out[c].cells.push_back(cells[c]);
  }
  return out;
}

// The columns that give no place for `given`, a layout a line.
std::string table_of(const report::Style& style, const std::vector<Column>& columns, int given) {
  std::vector<std::vector<std::string>> rows(columns.front().cells.size() + 1);
  std::vector<size_t> right;
  for (const Column& column : columns) {
    if (column.give > given) continue;
    if (column.right) right.push_back(rows.front().size());
    rows.front().emplace_back(column.name);
    for (size_t i = 0; i < column.cells.size(); ++i) rows[i + 1].push_back(column.cells[i]);
  }
  constexpr int kWidest = 10000;  // no cell is broken
  report::Style wide = style;
  wide.width = kWidest;
  return report::table(wide, rows, right);
}

// Broken at spaces; further lines stand `indent` in, and so does the first with `from_start`.
std::string wrapped(const report::Style& style, const std::string& text, size_t indent,
                    bool from_start = false) {
  if (text.empty()) return "";
  const size_t width = static_cast<size_t>(std::max(style.width, 1));
  std::string out;
  for (const std::string& line : report::wrap(text, width - std::min(indent, width - 1))) {
    if (from_start || !out.empty()) out.append(indent, ' ');
    out += line + "\n";
  }
  return out;
}

// A layout a line where the terminal is wide enough. Else its sizes, and what more has no room,
// stand under its figures, so that no word is broken.
std::string table_of(const report::Style& style, const Found& found) {
  const std::vector<Column> columns = columns_of(found);
  int given = 4;
  std::vector<std::string> lines;
  for (;; --given) {
    lines = lines_of(table_of(style, columns, given));
    if (given == 0 || std::ranges::all_of(lines, [&](const std::string& line) {
          return report::display_width(line) <= static_cast<size_t>(std::max(style.width, 1));
        }))
      break;
  }
  std::string out = lines.front() + "\n";
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    out += lines[i + 1] + "\n";
    std::string words;
    for (const Column& column : columns) {
      if (column.give <= given) continue;
      if (!words.empty()) words += ", " + std::string(column.name) + " ";
      words += column.cells[i];
    }
    if (!words.empty()) out += wrapped(style, words, 3, /*from_start=*/true);
  }
  return out;
}

// Why figures are rough, and whose: a reason that several layouts have stands once.
std::string rough_text(const report::Style& style, const Found& found) {
  std::vector<std::pair<std::string, std::vector<size_t>>> reasons;
  for (size_t i = 0; i < found.forecasts.size(); ++i)
    for (const std::string& why : found.forecasts[i].rough) {
      auto at = std::ranges::find(reasons, why, &decltype(reasons)::value_type::first);
      if (at == reasons.end()) at = reasons.insert(at, {why, {}});
      at->second.push_back(i + 1);
    }
  std::string out;
  for (const auto& [why, whose] : reasons) {
    std::string numbers;
    if (whose.size() < found.forecasts.size())
      for (const size_t number : whose)
        numbers += (numbers.empty() ? " in " : ", ") + std::to_string(number);
    out += wrapped(style, "~ rough" + numbers + ": " + why, 2);
  }
  return out;
}

// Settings that a shell takes as they stand: where a line ends before they do, it says so to it.
std::string settings_text(const report::Style& style, const std::string& name,
                          const std::string& sets) {
  const std::string first = name + ": ";
  const size_t width = static_cast<size_t>(std::max(style.width, 1));
  std::string out, line = first;
  for (size_t at = 0; at < sets.size();) {
    const size_t end = std::min(sets.find(" --", at), sets.size());
    const std::string piece = sets.substr(at, end - at);
    const bool begins = line.size() == first.size();
    const bool last = end == sets.size();
    if (!begins && line.size() + 1 + piece.size() + (last ? 0 : 2) > width) {
      out += line + " \\\n";
      line = std::string(first.size(), ' ') + piece;
    } else {
      line += (begins ? "" : " ") + piece;
    }
    at = end + 1;
  }
  return out + line + "\n";
}

// Sizes of which not even the smallest layout fits, the fastest of them.
std::string families_text(const report::Style& style, const Found& found) {
  std::string out;
  for (const auto& [layout, fits_with] : found.families) {
    const steptime::Memory& memory = layout.memory;
    std::string line = "  too large: " + layout_text(layout) + ", " + bytes_text(memory.peak()) +
                       " of " + bytes_text(found.memory) + " by the model at its smallest";
    const char* before = ": ";
    for (const auto& [name, bytes] : parts_of(memory)) {
      if (bytes <= 0) continue;
      line += before + name + " " + report::human_bytes(bytes);
      before = ", ";
    }
    if (!fits_with.empty()) line += "; fits with " + fits_with;
    out += wrapped(style, line, 4);
  }
  return out;
}

std::string place_text(const Found& found, const Why& why) {
  std::string out =
      why.listed ? "number " + std::to_string(why.before + 1) + " of the list"
      : why.before == found.result.best.size()
          ? "behind the " + std::to_string(why.before) + " of the list"
          : "not in the list, where it would be number " + std::to_string(why.before + 1);
  if (why.listed && why.before == 0) return out;
  const double off = behind(found, *why.layout);
  return out + text::format(", %.1f%% %s the first", 100 * std::abs(off),
                            off >= 0 ? "slower than" : "faster than");
}

// What takes a layout's time and memory, and where it stands; or why it cannot be.
std::string why_text(const report::Style& style, const Found& found, const Why& why) {
  std::string out =
      "\n" + wrapped(style, "Why " + report::printable(why.asked), 0) +
      (why.layout ? wrapped(style,
                            layout_text(*why.layout) + ", micro " + micro_text(*why.layout) +
                                ", recompute " + recompute_word(why.layout->job.recompute) +
                                (why.refused ? "" : ": " + place_text(found, why)),
                            2, /*from_start=*/true)
                  : "");
  if (why.refused) {
    const Error& error = *why.refused;
    out += wrapped(style, code_string(error.code()) + ": " + report::printable(error.message()), 2,
                   /*from_start=*/true);
    for (const std::string& help : error.helps())
      out += wrapped(style, "help: " + report::printable(help), 2, /*from_start=*/true);
  }
  if (!why.forecast) return out;
  const Forecast f = limited(found, *why.forecast);
  out += draw(style, f) + "\n";
  std::vector<std::vector<std::string>> rows = {{"part", "takes"}};
  for (const auto& [name, seconds] : parts_of(f.time.parts))
    if (seconds > 0) rows.push_back({name, report::human_seconds(seconds)});
  if (f.bytes)
    for (const auto& [name, bytes] : parts_of(*f.bytes))
      if (bytes > 0) rows.push_back({name, report::human_bytes(bytes)});
  const size_t right[] = {1};
  return out + report::table(style, rows, right) + "\n" + settings_text(style, "use", why.set);
}

}  // namespace

Forecast limited(const Found& found, Forecast out) {
  out.usable = found.memory;
  return out;
}

double behind(const Found& found, const Layout& layout) {
  return layout.predicted.seconds / found.result.best.front().predicted.seconds - 1;
}

std::string draw(const report::Style& style, const Found& found) {
  std::string out = table_of(style, found) + "\n";
  out += wrapped(style,
                 "tokens/s are of one device, memory of one rank, which may take " +
                     report::human_bytes(std::llround(found.memory)),
                 0);
  if (found.result.best.size() > 1) {
    std::string told = second_text(found);
    if (!told.empty()) told += " ";
    out += wrapped(style, told + crossovers_text(found), 0);
  }
  out += wrapped(style, tight_text(found), 0);
  out += rough_text(style, found) + "\n";
  for (size_t i = 0; i < found.sets.size(); ++i)
    out += settings_text(style, std::to_string(i + 1), found.sets[i]);
  out += "\n" + wrapped(style,
                        report::human_count(found.result.enumerated) + " layouts looked at, " +
                            report::human_count(found.result.fitting) + " may fit, " +
                            report::human_count(found.result.predicted) + " may be the fastest",
                        0);
  for (const auto& [reason, count] : found.result.rejected)
    out += wrapped(style,
                   "  not taken " + report::human_count(count) +
                       (count == 1 ? " time: " : " times: ") + reason,
                   4);
  out += families_text(style, found);
  if (found.why) out += why_text(style, found, *found.why);
  if (found.beside_sets)
    out += "\n" + wrapped(style,
                          "The lines come with the --set of this call: give these to plan and "
                          "train, too.",
                          0);
  return out;
}

// A search's answer for machines.

namespace {

json::object json_of(const Layout& layout, const std::string& use, const Forecast& forecast) {
  const steptime::Job& job = layout.job;
  return {{"layout", layout_text(layout)},
          {"strategy", layout.strategy},
          {"tp", std::llround(job.tp)},
          {"cp", std::llround(job.cp)},
          {"pp", std::llround(job.pp)},
          {"stages_per_rank", std::llround(job.stages)},
          {"schedule", job.pp > 1 ? json::value(std::string(schedule_name(job.schedule)))
                                  : json::value(nullptr)},
          {"options", strings(layout.options)},
          {"ep", std::llround(job.ep)},
          {"dp", std::llround(job.dp())},
          {"dp_replicate", std::llround(job.replicas())},
          {"sequence_parallel", job.tp > 1 && job.sequence_parallel},
          {"micro_batch", std::llround(job.micro_batch)},
          {"micro_batches", std::llround(job.micro_batches)},
          {"recompute", recompute_word(job.recompute)},
          {"use", use},
          {"time", to_json(forecast)}};
}

json::object json_of(const Found& found, const Why& why) {
  json::object out = {{"asked", why.asked},
                      {"layout", nullptr},
                      {"rank", nullptr},
                      {"behind", nullptr},
                      {"refused", nullptr}};
  if (why.layout)
    out["layout"] = json_of(*why.layout, why.set, limited(found, why.forecast.value()));
  if (why.refused) {
    out["refused"] = json::object{{"code", code_string(why.refused->code())},
                                  {"message", why.refused->message()},
                                  {"help", strings(why.refused->helps())}};
  } else {
    out["rank"] = why.before + 1;
    out["behind"] = behind(found, *why.layout);
  }
  return out;
}

}  // namespace

json::object to_json(const Found& found) {
  json::array layouts;
  for (size_t i = 0; i < found.result.best.size(); ++i)
    layouts.push_back(
        json_of(found.result.best[i], found.sets[i], limited(found, found.forecasts[i])));
  json::array families;
  for (const auto& [layout, fits_with] : found.families)
    families.push_back(json::object{
        {"layout", layout_text(layout)},
        {"bytes", std::llround(layout.memory.peak())},
        {"parts", object_of(parts_of(layout.memory))},
        {"fits_with", fits_with.empty() ? json::value(nullptr) : json::value(fits_with)}});
  json::array turns;
  for (const Crossover& crossover : found.crossovers)
    turns.push_back(json::object{{"figures", strings(crossover.figures)},
                                 {"factor", crossover.factor},
                                 {"first", crossover.first}});
  json::object rejected;
  for (const auto& [reason, count] : found.result.rejected) rejected[reason] = count;
  json::object out = {{"layouts", layouts},
                      {"enumerated", found.result.enumerated},
                      {"fitting", found.result.fitting},
                      {"predicted", found.result.predicted},
                      {"rejected", rejected},
                      {"memory", std::llround(found.memory)},
                      {"too_large", families},
                      {"equal", found.result.best.size() > 1 &&
                                    std::abs(found.result.best[1].predicted.seconds /
                                                 found.result.best[0].predicted.seconds -
                                             1) <= 0.03},
                      {"turns", turns}};
  if (found.why) out["why"] = json_of(found, *found.why);
  return out;
}

}  // namespace meshwright::forecast
