#include "apps/doctor/finding.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/job/before_start.h"
#include "engine/launch/spawn.h"
#include "engine/plugins/registry.h"
#include "meshwright/abi.h"
#include "sdk/base/host_facts.h"

namespace meshwright::doctor {

namespace {

namespace fs = std::filesystem;

int64_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0
             ? CPU_COUNT(&set)
             : static_cast<int64_t>(std::thread::hardware_concurrency());
}

// "100000 100000" or "max 100000" of the second version, two files of the first.
std::optional<double> quota_in(const fs::path& folder) {
  double quota = 0, period = 0;
  if (std::ifstream in(folder / "cpu.max"); in >> quota >> period && quota > 0 && period > 0)
    return quota / period;
  std::ifstream first(folder / "cpu.cfs_quota_us"), second(folder / "cpu.cfs_period_us");
  if (first >> quota && second >> period && quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

// The smallest from this process's cgroup up to the root of the hierarchy. A container sees its own
// cgroup as the root whatever the path says.
std::optional<double> cpu_quota(const fs::path& root) {
  std::optional<double> out;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'),
                 second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",cpu,") == std::string::npos) continue;
    const fs::path hierarchy = root / (unified ? "sys/fs/cgroup" : "sys/fs/cgroup/cpu");
    for (fs::path group = fs::path(line.substr(second + 1)).relative_path();;
         group = group.parent_path()) {
      const std::optional<double> quota = quota_in(hierarchy / group);
      if (quota && (!out || *quota < *out)) out = quota;
      if (group.empty()) break;
    }
  }
  return out;
}

}  // namespace

Versions look_at_versions() {
  const auto& facts = loader::engine_facts();
  auto fact = [&](const char* key) {
    auto it = facts.find(key);
    return it == facts.end() ? std::string("n/a") : it->second;
  };
  return {MESHWRIGHT_VERSION, fact("torch.version"), fact("torch.cuda"), fact("torch.c10d")};
}

Cores look_at_cores(int64_t local_ranks, int64_t threads, const fs::path& root) {
  return {static_cast<int64_t>(::sysconf(_SC_NPROCESSORS_ONLN)), usable_cores(), cpu_quota(root),
          local_ranks, threads};
}

Memory look_at_memory(int64_t local_ranks, const plan::JobPlan* plan, const std::string& why_none,
                      const fs::path& root) {
  const plan::HostMemory host = plan::host_memory(root);
  Memory out{host.bytes, host.limit};
  std::ifstream info(root / "proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    int64_t kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %" SCNd64, &kib) == 1)
      out.available = std::min(kib * 1024, host.bytes);
  }
  out.local_ranks = local_ranks;
  out.no_plan = why_none;
  if (plan != nullptr && plan->footprint) {
    const plan::MemoryNeed need = plan::memory_need(plan->footprint->bytes);
    out.kept = need.kept;
    out.peak = need.peak;
  }
  return out;
}

SharedMemory look_at_shared_memory(int64_t local_ranks, bool one_host, const plan::JobPlan* plan,
                                   const std::string& why_none,
                                   const std::vector<HostedGroup>& hosted) {
  SharedMemory out;
  out.hosted = hosted_groups_need(hosted, local_ranks);
  struct statvfs space{};
  if (::statvfs("/dev/shm", &space) != 0)
    out.problem = std::strerror(errno);
  else if (::access("/dev/shm", W_OK | X_OK) != 0)
    out.problem = std::strerror(errno);
  out.total = static_cast<int64_t>(space.f_blocks * space.f_frsize);
  out.free = static_cast<int64_t>(space.f_bavail * space.f_frsize);
  const char* setting = std::getenv("MESHWRIGHT_SHARED_MEMORY");
  out.off = setting != nullptr && std::string_view(setting) == "0";
  out.local_ranks = local_ranks;
  if (plan == nullptr || !plan->footprint) {
    out.no_need = why_none;
  } else if (plan->mesh.fsdp_axes.empty() || !plan->mesh.device_mesh) {
    out.no_need = "this strategy keeps no shards; its sums take 1.5 MiB a rank";
  } else if (!one_host) {
    out.no_need = "groups of shards span hosts";
  } else {
    int64_t largest = 0;
    for (const UnitCost& unit : plan->footprint->units)
      largest = std::max(largest, unit.padded_bytes);
    const int64_t need = shared_memory_need(
        largest, plan->mesh.device_mesh->size(plan->mesh.fsdp_axes.back(), local_ranks));
    if (need > 0)
      out.need = need;
    else
      out.no_need = "no rank here keeps shards of another";
  }
  return out;
}

