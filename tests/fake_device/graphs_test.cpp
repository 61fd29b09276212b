// CUDA graphs on the fake device, by LibTorch's own class and by CUDA's calls. Every case runs in a
// process on the fake device; ctest fails where its log tells of a race, but for the cases that say
// so. Long because there are so many, each of a few lines.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/launch/device/device.h"
#include "engine/models/running/causal_lm.h"
#include "engine/models/running/decoder.h"
#include "engine/models/running/initialize.h"
#include "meshwright/nn/layers.h"

namespace fake_device_graphs_test {

using at::Tensor;
using at::cuda::CUDAGraph;
using c10::cuda::CUDAStream;
using c10::cuda::CUDAStreamGuard;

at::TensorOptions on_device(at::ScalarType type = at::kFloat) {
  return at::TensorOptions().device(at::kCUDA, 0).dtype(type);
}

// What a case does on the device has a stream of its own, since graphs are not captured on the
// device's. Nothing is under way on another one.
class OnStream {
 public:
  OnStream() : guard_(make()) {}
  CUDAStream stream() const { return guard_.current_stream(); }

 private:
  static CUDAStream make() {
    at::globalContext().lazyInitDevice(at::kCUDA);
    c10::cuda::device_synchronize();
    return c10::cuda::getStreamFromPool(/*isHighPriority=*/false, 0);
  }
  CUDAStreamGuard guard_;
};

template <class Calls>
void capture(CUDAGraph& graph, const Calls& calls, c10::MempoolId_t pool = {0, 0}) {
  graph.capture_begin(pool);
  calls();
  graph.capture_end();
}

bool same(const Tensor& device, const Tensor& host) { return at::equal(device.cpu(), host); }

// The stream's next operations come after what is called on the other one.
void wait_for(CUDAStream stream, CUDAStream other) {
  at::cuda::CUDAEvent event;
  event.record(other);
  event.block(stream);
}

// A capture by CUDA's own calls, of the stream that LibTorch uses: it ends with this error.
void check_refused(CUDAStream stream, const std::function<void()>& calls, cudaError_t at_end) {
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  calls();
  auto* graph = reinterpret_cast<cudaGraph_t>(&at_end);
  CHECK(cudaStreamEndCapture(stream, &graph) == at_end);
  CHECK(graph == nullptr);
  cudaGetLastError();
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);  // as before
}

}  // namespace fake_device_graphs_test

using namespace fake_device_graphs_test;

TEST_CASE("what is captured runs with each launch, with the numbers of then") {
  const OnStream on;
  Tensor x = at::zeros({3, 4}, on_device()), sum = at::zeros({3, 4}, on_device()), y, parts;
  const Tensor w = at::full({4, 4}, 0.5, on_device());
  CUDAGraph graph;
  capture(graph, [&] {
    y = at::relu(at::mm(x, w) - 1);
    sum.add_(y);
    parts = at::_foreach_mul({sum, y}, 2)[1];  // a list of new tensors
  });
  CHECK(same(sum, at::zeros({3, 4})));
  for (int step = 1; step <= 3; ++step) {
    CAPTURE(step);
    x.fill_(step);
    graph.replay();
    CHECK(same(y, at::full({3, 4}, 2.0 * step - 1, at::kFloat)));
    CHECK(same(parts, at::full({3, 4}, 4.0 * step - 2, at::kFloat)));
  }
  CHECK(same(sum, at::full({3, 4}, 1.0 + 3 + 5, at::kFloat)));
}

TEST_CASE("memory that a graph has done with is used again in it, and by nobody else") {
  const OnStream on;
  const Tensor x = at::ones({1000}, on_device());
  const void *first = nullptr, *second = nullptr;
  Tensor kept;
  CUDAGraph graph;
  capture(graph, [&] {
    Tensor a = x + 1;
    first = a.const_data_ptr();
    kept = a * 2;
    a.reset();
    Tensor b = x + 5;
    second = b.const_data_ptr();
    kept.add_(b);
  });
  CHECK(first == second);
  std::vector<Tensor> others;
  for (int i = 0; i < 4; ++i) {
    others.push_back(at::zeros({1000}, on_device()));
    CHECK(others.back().const_data_ptr() != first);
  }
  graph.replay();
  CHECK(same(kept, at::full({1000}, 4.0 + 6, at::kFloat)));
  for (const Tensor& other : others) CHECK(same(other, at::zeros({1000})));
}

