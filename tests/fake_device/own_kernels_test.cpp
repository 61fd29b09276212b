// What modules do with kernels of our own on a device: the CPU's numbers, and what only they can;
// and updates of so many elements that they go in pieces. Skipped cases are what a process on the
// fake device does.
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/launch/device/device.h"
#include "engine/models/running/activation.h"
#include "engine/train/step/optimizer.h"
#include "meshwright/error.h"
#include "meshwright/nn/layers.h"
#include "meshwright/nn/loss.h"
#include "meshwright/nn/moe.h"
#include "meshwright/nn/rotary.h"
#include "meshwright/trainer.h"
#include "sdk/base/residual.h"
#include "tests/contents.h"
#include "wrong_lines.h"

namespace own_kernels_test {

namespace fs = std::filesystem;
using namespace meshwright;
using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor random(at::IntArrayRef sizes, at::ScalarType type, int64_t seed) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::randn(sizes, generator, at::TensorOptions()).to(type);
}

class Autocast {
 public:
  Autocast(at::DeviceType device, at::ScalarType type) : device_(device) {
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::set_autocast_dtype(device, type);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
};

// Results and gradients of `run` on the CPU and on the device.
void check_alike(const char* what, const Tensors& given,
                 const std::function<Tensors(const Tensors&)>& run, double tolerance) {
  CAPTURE(std::string(what));
  auto on = [&](at::Device device) {
    Tensors inputs, all;
    for (const Tensor& t : given)
      inputs.push_back(t.detach()
                           .to(device, /*non_blocking=*/false, /*copy=*/true)
                           .set_requires_grad(t.is_floating_point()));
    Tensor sum = at::zeros({}, at::TensorOptions().device(device));
    for (const Tensor& out : run(inputs)) {
      all.push_back(out.detach());
      sum = sum + (out.to(at::kFloat) * out.detach().to(at::kFloat).cos()).sum();
    }
    sum.backward();
    for (const Tensor& t : inputs)
      if (t.grad().defined()) all.push_back(t.grad());
    for (Tensor& t : all) t = t.to(at::kCPU, at::kDouble);
    return all;
  };
  const Tensors host = on(at::kCPU), device = on(at::Device(at::kCUDA, 0));
  REQUIRE(host.size() == device.size());
  for (size_t i = 0; i < host.size(); ++i) {
    CAPTURE(i);
    REQUIRE(host[i].sizes() == device[i].sizes());
    if (host[i].numel() == 0) continue;
    const double most = (host[i] - device[i]).abs().max().item<double>();
    CHECK(most <= tolerance * (1 + host[i].abs().max().item<double>()));
  }
}

void check_modules(at::ScalarType type, double tolerance) {
  CAPTURE(std::string(c10::toString(type)));
  for (const int64_t size : {64, 33, 1032, 2048, 12224, 12288})
    for (const NormScale scale : {NormScale::weight, NormScale::one_plus_weight})
      check_alike(
          "RMSNorm", {random({2, 9, size}, type, 1), random({size}, type, 2)},
          [&](const Tensors& in) {
            RMSNorm norm(size, 1e-5, scale);
            norm->weight = in[1];
            return Tensors{norm(in[0])};
          },
          tolerance);
  // Of a stream in the type itself, or in float32.
  for (const at::ScalarType wide : {type, at::kFloat})
    for (const int64_t size : {64, 33, 1032})
      check_alike(
          "RMSNorm of a sum",
          {random({2, 9, size}, wide, 1), random({2, 9, size}, type, 2), random({size}, wide, 3)},
          [&](const Tensors& in) {
            RMSNorm norm(size, 1e-5, NormScale::weight);
            norm->weight = in[2];
            auto [sum, y] = add_and_norm(in[0], in[1], norm);
            return Tensors{sum, y};
          },
          wide == type ? tolerance : tolerance / 8);
  check_alike(
      "SwiGLU", {random({2, 5, 2, 24}, type, 1)},
      [](const Tensors& in) {
        modules::GatedActivation swiglu("silu");
        auto halves = in[0].unbind(2);
        return Tensors{swiglu(halves[0], halves[1]), swiglu(in[0], in[0] * 2)};
      },
      tolerance);
  for (const int64_t size : {24, 33})
    check_alike(
        "experts",
        {random({12, 16}, type, 1), random({12}, at::kFloat, 2), random({3, 16, 2 * size}, type, 3),
         random({3, size, 16}, type, 4)},
        [&](const Tensors& in) {
          MoeConfig config;
          config.dim = 16, config.moe_inter_dim = size, config.n_routed_experts = 3;
          GroupedExperts experts(config);
          experts->gate_and_up_projs = in[2] * 0.25, experts->down_projs = in[3] * 0.25;
          const Tensor bounds = at::tensor({0, 5, 5, 12}, at::kInt).to(in[0].device());
          return Tensors{experts(in[0], std::vector<int64_t>{5, 0, 7}, in[1]),
                         experts(in[0], bounds, in[1])};
        },
        4 * tolerance);
  for (const int64_t size : {16, 20, 33})
    check_alike(
        "rows of tokens", {random({6, size}, type, 1)},
        [](const Tensors& in) {
          const Tensor experts =
              at::tensor({0, 2, 2, -1, -1, -1, 1, 0, 2, 1, 0, 2}, at::kLong).view({6, 2});
          const ExpertOrder order = sort_by_expert(experts.to(in[0].device()), 3);
          const Tensor rows = gather_tokens(in[0], order);
          return Tensors{rows, combine_tokens(rows * 0.75, order)};
        },
        tolerance);
  for (const int64_t size : {16, 20})
    check_alike(
        "RoPE",
        {random({2, 7, 6, size}, type, 1), random({7, 8}, type, 2), random({7, 8}, type, 3)},
        [](const Tensors& in) {
          auto halves = in[0].split_with_sizes({4, 2}, 2);
          auto both = [](const Tensor& half) { return at::cat({half, half}, 1).detach(); };
          auto [q, k] = rotate(halves[0], halves[1], {both(in[1]), both(in[2])});
          return Tensors{q, k};
        },
        tolerance);
  for (const int64_t ids : {40, 41})
    check_alike(
        "cross entropy",
        {random({3, 6, ids}, type, 1),
         at::arange(18).view({3, 6}).masked_fill(at::arange(18).view({3, 6}).eq(4), -100)},
        [](const Tensors& in) { return Tensors{cross_entropy_sum(in[0], in[1])}; }, tolerance);
}

// Projections of a float32 stream beside each other, then heads turned by angles in float32. Each
// sum of an exact product has one term, so that all its numbers are the CPU's to the bit.
void check_autocast(at::ScalarType type, double tolerance) {
  for (const bool exact : {true, false})
    for (const int64_t size : {16, 20})
      check_alike(
          exact ? "exact projections under autocast" : "projections under autocast",
          {random({2, 7, 40}, at::kFloat, 1), random({4 * size, 40}, at::kFloat, 2),
           random({2 * size, 40}, at::kFloat, 3), random({48, 40}, at::kFloat, 4),
           random({48}, at::kFloat, 5), random({7, 8}, at::kFloat, 6),
           random({7, 8}, at::kFloat, 7)},
          [&](const Tensors& in) {
            const Autocast autocast(in[0].device().type(), type);
            const Tensor x = in[0] * 1;  // of a leaf LibTorch keeps the cast
            auto project = [&](const Tensor& weight, const Tensor& bias) {
              Linear linear(torch::nn::LinearOptions(1, 1).bias(false));
              linear->weight =
                  exact ? at::eye(weight.size(0), weight.size(1), in[0].options()) : weight;
              if (!exact) linear->bias = bias;
              return linear(x);
            };
            auto heads = [&](const Tensor& flat) { return flat.view({2, 7, -1, size}); };
            auto both = [](const Tensor& half) { return at::cat({half, half}, 1).detach(); };
            auto [q, k] = rotate(heads(project(in[1], {})), heads(project(in[2], {})),
                                 {both(in[5]), both(in[6])});
            return Tensors{q.to(type), k.to(type), project(in[3], in[4])};
          },
          exact ? 0 : 4 * tolerance);
}
// The last reader of a cast comes when nobody has it any more, or its tensor has changed.
void check_shared_cast(at::Device device) {
  const Autocast autocast(device.type(), at::kBFloat16);
  Linear linear(torch::nn::LinearOptions(8, 8).bias(false));
  linear->to(device);
  Tensor x = random({2, 3, 8}, at::kFloat, 1).to(device).set_requires_grad(true) * 1;
  const Tensor first = linear(x);
  {
    c10::NoGradGuard no_grad;
    x.mul_(2);
  }
  CHECK(at::equal(linear(x).detach(), first.detach() * 2));
  Tensor sum;
  for (int reader = 0; reader < 11; ++reader)
    sum = sum.defined() ? sum + linear(x).sum() : linear(x).sum();
  const Tensor once = torch::autograd::grad({linear(x).sum()}, {x})[0],
               all = torch::autograd::grad({sum}, {x})[0];
  CHECK((all - once * 11).abs().max().item<double>() <= 1e-5);
}

void check_bad_target(at::Device device) {
  const Tensor logits = random({3, 8}, at::kBFloat16, 1).to(device),
               good = at::tensor({1, 2, 7}, at::kLong).to(device),
               bad = at::tensor({1, 8, 7}, at::kLong).to(device);
  CHECK(cross_entropy_sum(logits, bad).isnan().item<bool>());
  std::string said;
  try {
    cross_entropy_sum(logits, good);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_token);
    said = error.what();
  }
  CHECK(said.find("the target 8 lies outside of the vocabulary of 8") != std::string::npos);
  CHECK(cross_entropy_sum(logits, good).isfinite().item<bool>());
  throw_bad_target();  // there is none
  CHECK(cross_entropy_sum(logits, bad).isnan().item<bool>());
  CHECK_THROWS_AS(throw_bad_target(), Error);
  throw_bad_target();
}

