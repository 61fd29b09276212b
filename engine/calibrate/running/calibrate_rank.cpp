#include "engine/calibrate/running/calibrate_rank.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>

#include "engine/base/run_lock.h"
#include "engine/calibrate/report.h"
#include "engine/calibrate/running/measure_kernels.h"
#include "engine/calibrate/sizes.h"
#include "engine/device/device.h"
#include "engine/doctor/running/measure_collectives.h"
#include "engine/plan/before_start.h"
#include "engine/report/progress.h"
#include "engine/steptime/write_machine.h"
#include "engine/trainer/join_world.h"
#include "engine/trainer/load_weights.h"
#include "engine/trainer/rank_agreement.h"
#include "meshwright/abi.h"
#include "meshwright/trainer.h"
#include "sdk/base/plain_text.h"
#include "sdk/files/clock.h"
#include "sdk/files/durable.h"

namespace meshwright::calibrate {

namespace {

namespace json = boost::json;
using Steady = std::chrono::steady_clock;

// Of the time for measuring, what kernels have; collectives have the rest.
constexpr double kKernels = 0.7;
// Times as long as of other kernels: what is left of a layer when its products are taken off is
// small beside its time, and beside what a busy machine adds to it.
constexpr double kLayers = 4;
// Floats of the largest messages.
constexpr int64_t kMiB = (int64_t{1} << 20) / 4;

Job job_of(const Request& request) {
  return Job::from_text("schema = 1\n[distributed]\nstrategy = \"ddp\"\n", request.sets);
}

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name"))
      if (const size_t at = line.find(": "); at != std::string::npos && at + 2 < line.size())
        return line.substr(at + 2);
  return "CPU";
}

void look_at_device(World& world, double local_ranks, Measured& to) {
  to.cuda = world.device().is_cuda();
  if (to.cuda) {
    const cuda::CudaPart& part = *device::cuda_part();
    const int64_t index = world.device().index();
    to.device = part.device_name(index);
    to.memory = static_cast<double>(part.device_memory(index));
    to.units = static_cast<double>(part.device_units(index));
  } else {
    to.device = processor_name();
    to.memory = static_cast<double>(plan::host_memory().bytes) / local_ranks;
    to.units = at::get_num_threads();
    to.ranks_a_core = local_ranks * to.units / std::thread::hardware_concurrency();
    to.cores_shared = to.ranks_a_core > 1;
  }
}

Shipped shipped_for(const Measured& measured, const std::string& folder) {
  if (!measured.cuda) return {steptime::find_machine("cpu", folder), false};
  if (std::optional<steptime::Machine> same = steptime::machine_reported(measured.device, folder))
    return {std::move(*same), true};
  return {steptime::find_machine("h100", folder), false};
}

// Collective. The collectives of all kinds of groups, and messages from each rank to the next,
// small and large.
void measure_groups(World& world, const std::vector<int64_t>& host, double seconds, Measured& to,
                    report::CountProgress& progress) {
  const Steady::time_point begin = Steady::now();
  double allowed = 0;  // so far: each kind of groups has its share
  auto over = [&] { return doctor::largest(world, base::ms_since(begin) / 1000) > allowed; };
  // Ranks that share a host's cores exchange megabytes; devices hide less than that in latency.
  const std::vector<int64_t> sizes = to.cuda ? std::vector<int64_t>{kMiB, 16 * kMiB, 256 * kMiB}
                                             : std::vector<int64_t>{kMiB, 16 * kMiB};
  const std::vector<Ranks> groups = groups_of(host, world.rank());
  for (const Ranks& ranks : groups) {
    allowed += seconds / static_cast<double>(groups.size());
    GroupTime group{ranks.kind, ranks.group, {}};
    const std::vector<doctor::AxisGroup> axes = {{ranks.name, ranks.ranks}};
    const bool inside = ranks.kind == GroupTime::Kind::host || ranks.kind == GroupTime::Kind::pair;
    const double ranks_a_core = to.cores_shared && inside ? to.ranks_a_core : 0;
    for (const int64_t floats : sizes) {
      // Of the first size all are measured: the last one, send, is in no ring.
      auto late = [&] { return floats != sizes.front() && over(); };
      for (doctor::Collective& found : doctor::measure_collectives(world, axes, late,
                                                                   {.floats = floats,
                                                                    .seconds = 0.1,
                                                                    .ranks_a_core = ranks_a_core,
                                                                    .as_pipelines = true}))
        group.collectives.push_back(std::move(found));
      progress.step();
      if (over()) break;
    }
    to.groups.push_back(std::move(group));
  }
}

// Collective. The last product of the main type, forward, on rank 0 while the others wait.
void measure_alone(Stopwatch& watch, World& world, Measured& to) {
  ProductTime product;
  for (const ProductTime& time : to.products)
    if (!time.backward && time.precision == steptime::Precision::full) product = time;
  if (product.seconds <= 0) return;
  if (world.rank() == 0) {
    measure(watch, product);
    to.alone = product.seconds;
  } else {
    world.everyone()->barrier();  // the one of the stopwatch
  }
  world.everyone()->barrier();
}

// Collective. The times of all ranks become one rank's.
void join_times(World& world, Measured& measured) {
  json::array mine;
  for (const double seconds : measured.times()) mine.push_back(seconds);
  std::vector<std::vector<double>> all;
  for (const std::string& text : train::gather_texts(world, json::serialize(mine))) {
    all.emplace_back();
    const json::value parsed = json::parse(text);
    for (const json::value& one : parsed.as_array()) all.back().push_back(one.to_number<double>());
  }
  measured.take_all(all);
}

// The file beside its place, synced and renamed, once its reader takes it.
void write_file(const Request& request, const Fitted& fitted, double ranks, double hosts) {
  const std::string text = steptime::machine_text(
      fitted.machine, fitted.sources,
      "Written by meshwright " MESHWRIGHT_VERSION " calibrate, " + base::utc_now() + ": " +
          report::counted(std::llround(ranks), "rank", "ranks") + " on " +
          report::counted(std::llround(hosts), "host", "hosts") + ".\n" +
          "Figures may be changed by hand: [source] then says where they come from.");
  steptime::parse_machine(text, request.out);
  base::write_durably(request.out, text);
}

void print(const Report& report, const Request& request) {
  const report::Style style{request.colour, request.unicode, request.width};
  report::Output out(stdout, "standard output");
  out.write(request.json ? report::pretty_json(report.json()) : report.text(style));
  out.flush();
}

}  // namespace