TEST_CASE("a backward pass is a graph beside its forward's, in the same memory") {
  const OnStream on;
  const Tensor host_w = at::linspace(-1, 1, 24).view({4, 6});
  const Tensor w = host_w.to(on_device()).set_requires_grad(true);
  const Tensor x = at::zeros({5, 6}, on_device()).set_requires_grad(true);
  const Tensor grad = at::zeros({5, 4}, on_device());
  auto run = [](const Tensor& in, const Tensor& weight) {
    return at::gelu(at::linear(in, weight)).softmax(1);
  };
  torch::autograd::grad({run(x, w)}, {x, w}, {grad});  // what is made at the first use
  CUDAGraph forward, backward;
  Tensor y;
  torch::autograd::variable_list grads;
  capture(forward, [&] { y = run(x, w); });
  capture(backward, [&] { grads = torch::autograd::grad({y}, {x, w}, {grad}); }, forward.pool());
  for (int step = 1; step <= 2; ++step) {
    CAPTURE(step);
    const Tensor host_x = at::linspace(0, step, 30).view({5, 6}).set_requires_grad(true),
                 leaf = host_w.clone().set_requires_grad(true),
                 host_grad = at::linspace(-step, 2, 20).view({5, 4});
    const Tensor expected = run(host_x, leaf);
    const auto wanted = torch::autograd::grad({expected}, {host_x, leaf}, {host_grad});
    {
      const c10::NoGradGuard no_grad;
      x.copy_(host_x);
      grad.copy_(host_grad);
    }
    forward.replay();
    backward.replay();
    CHECK(at::allclose(y.detach().cpu(), expected.detach()));
    for (const size_t i : {size_t{0}, size_t{1}}) CHECK(at::allclose(grads[i].cpu(), wanted[i]));
  }
}

TEST_CASE("kernels of our own are captured with their arguments") {
  REQUIRE(meshwright::device::cuda_part() != nullptr);
  const OnStream on;
  meshwright::RMSNorm norm(64, 1e-5, meshwright::NormScale::weight);
  norm->to(at::Device(at::kCUDA, 0), at::kBFloat16);
  const c10::NoGradGuard no_grad;
  const Tensor x = at::ones({3, 64}, on_device(at::kBFloat16));
  const Tensor eager = norm(x);  // compiled here
  Tensor y;
  CUDAGraph graph;
  capture(graph, [&] { y = norm(x) * 2; });
  for (const double scale : {1.0, 3.0}) {
    CAPTURE(scale);
    x.copy_(at::linspace(-scale, 1, 192, on_device()).view({3, 64}));
    graph.replay();
    CHECK(same(y, (norm(x) * 2).cpu()));
    CHECK_FALSE(same(y, (eager * 2).cpu()));
  }
}

