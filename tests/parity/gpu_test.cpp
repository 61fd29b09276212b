// On a machine with an NVIDIA device: NCCL in a world of one, and ranks that share the device over
// gloo, against PyTorch's curves. Without a device everything here is skipped, and says so.
#define DOCTEST_CONFIG_IMPLEMENT
// Before doctest's, whose CHECK is to be the last one: c10's ends the process.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "meshwright/nn/layers.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "curves.h"
#include "engine/launch/device/device.h"
#include "meshwright/nn/attention.h"

using namespace meshwright;
using namespace meshwright::parity;
using at::Tensor;

namespace {

const std::vector<std::string> kCuda{"dist_env.device=cuda"};

std::vector<std::string> with(std::vector<std::string> sets, const std::vector<std::string>& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

}  // namespace

TEST_CASE("NCCL in a world of one: every collective the groups use") {
  const cuda::CudaPart& part = *device::cuda_part();
  part.use_device(0);
  auto nccl =
      part.make_nccl(c10::make_intrusive<c10d::HashStore>(), 0, 1, 0, std::chrono::minutes(2));
  CHECK(nccl->getBackendName() == "nccl");
  at::TensorOptions options = at::TensorOptions().dtype(at::kFloat).device(at::kCUDA, 0);
  Tensor x = at::arange(1000, options), y = at::empty({1000}, options);
  std::vector<Tensor> one{x.clone()};
  nccl->allreduce(one)->wait();
  CHECK(at::equal(one[0], x));
  nccl->broadcast(one)->wait();
  CHECK(at::equal(one[0], x));
  nccl->_allgather_base(y, x)->wait();
  CHECK(at::equal(y, x));
  y.zero_();
  nccl->_reduce_scatter_base(y, x)->wait();
  CHECK(at::equal(y, x));
  y.zero_();
  std::vector<int64_t> splits{1000};
  nccl->alltoall_base(y, x, splits, splits)->wait();
  CHECK(at::equal(y, x));
  auto work = nccl->allreduce(one);
  work->wait();
  part.synchronize();
  CHECK(work->isCompleted());
}

TEST_CASE("device memory is counted by the caching allocator") {
  const cuda::CudaPart& part = *device::cuda_part();
  part.use_device(0);
  int64_t before = part.live_bytes(0);
  {
    Tensor megabyte =
        at::zeros({1 << 18}, at::TensorOptions().dtype(at::kFloat).device(at::kCUDA, 0));
    CHECK(part.live_bytes(0) - before == 1 << 20);
    part.reset_peak(0);
    {
      Tensor more = at::zeros({1 << 18}, megabyte.options());
    }
    CHECK(part.peak_bytes(0) - before == 2 << 20);
  }
  CHECK(part.live_bytes(0) == before);
}

namespace {

struct AttentionCase {
  int64_t rows, width, window;
  bool strided;  // parts of wider tensors, at odd places
};

// What comes out and the gradients of queries, keys and values, in float64 on the host.
std::vector<Tensor> attended(const AttentionCase& c, const std::array<Tensor, 4>& given,
                             at::Device device, at::ScalarType type) {
  std::array<Tensor, 4> x;
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = given[i].to(device, type);
    if (c.strided)
      x[i] =
          at::constant_pad_nd(x[i], {3, 2, 0, 1}).narrow(2, 0, x[i].size(2)).narrow(3, 3, c.width);
    x[i] = x[i].detach().set_requires_grad(i < 3);
  }
  AttentionCore core(
      AttentionOptions{.scale = 1 / std::sqrt(static_cast<double>(c.width)), .window = c.window});
  const Tensor out = core(x[0], x[1], x[2]);
  out.backward(x[3]);
  std::vector<Tensor> found{out.detach()};
  for (size_t i = 0; i < 3; ++i) found.push_back(x[i].grad());
  for (Tensor& t : found) t = t.to(at::kCPU, at::kDouble);
  return found;
}

}  // namespace

