// What follows from the facts of one host: cores, memory, files, disk.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "apps/doctor/facts.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::doctor {

namespace {

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;

std::string number(double value, const char* format) { return text::format(format, value); }
std::string ranks(int64_t count) { return report::counted(count, "rank", "ranks"); }

}  // namespace

Finding judge(const Versions& facts) {
  return {"versions", Level::ok,
          "meshwright " + facts.meshwright + ", LibTorch " + facts.libtorch + " (CUDA " +
              facts.cuda + ", c10d " + facts.c10d + ")"};
}

Finding judge(const Cores& facts) {
  const auto allowed = std::max<int64_t>(
      1, std::min(facts.usable,
                  facts.quota ? static_cast<int64_t>(std::floor(*facts.quota)) : facts.usable));
  std::string have = report::counted(facts.machine, "core", "cores");
  if (facts.usable < facts.machine)
    have += ", of which this process may use " + std::to_string(facts.usable) + " (affinity)";
  if (facts.quota) have += ", the cgroup allows the time of " + number(*facts.quota, "%.3g");
  const int64_t wanted = facts.local_ranks * facts.threads;
  Finding out{"cores", Level::ok,
              have + "; " + ranks(facts.local_ranks) + " here x " +
                  report::counted(facts.threads, "thread", "threads")};
  const int64_t each = std::max<int64_t>(1, allowed / facts.local_ranks);
  const std::string set = "set OMP_NUM_THREADS=" + std::to_string(each) +
                          " (or run.threads = " + std::to_string(each) + ")";
  if (facts.local_ranks > allowed) {
    out.level = Level::warning;
    out.text += ": more ranks than cores, so they take turns";
    out.fix = "start at most " + ranks(allowed) + " on this host, or give it more cores";
    if (facts.threads > 1) out.fix += "; " + set;
  } else if (wanted > allowed) {
    out.level = Level::warning;
    out.text += " want " + std::to_string(wanted) + " cores: threads take turns";
    out.fix = set;
  } else if (2 * wanted <= allowed) {
    out.level = Level::note;
    out.text += " leave " + std::to_string(allowed - wanted) + " of " + std::to_string(allowed) +
                " idle where the CPU computes";
    out.fix = set;
  }
  return out;
}

Finding judge(const Memory& facts) {
  if (facts.bytes == 0) return Finding::unknown("memory", "/proc/meminfo does not say");
  Finding out{"memory", Level::ok, facts.limit + " " + report::human_bytes(facts.bytes)};
  if (facts.available) out.text += ", available now " + report::human_bytes(*facts.available);
  if (!facts.kept) {
    out.text += "; what ranks need is n/a: " + facts.no_plan;
    return out;
  }
  const int64_t kept = *facts.kept * facts.local_ranks,
                peak = facts.peak.value_or(*facts.kept) * facts.local_ranks;
  out.text += "; " + ranks(facts.local_ranks) + " here keep " + report::human_bytes(kept) +
              " by the plan, at most " + report::human_bytes(peak);
  if (kept > facts.bytes) {
    out.level = Level::fault;
    out.code = ErrorCode::memory_exceeded;
    out.fix = "more hosts, a smaller model, or a strategy that shards (`meshwright plan`)";
  } else if (peak > std::min(facts.bytes, facts.available.value_or(facts.bytes))) {
    out.level = Level::warning;
    out.fix =
        "end other programs, lower step_scheduler.local_batch_size, or set "
        "distributed.activation_checkpointing";
  }
  return out;
}

int64_t shared_memory_need(int64_t unit_bytes, int64_t ranks) {
  return ranks < 2 ? 0 : 4 * unit_bytes + 2 * unit_bytes * (ranks - 1);
}

std::vector<HostedGroup> hosted_groups(const std::vector<std::vector<int64_t>>& groups,
                                       const std::vector<int64_t>& host) {
  constexpr int64_t kMostRanks = 64;  // SDK: HostMap
  std::vector<HostedGroup> out;
  for (const std::vector<int64_t>& ranks : groups) {
    std::map<int64_t, int64_t> on;
    for (int64_t rank : ranks) ++on[host.at(static_cast<size_t>(rank))];
    if (on.size() < 2 || std::ssize(ranks) > kMostRanks) continue;
    const int64_t each = on.begin()->second;
    if (each > 1 &&
        std::all_of(on.begin(), on.end(), [&](const auto& h) { return h.second == each; }))
      out.push_back({std::ssize(on), each});
  }
  return out;
}

