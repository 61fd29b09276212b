// The command line of `doctor`, for the ranks.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/doctor/finding.h"
#include "engine/job/plan.h"

namespace meshwright::doctor {

struct Request {
  std::string file;  // CONFIG.toml; empty: none, one flat group of all ranks
  std::vector<std::string> sets = {};
  std::string run_folder = {};  // empty: run.dir of the file
  bool json = false;
  int width = 80;
  bool colour = false, unicode = true;
};

// Measures what this host has. Local: talks to nobody.

Versions look_at_versions();
// `root` is another folder only in tests.
Cores look_at_cores(int64_t local_ranks, int64_t threads, const std::filesystem::path& root = "/");
// `plan` null: `why_none` says why.
Memory look_at_memory(int64_t local_ranks, const plan::JobPlan* plan, const std::string& why_none,
                      const std::filesystem::path& root = "/");
// `hosted`: the groups of a rank here.
SharedMemory look_at_shared_memory(int64_t local_ranks, bool one_host, const plan::JobPlan* plan,
                                   const std::string& why_none,
                                   const std::vector<HostedGroup>& hosted = {});
OpenFiles look_at_open_files(int64_t ranks, int64_t axes,
                             const std::vector<HostedGroup>& hosted = {});
// Writes up to 32 MiB, synced, for at most so long, into a file that has no name and so cannot stay
// behind. A folder that is not there is not made: the next one on its path that is there is tried.
Disk look_at_disk(const std::filesystem::path& folder, std::chrono::milliseconds longest);
// What the kernel says of the clock of this host.
Clock look_at_clock();
// Resolves this host's own name.
HostName look_at_host_name(bool one_host);
// The ports that the kernel gives out: first and last.
Ports look_at_ports(const std::filesystem::path& root = "/");

}  // namespace meshwright::doctor
