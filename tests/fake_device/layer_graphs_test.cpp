// A layer's graphs (engine/models/running/layer_graphs.h) on the fake device: which forwards are
// launched, with which numbers, and what ends in an error.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "engine/launch/device/device.h"
#include "engine/models/running/layer_graphs.h"
#include "meshwright/error.h"
#include "meshwright/nn/layers.h"

namespace layer_graphs_test {

using at::Tensor;
using meshwright::RotaryTable;
using meshwright::modules::LayerGraphs;

at::TensorOptions device_options() {
  return at::TensorOptions().device(at::kCUDA, 0).dtype(at::kFloat);
}

const meshwright::cuda::CudaPart& part() {
  const meshwright::cuda::CudaPart* found = meshwright::device::cuda_part();
  REQUIRE(found != nullptr);
  at::globalContext().lazyInitDevice(at::kCUDA);
  c10::cuda::device_synchronize();  // nothing of another case is under way
  return *found;
}

bool near(const Tensor& device, const Tensor& host) {
  return device.defined() && at::allclose(device.detach().cpu(), host.detach());
}

// y = x W^T cos + x. A launch does not call it.
struct Layer {
  Layer() {
    part();
    linear = meshwright::make_linear(4, 4, /*bias=*/false, device_options());
    const c10::NoGradGuard no_grad;
    linear->weight.copy_(weight);
    turn(2);
  }
  void turn(double cos) {
    table = {at::full({3, 4}, cos, device_options()), at::zeros({3, 4}, device_options())};
    host_cos = at::full({3, 4}, cos);
  }
  Tensor operator()(const Tensor& x) {
    return graphs.forward(x, table, *linear, [this](const Tensor& in, const RotaryTable& angles) {
      ++calls;
      if (also) also(in);
      return linear(in) * angles.cos + in;
    });
  }
  Tensor on_host(const Tensor& x, const Tensor& w) const { return at::linear(x, w) * host_cos + x; }