void check_memory_of_gradient(at::Device device) {
  const Tensor x = random({4, 16}, at::kBFloat16, 1).to(device).set_requires_grad(true),
               targets = at::tensor({1, 2, 3, 4}, at::kLong).to(device);
  auto gradient_of = [&](bool held, bool twice) {
    Tensor logits = x * 1, loss = cross_entropy_sum(logits, targets), given = logits.detach();
    const void* memory = logits.const_data_ptr();
    Tensor before = given.clone(), gradient;
    bool in_place = false;
    logits.register_hook([&](const Tensor& grad) {
      gradient = grad.clone();
      in_place = grad.const_data_ptr() == memory;
    });
    if (!held) logits.reset(), given.reset();
    loss.backward({}, /*retain_graph=*/twice);
    CHECK(in_place == (!held && !twice));
    if (held) CHECK(at::equal(given, before));
    if (twice) {
      const Tensor first = gradient.clone();
      loss.backward();
      CHECK(at::equal(first, gradient));
    }
    return gradient;
  };
  const Tensor held = gradient_of(true, false);
  CHECK(at::equal(held, gradient_of(false, false)));
  CHECK(at::equal(held, gradient_of(false, true)));
}

// What is cast goes in pieces: on the CPU of 2^20 elements, on a device of 2^24, and there only
// where gradients are cast.
void check_updates() {
  struct Row {
    const char* what;
    std::vector<std::pair<std::string, std::string>> keys;
    int64_t count;
    at::ScalarType values, gradients;
  };
  constexpr int64_t kMore = (int64_t{1} << 20) + 3, kMoreOfDevice = (int64_t{1} << 24) + 3;
  constexpr double kRate = 0.25;
  const std::vector<Row> rows{{"whole", {{"name", "\"adamw\""}}, kMore, at::kFloat, at::kFloat},
                              {"main weights",
                               {{"name", "\"adamw\""}, {"main_dtype", "float32"}},
                               kMore,
                               at::kBFloat16,
                               at::kBFloat16},
                              {"narrow gradients",
                               {{"name", "\"sgd\""}, {"momentum", "0"}, {"weight_decay", "0"}},
                               kMoreOfDevice,
                               at::kFloat,
                               at::kBFloat16}};
  for (const Row& row : rows) {
    CAPTURE(std::string(row.what));
    const Tensor start = at::linspace(-1, 1, row.count).to(row.values),
                 gradient = at::linspace(2, -3, row.count).to(row.gradients);
    // Values, what the optimizer keeps of them, and main weights if there are any.
    auto on = [&](at::Device device) {
      Job job;
      for (const auto& [key, value] : row.keys) job.set("optimizer." + key, value);
      const auto optimizer = train::make_optimizer(job.table("optimizer"));
      const std::vector<FlatParameterGroup> groups{
          {start.to(device, /*non_blocking=*/false, /*copy=*/true),
           gradient.to(device, /*non_blocking=*/false, /*copy=*/true)}};
      for (int step = 0; step < 2; ++step) optimizer->step(groups, kRate);
      Tensors all{groups[0].values};
      for (const train::Optimizer::State& state : optimizer->state())
        all.push_back(state.tensors.at(0));
      for (const Tensor& main : optimizer->main_weights()) all.push_back(main);
      for (Tensor& t : all) t = t.to(at::kCPU);
      return all;
    };
    auto difference = [](const Tensor& a, const Tensor& b) {
      return (a.to(at::kFloat) - b.to(at::kFloat)).abs().max().item<double>();
    };
    const Tensors host = on(at::kCPU), device = on(at::Device(at::kCUDA, 0));
    REQUIRE(host.size() == device.size());
    for (size_t i = 0; i < host.size(); ++i) {
      CAPTURE(i);
      // Below 2 the last bit of bfloat16 is 1/128.
      const double most = host[i].scalar_type() == at::kFloat ? 1e-6 : 1.0 / 128;
      CHECK(difference(host[i], device[i]) <= most);
      CHECK(host[i].abs().max().item<double>() < 3);
    }
    for (const Tensors* all : {&host, &device}) {
      if (all->size() == 1)
        CHECK(difference(all->front(), start - 2 * kRate * gradient.to(at::kFloat)) <= 1e-6);
      if (row.values != at::kFloat)
        CHECK(all->front().equal(all->back().to(row.values)));  // main weights, rounded
      CHECK_FALSE(all->front().equal(start));
    }
  }
}