TEST_CASE("attention on the device is the CPU's, whatever operator does it") {
  // Rows long and even are cuDNN's, in 16 bits and where LibTorch prefers it.
  const std::vector<AttentionCase> cases{
      {1024, 64, 0, false}, {1024, 64, 0, true},  {1000, 64, 0, false}, {1024, 64, 100, false},
      {1280, 128, 0, true}, {1024, 20, 0, false}, {64, 6, 0, false},    {64, 6, 0, true}};
  for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat})
    for (const AttentionCase& c : cases) {
      CAPTURE(c.rows);
      CAPTURE(c.width);
      CAPTURE(c.window);
      CAPTURE(c.strided);
      CAPTURE(type);
      at::manual_seed(1);
      std::array<Tensor, 4> given;  // queries, keys, values, the gradient of what comes out
      for (size_t i = 0; i < given.size(); ++i)
        given[i] = at::randn({2, c.rows, i == 1 || i == 2 ? 2 : 4, c.width}, at::kFloat).to(type);
      const auto expected = attended(c, given, at::kCPU, at::kDouble),
                 found = attended(c, given, at::Device(at::kCUDA, 0), type);
      // Sums of rounded products: bfloat16 has 8 bits, float16 11, float32 24.
      const double most = type == at::kFloat ? 2e-6 : type == at::kHalf ? 2e-3 : 1e-2;
      for (size_t i = 0; i < found.size(); ++i) {
        CAPTURE(i);
        CHECK((found[i] - expected[i]).norm().item<double>() <
              most * expected[i].norm().item<double>());
      }
    }
}

namespace {

Tensor scaled_product(const Tensor& a, const Tensor& b, const Tensor& by_a) {
  return at::_scaled_mm(a, b, by_a, at::ones({}, at::TensorOptions().device(at::kCUDA, 0)), {}, {},
                        at::kBFloat16);
}

Tensor ones_of(int64_t rows, int64_t columns, at::ScalarType type) {
  return at::ones({rows, columns}, at::TensorOptions().device(at::kCUDA, 0)).to(type);
}

bool has_float8() {
  const Tensor one = at::ones({}, at::TensorOptions().device(at::kCUDA, 0)),
               x = ones_of(16, 16, at::kFloat8_e4m3fn);
  try {
    scaled_product(x, x.t(), one);
    return true;
  } catch (const c10::Error& error) {
    const std::string why = error.what_without_backtrace();
    if (why.find("compute capability") == std::string::npos) throw;
    MESSAGE("this device has no products of 8-bit floats: ", why);
    return false;
  }
}

// Of a Linear in 8-bit floats: what comes out, and the gradients of x, weight and bias. Given are
// these three and the gradient of what comes out.
std::vector<Tensor> multiplied(const std::array<Tensor, 4>& given, at::Device device,
                               at::ScalarType type) {
  Linear linear = make_linear(given[1].size(1), given[1].size(0), /*bias=*/true,
                              at::TensorOptions().dtype(type).device(device));
  {
    c10::NoGradGuard no_grad;
    linear->weight.copy_(given[1]);
    linear->bias.copy_(given[2]);
  }
  linear->float8 = true;
  const Tensor x = given[0].to(device, type).detach().set_requires_grad(true), y = linear(x);
  y.backward(given[3].to(device, type));
  std::vector<Tensor> found{y.detach(), x.grad(), linear->weight.grad(), linear->bias.grad()};
  for (Tensor& t : found) t = t.to(at::kCPU, at::kDouble);
  return found;
}

}  // namespace

TEST_CASE("float8: a Linear on the device gives what the CPU gives") {
  if (!has_float8()) return;
  for (const auto type : {at::kBFloat16, at::kFloat})
    for (const int64_t rows : {1, 33, 512}) {
      CAPTURE(type);
      CAPTURE(rows);
      at::manual_seed(1);
      const std::array<Tensor, 4> given{at::randn({rows, 256}).to(type),
                                        at::randn({128, 256}).to(type), at::randn({128}).to(type),
                                        at::randn({rows, 128}).to(type)};
      const auto expected = multiplied(given, at::kCPU, type),
                 found = multiplied(given, at::Device(at::kCUDA, 0), type);
      // Forward keeps some 14 bits of a sum on an H100, bfloat16 8.
      const double most = 1e-2;
      for (size_t i = 0; i < found.size(); ++i) {
        CAPTURE(i);
        CHECK((found[i] - expected[i]).norm().item<double>() <
              most * expected[i].norm().item<double>());
      }
      // Numbers that are not rounded to 8 bits give something else: that would be seen.
      const Tensor whole =
          given[0].to(at::kDouble).matmul(given[1].to(at::kDouble).t()) + given[2].to(at::kDouble);
      CHECK((whole - expected[0]).norm().item<double>() >
            2 * most * expected[0].norm().item<double>());
    }
}

