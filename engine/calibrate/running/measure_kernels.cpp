#include "engine/calibrate/running/measure_kernels.h"

#include <ATen/Context.h>
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
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "engine/device/device.h"
#include "engine/doctor/running/measure_collectives.h"
#include "engine/modules/activation.h"
#include "engine/modules/causal_lm.h"
#include "engine/modules/initialize.h"
#include "engine/outlines/models.h"
#include "engine/outlines/net_config.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/layers.h"
#include "meshwright/parallel/gradients.h"

namespace meshwright::calibrate {

namespace {

using at::Tensor;
using Steady = std::chrono::steady_clock;
using torch::autograd::variable_list;

// Calls on a device follow each other without waiting for so long: what a wait costs is no part of
// a kernel.
constexpr double kBatch = 0.01;
constexpr int kMostCalls = 1000;

double seconds_since(Steady::time_point begin) {
  return std::chrono::duration<double>(Steady::now() - begin).count();
}

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

}  // namespace

void Stopwatch::wait_for_device() const {
  if (device().is_cuda()) device::cuda_part()->synchronize();
}

double Stopwatch::of(const std::function<void()>& work) {
  auto several = [&](int calls) {
    const Steady::time_point begin = Steady::now();
    for (int i = 0; i < calls; ++i) work();
    wait_for_device();
    return seconds_since(begin) / calls;
  };
  several(1);  // makes room, chooses kernels
  world_.everyone()->barrier();
  const Steady::time_point begin = Steady::now();
  std::vector<double> times = {several(1)};
  const int calls = std::clamp(static_cast<int>(kBatch / std::max(times[0], 1e-6)), 1, kMostCalls);
  while (seconds_since(begin) < seconds_) times.push_back(several(calls));
  if (times.size() > 1) times.erase(times.begin());
  if (mean_)
    return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  return median_of_times(std::move(times));
}

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
  const outlines::ConfigJson config = outlines::ConfigJson::parse(json, "a tiny model");
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
    const double seconds = seconds_since(begin);
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

}  // namespace meshwright::calibrate
