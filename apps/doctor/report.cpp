#include "apps/doctor/report.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/value_from.hpp>
#include <map>

#include "apps/doctor/links.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::doctor {

namespace json = boost::json;

namespace {

report::Tone tone_of(Level level) {
  using enum report::Tone;
  constexpr report::Tone kTones[] = {green, cyan, yellow, red};  // in the order of Level
  return kTones[static_cast<size_t>(level)];
}

std::string numbers(const std::vector<int64_t>& ranks) {
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min<size_t>(ranks.size(), 8); ++i)
    words.push_back(std::to_string(ranks[i]));
  if (ranks.size() > 8) words.push_back("and " + std::to_string(ranks.size() - 8) + " more");
  return text::join(words, ", ");
}

// So many lines of one topic are shown where all is well.
constexpr int64_t kAlike = 4;

std::string rate_or(const std::optional<double>& rate) { return rate ? rate_text(*rate) : "n/a"; }

}  // namespace

void Report::add(const std::vector<std::vector<Finding>>& by_rank) {
  std::vector<std::string> topics;
  for (const std::vector<Finding>& findings : by_rank)
    for (const Finding& finding : findings)
      if (std::find(topics.begin(), topics.end(), finding.topic) == topics.end())
        topics.push_back(finding.topic);
  for (const std::string& topic : topics) {
    const size_t begin = lines.size();
    for (size_t rank = 0; rank < by_rank.size(); ++rank)
      for (const Finding& finding : by_rank[rank]) {
        if (finding.topic != topic) continue;
        auto same = std::find_if(lines.begin() + static_cast<ptrdiff_t>(begin), lines.end(),
                                 [&](const Line& line) { return line.finding == finding; });
        if (same == lines.end()) same = lines.insert(lines.end(), Line{finding, {}});
        same->ranks.push_back(static_cast<int64_t>(rank));
      }
    // One of a kind is everywhere.
    if (lines.size() == begin + 1) lines.back().ranks.clear();
  }
}

int Report::exit_status() const {
  std::vector<Finding> all;
  for (const Line& line : lines) all.push_back(line.finding);
  const Finding* worst = worst_fault(all);
  return worst == nullptr ? 0 : meshwright::exit_status(worst->code.value_or(ErrorCode::internal));
}

std::string Report::where(const Line& line) const {
  if (line.ranks.empty()) return "";
  const std::string& host = hosts.names.at(static_cast<size_t>(line.ranks.front()));
  const bool one_host = std::all_of(line.ranks.begin(), line.ranks.end(), [&](int64_t rank) {
    return hosts.names.at(static_cast<size_t>(rank)) == host;
  });
  if (one_host && hosts.count() > 1) return host;
  return (line.ranks.size() == 1 ? "rank " : "ranks ") + numbers(line.ranks);
}