int calibrate_rank(const Request& request, rendezvous::Ending& ending) {
  const Steady::time_point begin = Steady::now();
  const Job job = job_of(request);
  train::set_threads(job);
  train::keep_freed_memory();
  const std::shared_ptr<World> joined =
      train::join_world(job,
                        {{"--seconds", text::format("%f", request.seconds)},
                         {"--dtype", std::to_string(static_cast<int>(request.widths))}},
                        &ending);
  World& world = *joined;
  const base::LockOwner self = base::this_process();
  const std::vector<int64_t> host = train::hosts_of_ranks(world, self.host + self.boot);
  Measured measured;
  measured.ranks = static_cast<double>(world.size());
  for (size_t rank = 0; rank < host.size(); ++rank) {
    if (host[rank] == static_cast<int64_t>(rank) && rank > 0) ++measured.hosts;
    measured.ranks_per_host =
        std::max(measured.ranks_per_host,
                 static_cast<double>(std::count(host.begin(), host.end(), host[rank])));
  }
  const auto here = std::count(host.begin(), host.end(), host[static_cast<size_t>(world.rank())]);
  look_at_device(world, static_cast<double>(here), measured);
  add_sizes(measured, request.widths);

  const bool first = world.rank() == 0;
  {
    const bool beside = measured.cuda && world.size() > 1;
    const size_t kernels = count_points(measured),
                 messages = groups_of(host, world.rank()).size() * (measured.cuda ? 3 : 2);
    report::CountProgress progress({request.colour, request.unicode, request.width}, request.live,
                                   first,
                                   static_cast<int64_t>(kernels + messages) + (beside ? 1 : 0));
    progress.begin("calibrate");
    const double shares = static_cast<double>(kernels) +
                          2 * (kLayers - 1) * static_cast<double>(measured.layers.size());
    const double each = request.seconds * kKernels / shares;
    Stopwatch watch(world, each, measured.cores_shared),
        longer(world, kLayers * each, measured.cores_shared);
    auto all = [&](auto& points, int steps, Stopwatch& with) {
      for (auto& point : points) {
        measure(with, point);
        for (int i = 0; i < steps; ++i) progress.step();
      }
    };
    all(measured.products, 1, watch);
    all(measured.moved, 1, watch);
    all(measured.attention, 2, watch);
    all(measured.launches, 2, watch);
    all(measured.layers, 2, longer);
    if (!measured.cuda && measured.ranks_per_host > 1) measure_alone(watch, world, measured);
    if (beside) {
      measure(world, measured.beside);
      progress.step();
    }
    measure_groups(world, host, request.seconds * (1 - kKernels), measured, progress);
  }
  join_times(world, measured);

  Report report;
  train::agree_or_throw(world, train::outcome_of([&] {
                          if (!first) return std::string();
                          const std::string date = base::utc_now().substr(0, 10);
                          report.fitted = fit(measured, shipped_for(measured, request.machines),
                                              date, self.host);
                          write_file(request, report.fitted, measured.ranks, measured.hosts);
                          return std::string();
                        }));
  if (!first) return 0;
  report.measured = std::move(measured);
  report.file = request.out;
  report.seconds = base::ms_since(begin) / 1000;
  print(report, request);
  return 0;
}

}  // namespace meshwright::calibrate
