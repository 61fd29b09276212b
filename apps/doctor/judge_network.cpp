// What follows from the facts of hosts that talk to each other, and of devices.
#include <algorithm>
#include <cmath>

#include "apps/doctor/facts.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"

namespace meshwright::doctor {

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
            "run ./quickstart --cuda once: it fetches the CUDA libraries and builds the part that "
            "uses them"};
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
