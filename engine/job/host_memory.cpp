// What the ranks of a host need, against what it has: a rank that the kernel kills says nothing.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "engine/job/before_start.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::plan {
namespace {

namespace fs = std::filesystem;

// What a rank needs beside its tensors: the program and LibTorch (a lone rank of a model of 0.1 MB
// peaks at 163 MiB), its threads and its end of the connections.
constexpr int64_t kProcess = int64_t{200} << 20;
// From this part of the memory on, files in the page cache and other programs matter.
constexpr double kNear = 0.9;

// The number in a file that holds nothing else; "max" and unreadable files are no bound.
std::optional<int64_t> number_in(const fs::path& path) {
  std::ifstream in(path);
  int64_t value = 0;
  if (!(in >> value) || value <= 0) return std::nullopt;
  return value;
}

// The smallest limit from `group` up to the root of the hierarchy. A container sees its own cgroup
// as the root whatever the path says, so the root is asked too.
std::optional<int64_t> smallest_limit(const fs::path& hierarchy, std::string group,
                                      const char* file) {
  std::optional<int64_t> out;
  while (true) {
    std::string relative = group.substr(group.find_first_not_of('/') == std::string::npos
                                            ? group.size()
                                            : group.find_first_not_of('/'));
    if (std::optional<int64_t> limit = number_in(hierarchy / relative / file);
        limit && (!out || *limit < *out))
      out = limit;
    if (relative.empty()) return out;
    size_t slash = relative.rfind('/');
    group = slash == std::string::npos ? "" : relative.substr(0, slash);
  }
}

std::string gib(int64_t bytes) { return report::human_bytes(bytes); }

std::string counted_ranks(int64_t ranks) { return report::counted(ranks, "rank", "ranks"); }

}  // namespace

HostMemory host_memory(const fs::path& root) {
  HostMemory out;
  std::ifstream info(root / "proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    int64_t kib = 0;
    if (std::sscanf(line.c_str(), "MemTotal: %" SCNd64, &kib) == 1 ||
        std::sscanf(line.c_str(), "SwapTotal: %" SCNd64, &kib) == 1)
      out.bytes += kib * 1024;
  }
  out.limit = "this machine has";
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    size_t first = line.find(':'),
           second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1),
                group = line.substr(second + 1);
    std::optional<int64_t> limit;
    if (controllers.empty()) limit = smallest_limit(root / "sys/fs/cgroup", group, "memory.max");
    if (("," + controllers + ",").find(",memory,") != std::string::npos)
      limit = smallest_limit(root / "sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
    if (limit && (out.bytes == 0 || *limit < out.bytes))
      out = {*limit, "the memory cgroup of this process allows"};
  }
  return out;
}

void check_room_of_ranks(int64_t ranks, const HostMemory& memory, const std::string& flag) {
  const int64_t most = std::max<int64_t>(memory.bytes / kProcess, 1);  // this process is one
  if (memory.bytes == 0 || ranks <= most) return;
  throw Error(ErrorCode::memory_exceeded, counted_ranks(ranks) + " of " + gib(kProcess) +
                                              " each, for the process itself, do not fit: " +
                                              memory.limit + " " + gib(memory.bytes))
      .key(flag)
      .help(flag + " " + std::to_string(most));
}

MemoryNeed memory_need(const Bytes& bytes) {
  int64_t kept = bytes.weights + bytes.gradients + bytes.optimizer + kProcess;
  return {kept, kept + bytes.transient + bytes.activations};
}

void check_memory(const JobPlan& plan, int64_t ranks, const HostMemory& memory,
                  const std::vector<std::string>& strategies, const Replan& replan,
                  Diagnostics& diagnostics) {
  if (!plan.footprint || memory.bytes == 0 || ranks < 1) return;
  const Bytes& bytes = plan.footprint->bytes;
  const MemoryNeed need = memory_need(bytes);
  // In doubles: a plan may ask for more than fits into 64 bits of bytes on one host.
  auto all = [&](int64_t one) { return static_cast<double>(one) * static_cast<double>(ranks); };
  const auto room = static_cast<double>(memory.bytes);
  auto as_bytes = [](double value) { return gib(static_cast<int64_t>(std::min(value, 9e18))); };
  const std::string each = ranks == 1 ? "" : "each ", has = memory.limit + " " + gib(memory.bytes);
  const std::string parts = gib(bytes.weights) + " of weights, " + gib(bytes.gradients) +
                            " of gradients, " + gib(bytes.optimizer) + " of optimizer state and " +
                            gib(kProcess) + " for the process itself";
  if (all(need.kept) <= room) {
    if (all(need.peak) <= kNear * room) return;
    diagnostics.warning("the " + counted_ranks(ranks) + " of this host may need " +
                        as_bytes(all(need.peak)) + " (" + each + parts + ", " +
                        gib(bytes.transient) + " of gathered parameters, about " +
                        gib(bytes.activations) + " of activations), and " + has +
                        ": if the kernel kills a rank, this is why");
    return;
  }
  Error error(ErrorCode::memory_exceeded,
              "the " + counted_ranks(ranks) + " of this host would keep " +
                  as_bytes(all(need.kept)) + " (" + each + parts + "), but " + has);
  error.key("model.config");
  auto fits = [&](const std::vector<std::string>& sets, int64_t world) -> std::optional<int64_t> {
    std::optional<Bytes> other = replan(sets, world);
    if (!other) return std::nullopt;
    MemoryNeed one = memory_need(*other);
    return all(one.peak) <= kNear * room ? std::optional(one.peak) : std::nullopt;
  };
  for (const std::string& name : strategies)
    if (std::optional<int64_t> one = fits({"distributed.strategy=" + name}, plan.world_size))
      error.help("set distributed.strategy = \"" + name + "\": " + gib(*one) + " a rank");
  if (plan.workload.storage == DType::float32)
    if (std::optional<int64_t> one = fits({"model.torch_dtype=bfloat16"}, plan.world_size))
      error.help("set model.torch_dtype = \"bfloat16\": " + gib(*one) + " a rank");
  if (ranks > 1 && ranks == plan.world_size && room >= static_cast<double>(need.peak) / kNear) {
    auto fewer = static_cast<int64_t>(kNear * room / static_cast<double>(need.peak));
    // Fewer ranks help where each holds everything; where they share it out, each would hold more.
    for (int64_t count = std::min(fewer, ranks - 1); count >= 1; count /= 2) {
      std::optional<Bytes> other = replan({}, count);
      if (!other ||
          static_cast<double>(memory_need(*other).peak) * static_cast<double>(count) > kNear * room)
        continue;
      error.help("start it with " + counted_ranks(count) + ": " + gib(memory_need(*other).peak) +
                 " a rank");
      break;
    }
  }
  for (int64_t hosts = 2; hosts <= 4096; hosts *= 2)
    if (std::optional<int64_t> one = fits({}, plan.world_size * hosts)) {
      error.help("start it on " + std::to_string(hosts) + " times as many hosts like this one (" +
                 counted_ranks(plan.world_size * hosts) + "): " + gib(*one) + " a rank");
      break;
    }
  if (error.helps().empty())
    error.help(
        "use a smaller model or batch; ranks on more hosts of this size share out the same bytes, "
        "if the batch divides by them");
  diagnostics.add(std::move(error));
}

}  // namespace meshwright::plan