TEST_CASE("a decoder layer's forward and backward are two graphs with the layer's numbers") {
  namespace modules = meshwright::modules;
  REQUIRE(meshwright::device::cuda_part() != nullptr);
  for (const meshwright::DType type : {meshwright::DType::float32, meshwright::DType::bfloat16}) {
    CAPTURE(static_cast<int>(type));
    const OnStream on;
    modules::CausalLM model = modules::build_model(
        MESHWRIGHT_SOURCE_DIR "/configs/models/llama-tiny.json", type, at::kCPU);
    modules::initialize(*model, 1);
    model->to(at::Device(at::kCUDA, 0));
    auto all = model->named_modules();
    auto* layer = all["model.layers.0"]->as<modules::DecoderLayer>();
    const at::TensorOptions options = layer->parameters()[0].options();
    const Tensor half = at::linspace(0, 3, 9 * 8, on_device()).view({9, 8}),
                 angles = at::cat({half, half}, 1);
    const meshwright::RotaryTable table{angles.cos().to(options), angles.sin().to(options)};
    const Tensor x = at::ones({2, 9, 64}, options).set_requires_grad(true),
                 grad = at::ones({2, 9, 64}, options);
    auto leaves_of = [&](const Tensor& input) {
      std::vector<Tensor> out{input};
      for (const Tensor& parameter : layer->parameters()) out.push_back(parameter);
      return out;
    };
    torch::autograd::grad({layer->forward(x, table)}, leaves_of(x), {grad});  // the first use
    CUDAGraph forward, backward;
    Tensor y;
    torch::autograd::variable_list grads;
    capture(forward, [&] { y = layer->forward(x, table); });
    capture(
        backward, [&] { grads = torch::autograd::grad({y}, leaves_of(x), {grad}); },
        forward.pool());
    for (int step = 1; step <= 2; ++step) {
      CAPTURE(step);
      {
        const c10::NoGradGuard no_grad;
        x.copy_(at::linspace(-step, 1, 2 * 9 * 64, on_device()).view({2, 9, 64}));
        grad.copy_(at::linspace(1, step, 2 * 9 * 64, on_device()).view({2, 9, 64}).sin());
      }
      forward.replay();
      backward.replay();
      const Tensor again = x.detach().clone().set_requires_grad(true),
                   expected = layer->forward(again, table);
      const auto wanted = torch::autograd::grad({expected}, leaves_of(again), {grad});
      CHECK(same(y.detach(), expected.detach().cpu()));
      REQUIRE(grads.size() == wanted.size());
      for (size_t i = 0; i < grads.size(); ++i) {
        CAPTURE(i);
        CHECK(same(grads[i], wanted[i].cpu()));
      }
    }
  }
}

TEST_CASE("copies and cleared memory in a graph, from and to pinned memory") {
  const OnStream on;
  const Tensor x = at::ones({8}, on_device()), y = at::ones({8}, on_device());
  const Tensor in = at::zeros({8}, at::TensorOptions().pinned_memory(true)),
               out = at::zeros({8}, at::TensorOptions().pinned_memory(true));
  CUDAGraph graph;
  const size_t bytes = x.nbytes();
  capture(graph, [&] {
    CHECK(cudaMemcpyAsync(x.mutable_data_ptr(), in.const_data_ptr(), bytes, cudaMemcpyHostToDevice,
                          on.stream()) == cudaSuccess);
    CHECK(cudaMemcpyAsync(y.mutable_data_ptr(), x.const_data_ptr(), bytes, cudaMemcpyDeviceToDevice,
                          on.stream()) == cudaSuccess);
    CHECK(cudaMemsetAsync(x.mutable_data_ptr(), 0, bytes / 2, on.stream()) == cudaSuccess);
    CHECK(cudaMemcpyAsync(out.mutable_data_ptr(), x.const_data_ptr(), bytes, cudaMemcpyDeviceToHost,
                          on.stream()) == cudaSuccess);
  });
  CHECK(same(y, at::ones({8})));
  for (int step = 2; step <= 3; ++step) {
    CAPTURE(step);
    on.stream().synchronize();
    in.fill_(step);
    graph.replay();
    CHECK(same(y, at::full({8}, step, at::kFloat)));
    on.stream().synchronize();
    CHECK(at::equal(out, at::cat({at::zeros({4}), at::full({4}, step, at::kFloat)})));
  }
}