int64_t hosted_groups_need(const std::vector<HostedGroup>& groups, int64_t local_ranks) {
  // Three slots of a rank, of half a MiB or 32 KiB for each part (SDK: HostLane), for gathers,
  // which have a part for each host, and for sums, which have one for each rank.
  auto slots = [](int64_t parts) { return 3 * std::max(kMiB / 2, parts * (kMiB / 32)); };
  int64_t out = 0;
  for (const HostedGroup& group : groups)
    out += local_ranks * (slots(group.hosts) + slots(group.hosts * group.each));
  return out;
}

Finding judge(const SharedMemory& facts) {
  if (!facts.problem.empty())
    return {"/dev/shm", Level::warning,
            "cannot be used (" + facts.problem + "): ranks of one host take sockets, slower",
            "mount a tmpfs at /dev/shm"};
  Finding out{"/dev/shm", Level::ok,
              report::human_bytes(facts.free) + " free of " + report::human_bytes(facts.total)};
  if (facts.local_ranks < 2) {
    out.text += "; one rank here shares nothing";
    return out;
  }
  if (facts.off) {
    out.level = Level::note;
    out.text += "; MESHWRIGHT_SHARED_MEMORY=0 keeps ranks on sockets";
    out.fix = "unset MESHWRIGHT_SHARED_MEMORY";
    return out;
  }
  const int64_t wanted = facts.need.value_or(0) + facts.hosted;
  const std::string grow =
      "docker run --shm-size=" +
      std::to_string(std::max<int64_t>(1, (2 * wanted + kGiB - 1) / kGiB)) +
      "g (or --ipc=host); in Kubernetes an emptyDir with medium: Memory at /dev/shm; else mount -o "
      "remount,size=... /dev/shm";
  if (facts.need || facts.hosted > 0) {
    out.text += "; ranks here want about " + report::human_bytes(wanted);
    if (facts.hosted > 0)
      out.text += ", " + report::human_bytes(facts.hosted) + " of it for groups over hosts";
    if (!facts.need) out.text += "; what ranks want beside it is n/a: " + facts.no_need;
    if (facts.free >= wanted) return out;
    out.level = Level::warning;
    out.text += " and will take sockets, slower, for what finds no room";
    out.fix = grow;
    return out;
  }
  out.text += "; what ranks want is n/a: " + facts.no_need;
  if (facts.free > 64 * kMiB) return out;
  out.level = Level::warning;
  out.text += ". So little is soon used up, and ranks take sockets then, slower";
  out.fix = grow;
  return out;
}

Finding judge(const OpenFiles& facts) {
  // Rank 0 has a connection of every rank to its store, each rank one to every member of its
  // groups, and LibTorch some of its own. A group over hosts has two more of a rank of each host,
  // and each of these a device of gloo: where it listens, and what its thread waits for.
  int64_t need = 64 + facts.ranks * (1 + std::max<int64_t>(1, facts.axes));
  for (const HostedGroup& group : facts.hosted) need += 2 * (group.hosts + 4);
  Finding out{"open files", Level::ok,
              "at most " + report::human_count(facts.limit) + " a process; " + ranks(facts.ranks) +
                  (facts.ranks == 1 ? " needs about " : " need about ") +
                  report::human_count(need)};
  if (facts.limit >= need) return out;
  out.level = Level::fault;
  out.code = ErrorCode::rendezvous_failed;
  out.fix = "raise the hard limit: ulimit -Hn " + std::to_string(2 * need) +
            ", LimitNOFILE= of the service, or limits.conf";
  return out;
}

Finding judge(const Disk& facts) {
  if (!facts.problem.empty()) {
    Finding out{"run folder", Level::fault, facts.folder + ": " + facts.problem,
                "set run.dir (or --run-folder) to a folder that may be written to"};
    out.code = ErrorCode::output_unwritable;
    return out;
  }
  Finding out{"run folder", Level::ok, facts.folder};
  if (facts.tried != facts.folder) out.text += " (not there yet; looked at " + facts.tried + ")";
  if (facts.free) out.text += ": " + report::human_bytes(*facts.free) + " free";
  double rate = 0;
  if (facts.seconds > 0 && facts.written > 0) {
    rate = static_cast<double>(facts.written) / facts.seconds;
    out.text += ", writes " + report::human_bytes(static_cast<int64_t>(rate)) + "/s (" +
                report::human_bytes(facts.written) + ", synced)";
  } else {
    out.text += ", speed n/a: not even " + report::human_bytes(kMiB) + " was synced in time";
  }
  if (facts.free && *facts.free < kGiB) {
    out.level = Level::warning;
    out.fix = "make room for checkpoints, or put runs on another file system: run.dir";
  } else if (rate < 20e6) {
    out.level = Level::warning;
    out.fix = "put runs on a faster file system (run.dir), or set checkpoint.async = true";
  }
  return out;
}

}  // namespace meshwright::doctor