OpenFiles look_at_open_files(int64_t ranks, int64_t axes, const std::vector<HostedGroup>& hosted) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto most = static_cast<rlim_t>(std::numeric_limits<int64_t>::max());
  return {static_cast<int64_t>(std::min(limit.rlim_max, most)), ranks, axes, hosted};
}

Clock look_at_clock() {
  Clock out;
  struct timex state{};
  if (::adjtimex(&state) >= 0) out.synchronised = (state.status & STA_UNSYNC) == 0;
  return out;
}

HostName look_at_host_name(bool one_host) {
  HostName out;
  out.name = host_name();
  out.one_host = one_host;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const auto begin = std::chrono::steady_clock::now();
  const int failed = ::getaddrinfo(out.name.c_str(), nullptr, &hints, &found);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (failed != 0) {
    out.problem = failed == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(failed);
    return out;
  }
  char text[NI_MAXHOST] = "";
  ::getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  out.address = text;
  return out;
}

Ports look_at_ports(const fs::path& root) {
  Ports out;
  std::ifstream in(root / "proc/sys/net/ipv4/ip_local_port_range");
  if (!(in >> out.first >> out.last)) out.first = out.last = 0;
  return out;
}

namespace {

using Steady = std::chrono::steady_clock;

constexpr size_t kPiece = size_t{4} << 20;
constexpr int64_t kMost = int64_t{32} << 20;

// A file of that folder without a name, or whose name is gone before it holds anything. Returns -1
// with errno.
int open_nameless(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  std::string name = (folder / ".meshwright_doctor_XXXXXX").string();
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

Disk look_at_disk(const fs::path& folder, std::chrono::milliseconds longest) {
  Disk out;
  out.folder = folder.string();
  std::error_code failed;
  fs::path tried = fs::absolute(folder, failed).lexically_normal();
  while (!fs::exists(tried, failed) && !failed && tried.has_relative_path())
    tried = tried.parent_path();
  out.tried =
      tried == fs::absolute(folder, failed).lexically_normal() ? out.folder : tried.string();
  if (!fs::is_directory(tried, failed)) {
    out.problem = tried.string() + " is not a folder";
    return out;
  }
  const launch::Descriptor file(open_nameless(tried));
  if (file.get() < 0) {
    out.problem = "cannot write into " + tried.string() + ": " + std::strerror(errno);
    return out;
  }
  struct statvfs space{};
  if (::fstatvfs(file.get(), &space) == 0)
    out.free = static_cast<int64_t>(space.f_bavail * space.f_frsize);
  // What no file system can make smaller, or leave out.
  std::vector<uint64_t> piece(kPiece / sizeof(uint64_t));
  uint64_t state = 0x9e3779b97f4a7c15;
  for (uint64_t& word : piece) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    word = state;
  }
  const Steady::time_point begin = Steady::now();
  while (out.written < kMost && Steady::now() - begin < longest) {
    const ssize_t put = ::write(file.get(), piece.data(), kPiece);
    if (put < 0 || ::fdatasync(file.get()) != 0) {
      out.problem = "cannot write into " + tried.string() + ": " + std::strerror(errno);
      return out;
    }
    out.written += put;
    out.seconds = std::chrono::duration<double>(Steady::now() - begin).count();
  }
  return out;
}

}  // namespace meshwright::doctor