TEST_CASE("another stream may take a part of a graph, and comes back to it") {
  const OnStream on;
  const CUDAStream other = c10::cuda::getStreamFromPool(false, 0);
  REQUIRE(other != on.stream());
  Tensor x = at::ones({16}, on_device()), y = at::zeros({16}, on_device()),
         z = at::zeros({16}, on_device());
  CUDAGraph graph;
  capture(graph, [&] {
    x.add_(1);
    wait_for(other, on.stream());
    {
      const CUDAStreamGuard beside(other);
      at::mul_out(y, x, x);
    }
    at::add_out(z, x, x);
    wait_for(on.stream(), other);
    z.add_(y);
  });
  graph.replay();
  graph.replay();
  // Launches of one graph follow each other on any streams.
  const CUDAStreamGuard beside(other);
  REQUIRE(cudaGraphLaunch(graph.raw_cuda_graph_exec(), other) == cudaSuccess);
  CHECK(same(z, at::full({16}, 4.0 * 4 + 4 + 4, at::kFloat)));
  c10::cuda::device_synchronize();
}

TEST_CASE("a graph may be a part of another one") {
  const OnStream on;
  Tensor x = at::zeros({4}, on_device());
  CUDAGraph inner, outer;
  capture(inner, [&] { x.add_(1); });
  capture(outer, [&] {
    CHECK(cudaGraphLaunch(inner.raw_cuda_graph_exec(), on.stream()) == cudaSuccess);
    x.mul_(2);
    CHECK(cudaGraphLaunch(inner.raw_cuda_graph_exec(), on.stream()) == cudaSuccess);
  });
  outer.replay();
  CHECK(same(x, at::full({4}, (0.0 + 1) * 2 + 1, at::kFloat)));
}

TEST_CASE("what CUDA refuses while a stream is captured ends the capture") {
  const OnStream on;
  const CUDAStream other = c10::cuda::getStreamFromPool(false, 0);
  const Tensor x = at::ones({4}, on_device());
  std::vector<float> pageable(4);
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  const cudaStream_t stream = on.stream();
  struct Row {
    const char* what;
    std::function<cudaError_t()> call;
    cudaError_t error;
  };
  const std::vector<Row> rows{
      {"a wait for the stream", [&] { return cudaStreamSynchronize(stream); },
       cudaErrorStreamCaptureUnsupported},
      {"a question for the stream", [&] { return cudaStreamQuery(stream); },
       cudaErrorStreamCaptureUnsupported},
      {"a wait for the device", [&] { return cudaDeviceSynchronize(); },
       cudaErrorStreamCaptureUnsupported},
      {"a copy from pageable memory",
       [&] {
         return cudaMemcpyAsync(x.mutable_data_ptr(), pageable.data(), x.nbytes(),
                                cudaMemcpyHostToDevice, stream);
       },
       cudaErrorStreamCaptureUnsupported},
      {"a copy that waits",
       [&] {
         return cudaMemcpy(pageable.data(), x.const_data_ptr(), x.nbytes(), cudaMemcpyDeviceToHost);
       },
       cudaErrorStreamCaptureUnsupported},
      {"memory",
       [&] {
         void* p = nullptr;
         return cudaMalloc(&p, 4096);
       },
       cudaErrorStreamCaptureUnsupported},
      {"a wait for an event of it",
       [&] {
         CHECK(cudaEventRecord(event, stream) == cudaSuccess);
         return cudaEventSynchronize(event);
       },
       cudaErrorCapturedEvent},
      {"an event of a stream that is not captured",
       [&] {
         CHECK(cudaEventRecord(event, other) == cudaSuccess);
         return cudaStreamWaitEvent(stream, event, 0);
       },
       cudaErrorStreamCaptureIsolation},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.what));
    check_refused(
        on.stream(),
        [&] {
          CHECK(row.call() == row.error);
          CHECK(cudaMemsetAsync(x.mutable_data_ptr(), 0, 4, stream) ==
                cudaErrorStreamCaptureInvalidated);
        },
        cudaErrorStreamCaptureInvalidated);
  }
  CHECK(cudaEventDestroy(event) == cudaSuccess);
  CHECK(same(x, at::ones({4})));
  CHECK(std::string(cudaGetErrorName(cudaErrorCapturedEvent)) == "cudaErrorCapturedEvent");
}

