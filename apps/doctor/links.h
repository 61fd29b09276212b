// How times and rates read.
#pragma once

#include <boost/describe/class.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/doctor/finding.h"
#include "sdk/base/plain_text.h"

namespace meshwright::doctor {

// "11.7 MB/s", "2.35 GB/s": of networks, whose makers count in tens.
inline std::string rate_text(double bytes_per_second) {
  if (bytes_per_second >= 1e9) return text::format("%.3g GB/s", bytes_per_second / 1e9);
  return text::format("%.3g MB/s", bytes_per_second / 1e6);
}

// "31 us", "2.4 ms", "1.2 s"
inline std::string time_text(double seconds) {
  if (seconds < 1e-3) return text::format("%.3g us", seconds * 1e6);
  if (seconds < 1) return text::format("%.3g ms", seconds * 1e3);
  return text::format("%.3g s", seconds);
}

// What was measured between ranks, and what follows from it.

// Two ranks that took turns.
struct Link {
  int64_t from = 0, to = 0;  // ranks
  double latency = 0;        // seconds one way, half the shortest way there and back
  std::optional<double> there = {}, back = {};  // bytes a second
  // The clock of `to` against that of `from`, with the most that it may be wrong, at two moments.
  double ahead = 0, error = 0, at = 0, later_ahead = 0, later_error = 0, later_at = 0;
  double slowest() const;  // bytes a second; 0: not known
};
BOOST_DESCRIBE_STRUCT(Link, (),
                      (from, to, latency, there, back, ahead, error, at, later_ahead, later_error,
                       later_at))

// One collective of all groups of an axis at once, as runs have them.
struct Collective {
  std::string axis, op, over;         // over: "shared memory", "sockets", "both", "NCCL"
  int64_t ranks = 0;                  // of a group
  double latency = 0;                 // seconds, of a message of 4 KiB
  int64_t bytes = 0;                  // that each rank has to send at least
  double seconds = 0;                 // that took
  std::vector<int64_t> slowest = {};  // the group that took longest
  double rate() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};
BOOST_DESCRIBE_STRUCT(Collective, (), (axis, op, over, ranks, latency, bytes, seconds, slowest))

// Where ranks are.
struct Hosts {
  std::vector<std::string> names;  // of each rank's
  std::vector<int64_t> first;      // the first rank on each rank's host
  int64_t count() const;
  std::vector<int64_t> leaders() const;  // the first rank of each host
  std::string of(int64_t rank) const;    // "rank 2 (hostb)", without the host where there is one
};

// Who measures with whom, in rounds of pairs that share no member: all pairs of so many once. Few
// take their turns one by one, so that none is in another's way.
std::vector<std::vector<std::pair<int64_t, int64_t>>> rounds_of(int64_t members);

// The one whose slower direction is the slowest; nullptr: none was measured.
const Link* slowest_of(std::span<const Link> links);
// "hosta -> hostb": the slower direction.
std::string slow_way(const Link& link, const Hosts& hosts);
Finding judge(std::span<const Link> links, const Hosts& hosts);

boost::json::object to_json(const Link& link);
boost::json::object to_json(const Collective& collective);

}  // namespace meshwright::doctor
