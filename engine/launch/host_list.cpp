// Slurm's lists of hosts, and of how many tasks run on each.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "engine/launch/ranks.h"

namespace meshwright::launch {

namespace {

constexpr size_t kMostHosts = 65536;

std::optional<int64_t> whole(std::string_view digits) {
  int64_t out = 0;
  auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
  bool good = error == std::errc() && stop == digits.data() + digits.size() && !digits.empty() &&
              digits[0] != '-' && digits.size() < 10;
  return good ? std::optional(out) : std::nullopt;
}

// At the commas outside brackets; nullopt when brackets do not pair.
std::optional<std::vector<std::string>> split(std::string_view list) {
  std::vector<std::string> out(1);
  bool inside = false;
  for (char c : list) {
    if ((c == '[' && inside) || (c == ']' && !inside)) return std::nullopt;
    if (c == '[' || c == ']') inside = !inside;
    if (c == ',' && !inside)
      out.emplace_back();
    else
      out.back() += c;
  }
  return inside ? std::nullopt : std::optional(out);
}

// Appends what `item` stands for, each after `before`. False when it does not read so, or is too
// many.
bool expand(const std::string& before, std::string_view item, std::vector<std::string>& out) {
  size_t open = item.find('['), close = item.find(']');
  if (open == std::string_view::npos) {
    out.push_back(before + std::string(item));
    return out.size() <= kMostHosts;
  }
  std::string_view inside = item.substr(open + 1, close - open - 1), after = item.substr(close + 1);
  std::string stem = before + std::string(item.substr(0, open));
  for (size_t at = 0, end; at <= inside.size(); at = end + 1) {
    end = std::min(inside.find(',', at), inside.size());
    std::string_view range = inside.substr(at, end - at);
    size_t dash = range.find('-');
    std::string_view first = range.substr(0, dash);
    std::optional<int64_t> low = whole(first), high = dash == std::string_view::npos
                                                          ? low
                                                          : whole(range.substr(dash + 1));
    if (!low || !high || *high < *low) return false;
    for (int64_t i = *low; i <= *high; ++i) {
      std::string digits = std::to_string(i);
      if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
      if (!expand(stem + digits, after, out)) return false;
    }
  }
  return true;
}

}  // namespace

std::optional<std::vector<std::string>> expand_hosts(const std::string& list) {
  std::optional<std::vector<std::string>> items = split(list);
  if (!items) return std::nullopt;
  std::vector<std::string> out;
  for (const std::string& item : *items)
    if (item.empty() || !expand("", item, out)) return std::nullopt;
  return out;
}

std::optional<int64_t> tasks_of_host(const std::string& list, int64_t index) {
  std::optional<std::vector<std::string>> items = split(list);
  if (!items) return std::nullopt;
  for (const std::string& item : *items) {
    size_t times = item.find("(x");
    std::optional<int64_t> tasks = whole(std::string_view(item).substr(0, times)), hosts = 1;
    if (times != std::string::npos)
      hosts = item.ends_with(')')
                  ? whole(std::string_view(item).substr(times + 2, item.size() - times - 3))
                  : std::nullopt;
    if (!tasks || !hosts || *tasks < 1) return std::nullopt;
    if (index < *hosts) return tasks;
    index -= *hosts;
  }
  return std::nullopt;
}

}  // namespace meshwright::launch