// The code and what the process said.
std::pair<int, std::string> play(const char* compiles, const std::string& cases) {
  const fs::path out = fs::temp_directory_path() / ("own_kernels." + std::to_string(::getpid()));
  const std::string command = std::string("FAKE_DEVICE_NVRTC=") + compiles +
                              " OMP_NUM_THREADS=1 FAKE_DEVICE_LIBRARIES=" FAKE_DEVICE_LIBRARIES
                              " " MESHWRIGHT_SOURCE_DIR "/tests/fake_device/run " +
                              fs::canonical("/proc/self/exe").string() +
                              " --no-skip --no-version --test-case='device: " + cases + "' >" +
                              out.string() + " 2>&1";
  const int code = std::system(command.c_str());
  const std::string said = contents(out);
  fs::remove(out);
  return {code, said};
}

void check_nothing_wrong(int code, const std::string& said) {
  CHECK_MESSAGE(code == 0, said);
  for (const std::string_view wrong : fake_device_jobs::kWrongLines)
    CHECK_MESSAGE(said.find(wrong) == std::string::npos, said);
}

}  // namespace own_kernels_test

using namespace own_kernels_test;

TEST_CASE("device: modules in all types" * doctest::skip()) {
  REQUIRE(device::cuda_part() != nullptr);
  device::cuda_part()->use_device(0);
  check_modules(at::kFloat, 1e-5);
  check_modules(at::kBFloat16, 1.0 / 64);
  check_modules(at::kHalf, 1.0 / 512);
  check_autocast(at::kBFloat16, 1.0 / 64);
  check_autocast(at::kHalf, 1.0 / 512);
  check_shared_cast(at::Device(at::kCUDA, 0));
  const char* compiles = std::getenv("FAKE_DEVICE_NVRTC");
  if (compiles != nullptr && std::string(compiles) == "0") return;
  check_bad_target(at::Device(at::kCUDA, 0));
  check_memory_of_gradient(at::Device(at::kCUDA, 0));
}

TEST_CASE("modules on a device give the CPU's numbers, with kernels of our own and without") {
  for (const char* compiles : {"1", "0"}) {
    CAPTURE(std::string(compiles));
    const auto [code, said] = play(compiles, "modules *");
    check_nothing_wrong(code, said);
    const std::string notice = "kernels of our own cannot be compiled";
    const size_t first = said.find(notice);
    CHECK((first == std::string::npos) == (std::string(compiles) == "1"));
    if (first != std::string::npos) CHECK(said.find(notice, first + 1) == std::string::npos);
  }
}

TEST_CASE("device: updates in pieces" * doctest::skip()) {
  REQUIRE(device::cuda_part() != nullptr);
  device::cuda_part()->use_device(0);
  check_updates();
}

TEST_CASE("optimizers update on a device as on the CPU, also more elements than a piece has") {
  const auto [code, said] = play("1", "updates *");
  check_nothing_wrong(code, said);
}
