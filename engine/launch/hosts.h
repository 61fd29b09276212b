// Slurm's short ways to write lists.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace meshwright::launch {

// "node[003-004,7],login" -> node003, node004, node7, login; several brackets multiply. At most
// 65536 names. nullopt when the list does not read so.
std::optional<std::vector<std::string>> expand_hosts(const std::string& list);

// "4(x2),3": tasks on each host, run-length encoded -> those of host `index` (from 0); nullopt when
// it does not read so or ends before.
std::optional<int64_t> tasks_of_host(const std::string& list, int64_t index);

}  // namespace meshwright::launch
