// Reading the variables that launchers set, with errors that name the variable at fault.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/launch/ranks.h"

namespace meshwright::launch {

constexpr int64_t kMost = int64_t{1} << 22;

class Reader {
 public:
  explicit Reader(const Lookup& lookup) : lookup_(lookup) {}
  // An empty variable counts as one that is not set.
  std::optional<std::string> text(const std::string& name) const;
  bool has(const std::string& name) const { return text(name).has_value(); }
  std::optional<int64_t> number(const std::string& name, int64_t low, int64_t high) const;
  int64_t need(const std::string& name, int64_t low, int64_t high,
               const std::string& because) const;
  // Throws Error(bad_rank_environment).
  [[noreturn]] static void fail(const std::string& name, const std::string& what);

 private:
  const Lookup& lookup_;
};

// The names that a launcher has for the four numbers; nullptr where it has none.
struct Names {
  const char *rank, *world, *local_rank, *local_world;
};
inline constexpr Names kPlain = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};

// Throws Error(bad_rank_environment) when the four numbers cannot be true together.
void check(const RankEnvironment& e, const Names& names);

// MESHWRIGHT_PORT_RANGE. Throws Error(bad_rank_environment).
PortRange ports_of(const Reader& read);
// Where the ranks of a job meet whose launcher names no MASTER_PORT, by the job's number: in the
// first half of the range, else below the ports that the kernel gives out.
int port_of_job(const Reader& read, int64_t number);

// Launchers other than torchrun, plain variables and Slurm (launchers.cpp).
std::optional<RankEnvironment> from_launchers(const Reader& read);
// What such a launcher calls the job; empty: nothing.
std::string name_of_launchers_job(const Reader& read);
// Whether one of these launchers says another rank or size: then the process was not started by the
// one that says `rank` and `world`.
bool differs_from_launchers(const Reader& read, int64_t rank, int64_t world);

}  // namespace meshwright::launch
