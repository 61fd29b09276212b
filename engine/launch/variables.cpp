#include "engine/launch/variables.h"

#include <charconv>

#include "meshwright/error.h"

namespace meshwright::launch {

std::optional<std::string> Reader::text(const std::string& name) const {
  std::optional<std::string> value = lookup_(name);
  return value && value->empty() ? std::nullopt : value;
}

std::optional<int64_t> Reader::number(const std::string& name, int64_t low, int64_t high) const {
  std::optional<std::string> value = text(name);
  if (!value) return std::nullopt;
  int64_t out = 0;
  const char* end = value->data() + value->size();
  auto [stop, error] = std::from_chars(value->data(), end, out);
  if (error != std::errc() || stop != end || out < low || out > high)
    fail(name, name + " = \"" + *value + "\" is not a whole number from " + std::to_string(low) +
                   " to " + std::to_string(high));
  return out;
}

int64_t Reader::need(const std::string& name, int64_t low, int64_t high,
                     const std::string& because) const {
  if (std::optional<int64_t> value = number(name, low, high)) return *value;
  fail(name, name + " is not set, but " + because);
}

PortRange ports_of(const Reader& read) {
  const std::optional<std::string> value = read.text("MESHWRIGHT_PORT_RANGE");
  if (!value) return {};
  PortRange out;
  const char* end = value->data() + value->size();
  const auto [dash, bad_first] = std::from_chars(value->data(), end, out.first);
  if (bad_first == std::errc() && dash != end && *dash == '-') {
    const auto [stop, bad_last] = std::from_chars(dash + 1, end, out.last);
    if (bad_last == std::errc() && stop == end && out.first >= 1 && out.first <= out.last &&
        out.last <= 65535)
      return out;
  }
  throw Error(ErrorCode::bad_rank_environment,
              "MESHWRIGHT_PORT_RANGE = \"" + *value +
                  "\" is no range of ports: two numbers from 1 to 65535, the lower first")
      .help("set MESHWRIGHT_PORT_RANGE, on all ranks, to such as 29500-29599, or unset it");
}

int port_of_job(const Reader& read, int64_t number) {
  const PortRange ports = ports_of(read).to_meet();
  return static_cast<int>(ports.limited() ? ports.first + number % ports.count()
                                          : 20000 + number % 12000);
}

void Reader::fail(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::bad_rank_environment, what)
      .help("let the launcher set " + name)
      .help(
          "or unset the launcher's variables, and start local ranks with `meshwright train FILE "
          "--nproc N`");
}

void check(const RankEnvironment& e, const Names& names) {
  auto below = [](const char* name, int64_t value, const char* limit_name, int64_t limit) {
    if (value >= limit)
      Reader::fail(name, std::string(name) + " = " + std::to_string(value) + " is not below " +
                             limit_name + " = " + std::to_string(limit));
  };
  below(names.rank, e.rank, names.world, e.world_size);
  const char* local_world = names.local_world ? names.local_world : "the number of local ranks";
  if (e.local_world_size > e.world_size)
    Reader::fail(local_world, std::string(local_world) + " = " +
                                  std::to_string(e.local_world_size) + " is more than " +
                                  names.world + " = " + std::to_string(e.world_size));
  if (names.local_rank) below(names.local_rank, e.local_rank, local_world, e.local_world_size);
}

}  // namespace meshwright::launch
