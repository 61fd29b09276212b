#include "apps/doctor/links.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <boost/json/value_from.hpp>
#include <cmath>
#include <set>

namespace meshwright::doctor {

namespace json = boost::json;

namespace {

// Beyond so many one pair after another would take too long.
constexpr int64_t kOneByOne = 6;

json::value or_null(const std::optional<double>& value) {
  return value ? json::value(std::llround(*value)) : json::value(nullptr);
}
}  // namespace

double Link::slowest() const {
  if (there && back) return std::min(*there, *back);
  return there.value_or(back.value_or(0));
}

int64_t Hosts::count() const { return std::ssize(leaders()); }

std::vector<int64_t> Hosts::leaders() const {
  const std::set<int64_t> all(first.begin(), first.end());
  return {all.begin(), all.end()};
}

std::string Hosts::of(int64_t rank) const {
  const std::string name = "rank " + std::to_string(rank);
  return count() > 1 ? name + " (" + names.at(static_cast<size_t>(rank)) + ")" : name;
}

std::vector<std::vector<std::pair<int64_t, int64_t>>> rounds_of(int64_t members) {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> out;
  if (members <= kOneByOne) {
    for (int64_t a = 0; a < members; ++a)
      for (int64_t b = a + 1; b < members; ++b) out.push_back({{a, b}});
    return out;
  }
  // The last one stays while the others go round; of an odd number, it is nobody.
  const int64_t n = members + members % 2;
  for (int64_t round = 0; round < n - 1; ++round) {
    std::vector<std::pair<int64_t, int64_t>>& pairs = out.emplace_back();
    auto add = [&](int64_t a, int64_t b) {
      if (a < members && b < members) pairs.emplace_back(std::min(a, b), std::max(a, b));
    };
    add(round, n - 1);
    for (int64_t i = 1; i < n / 2; ++i) add((round + i) % (n - 1), (round - i + n - 1) % (n - 1));
  }
  return out;
}

const Link* slowest_of(std::span<const Link> links) {
  const Link* out = nullptr;
  for (const Link& link : links)
    if (link.slowest() > 0 && (out == nullptr || link.slowest() < out->slowest())) out = &link;
  return out;
}

std::string slow_way(const Link& link, const Hosts& hosts) {
  const bool back = link.there && link.back && *link.back < *link.there;
  return hosts.of(back ? link.to : link.from) + " -> " + hosts.of(back ? link.from : link.to);
}

Finding judge(std::span<const Link> links, const Hosts& hosts) {
  const Link* slow = slowest_of(links);
  if (slow == nullptr) return Finding::unknown("links", "no pair of ranks was measured");
  Finding out{"links", Level::ok,
              "slowest: " + slow_way(*slow, hosts) + ", " + rate_text(slow->slowest()) + ", " +
                  time_text(slow->latency) + " one way"};
  std::vector<double> rates;
  for (const Link& link : links)
    for (const std::optional<double>& rate : {link.there, link.back})
      if (rate) rates.push_back(*rate);
  std::sort(rates.begin(), rates.end());
  const double usual = rates[rates.size() / 2];
  // One link alone has only its other direction to be held against.
  const double far = links.size() > 1 ? 2 : 4;
  if (hosts.count() < 2 || slow->slowest() > usual / far) return out;
  out.level = Level::warning;
  out.text +=
      (far == 2 ? ": less than half of the usual " : ": less than a quarter of the way back's ") +
      rate_text(usual) + ", and the slowest link sets the pace of all ranks";
  out.fix =
      "look at cable, switch port and link speed there (ethtool), at other traffic, or choose "
      "another interface: dist_env.interface";
  return out;
}

json::object to_json(const Link& link) {
  return {{"from", link.from},
          {"to", link.to},
          {"latency_us", link.latency * 1e6},
          {"bytes_per_second", or_null(link.there)},
          {"bytes_per_second_back", or_null(link.back)}};
}

json::object to_json(const Collective& c) {
  return {{"axis", c.axis},
          {"op", c.op},
          {"over", c.over},
          {"ranks", c.ranks},
          {"latency_us", c.latency * 1e6},
          {"bytes", c.bytes},
          {"seconds", c.seconds},
          {"bytes_per_second", std::llround(c.rate())},
          {"slowest_ranks", json::value_from(c.slowest)}};
}

}  // namespace meshwright::doctor