TEST_CASE("operators that need the host, or numbers that differ each time, are not captured") {
  const OnStream on;
  const Tensor x = at::ones({4}, on_device());
  c10::List<std::optional<Tensor>> on_host;
  on_host.push_back(at::tensor({1, 2}, at::kLong));
  const std::vector<std::function<void()>> calls{[&] { x.sum().item<float>(); },
                                                 [&] { at::nonzero(x); }, [&] { x.uniform_(0, 1); },
                                                 [&] { at::index(x, on_host); }};
  for (const std::function<void()>& call : calls)
    check_refused(on.stream(), [&] { CHECK_THROWS(call()); }, cudaErrorStreamCaptureInvalidated);
  CHECK(same(x, at::ones({4})));
}

TEST_CASE("a stream that took a part comes back before the end, and nobody uses the device's own") {
  const OnStream on;
  const CUDAStream other = c10::cuda::getStreamFromPool(false, 0);
  const Tensor x = at::ones({4}, on_device());
  auto clear = [&](cudaStream_t stream) {
    return cudaMemsetAsync(x.mutable_data_ptr(), 0, 4, stream);
  };
  check_refused(
      on.stream(),
      [&] {
        wait_for(other, on.stream());
        CHECK(clear(other) == cudaSuccess);
      },
      cudaErrorStreamCaptureUnjoined);
  cudaStream_t blocking = nullptr;
  REQUIRE(cudaStreamCreate(&blocking) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  CHECK(clear(nullptr) == cudaErrorStreamCaptureImplicit);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(blocking, &graph) == cudaErrorStreamCaptureInvalidated);
  CHECK(cudaStreamEndCapture(blocking, &graph) == cudaErrorIllegalState);
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed) ==
        cudaErrorStreamCaptureUnsupported);
  cudaGetLastError();
  CHECK(same(x, at::ones({4})));
}

TEST_CASE("memory may be had during a capture that says so") {
  const OnStream on;
  REQUIRE(cudaStreamBeginCapture(on.stream(), cudaStreamCaptureModeRelaxed) == cudaSuccess);
  void* p = nullptr;
  CHECK(cudaMalloc(&p, 4096) == cudaSuccess);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  CHECK(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  CHECK(mode == cudaStreamCaptureModeGlobal);
  CHECK(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  CHECK(mode == cudaStreamCaptureModeRelaxed);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(on.stream(), &graph) == cudaSuccess);
  size_t nodes = 1;
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
  CHECK(nodes == 0);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaFree(p) == cudaSuccess);
}

// graph_counts_test.cpp reads what this costs.
TEST_CASE("counted: three launches of a graph" * doctest::skip()) {
  const OnStream on;
  Tensor x = at::ones({1000}, on_device());
  CUDAGraph graph;
  capture(graph, [&] { x.add_(1).mul_(2); });
  for (int i = 0; i < 3; ++i) graph.replay();
  CHECK(same(x, at::full({1000}, 22, at::kFloat)));
}

// The log of each of these tells of the race.
TEST_CASE("race: another stream reads what a graph writes" * doctest::skip()) {
  const OnStream on;
  const CUDAStream other = c10::cuda::getStreamFromPool(false, 0);
  Tensor x = at::ones({4}, on_device()), y = at::ones({4}, on_device());
  CUDAGraph graph;
  capture(graph, [&] { x.add_(1); });
  c10::cuda::device_synchronize();
  graph.replay();
  const CUDAStreamGuard beside(other);
  y.copy_(x);
}

TEST_CASE("race: streams within a graph that do not wait for each other" * doctest::skip()) {
  const OnStream on;
  const CUDAStream other = c10::cuda::getStreamFromPool(false, 0);
  Tensor x = at::ones({4}, on_device());
  CUDAGraph graph;
  capture(graph, [&] {
    wait_for(other, on.stream());
    {
      const CUDAStreamGuard beside(other);
      x.add_(1);
    }
    x.mul_(2);
    wait_for(on.stream(), other);
  });
  c10::cuda::device_synchronize();
  graph.replay();
}
