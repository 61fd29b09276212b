#include <boost/json/array.hpp>
#include <cmath>

#include "apps/performance/forecast/forecast.h"
#include "sdk/base/plain_text.h"

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
  const std::string table = report::table(narrow, rows);
  for (size_t at = 0; at < table.size();) {
    const size_t end = std::min(table.find('\n', at), table.size());
    out += "  " + table.substr(at, end - at) + "\n";
    at = end + 1;
  }
  add(parts);
  for (const std::string& why : f.rough) add("rough: " + why);
  return out;
}

json::object to_json(const Forecast& f) {
  json::object parts, bytes;
  for (const auto& [name, seconds] : parts_of(f.time.parts)) parts[name] = seconds;
  if (f.bytes)
    for (const auto& [name, count] : parts_of(*f.bytes)) bytes[name] = count;
  json::array rough, guessed;
  for (const std::string& why : f.rough) rough.emplace_back(why);
  for (const std::string& key : f.machine.guessed) guessed.emplace_back(key);
  return {{"machine", json::object{{"name", f.machine.name},
                                   {"ranks_per_host", std::llround(f.job.ranks_per_host)},
                                   {"guessed", guessed}}},
          {"seconds", f.time.seconds},
          {"parts", parts},
          {"tokens_per_second_per_device", f.tokens_a_second},
          {"mfu", f.mfu},
          {"slowest", json_of(f.slowest)},
          {"memory", json::object{{"bytes", std::llround(f.memory)},
                                  {"parts", f.bytes ? json::value(bytes) : json::value(nullptr)},
                                  {"host", std::llround(f.host_memory)},
                                  {"fullest", json_of(f.fullest)},
                                  {"usable", std::llround(f.usable)},
                                  {"room", f.room()},
                                  {"fits", f.room() >= 0},
                                  {"fit", f.fit()}}},
          {"bound", json::object{{"part", f.bound}, {"share", f.bound_share}}},
          {"rough", rough}};
}

}  // namespace meshwright::forecast
