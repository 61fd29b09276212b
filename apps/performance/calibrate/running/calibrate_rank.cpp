#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "apps/doctor/running/measure.h"
#include "apps/performance/calibrate/measured.h"
#include "apps/performance/calibrate/report.h"
#include "apps/performance/steptime/machine.h"
#include "engine/job/before_start.h"
#include "engine/launch/device/device.h"
#include "engine/launch/rendezvous/error_exchange.h"
#include "engine/models/models.h"
#include "engine/models/net_config.h"
#include "engine/models/running/activation.h"
#include "engine/models/running/causal_lm.h"
#include "engine/models/running/initialize.h"
#include "engine/train/step/load_weights.h"
#include "engine/train/step/rank_agreement.h"
#include "meshwright/abi.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/layers.h"
#include "meshwright/parallel/gradients.h"
#include "meshwright/parallel/group.h"
#include "meshwright/trainer.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/host/run_lock.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/progress.h"

namespace meshwright::calibrate {

namespace {

using at::Tensor;
using Steady = std::chrono::steady_clock;
using torch::autograd::variable_list;

// Calls on a device follow each other without waiting for so long: what a wait costs is no part of
// a kernel.
constexpr double kBatch = 0.01;
constexpr int kMostCalls = 1000;

int64_t whole(double size) { return std::llround(size); }

at::TensorOptions half_of(at::Device device) {
  return at::TensorOptions(at::kBFloat16).device(device);
}
at::TensorOptions full_of(at::Device device) {
  return at::TensorOptions(at::kFloat).device(device);
}
// What models compute in where nothing else is said.
at::TensorOptions usual_of(at::Device device) {
  return device.is_cuda() ? half_of(device) : full_of(device);
}

double median_of_times(std::vector<double> times) {
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// Kernels and layers as training runs them, timed on all ranks at once.

// Times work of this rank's device. `seconds`: for each, about; at least two calls. `mean`: the
// mean of calls instead of their median. Where ranks share cores a call has one or waits for it,
// and what is between lies in the mean alone.
class Stopwatch {
 public:
  Stopwatch(World& world, double seconds, bool mean = false)
      : world_(world), seconds_(seconds), mean_(mean) {}
  at::Device device() const { return world_.device(); }
  // Collective: all ranks begin together, since those of a host share its memory. Seconds of one
  // call.
  double of(const std::function<void()>& work) {
    auto several = [&](int calls) {
      const Steady::time_point begin = Steady::now();
      for (int i = 0; i < calls; ++i) work();
      if (device().is_cuda()) device::cuda_part()->synchronize();
      return base::ms_since(begin) / 1000 / calls;
    };
    several(1);  // makes room, chooses kernels
    world_.everyone()->barrier();
    const Steady::time_point begin = Steady::now();
    std::vector<double> times = {several(1)};
    const int calls =
        std::clamp(static_cast<int>(kBatch / std::max(times[0], 1e-6)), 1, kMostCalls);
    while (base::ms_since(begin) / 1000 < seconds_) times.push_back(several(calls));
    if (times.size() > 1) times.erase(times.begin());
    if (mean_)
      return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
    return median_of_times(std::move(times));
  }

 private:
  World& world_;
  double seconds_;
  bool mean_;
};

// As a step has it: the norm of all gradients, and AdamW.
void measure_optimizer(Stopwatch& watch, MovedTime& point) {
  const at::TensorOptions options = full_of(watch.device());
  const bool cuda = watch.device().is_cuda();
  // On a device as many as make its launches, and the norm that the host waits for, small.
  const std::vector<Tensor> weights = {at::zeros({int64_t{1} << (cuda ? 26 : 23)}, options)};
  auto alike = [&] { return std::vector<Tensor>{at::zeros_like(weights[0])}; };
  // Clipped each time; a device's optimizer divides by the norm itself.
  const std::vector<Tensor> gradients = {at::ones_like(weights[0])}, average = alike(),
                            square = alike(), counts = {at::ones({}, options)};
  const double max_norm = cuda ? 0 : 1;
  const std::vector<GradientSet> sets = {{gradients}};
  point.bytes = steptime::kFusedOptimizer * static_cast<double>(weights[0].numel());
  point.seconds = watch.of([&] {
    clip_gradients(sets, max_norm, /*scale=*/1, watch.device());
    at::_fused_adamw_(weights, gradients, average, square, {}, counts, /*lr=*/1e-3, /*beta1=*/0.9,
                      /*beta2=*/0.95, /*weight_decay=*/0.1, /*eps=*/1e-8, /*amsgrad=*/false,
                      /*maximize=*/false);
  });
}

// Collective. Fill in the seconds (and the bytes) of one point.
void measure(Stopwatch& watch, ProductTime& point) {
  // The peak of float32, whatever TORCH_ALLOW_TF32_CUBLAS_OVERRIDE says: runs do not follow it.
  at::globalContext().setAllowTF32CuBLAS(false);
  const at::TensorOptions options = point.precision == steptime::Precision::full
                                        ? full_of(watch.device())
                                        : half_of(watch.device());
  const int64_t rows = whole(point.product.rows), columns = whole(point.product.columns),
                inner = whole(point.product.inner);
  Linear linear = make_linear(inner, columns, /*bias=*/false, options);
  Tensor x = at::randn({rows, inner}, options);
  {
    const c10::NoGradGuard no_grad;
    linear->weight.copy_(at::randn({columns, inner}, options));
  }
  if (!point.backward) {
    const c10::NoGradGuard no_grad;
    point.seconds = watch.of([&] { linear->forward(x); });
    return;
  }
  x.requires_grad_(true);
  const Tensor y = linear->forward(x), gradient = at::ones_like(y);
  point.seconds = watch.of(
      [&] { torch::autograd::grad({y}, {x, linear->weight}, {gradient}, /*retain_graph=*/true); });
}

void measure(Stopwatch& watch, MovedTime& point) {
  const c10::NoGradGuard no_grad;
  if (point.kernel == "optimizer") {
    measure_optimizer(watch, point);
    return;
  }
  // More than caches hold.
  const int64_t rows = 8192, size = watch.device().is_cuda() ? 8192 : 1024;
  const Tensor x = at::randn({rows, size}, usual_of(watch.device()));
  const auto bytes = static_cast<double>(x.nbytes());
  point.bytes = 2 * bytes;
  if (point.kernel == "copy") {
    const Tensor y = at::empty_like(x);
    point.seconds = watch.of([&] { y.copy_(x); });
  } else if (point.kernel == "norm") {
    RMSNorm norm(size, 1e-6);
    norm->to(x.device(), x.scalar_type());
    point.seconds = watch.of([&] { norm->forward(x); });
  } else {
    point.bytes = 3 * bytes;
    modules::GatedActivation gate("silu");
    const Tensor up = at::ones_like(x);
    point.seconds = watch.of([&] { gate->forward(x, up); });
  }
}

void measure(Stopwatch& watch, AttentionTime& point) {
  AttentionCore core(AttentionOptions{.scale = 1 / std::sqrt(point.head_dim)});
  auto made = [&] {
    return at::randn(
        {whole(point.batch), whole(point.length), whole(point.heads), whole(point.head_dim)},
        usual_of(watch.device()));
  };
  Tensor query = made(), key = made(), value = made();
  {
    const c10::NoGradGuard no_grad;
    point.forward = watch.of([&] { core->forward(query, key, value); });
  }
  for (Tensor* x : {&query, &key, &value}) x->requires_grad_(true);
  const Tensor out = core->forward(query, key, value), gradient = at::ones_like(out);
  point.backward = watch.of([&] {
    torch::autograd::grad({out}, {query, key, value}, {gradient}, /*retain_graph=*/true);
  });
}

void measure(Stopwatch& watch, ModelTime& point) {
  auto text = [](double size) { return std::to_string(whole(size)); };
  const std::string json =
      R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64,)"
      R"( "rms_norm_eps": 1e-6, "hidden_size": )" +
      text(point.hidden) + R"(, "intermediate_size": )" + text(point.ffn) +
      R"(, "num_attention_heads": )" + text(point.heads) + R"(, "num_key_value_heads": )" +
      text(point.kv_heads) + R"(, "max_position_embeddings": )" +
      text(std::max(point.length, 64.0)) + R"(, "num_hidden_layers": )" + text(point.layers) + "}";
  const ConfigJson config = ConfigJson::parse(json, "a tiny model");
  const at::TensorOptions options = usual_of(watch.device());
  const DType stored = watch.device().is_cuda() ? DType::bfloat16 : DType::float32;
  modules::CausalLM model(outlines::read_net_config(config), outlines::make_outline(config, stored),
                          options);
  modules::initialize(*model, /*seed=*/1);
  const variable_list parameters = model->parameters();
  const Tensor ids = at::zeros({whole(point.batch), whole(point.length)}, options.dtype(at::kLong));
  point.forward = watch.of([&] { model(ids); });
  const double both = watch.of([&] {
    torch::autograd::grad({model(ids).sum()}, parameters, {}, std::nullopt,
                          /*create_graph=*/false, /*allow_unused=*/true);
  });
  point.backward = std::max(0.0, both - point.forward);
}

// On a device, of two ranks or more. Collective over the world: all-gathers of all ranks, as many
// as about half of the products' time takes.
void measure(World& world, BesideTime& point) {
  constexpr int64_t kRows = 8192, kSize = 4096, kGathered = int64_t{64} << 20;  // bytes
  constexpr int kTimes = 7, kFew = 8, kMost = 400;
  const c10::NoGradGuard no_grad;
  const at::TensorOptions options = half_of(world.device());
  Linear linear = make_linear(kSize, kSize, /*bias=*/false, options);
  linear->weight.copy_(at::randn({kSize, kSize}, options));
  const Tensor x = at::randn({kRows, kSize}, options);
  const std::shared_ptr<Group> group = world.everyone();
  const int64_t share = kGathered / 2 / group->size();
  const Tensor shard = at::zeros({share}, options),
               whole_of_all = at::zeros({share * group->size()}, options);
  // The all-gathers have a stream of their own, one after the other.
  auto series = [&](int products, int gathers) {
    group->barrier();
    device::cuda_part()->synchronize();
    const Steady::time_point begin = Steady::now();
    std::vector<Work> under_way;
    for (int i = 0; i < gathers; ++i) under_way.push_back(group->all_gather(shard, whole_of_all));
    for (int i = 0; i < products; ++i) linear->forward(x);
    device::cuda_part()->synchronize();
    const double seconds = base::ms_since(begin) / 1000;
    for (Work& work : under_way) work.wait();
    world.check();
    return seconds;
  };
  auto median = [&](int products, int gathers) {
    std::vector<double> times;
    for (int i = 0; i < kTimes; ++i) times.push_back(series(products, gathers));
    return median_of_times(std::move(times));
  };
  series(1, 1);  // makes room, chooses kernels
  const double product = doctor::largest(world, median(kFew, 0) / kFew),
               gather = doctor::largest(world, median(0, 2) / 2);
  const int products = static_cast<int>(
                std::clamp(std::ceil(2 * gather / product), double{kFew}, double{kMost})),
            gathers = static_cast<int>(
                std::clamp(std::floor(products * product / 2 / gather), 1.0, double{kMost}));
  // In turn, so that a clock that settles slowly is in both.
  std::vector<double> alone, beside;
  for (int i = 0; i < kTimes; ++i) {
    alone.push_back(series(products, 0));
    beside.push_back(series(products, gathers));
  }
  point = {median_of_times(std::move(alone)), median_of_times(std::move(beside)), gathers * gather};
}

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
    measured.ranks_per_host = std::max(measured.ranks_per_host,
                                       static_cast<double>(std::ranges::count(host, host[rank])));
  }
  const auto here = std::ranges::count(host, host[static_cast<size_t>(world.rank())]);
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
  measured.take_all(train::gather(world, measured.times()));

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