TEST_CASE("float8: what a product on the device refuses") {
  if (!has_float8()) return;
  const auto values = at::kFloat8_e4m3fn, gradients = at::kFloat8_e5m2;
  const at::TensorOptions cuda = at::TensorOptions().device(at::kCUDA, 0);
  const Tensor one = at::ones({}, cuda), a = ones_of(16, 32, values), b = ones_of(48, 32, values);
  const Tensor sums = scaled_product(a, b.t(), one);
  CHECK(sums.size(1) == 48);
  CHECK(sums.min().item<float>() == 32);
  CHECK(sums.max().item<float>() == 32);
  struct Case {
    std::string what;
    Tensor a, b, scale;
  };
  for (const Case& c : std::vector<Case>{
           {"a second factor by rows", a, ones_of(32, 48, values), one},
           {"a first factor by columns", ones_of(32, 16, values).t(), b.t(), one},
           {"sums over 24", ones_of(16, 24, values), ones_of(48, 24, values).t(), one},
           {"40 columns", a, ones_of(40, 32, values).t(), one},
           {"gradients by gradients", ones_of(16, 32, gradients), ones_of(48, 32, gradients).t(),
            one},
           {"16 bits", ones_of(16, 32, at::kBFloat16), ones_of(48, 32, at::kBFloat16).t(), one},
           {"two scales", a, b.t(), at::ones({2}, cuda)},
           {"a scale of 64 bits", a, b.t(), at::ones({}, cuda.dtype(at::kDouble))},
           {"a scale of the host", a, b.t(), at::ones({})},
       }) {
    CAPTURE(c.what);
    CHECK_THROWS_AS(static_cast<void>(scaled_product(c.a, c.b, c.scale)), c10::Error);
  }
}

TEST_CASE("curves on the device are PyTorch's") {
  Folder folder;
  const std::string ddp = "distributed.strategy=ddp", fsdp = "distributed.fsdp2.";
  struct Case {
    std::string family;
    int ranks, accumulation;
    std::vector<std::string> sets;
  };
  double worst_loss = 0, worst_norm = 0;
  for (const Case& c : std::vector<Case>{
           {"llama", 1, 1, {ddp}},
           {"llama", 1, 4, {}},
           {"llama", 1, 1, {fsdp + "offload_policy=cpu"}},
           {"llama", 2, 1, {ddp}},
           {"llama", 2, 1, {}},
           {"llama", 3, 4, {}},
           {"llama", 2, 1, {fsdp + "offload_policy=cpu"}},
           {"llama", 2, 1, {fsdp + "enable_fsdp2_prefetch=true"}},
           {"llama", 2, 3, {fsdp + "defer_fsdp_grad_sync=false"}},
           {"llama", 4, 1, {"distributed.dp_replicate_size=2"}},
           {"llama", 4, 1, {"distributed.dp_replicate_size=2", fsdp + "offload_policy=cpu"}},
           {"llama", 2, 1, {"distributed.activation_checkpointing=full"}},
           {"qwen3", 2, 1, {}},
           {"qwen2", 2, 1, {}},
           {"mistral", 2, 1, {ddp}},
       }) {
    std::string what =
        c.family + " on " + std::to_string(c.ranks) + " x " + std::to_string(c.accumulation);
    for (const std::string& set : c.sets) what += " " + set;
    CAPTURE(what);
    std::vector<Row> expected = read_curve(kData + c.family + "/curve.jsonl");
    std::vector<Row> found = train(folder, c.family, c.ranks, c.accumulation, with(kCuda, c.sets));
    double loss = worst(found, expected, false), norm = worst(found, expected, true);
    std::printf("%-100s loss %.1e  norm %.1e\n", what.c_str(), loss, norm);
    // Another machine's sums: the kernels add in another order than the CPU's.
    CHECK(loss < 1e-4);
    CHECK(norm < 1e-3);
    worst_loss = std::max(worst_loss, loss);
    worst_norm = std::max(worst_norm, norm);
  }
  MESSAGE("largest difference: loss ", worst_loss, ", norm ", worst_norm);
}

TEST_CASE("more NCCL ranks than devices are refused before any group exists") {
  Folder folder;
  std::string why;
  int64_t devices = device::cuda_part(&why)->device_count();
  fs::path out = folder.path / "out";
  const std::string ranks = std::to_string(devices + 1);
  std::string command = MESHWRIGHT_BUILD_DIR "/bin/meshwright train " MESHWRIGHT_SOURCE_DIR
                                             "/configs/ddp_cpu.toml --nproc " +
                        ranks + " --set step_scheduler.local_batch_size=1" +
                        " --set step_scheduler.global_batch_size=" + ranks +
                        " --set dist_env.device=cuda --set dist_env.backend=nccl --set run.dir=" +
                        folder.path.string() + " > " + out.string() + " 2>&1";
  CHECK(WEXITSTATUS(std::system(command.c_str())) == 4);
}

int main(int argc, char** argv) {
  std::string why;
  const meshwright::cuda::CudaPart* part = meshwright::device::cuda_part(&why);
  if (part == nullptr || part->device_count() == 0) {
    std::printf("skipped, all of it: %s\n", part ? "this machine has no CUDA device" : why.c_str());
    return 77;
  }
  doctest::Context context(argc, argv);
  return context.run();
}