std::string Report::text(const report::Style& style) const {
  std::vector<std::vector<std::string>> rows = {{"", "", "finding"}};
  std::map<std::string, int64_t> good;
  for (const Line& line : lines) {
    // Of many hosts that differ in numbers alone.
    if (line.finding.level == Level::ok && ++good[line.finding.topic] > kAlike) continue;
    const std::string place = where(line), &fix = line.finding.fix;
    std::string said = (place.empty() ? "" : place + ": ") + line.finding.text;
    if (line.finding.code) said += " [" + code_string(*line.finding.code) + "]";
    if (!fix.empty()) said += ". FIX: " + fix;
    rows.push_back(
        {line.finding.topic,
         report::paint(style, tone_of(line.finding.level), level_name(line.finding.level)),
         report::printable(said)});
  }
  std::string out = report::table(style, rows);
  for (const auto& [topic, count] : good)
    if (count > kAlike)
      out += topic + ": " + std::to_string(count - kAlike) + " more are ok; --json has them\n";
  if (!links.empty()) {
    rows = {{"link", "latency", "bandwidth", "back"}};
    const Link* slow = slowest_of(links);
    for (const Link& link : links) {
      rows.push_back({hosts.of(link.from) + " -> " + hosts.of(link.to), time_text(link.latency),
                      rate_or(link.there), rate_or(link.back)});
      if (links.size() > 1) rows.back().emplace_back(&link == slow ? "slowest" : "");
    }
    if (links.size() > 1) rows[0].emplace_back("");
    constexpr size_t kRight[] = {1, 2, 3};
    out += "\n" + report::table(style, rows, kRight) +
           "over sockets or NCCL; latency: half the shortest way there and back; bandwidth: there, "
           "and back\n";
  }
  if (!collectives.empty()) {
    rows = {{"axis", "ranks", "collective", "over", "latency", "bandwidth", "slowest"}};
    for (const Collective& c : collectives)
      rows.push_back({c.axis, std::to_string(c.ranks), c.op,
                      c.over == "shared memory" ? "memory" : c.over, time_text(c.latency),
                      rate_text(c.rate()),
                      std::ssize(c.slowest) == std::ssize(hosts.names)
                          ? ""
                          : (c.slowest.empty() ? "" : "ranks ") + numbers(c.slowest)});
    constexpr size_t kRight[] = {1, 4, 5};
    out +=
        "\n" + report::table(style, rows, kRight) +
        "memory: shared by the ranks of a host; both: that, and sockets between hosts; latency: of "
        "4 KiB\n"
        "bandwidth: bytes that a rank has to send at least, by the time that it takes\n";
  }
  if (!unmeasured.empty()) out += "\n" + report::printable(unmeasured) + "\n";
  std::map<Level, int64_t> counts;
  for (const Line& line : lines) ++counts[line.finding.level];
  const std::string took = text::format("%.1f s", seconds);
  out += "\n" + report::counted(counts[Level::fault], "fault", "faults") + ", " +
         report::counted(counts[Level::warning], "warning", "warnings") + ", " +
         report::counted(counts[Level::note], "note", "notes") + " on " +
         report::counted(std::ssize(hosts.names), "rank", "ranks") + " of " +
         report::counted(hosts.count(), "host", "hosts") + " in " + took + "\n";
  return out;
}

json::object Report::json() const {
  json::array found, between, over, where_ranks_are;
  for (const Line& line : lines) {
    json::object one = to_json(line.finding);
    if (line.ranks.empty())
      one["ranks"] = nullptr;
    else
      one["ranks"] = json::value_from(line.ranks);
    found.push_back(std::move(one));
  }
  auto link_json = [&](const Link& link) {
    json::object one = to_json(link);
    one["from_host"] = hosts.names.at(static_cast<size_t>(link.from));
    one["to_host"] = hosts.names.at(static_cast<size_t>(link.to));
    return one;
  };
  for (const Link& link : links) between.push_back(link_json(link));
  for (const Collective& c : collectives) over.push_back(to_json(c));
  for (int64_t leader : hosts.leaders()) {
    std::vector<int64_t> ranks;
    for (size_t r = 0; r < hosts.first.size(); ++r)
      if (hosts.first[r] == leader) ranks.push_back(static_cast<int64_t>(r));
    where_ranks_are.push_back(json::object{{"name", hosts.names.at(static_cast<size_t>(leader))},
                                           {"ranks", json::value_from(ranks)}});
  }
  const Link* slow = slowest_of(links);
  json::object out{{"world_size", std::ssize(hosts.names)},
                   {"hosts", std::move(where_ranks_are)},
                   {"findings", std::move(found)},
                   {"links", std::move(between)},
                   {"slowest_link", nullptr},
                   {"collectives", std::move(over)},
                   {"unmeasured", nullptr},
                   {"seconds", seconds},
                   {"exit", exit}};
  if (slow != nullptr) out["slowest_link"] = link_json(*slow);
  if (!unmeasured.empty()) out["unmeasured"] = unmeasured;
  return out;
}

}  // namespace meshwright::doctor
