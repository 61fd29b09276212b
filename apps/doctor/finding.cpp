#include "apps/doctor/finding.h"

#include <algorithm>
#include <array>
#include <boost/json/value.hpp>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "engine/launch/spawn.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"

namespace meshwright::doctor {

namespace {

constexpr const char* kNames[] = {"ok", "note", "warning", "fault"};

}  // namespace

const char* level_name(Level level) { return kNames[static_cast<size_t>(level)]; }

Finding Finding::unknown(std::string topic, const std::string& why) {
  return {std::move(topic), Level::ok, "n/a: " + why};
}

Finding finding_of(std::string topic, const Error& error) {
  Finding out{std::move(topic), Level::fault, error.message()};
  if (!error.helps().empty()) out.fix = error.helps().front();
  out.code = error.code();
  return out;
}

boost::json::object to_json(const Finding& finding) {
  boost::json::object out{{"topic", finding.topic},
                          {"level", level_name(finding.level)},
                          {"text", finding.text},
                          {"fix", nullptr},
                          {"code", nullptr}};
  if (!finding.fix.empty()) out["fix"] = finding.fix;
  if (finding.code) out["code"] = code_string(*finding.code);
  return out;
}

const Finding* worst_fault(const std::vector<Finding>& findings) {
  constexpr std::array kWorstFirst = {1, 4, 6, 3, 5, 7, 2};  // exit statuses
  auto rank = [&](const Finding& finding) {
    const int status = exit_status(finding.code.value_or(ErrorCode::internal));
    return std::find(kWorstFirst.begin(), kWorstFirst.end(), status) - kWorstFirst.begin();
  };
  const Finding* worst = nullptr;
  for (const Finding& finding : findings)
    if (finding.level == Level::fault && (worst == nullptr || rank(finding) < rank(*worst)))
      worst = &finding;
  return worst;
}

// What follows from the facts of one host: cores, memory, files, disk.

namespace {

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;

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
  if (facts.quota) have += ", the cgroup allows the time of " + text::short_number(*facts.quota);
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

// What follows from the facts of hosts that talk to each other, and of devices.

namespace {

// "+0.031 ms", "-3.2 s"
std::string span(double seconds, bool sign) {
  const char* unit = std::abs(seconds) >= 1 ? "s" : "ms";
  return text::format(sign ? "%+.3g %s" : "%.3g %s",
                      std::abs(seconds) >= 1 ? seconds : seconds * 1000, unit);
}

}  // namespace

Finding judge(const Network& facts) {
  Finding out{"interface", Level::ok, ""};
  if (facts.address.empty()) {
    out.text = "n/a: " + facts.no_address + "; there are: " + facts.interfaces;
    return out;
  }
  out.text =
      (facts.interface.empty() ? facts.address : facts.interface + " (" + facts.address + ")") +
      ", as " + facts.because;
  if (facts.mtu > 0) out.text += "; MTU " + std::to_string(facts.mtu);
  out.text += "; there are: " + facts.interfaces;
  if (!facts.one_host && facts.mtu > 0 && facts.mtu < 1500) {
    out.level = Level::warning;
    out.text += ". Packets of such a size cost speed";
    out.fix = "raise the MTU (ip link set " + facts.interface +
              " mtu 1500) where no tunnel needs it, or choose another: dist_env.interface";
  }
  return out;
}

Finding judge(const HostName& facts) {
  Finding out{"host name", Level::ok, facts.name};
  if (!facts.problem.empty()) {
    out.text += " has no address (" + facts.problem + ")";
    if (facts.one_host) return out;
    out.level = Level::note;
    out.text += ": other hosts cannot be told this name as MASTER_ADDR";
    out.fix = "give MASTER_ADDR as a number, or add the name to DNS or /etc/hosts";
  } else {
    out.text += " is " + facts.address;
    if (facts.seconds > 1) {
      out.level = Level::warning;
      out.text += ", which took " + span(facts.seconds, false) + " to find out";
      out.fix = "look at the name servers in /etc/resolv.conf, or add the name to /etc/hosts";
    }
  }
  return out;
}

Finding judge(const Ports& facts) {
  Finding out{"ports", Level::ok, ""};
  const std::string range = facts.first > 0
                                ? std::to_string(facts.first) + "-" + std::to_string(facts.last)
                                : "n/a: the kernel does not say";
  if (!facts.problem.empty()) {
    out.level = Level::note;
    out.text = facts.problem;
    out.fix = "set MASTER_PORT (torchrun --master-port) to a free one: ss -ltnp shows who has it";
    return out;
  }
  if (facts.local)
    out.text = "local ranks met at " + facts.place + ", a port that was free";
  else if (facts.place.empty())
    out.text = "port " + std::to_string(facts.port) + ", torchrun's default, is free";
  else
    out.text = "the ranks met at " + facts.place +
               (facts.own_store ? ", and then at a port of rank 0's own" : "");
  if (facts.range_first > 0)
    out.text += "; the program's own ports are of " + std::to_string(facts.range_first) + "-" +
                std::to_string(facts.range_last) +
                " (MESHWRIGHT_PORT_RANGE), those of gloo and NCCL of " + range;
  else
    out.text += "; connections between ranks take ports " + range;
  if (!facts.one_host) out.text += ", which firewalls must let through";
  if (!facts.local && facts.first > 0 && facts.port >= facts.first && facts.port <= facts.last) {
    out.level = Level::note;
    out.text += ". The kernel may have given MASTER_PORT itself to another program by then";
    out.fix = "choose a MASTER_PORT below " + std::to_string(facts.first);
  }
  if (facts.one_host || facts.local || facts.place.empty()) return out;
  if (facts.secret) {
    out.text += ". The ranks prove to each other that they know the job's secret";
    return out;
  }
  out.level = Level::note;
  out.text += ". The job has no secret: whoever reaches " + facts.place +
              " can read the configuration and end it";
  out.fix += (out.fix.empty() ? "" : "; ") +
             std::string("export MESHWRIGHT_JOB_SECRET=$(openssl rand -hex 32), on all ranks");
  return out;
}

Finding judge(const Clock& facts) {
  Finding out{"clocks", Level::ok, ""};
  const std::string keep = "keep the clocks of all hosts with chrony or systemd-timesyncd";
  out.text = !facts.synchronised   ? "whether rank 0's is kept is n/a: the kernel does not say"
             : *facts.synchronised ? "rank 0's is kept by a time service, as the kernel says"
                                   : "no time service keeps rank 0's, as the kernel says";
  if (facts.alone) return out;
  double worst = 0;
  for (const ClockOffset& other : facts.offsets) {
    out.text += "; " + other.host + " is " + span(other.seconds, true) + " of rank 0's (to " +
                span(other.error, false) + ")";
    if (other.drift && other.drift_error)
      out.text += std::abs(*other.drift) > *other.drift_error
                      ? text::format(", drifts %+.0f ppm", *other.drift * 1e6)
                      : text::format(", drift n/a: below the %.0f ppm that can be seen",
                                     *other.drift_error * 1e6);
    worst = std::max(worst, std::abs(other.seconds) - other.error);
  }
  if (worst > 1) {
    out.level = Level::warning;
    out.text += ". Logs and the signs of life of a run folder's lock compare times";
    out.fix = keep;
  } else if (worst > 0.1 || (facts.synchronised && !*facts.synchronised)) {
    out.level = Level::note;
    out.fix = keep;
  }
  return out;
}

Finding judge(const Devices& facts) {
  if (!facts.listed && facts.names.empty())
    return {"devices", Level::ok,
            "none: no driver lists an NVIDIA device, runs compute on the CPU"};
  if (!facts.no_part.empty())
    return {"devices", Level::warning,
            "the driver lists a device that cannot be used: " + facts.no_part,
            launch::how_to_get_devices(facts.no_part)};
  if (facts.names.empty())
    return {"devices", Level::warning, "the driver lists a device, and CUDA finds none",
            "look at nvidia-smi and at CUDA_VISIBLE_DEVICES"};
  Finding out{"devices", Level::ok, text::join(facts.names, ", ")};
  const auto count = static_cast<int64_t>(facts.names.size());
  if (!facts.apart.empty()) {
    out.level = Level::note;
    std::vector<std::string> pairs;
    for (const auto& [a, b] : facts.apart)
      pairs.push_back(std::to_string(a) + "-" + std::to_string(b));
    if (pairs.size() > 8) pairs.resize(8), pairs.emplace_back("...");
    out.text += "; no access to each other's memory: " + text::join(pairs, ", ");
    out.fix = "look at nvidia-smi topo -m; PCI access control (ACS) or an IOMMU may be in the way";
  } else if (count > 1) {
    out.text += "; each reaches the memory of all others";
  }
  if (facts.local_ranks > count) {
    out.level = Level::warning;
    out.text += "; " + std::to_string(facts.local_ranks) +
                " ranks here share them, and communicate through the host's memory";
    out.fix = "start " + report::counted(count, "rank", "ranks") + " on this host";
  }
  return out;
}

Finding judge(const Nccl& facts) {
  if (facts.version.empty()) return Finding::unknown("NCCL", facts.unknown);
  return {"NCCL", Level::ok, facts.version};
}

}  // namespace meshwright::doctor
