#include "engine/job/helps.h"

#include <algorithm>
#include <charconv>
#include <regex>
#include <utility>

#include "sdk/base/words.h"

namespace meshwright::plan {
namespace {

// Sizes that are tried, and those that are named.
constexpr size_t kMostTried = 8, kMostNamed = 3;

// What the job has of the size that `key` names; nullopt: it is no size.
std::optional<int64_t> size_of(const std::string& key, const ParallelSizes& sizes) {
  const std::pair<const char*, int64_t> known[] = {
      {"distributed.tp_size", sizes.tp},
      {"distributed.cp_size", sizes.cp},
      {"distributed.pp_size", sizes.pp},
      {"distributed.ep_size", sizes.ep},
      {"distributed.dp_replicate_size", sizes.dp_replicate}};
  for (const auto& [name, size] : known)
    if (key == name) return std::max<int64_t>(size, 1);
  return std::nullopt;
}

}  // namespace

std::vector<std::string> settings_in(const std::string& help) {
  // The value ends at a blank, a comma, a colon or a bracket: what it comes to may follow.
  static const std::regex setting(R"re(([a-z_]+(?:\.[a-z0-9_]+)+) = ("[^"]*"|[^\s,;:()\[\]]+))re");
  std::vector<std::string> out;
  if (!help.starts_with("set ")) return out;
  for (std::sregex_iterator it(help.begin(), help.end(), setting), end; it != end; ++it)
    out.push_back((*it)[1].str() + "=" + (*it)[2].str());
  return out;
}

std::optional<int64_t> world_in(const std::string& help) {
  const std::string start = "use a world size of ";
  if (!help.starts_with(start)) return std::nullopt;
  int64_t out = 0;
  const char *begin = help.data() + start.size(), *end = help.data() + help.size();
  const auto [at, failed] = std::from_chars(begin, end, out);
  return failed == std::errc() && at == end && out > 0 ? std::optional(out) : std::nullopt;
}

Error with_tried_help(const Error& error, const ParallelSizes& sizes, int64_t world,
                      const IsPlanned& is_planned) {
  std::vector<std::string> kept;
  size_t tried = 0, planned = 0;
  for (const std::string& help : error.helps()) {
    const std::vector<std::string> sets = settings_in(help);
    const std::optional<int64_t> other = world_in(help);
    if (!sets.empty() || other) {
      ++tried;
      if (!is_planned(sets, other.value_or(world))) continue;
      ++planned;
    }
    kept.push_back(help);
  }
  if (planned == tried) return error;
  if (const std::optional<int64_t> asked = size_of(error.key(), sizes); planned == 0 && asked) {
    std::vector<int64_t> others = text::divisors_near(world, *asked);
    std::erase(others, *asked);
    if (others.size() > kMostTried) others.resize(kMostTried);
    for (const int64_t size : others) {
      if (planned == kMostNamed) break;
      const std::string value = std::to_string(size);
      if (!is_planned({error.key() + "=" + value}, world)) continue;
      kept.insert(kept.begin() + static_cast<std::ptrdiff_t>(planned),
                  "set " + error.key() + " = " + value);
      ++planned;
    }
  }
  if (planned == 0) return error;
  Error out(error.code(), error.message());
  out.key(error.key()).at(error.origin());
  for (const std::string& key : error.keys())
    if (key != error.key()) out.about(key);
  for (const std::string& help : kept) out.help(help);
  for (const std::string& note : error.notes()) out.note(note);
  return out;
}

}  // namespace meshwright::plan
