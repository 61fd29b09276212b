#include "apps/doctor/running/doctor_rank.h"

#include <ATen/Parallel.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "apps/doctor/finding.h"
#include "apps/doctor/report.h"
#include "apps/doctor/running/measure.h"
#include "engine/launch/device/device.h"
#include "engine/launch/ranks.h"
#include "engine/launch/rendezvous/connectivity.h"
#include "engine/launch/rendezvous/notices.h"
#include "engine/launch/spawn.h"
#include "engine/train/step/load_weights.h"
#include "engine/train/step/rank_agreement.h"
#include "meshwright/error.h"
#include "meshwright/options.h"
#include "meshwright/trainer.h"
#include "sdk/base/host/run_lock.h"
#include "sdk/base/host_facts.h"
#include "sdk/base/plain_text.h"

namespace meshwright::doctor {

// What needs LibTorch's part of the engine to be looked at: interfaces as the rendezvous knows
// them, and devices.

namespace {

constexpr int kTorchrunPort = 29500;

int mtu_of(const std::string& name) {
  const launch::Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), sizeof request.ifr_name - 1);
  return socket.get() >= 0 && ::ioctl(socket.get(), SIOCGIFMTU, &request) == 0 ? request.ifr_mtu
                                                                               : 0;
}

// The address at which most sockets of this process listen: each group has one. "": none does, or
// only those that hear every interface.
std::string listening_address() {
  std::map<std::string, int> counts;
  for (const rendezvous::OwnSocket& own : rendezvous::own_sockets())
    if (own.listens() && own.local.address != "::" && own.local.address != "0.0.0.0")
      ++counts[own.local.address];
  auto most = std::max_element(counts.begin(), counts.end(),
                               [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == counts.end() ? "" : most->first;
}

std::string name_of(const std::string& address) {
  for (const rendezvous::Interface& i : rendezvous::interfaces())
    if (i.address == address) return i.name;
  return rendezvous::is_loopback_address(address) ? "lo" : "";
}

}  // namespace

// What can be said before, or when they do not meet.
Network network_before(const launch::RankEnvironment& ranks, const std::string& wanted,
                       const std::string& why) {
  Network out{host_name(), rendezvous::list_of(rendezvous::interfaces()), ranks.one_host()};
  const rendezvous::WantedInterface asked = rendezvous::wanted_interface(wanted);
  out.no_address = why;
  if (!asked.name.empty()) out.no_address += " (" + asked.named_by + " = " + asked.name + ")";
  return out;
}

// The interface that groups of this rank listen on; after the ranks have met, and a group is there.
Network look_at_network(const launch::RankEnvironment& ranks, bool one_host,
                        const std::string& wanted, bool nccl) {
  Network out = network_before(ranks, wanted, "no group listens at an address of its own");
  out.one_host = one_host;
  const rendezvous::WantedInterface asked = rendezvous::wanted_interface(wanted);
  out.address = listening_address();
  if (out.address.empty()) return out;
  out.interface = name_of(out.address);
  out.because =
      !asked.name.empty() ? asked.named_by + " says"
      : nccl              ? "NCCL chose"
      : rendezvous::is_loopback_address(out.address)
          ? "all ranks are on this host"
          : "the route between this host and MASTER_ADDR = " + ranks.master_addr + " says";
  if (!out.interface.empty()) out.mtu = mtu_of(out.interface);
  return out;
}

// Without a launcher, whether torchrun's default port is free.
Ports look_at_rendezvous(const launch::RankEnvironment& ranks, bool one_host) {
  Ports out = look_at_ports();
  out.one_host = one_host;
  out.local = ranks.source == launch::RankEnvironment::Source::local;
  out.port = ranks.master_port;
  out.secret = !ranks.secret.empty();
  out.range_first = ranks.ports.first;
  out.range_last = ranks.ports.last;
  out.own_store = ranks.agent_store && out.secret;
  if (ranks.world_size > 1) {
    out.place = ranks.master_addr + ":" + std::to_string(ranks.master_port);
    return out;
  }
  out.port = kTorchrunPort;
  try {
    ::close(rendezvous::listen_at(rendezvous::kAllInterfaces, out.port));
  } catch (const Error& error) {
    out.problem = "torchrun's default port: " + error.message();
  }
  return out;
}

// `table`: dist_env. Loads the CUDA libraries only where runs would.
Devices look_at_devices(const Options& table, const launch::RankEnvironment& ranks) {
  Devices out;
  out.listed = launch::driver_lists_devices();
  out.local_ranks = ranks.local_world_size;
  if (!out.listed && table.get_string("device") != "cuda") return out;
  const cuda::CudaPart* part = device::cuda_part(&out.no_part);
  if (part == nullptr) return out;
  out.no_part.clear();
  const int64_t count = part->device_count();
  for (int64_t i = 0; i < count; ++i)
    out.names.push_back(std::to_string(i) + ": " + part->device_name(i));
  for (int64_t a = 0; a < count; ++a)
    for (int64_t b = a + 1; b < count; ++b)
      if (!part->reaches(a, b) || !part->reaches(b, a)) out.apart.emplace_back(a, b);
  return out;
}

Nccl look_at_nccl(const Devices& devices) {
  if (devices.names.empty()) return {"", "there is no CUDA device, and runs use gloo"};
  return {device::cuda_part()->nccl_version(), "the CUDA part does not say"};
}

namespace {

using Steady = std::chrono::steady_clock;

// Waits for other ranks, and for collectives, no longer than this, whatever the file says: doctor
// is to tell of what hangs, not to hang.
constexpr double kPatienceMinutes = 0.5;
// What is not measured by then is left out.
constexpr double kMeasureSeconds = 5;
// A file system or name server that does not answer.
constexpr std::chrono::milliseconds kAnswer(4000), kWriteFor(700);

launch::RankEnvironment ranks_here() {
  return launch::detect_ranks(launch::process_environment()).value_or(launch::RankEnvironment{});
}

Job job_of(const Request& request) {
  Job job = request.file.empty()
                ? Job::from_text("schema = 1\n[distributed]\nstrategy = \"ddp\"\n", request.sets)
                : Job::from_file(request.file, request.sets);
  if (job.table("dist_env").get_number("timeout_minutes") > kPatienceMinutes)
    job.set("dist_env.timeout_minutes", text::format("%f", kPatienceMinutes));
  return job;
}

// What one rank knows, and what it found.
class Examination {
 public:
  explicit Examination(const Request& request)
      : request_(request),
        ranks_(ranks_here()),
        job_(job_of(request)),
        plan_(plan::make_plan(job_.impl(), {.world_size = ranks_.world_size, .rank = ranks_.rank})),
        axes_(axes_to_measure(plan_)) {
    const Options& dist = job_.table("dist_env");
    if (dist.is_set("interface")) interface_ = dist.get_string("interface");
    train::set_threads(job_);
  }

  const Job& job() const { return job_; }
  const launch::RankEnvironment& ranks() const { return ranks_; }
  const std::vector<AxisGroup>& axes() const { return axes_; }

  // Before the ranks have met: needs nobody.
  void look_alone() {
    versions_ = judge(look_at_versions());
    // Only once a host: what is slow, and would be in the way of itself.
    if (ranks_.local_rank == 0) {
      // At once: where neither answers, the others wait for this rank no longer than for one.
      auto name = std::async(std::launch::async, [one = ranks_.one_host()] {
        return bounded_look("host name", [one] { return judge(look_at_host_name(one)); });
      });
      disk_ = bounded_look(
          "run folder", [folder = run_folder()] { return judge(look_at_disk(folder, kWriteFor)); });
      name_ = name.get();
    }
    const Devices devices = look_at_devices(job_.table("dist_env"), ranks_);
    devices_ = judge(devices);
    nccl_ = judge(look_at_nccl(devices));
    clock_ = look_at_clock();
  }

  // `leads`: the first rank of its host, which speaks for it. `why_apart`: why the ranks have not
  // met; empty: they have. `host`: a number of each rank's host; empty: not known.
  std::vector<Finding> findings(bool leads, bool one_host, bool nccl, int64_t local_ranks,
                                const std::string& why_apart,
                                const std::vector<int64_t>& host = {}) const {
    std::vector<Finding> out = {versions_};
    out.push_back(judge(look_at_cores(local_ranks, at::get_num_threads())));
    std::vector<HostedGroup> hosted;
    if (!nccl && !host.empty()) {
      std::vector<std::vector<int64_t>> groups(1, std::vector<int64_t>(host.size()));
      std::iota(groups[0].begin(), groups[0].end(), int64_t{0});  // of all ranks
      for (const AxisGroup& axis : axes_) groups.push_back(axis.ranks);
      hosted = hosted_groups(groups, host);
    }
    if (leads) {
      const char* no_plan = request_.file.empty()
                                ? "it follows from the model of a CONFIG.toml, and none was given"
                                : "the file names no model";
      const plan::JobPlan* plan = plan_.footprint ? &plan_ : nullptr;
      out.push_back(judge(look_at_memory(local_ranks, plan, no_plan)));
      out.push_back(judge(look_at_shared_memory(local_ranks, one_host, plan, no_plan, hosted)));
    }
    out.push_back(judge(look_at_open_files(ranks_.world_size, std::ssize(axes_), hosted)));
    if (leads) {
      if (disk_) out.push_back(*disk_);
      if (name_) out.push_back(*name_);
      const std::string alone = "one rank alone listens nowhere";
      out.push_back(judge(!why_apart.empty() ? network_before(ranks_, interface_, why_apart)
                          : ranks_.world_size == 1
                              ? network_before(ranks_, interface_, alone)
                              : look_at_network(ranks_, one_host, interface_, nccl)));
    }
    if (ranks_.rank == 0) {
      if (why_apart.empty()) out.push_back(judge(look_at_rendezvous(ranks_, one_host)));
      if (one_host) out.push_back(judge(clock_));
    }
    if (leads) out.insert(out.end(), {devices_, nccl_});
    return out;
  }

  // Rank 0, where there are several hosts.
  Finding clocks(const std::vector<Link>& links, const Hosts& hosts) const {
    Clock facts = clock_;
    facts.alone = false;
    for (const Link& link : links) {
      if (link.from != 0) continue;
      ClockOffset offset{hosts.names[static_cast<size_t>(link.to)], link.ahead, link.error};
      if (link.later_at > link.at) {
        const double apart = link.later_at - link.at;
        offset.drift = (link.later_ahead - link.ahead) / apart;
        offset.drift_error = (link.later_error + link.error) / apart;
      }
      facts.offsets.push_back(offset);
    }
    return judge(facts);
  }

 private:
  std::string run_folder() const {
    return request_.run_folder.empty() ? job_.table("run").get_string("dir") : request_.run_folder;
  }
  static Finding bounded_look(const std::string& topic, std::function<Finding()> look) {
    try {
      return rendezvous::bounded(kAnswer, std::move(look));
    } catch (const rendezvous::NoAnswer&) {
      return {topic, Level::warning,
              "n/a: no answer within " + std::to_string(kAnswer.count() / 1000) + " s",
              topic == "host name" ? "look at the name servers in /etc/resolv.conf"
                                   : "look at the file system of the folder (mount, dmesg)"};
    }
  }

  const Request& request_;
  launch::RankEnvironment ranks_;
  Job job_;
  plan::JobPlan plan_;
  std::vector<AxisGroup> axes_;
  std::string interface_;
  Finding versions_, devices_, nccl_;
  std::optional<Finding> disk_, name_;
  Clock clock_;
};

// Collective. Rank 0 has what all found; of a collective, what the slowest saw.
void gather(World& world, const std::vector<Link>& links, const std::vector<Collective>& mine,
            Report& report) {
  for (const auto& [theirs, all] : train::gather(world, std::pair(links, mine))) {
    report.links.insert(report.links.end(), theirs.begin(), theirs.end());
    for (size_t i = 0; i < all.size(); ++i) {
      const Collective& c = all[i];
      if (i >= report.collectives.size()) {
        report.collectives.push_back(c);
        continue;
      }
      Collective& known = report.collectives[i];
      known.latency = std::max(known.latency, c.latency);
      if (c.seconds <= known.seconds) continue;
      known.seconds = c.seconds;
      known.slowest = c.slowest;
    }
  }
}

void write(const Report& report, const Request& request) {
  const report::Style style{request.colour, request.unicode, request.width};
  report::Output out(stdout, "standard output");
  out.write(request.json ? report::pretty_json(report.json()) : report.text(style));
  out.flush();
}

// What is between the ranks. Collective.
void measure(Examination& mine, World& world, const Steady::time_point& begin, Report& report) {
  auto late = [&] {
    const std::chrono::duration<double> spent = Steady::now() - begin;
    return largest(world, spent.count()) > kMeasureSeconds;
  };
  const bool one_host = report.hosts.count() == 1;
  std::vector<int64_t> members = report.hosts.leaders();
  if (one_host) {
    members.clear();
    for (int64_t r = 0; r < world.size(); ++r) members.push_back(r);
  }
  std::vector<Link> links = measure_links(world, members, late);
  const std::vector<Collective> collectives = measure_collectives(world, mine.axes(), late);
  if (!one_host) measure_clocks_again(world, links, members);
  gather(world, links, collectives, report);
  const size_t pairs = members.size() * (members.size() - 1) / 2;
  if (report.links.size() < pairs || report.collectives.size() < 5 * mine.axes().size())
    report.unmeasured = "n/a: " + std::to_string(pairs - report.links.size()) + " links and " +
                        std::to_string(5 * mine.axes().size() - report.collectives.size()) +
                        " collectives, for which no time was left";
}

}  // namespace

int doctor_rank(const Request& request, rendezvous::Ending& ending) {
  const Steady::time_point begin = Steady::now();
  Examination mine(request);
  const launch::RankEnvironment& ranks = mine.ranks();
  const bool first = ranks.rank == 0;
  Report report;
  mine.look_alone();
  auto finish = [&](int exit) {
    report.seconds = std::chrono::duration<double>(Steady::now() - begin).count();
    report.exit = exit;
    if (first) write(report, request);
  };
  bool told = false;  // what all ranks found is in the report
  try {
    std::shared_ptr<World> world = train::join_world(mine.job(), {}, &ending);
    const base::LockOwner self = base::this_process();
    report.hosts.first = train::hosts_of_ranks(*world, self.host + self.boot);
    report.hosts.names = train::gather_texts(*world, self.host);
    const std::vector<int64_t>& host = report.hosts.first;
    const int64_t here = host[static_cast<size_t>(ranks.rank)];
    const bool one_host = report.hosts.count() == 1;
    const std::vector<Finding> found =
        mine.findings(here == ranks.rank, one_host, world->device().is_cuda(),
                      std::count(host.begin(), host.end(), here), /*why_apart=*/"", host);
    report.add(train::gather(*world, found));
    told = true;
    if (world->size() > 1) {
      measure(mine, *world, Steady::now(), report);
      if (!one_host) report.add(mine.clocks(report.links, report.hosts));
      report.add(judge(report.links, report.hosts));
    }
    // All ranks end alike.
    const int status = train::gather(*world, report.exit_status()).front();
    finish(report.exit_status());
    return status;
  } catch (...) {
    const Error error = train::error_being_handled();
    if (first) {
      if (!told) {
        report.hosts = {{base::this_process().host}, {0}};
        report.add({mine.findings(true, ranks.one_host(), false, ranks.local_world_size,
                                  "the ranks have not met")});
      }
      report.add(finding_of("ranks", error));
      finish(meshwright::exit_status(error.code()));  // as the process does
    }
    throw;
  }
}

}  // namespace meshwright::doctor