  meshwright::Linear linear{nullptr};
  Tensor weight = at::linspace(-1, 1, 16).view({4, 4}), host_cos;
  RotaryTable table;
  LayerGraphs graphs;
  std::function<void(const Tensor&)> also;
  int calls = 0;
};

// A forward, and later its backward, beside the host's.
struct Pass {
  Pass(Layer& of, double from, at::IntArrayRef sizes = {3, 4}) : layer(&of) {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    host_x = at::linspace(from, 1, count).view(sizes).set_requires_grad(true);
    host_w = of.weight.clone().set_requires_grad(true);
    host_y = of.on_host(host_x, host_w);
    grad = at::linspace(1, from, count).view(sizes);
    x = host_x.detach().to(device_options()).set_requires_grad(true);
    y = of(x);
    CHECK(near(y, host_y));
  }
  void backward(bool retain = false) {
    layer->linear->weight.mutable_grad() = Tensor();
    torch::autograd::backward({y}, {grad.to(device_options())}, retain);
    const auto wanted = torch::autograd::grad({host_y}, {host_x, host_w}, {grad}, true);
    CHECK(near(x.grad(), wanted[0]));
    if (layer->linear->weight.requires_grad())
      CHECK(near(layer->linear->weight.grad(), wanted[1]));
    else
      CHECK_FALSE(layer->linear->weight.grad().defined());
  }
  Layer* layer;
  Tensor host_x, host_w, host_y, grad, x, y;
};

// How often the layer is called for a micro-batch.
int calls_of(Layer& layer, double from, at::IntArrayRef sizes = {3, 4}) {
  const int before = layer.calls;
  Pass(layer, from, sizes).backward();
  return layer.calls - before;
}

// Until it is launched. Autograd's thread may hold a graph a little longer than its backward takes,
// and then a capture waits for the next forward.
void warm(Layer& layer) {
  for (int i = 0; i < 20; ++i)
    if (calls_of(layer, i) == 0) return;
  FAIL("never launched");
}

// `call` throws Error(bad_module) with these words, and the key.
void check_error(const std::function<void()>& call, const std::string& words) {
  try {
    call();
    FAIL_CHECK("no error: " << words);
  } catch (const meshwright::Error& error) {
    CHECK(error.code() == meshwright::ErrorCode::bad_module);
    CHECK(error.key() == "dist_env.cuda_graphs");
    CHECK_MESSAGE(error.message().find(words) != std::string::npos, error.message());
  }
}

TEST_CASE("layer graphs: a layer is run, captured, and then launched with its numbers") {
  Layer layer;
  CHECK(calls_of(layer, -1) == 1);
  CHECK(calls_of(layer, -2) == 1);
  warm(layer);
  for (const double from : {-3.0, 0.5}) CHECK(calls_of(layer, from) == 0);
}

TEST_CASE("layer graphs: a forward is run while another one waits for its backward") {
  Layer layer;
  warm(layer);
  const int before = layer.calls;
  Pass first(layer, -3);
  CHECK(layer.calls == before);
  Pass second(layer, 2);
  CHECK(layer.calls == before + 1);
  second.backward();
  first.backward();
  CHECK(near(first.y, first.host_y));
  CHECK(calls_of(layer, 4) == 0);
  {
    const Pass dropped(layer, 5);
    CHECK(layer.calls == before + 1);
  }
  CHECK(calls_of(layer, 6) == 0);
}

TEST_CASE("layer graphs: other shapes are run, and the first ones launched again") {
  Layer layer;
  warm(layer);
  CHECK(calls_of(layer, -3, {2, 3, 4}) == 1);
  CHECK(calls_of(layer, -3, {2, 3, 4}) == 1);
  CHECK(calls_of(layer, -3) == 0);
}

TEST_CASE("layer graphs: forwards without gradients are run, and disturb nothing") {
  Layer layer;
  warm(layer);
  const int before = layer.calls;
  Pass waiting(layer, -3);
  {
    const c10::NoGradGuard no_grad;
    const Tensor host_x = at::linspace(3, 5, 12).view({3, 4});
    const Tensor y = layer(host_x.to(device_options()));
    CHECK(near(y, layer.on_host(host_x, layer.weight)));
    CHECK_FALSE(y.requires_grad());
  }
  CHECK(layer.calls == before + 1);
  waiting.backward();
  CHECK(calls_of(layer, 2) == 0);
}

TEST_CASE("layer graphs: parameters that moved, or were replaced, end in an error") {
  {
    Layer layer;
    warm(layer);
    {
      Pass pass(layer, -3);
      layer.linear->weight.set_data(layer.linear->weight.detach().clone());
      check_error([&] { pass.backward(); }, "moved");
    }
    check_error([&] { Pass(layer, -3); }, "moved");
  }
  Layer layer;
  warm(layer);
  layer.linear->weight = layer.linear->weight.detach().clone().set_requires_grad(true);
  check_error([&] { Pass(layer, -3); }, "others");
}

TEST_CASE("layer graphs: a backward comes once, whether launched or run, and has no second order") {
  for (const bool launched : {false, true}) {
    CAPTURE(launched);
    Layer layer;
    if (launched) warm(layer);
    const int before = layer.calls;
    {
      Pass pass(layer, -3);
      pass.backward(/*retain=*/true);
      check_error([&] { pass.backward(true); }, "ran twice");
    }
    // Of a shape that is new, where it is not to be captured.
    const Pass pass = launched ? Pass(layer, -3) : Pass(layer, -3, {2, 3, 4});
    CHECK(layer.calls == before + (launched ? 0 : 2));
    check_error(
        [&] {
          torch::autograd::grad({pass.y}, {pass.x}, {pass.grad.to(device_options())},
                                /*retain_graph=*/true, /*create_graph=*/true);
        },
        "second derivatives");
  }
}

TEST_CASE("layer graphs: gradients that autograd::grad() gives are not written again") {
  Layer layer;
  warm(layer);
  Pass pass(layer, -3);
  const auto kept = torch::autograd::grad({pass.y}, {pass.x, layer.linear->weight},
                                          {pass.grad.to(device_options())});
  CHECK(calls_of(layer, 7) == 0);
  const auto wanted = torch::autograd::grad({pass.host_y}, {pass.host_x, pass.host_w}, {pass.grad});
  CHECK(near(kept[0], wanted[0]));
  CHECK(near(kept[1], wanted[1]));
}

TEST_CASE("layer graphs: a layer in which nothing trains runs as ever, behind nothing that does") {
  Layer layer;
  layer.linear->weight.set_requires_grad(false);
  for (int i = 1; i <= 3; ++i) {
    CAPTURE(i);
    const Tensor host_x = at::linspace(i, 5, 12).view({3, 4});
    const Tensor y = layer(host_x.to(device_options()));
    CHECK(near(y, layer.on_host(host_x, layer.weight)));
    CHECK_FALSE(y.requires_grad());
    CHECK(layer.calls == i);
  }
  // Behind something that does, it is launched.
  warm(layer);
  CHECK(calls_of(layer, -3) == 0);
}

TEST_CASE("layer graphs: other parameters that train are run") {
  Layer layer;
  warm(layer);
  layer.linear->weight.set_requires_grad(false);
  CHECK(calls_of(layer, -3) == 1);
  CHECK(calls_of(layer, -3) == 1);
  layer.linear->weight.set_requires_grad(true);
  CHECK(calls_of(layer, -3) == 0);
}

TEST_CASE("layer graphs: another rotary table is copied to the graph's") {
  Layer layer;
  warm(layer);
  for (const double cos : {-1.0, 3.0}) {
    layer.turn(cos);
    CHECK(calls_of(layer, -3) == 0);
  }
}

TEST_CASE("layer graphs: nothing is captured while a result is kept") {
  Layer layer;
  {
    const Pass kept(layer, -3);
    for (int i = 0; i < 3; ++i) CHECK(calls_of(layer, i) == 1);
  }
  warm(layer);
}

TEST_CASE("layer graphs: a capture that is refused names the key and leaves the device usable") {
  Layer refused;
  // The host may wait for the device in a forward, but not in a graph.
  refused.also = [](const Tensor& in) { in.sum().item<float>(); };
  CHECK(calls_of(refused, -1) == 1);
  bool ended = false;
  for (int i = 0; i < 20 && !ended; ++i) {
    try {
      calls_of(refused, -1);
    } catch (const meshwright::Error&) {
      ended = true;
    }
  }
  REQUIRE(ended);
  check_error([&] { Pass(refused, -1); }, "cannot be captured");
  // Random numbers, and memory that a capture would have for itself.
  const Tensor random = at::rand({1000}, device_options());
  CHECK(random.mean().item<float>() == doctest::Approx(0.5).epsilon(0.2));
  for (const auto& segment : c10::cuda::CUDACachingAllocator::snapshot().segments) {
    const auto at = reinterpret_cast<uintptr_t>(random.const_data_ptr());
    if (at >= segment.address && at < segment.address + segment.total_size)
      CHECK(segment.owner_private_pool_id == c10::MempoolId_t{0, 0});
  }
  Layer layer;
  warm(layer);
  CHECK(calls_of(layer, -3) == 0);
}

TEST_CASE("layer graphs: memory that graphs have is counted beside tensors, while they are there") {
  auto beside = [] {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes;
    const auto& all = stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    CHECK(part().peak_bytes(0) - all.peak == part().live_bytes(0) - all.current);
    return part().live_bytes(0) - all.current;
  };
  const int64_t before = beside();
  {
    Layer layer;
    CHECK(calls_of(layer, -1) == 1);
    CHECK(beside() == before);
    warm(layer);
    CHECK(beside() > before);
  }
  CHECK(beside() == before);
}

}  // namespace layer_graphs_test
