// Faults of the device path that need more than a job of the program. A case that is skipped is
// what one rank does: other cases start the ranks (ranks.h). Long because there are so many, each
// of a few lines.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/AllocatorConfig.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <torch/library.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "engine/launch/device/device.h"
#include "meshwright/error.h"
#include "meshwright/nn/layers.h"
#include "meshwright/nn/moe.h"
#include "meshwright/trainer.h"
#include "ranks.h"
#include "sdk/base/transport.h"
#include "sdk/comm/tests/sampled.h"

// How often the host waited for a device: this program's functions come before the fake's.
static std::atomic<int64_t> host_waits = 0;
namespace {
cudaError_t waited(const char* name, void* of) {
  ++host_waits;
  return reinterpret_cast<cudaError_t (*)(void*)>(::dlsym(RTLD_NEXT, name))(of);
}
}  // namespace
extern "C" {
MESHWRIGHT_API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return waited("cudaStreamSynchronize", stream);
}
MESHWRIGHT_API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return waited("cudaEventSynchronize", event);
}
}

namespace device_faults_test {

using namespace meshwright;

int64_t trainer_batch(const Job& job) {
  return job.table("step_scheduler").get_int("local_batch_size");
}

Job job_of(const std::vector<std::string>& sets, const std::string& minutes = "1") {
  return Job::from_text(
      "schema = 1\n[dist_env]\ndevice = \"cuda\"\ntimeout_minutes = " + minutes + "\n", sets);
}

}  // namespace device_faults_test

using namespace device_faults_test;

TEST_CASE("rank: a group that rank 1 comes to too late" * doctest::skip()) {
  const bool late = told("GONE").empty();
  std::shared_ptr<World> world = join_world(job_of({}, late ? "0.05" : "1"));
  if (world->rank() == 1) {
    if (late) std::this_thread::sleep_for(std::chrono::seconds(6));
    ::_exit(0);
  }
  std::string said;
  const auto began = std::chrono::steady_clock::now();
  try {
    world->everyone()->barrier();
  } catch (const Error& error) {
    said = error.what();
  }
  CAPTURE(said);
  CHECK(said.find("rank 0 could not join group world [0, 1]") != std::string::npos);
  CHECK(said.find(late ? "no word from rank 1" : "rank 1 ended") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(7));
}

TEST_CASE("a rank that never comes to a group is named within the timeout") {
  check_played(play("rank: a group that rank 1 comes to too late", 2));
  check_played(play("rank: a group that rank 1 comes to too late", 2, Variables{{"GONE", "1"}}));
}

TEST_CASE("rank: its communicator and memory that NCCL registers" * doctest::skip()) {
  const cuda::CudaPart& part = *device::cuda_part();
  const int rank = std::atoi(told("RANK").c_str());
  part.use_device(rank);
  auto store = c10::make_intrusive<c10d::FileStore>(told("STORE"), 2);
  auto backend = part.make_nccl(store, rank, 2, rank, std::chrono::minutes(1));
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(rank));
  CHECK(transport_over(backend, device)->registered_memory(1 << 20).defined());
}

TEST_CASE("memory is registered with a communicator that no collective has used yet") {
  const Folder folder;
  check_played(play("rank: its communicator and memory that NCCL registers", 2,
                    Variables{{"STORE", folder.path / "store"}}));
}

TEST_CASE("rank: a device of a capability" * doctest::skip()) {
  cudaDeviceProp properties{};
  REQUIRE(OF_THE_FAKE(cudaGetDeviceProperties)(&properties, 0) == cudaSuccess);
  auto* attribute = OF_THE_FAKE(cudaDeviceGetAttribute);
  auto* of_driver = OF_THE_FAKE(cuDeviceGetAttribute);
  int major[3]{}, minor[3]{};
  attribute(&major[0], cudaDevAttrComputeCapabilityMajor, 0);
  attribute(&minor[0], cudaDevAttrComputeCapabilityMinor, 0);
  of_driver(&major[1], CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
  of_driver(&minor[1], CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
  using Both = CUresult(int*, int*, CUdevice);
  of_the_fake<Both>("cuDeviceComputeCapability")(&major[2], &minor[2], 0);
  auto check = [](int first, int second) {
    CHECK(std::to_string(first) + "." + std::to_string(second) == told("EXPECTED"));
  };
  check(properties.major, properties.minor);
  for (int i = 0; i < 3; ++i) check(major[i], minor[i]);
  // Code for another kind of device is not loaded.
  auto* load = OF_THE_FAKE(cudaLibraryLoadData);
  auto loads = [&](const std::string& code) {
    cudaLibrary_t library = nullptr;
    return load(&library, code.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  };
  CHECK(loads("sm_" + std::to_string(major[0]) + std::to_string(minor[0])) == cudaSuccess);
  CHECK(loads("sm_" + std::to_string(major[0]) + "9") ==
        (minor[0] == 9 ? cudaSuccess : cudaErrorNoKernelImageForDevice));
  CHECK(loads("sm_70") == cudaErrorNoKernelImageForDevice);
}

TEST_CASE("the fake device has the capability that the environment names, and no other one") {
  for (const char* capability : {"", "8.9", "10.3"}) {
    CAPTURE(std::string(capability));
    check_played(play("rank: a device of a capability", 1,
                      Variables{{"FAKE_DEVICE_CAPABILITY", capability},
                                {"EXPECTED", *capability == 0 ? "9.0" : capability}}));
  }
  for (const char* nonsense : {"9", "8.1"}) {
    CAPTURE(std::string(nonsense));
    const Rank rank = play("rank: a device of a capability", 1,
                           Variables{{"FAKE_DEVICE_CAPABILITY", nonsense}})[0];
    CHECK(rank.code == 2);
    CHECK_MESSAGE(rank.said.find("is no capability of a device") != std::string::npos, rank.said);
  }
}

TEST_CASE("rank: segments of the allocator that grow" * doctest::skip()) {
  using Allocator = c10::CachingAllocator::AcceleratorAllocatorConfig;
  const bool by_environment = !told("PYTORCH_ALLOC_CONF").empty();
  const std::string before = by_environment ? "max_split_size_mb:64," : "";
  const cuda::CudaPart& part = *device::cuda_part();
  CHECK_FALSE(Allocator::use_expandable_segments());
  const Job job = job_of({"dist_env.expandable_segments=true"});
  launch::RankEnvironment alone;
  device::choose(job.table("dist_env"), alone, &part, "");
  CHECK(Allocator::use_expandable_segments());
  CHECK(Allocator::last_allocator_settings() == before + "expandable_segments:True");
  CHECK(Allocator::max_split_size() == (by_environment ? size_t{64} << 20 : SIZE_MAX));
  // Two tensors that have a segment each otherwise.
  const auto on_device = at::TensorOptions().dtype(at::kByte).device(at::Device(at::kCUDA, 0));
  const at::Tensor one = at::empty({12 << 20}, on_device), two = at::empty({12 << 20}, on_device);
  const std::string segments = part.memory_snapshot(0);
  CHECK(segments.find("\"address\"") != std::string::npos);
  CHECK_MESSAGE(segments.find("\"address\"") == segments.rfind("\"address\""), segments);
  // Other jobs of this process leave it, or have it otherwise.
  device::choose(job_of({}).table("dist_env"), alone, &part, "");
  CHECK(Allocator::use_expandable_segments());
  const Job other = job_of({"dist_env.expandable_segments=false"});
  device::choose(other.table("dist_env"), alone, &part, "");
  CHECK_FALSE(Allocator::use_expandable_segments());
}

TEST_CASE("segments of LibTorch's allocator grow where the job says so, and other settings stay") {
  check_played(play("rank: segments of the allocator that grow", 1));
  check_played(play("rank: segments of the allocator that grow", 1,
                    Variables{{"PYTORCH_ALLOC_CONF", "max_split_size_mb:64"}}));
}

TEST_CASE("rank: receives before it sends" * doctest::skip()) {
  std::shared_ptr<World> world = join_world(job_of({}, "0.1"));
  const int64_t other = 1 - world->rank();
  const auto on_device = at::TensorOptions().device(world->device());
  const at::Tensor mine = at::ones({1 << 20}, on_device), theirs = at::zeros({1 << 20}, on_device);
  const std::array<PeerMessage, 1> in{PeerMessage{PeerMessage::Way::receive, other, theirs}},
      out{PeerMessage{PeerMessage::Way::send, other, mine}};
  const bool crossed = world->rank() == 0 || told("BOTH") == "1";
  try {
    Work first = world->everyone()->send_receive(crossed ? in : out),
         second = world->everyone()->send_receive(crossed ? out : in);
    first.wait();
    second.wait();
    const float sum = theirs.sum().item<float>();
    world->check();
    CHECK(sum == 1 << 20);
    CHECK(told("BOTH") == "0");
  } catch (const Error& error) {
    CHECK(told("BOTH") == "1");
  }
}

TEST_CASE("ranks of NCCL that both receive before they send are told, and others get through") {
  check_played(play("rank: receives before it sends", 2, Variables{{"BOTH", "0"}}));
  std::string logs;
  for (const Rank& rank : play("rank: receives before it sends", 2, Variables{{"BOTH", "1"}})) {
    CHECK_MESSAGE(rank.code == 0, rank.said);
    logs += rank.log;
  }
  CHECK_MESSAGE(logs.find("in orders that wait for each other") != std::string::npos, logs);
}

TEST_CASE("rank: how it communicates" * doctest::skip()) {
  std::string said;
  try {
    std::shared_ptr<World> world = join_world(job_of({"dist_env.backend=" + told("BACKEND")}));
    said = world->everyone()->has_native_reduce_scatter() ? "nccl" : "gloo";
    at::Tensor one = at::ones({1}, at::TensorOptions().device(world->device()));
    world->everyone()->all_reduce(one).wait();
    CHECK(one.item<float>() == 2);
    for (const std::string& notice : world->notices()) said += "; " + notice;
  } catch (const Error& error) {
    said = error.message();
    CHECK(error.code() == ErrorCode::device_unavailable);
  }
  const std::string expected = told("EXPECTED");
  CAPTURE(said);
  CHECK(said.substr(0, expected.size()) == expected);
}

TEST_CASE("each rank may see another part of the devices") {
  struct Row {
    const char *first, *second, *backend, *expected, *instances = "1";
  };
  for (const Row& row :
       {Row{"0", "1", "auto", "nccl"}, Row{"5", "2", "nccl", "nccl"},
        Row{"3", "3", "auto", "gloo; ranks 0 and 1 share the CUDA device cuda:0 (Fake device)"},
        Row{"3", "3", "nccl", "ranks 0 and 1 share the CUDA device cuda:0 (Fake device)"},
        Row{"4,5", "5,6", "nccl", "nccl"}, Row{"4,5", "6,4", "auto", "gloo"},
        // Instances of one GPU are one device to NCCL.
        Row{"2", "3", "auto", "gloo; ranks 0 and 1 share the CUDA device cuda:0", "2"},
        Row{"1", "2", "auto", "nccl", "2"}}) {
    CAPTURE(std::string(row.first));
    CAPTURE(std::string(row.second));
    CAPTURE(std::string(row.backend));
    check_played(play("rank: how it communicates", 2, [&](int rank) {
      return Variables{{"CUDA_VISIBLE_DEVICES", rank == 0 ? row.first : row.second},
                       {"BACKEND", row.backend},
                       {"FAKE_DEVICE_INSTANCES", row.instances},
                       {"EXPECTED", row.expected}};
    }));
  }
}

TEST_CASE("rank: ends with or without an error of its own" * doctest::skip()) {
  const bool fails = told("FAILS") == told("RANK");
  try {
    std::shared_ptr<World> world = join_world(job_of({}));
    at::Tensor one = at::ones({1}, at::TensorOptions().device(world->device()));
    world->everyone()->barrier();
    world->group("some", {0, 1})->all_reduce(one).wait();
    CHECK(one.item<float>() == 2);
    if (fails) throw std::runtime_error("an error of its own");
    if (!told("FAILS").empty()) {
      world->everyone()->all_reduce(one).wait();  // to which the other one does not come
      throw std::runtime_error("an error, too");
    }
    world->everyone()->barrier();
  } catch (const std::exception&) {  // its own, or that the other one has ended
    CHECK(!told("FAILS").empty());
  }
}

TEST_CASE("communicators are destroyed by all ranks together, and aborted after an error") {
  for (const char* fails : {"", "0", "1"}) {
    CAPTURE(std::string(fails));
    const auto began = std::chrono::steady_clock::now();
    const std::vector<Rank> ranks =
        play("rank: ends with or without an error of its own", 2,
             Variables{{"FAILS", fails}, {"TORCH_CPP_LOG_LEVEL", "WARNING"}});
    check_played(ranks);
    for (const Rank& rank : ranks) {
      CHECK_MESSAGE(rank.said.find("destroy_process_group") == std::string::npos, rank.said);
      const bool succeeds = std::string(fails).empty();
      const std::string expected =
          succeeds ? " communicators destroyed, 0 aborted" : ": 0 communicators destroyed, ";
      CHECK_MESSAGE(rank.log.find(expected) != std::string::npos, rank.log);
    }
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(20));
  }
}

TEST_CASE("rank: lets go of what collectives brought" * doctest::skip()) {
  std::shared_ptr<World> world = join_world(job_of({}));
  const at::TensorOptions options = at::TensorOptions().device(world->device());
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> all;
  int64_t most = 0;
  for (int i = 0; i < 100; ++i) {
    {
      const at::Tensor shard = at::ones({8}, options), whole = at::empty({16}, options);
      world->everyone()->all_gather(shard, whole).wait();
      all.push_back(whole.storage().getWeakStorageImpl());
    }
    most = std::max<int64_t>(most, std::count_if(all.begin(), all.end(), [](const auto& storage) {
                               return !storage.expired();
                             }));
  }
  CHECK(most == 0);
  world->everyone()->barrier();
}

// A step's peak tells nothing of it: what the watch keeps until its next look is in that of every
// step.
TEST_CASE("what a collective brought is nobody's any more once it was waited for") {
  check_played(play("rank: lets go of what collectives brought", 2));
}

TEST_CASE("rank: memory for NCCL ends" * doctest::skip()) {
  std::string said;
  try {
    join_world(job_of({}))->everyone()->barrier();
  } catch (const Error& error) {
    if (told("RANK") != "0") return;  // rank 0 keeps the store and may have ended before
    CHECK(error.code() == ErrorCode::out_of_memory);
    said = error.what();
  }
  CAPTURE(said);
  CHECK(said.find("could not join group world [0, 1]: Cuda failure 2 'out of memory'") !=
        std::string::npos);
}

TEST_CASE("a communicator that finds no memory is told as memory that ended") {
  check_played(play(
      "rank: memory for NCCL ends", 2,
      Variables{{"FAKE_DEVICE_NCCL_MEMORY", "2000000000"}, {"FAKE_DEVICE_MEMORY", "1000000000"}}));
}

// A model of the user's own, built on the host.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", Linear(8, 16));
    register_module("blocks", blocks);
    for (int i = 0; i < 2; ++i) blocks->push_back(Linear(16, 16));
    last = register_module("last", Linear(16, 4));
    scale = register_buffer("scale", at::linspace(0.5, 1.5, 16));
    order = register_buffer("order", at::arange(15, -1, -1, at::kLong));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = first(x);
    for (const auto& block : *blocks)
      h = at::gelu(block->as<Linear>()->forward(h)) * scale.index_select(0, order);
    return last(h);
  }
  Linear first{nullptr}, last{nullptr};
  torch::nn::ModuleList blocks;
  at::Tensor scale, order;
};
MESHWRIGHT_MODULE(Net);

TEST_CASE("rank: trains a model of its own" * doctest::skip()) {
  Job job = Job::from_file(told("JOB"));
  std::shared_ptr<World> world = join_world(job);
  torch::manual_seed(42);
  Net net;
  if (!told("FROZEN").empty())  // a tower below what is trained
    for (torch::nn::Module* frozen :
         {static_cast<torch::nn::Module*>(net->first.get()), net->blocks->ptr(0).get()})
      for (const at::Tensor& p : frozen->parameters()) p.set_requires_grad(false);
  Trainer trainer(job, world, net.ptr(), {}, trainer_batch(job));
  int64_t waits = 0;
  for (int64_t step = 0; step < trainer.max_steps(); ++step) {
    waits = host_waits;
    const StepResult result = trainer.step([&](int64_t micro) {
      const int64_t rows = trainer.local_batch(), number = (step * trainer.accumulation() + micro) *
                                                               trainer.data_parallel_size() +
                                                           trainer.data_parallel_rank();
      torch::manual_seed(static_cast<uint64_t>(1000 + number));
      const at::Tensor x = at::randn({rows, 8}).to(world->device(), at::kFloat,
                                                   /*non_blocking=*/true);
      return MicroBatchLoss{net(x).square().sum(), rows};
    });
    if (world->rank() == 0) std::printf("loss %.9g %.9g\n", result.loss, result.grad_norm);
  }
  // The sum of the losses and the gradient norm: the host must know both before it goes on.
  CAPTURE(host_waits - waits);
  if (const std::string most = told("WAITS"); !most.empty())
    CHECK(host_waits - waits <= std::atoll(most.c_str()));
  for (const ParallelParameter& p : trainer.model().parameters()) {
    const at::Tensor whole = trainer.model().full_tensor(p.name);
    if (world->rank() == 0) std::printf("whole %.9g\n", whole.abs().sum().item<double>());
  }
  trainer.world().everyone()->barrier();
}

TEST_CASE("a model that was built on the host trains on devices as on the host") {
  const std::string offload = "[distributed.fsdp2]\noffload_policy = \"cpu\"\n",
                    sharding = "[distributed.fsdp2]\nfrozen_sharding = ";
  struct Row {
    const char* strategy;
    std::string sets;
    int ranks;
    bool sample = true;  // the others only with all layouts
  };
  for (const Row& row :
       {Row{"ddp", "", 2}, Row{"fsdp2", "", 1, false}, Row{"fsdp2", offload, 2},
        Row{"megatron_fsdp", "", 2}, Row{"fsdp2", "tp " + offload, 4},
        Row{"ddp", "frozen", 2, false}, Row{"fsdp2", "frozen" + sharding + "\"root\"\n", 2, false},
        Row{"fsdp2", "frozen" + sharding + "\"replicate\"\n", 2},
        Row{"fsdp2", "frozen" + sharding + "\"per_layer\"\noffload_policy = \"cpu\"\n", 2},
        Row{"megatron_fsdp", "frozen", 2}}) {
    if (!row.sample && !meshwright::all_layouts()) continue;
    CAPTURE(std::string(row.strategy));
    CAPTURE(row.sets);
    CAPTURE(row.ranks);
    const Folder folder;
    const bool tp = row.sets.starts_with("tp"), frozen = row.sets.starts_with("frozen");
    auto numbers = [&](const std::string& device, const char* seed) {
      std::ofstream(folder.path / "job.toml")
          << "schema = 1\n[dist_env]\ndevice = \"" << device
          << "\"\ntimeout_minutes = 0.5\n[distributed]\nstrategy = \"" << row.strategy << "\"\n"
          << (tp ? "tp_size = 2\n" : "")
          << "[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = \"float32\"\n"
          << (tp ? "[distributed.tp_plan]\n\"first\" = \"colwise\"\n\"blocks.0\" = "
                   "\"rowwise\"\n"
                 : "")
          << row.sets.substr(tp       ? 2
                             : frozen ? 6
                                      : 0)
          << "[step_scheduler]\nglobal_batch_size = 8\nlocal_batch_size = 2\nmax_steps = 3\n";
      std::vector<Rank> ranks = play("rank: trains a model of its own", row.ranks, [&](int) {
        Variables out{{"JOB", folder.path / "job.toml"},
                      {"FROZEN", frozen ? "1" : ""},
                      {"FAKE_DEVICE_DELAYS", seed}};
        // Copies of offloaded values and gradients are waited for, too.
        if (device == "cuda" && row.sets.find("offload") == std::string::npos) out["WAITS"] = "2";
        return out;
      });
      check_played(ranks);
      std::vector<double> out;
      std::istringstream lines(ranks[0].said);
      for (std::string line; std::getline(lines, line);)
        if (line.starts_with("loss ") || line.starts_with("whole ")) {
          std::istringstream words(line.substr(line.find(' ')));
          for (double value = 0; words >> value;) out.push_back(value);
        }
      return out;
    };
    const std::vector<double> host = numbers("cpu", "");
    std::vector<const char*> seeds{""};
    if (frozen) seeds = {"1"};
    if (frozen && meshwright::all_layouts()) seeds = {"1", "2", "3"};
    for (const char* seed : seeds) {
      CAPTURE(std::string(seed));
      const std::vector<double> device = numbers("cuda", seed);
      CHECK(device.size() == 14);
      REQUIRE(device.size() == host.size());
      for (size_t i = 0; i < host.size(); ++i) {
        CAPTURE(i);
        CHECK(device[i] == doctest::Approx(host[i]).epsilon(2e-6));
      }
    }
  }
}

TEST_CASE("rank: asks LibTorch for devices before it joins" * doctest::skip()) {
  const bool first = !told("JOB_FIRST").empty();
  auto ask = [] {
    torch::manual_seed(7);
    at::Tensor x = at::ones({2}).set_requires_grad(true);
    x.sum().backward();
  };
  if (!first) ask();
  Job job = job_of({});
  if (first) ask();
  std::string said;
  try {
    std::shared_ptr<World> world = join_world(job);
    at::Tensor y =
        at::ones({2}, at::TensorOptions().device(world->device())).set_requires_grad(true);
    (y * 3).sum().backward();
    CHECK(y.grad().sum().item<float>() == 6);
  } catch (const Error& error) {
    said = error.what();
    CHECK(error.code() == ErrorCode::device_unavailable);
  }
  CAPTURE(said);
  CHECK(said.empty() == first);
}

TEST_CASE("a device is there for whoever makes the Job first, and else missed in words") {
  check_played(
      play("rank: asks LibTorch for devices before it joins", 1, Variables{{"JOB_FIRST", "1"}}));
  check_played(play("rank: asks LibTorch for devices before it joins", 1));
}

// As on some devices: what has no rows gets anything.
at::Tensor careless_grouped_mm(const at::Tensor& a, const at::Tensor& b,
                               const std::optional<at::Tensor>& ends,
                               const std::optional<at::Tensor>& /*bias*/,
                               std::optional<at::ScalarType> /*dtype*/) {
  const int64_t groups = ends->numel();
  const auto* end = ends->const_data_ptr<int32_t>();
  const bool outer = b.dim() == 2;
  at::Tensor out = at::full(outer ? std::vector<int64_t>{groups, a.size(0), b.size(1)}
                                  : std::vector<int64_t>{a.size(0), b.size(2)},
                            7, a.options());
  for (int64_t g = 0, begin = 0; g < groups; begin = end[g++]) {
    const int64_t rows = end[g] - begin;
    if (rows == 0) continue;
    if (outer)
      out.select(0, g).copy_(at::matmul(a.narrow(1, begin, rows), b.narrow(0, begin, rows)));
    else
      out.narrow(0, begin, rows).copy_(at::matmul(a.narrow(0, begin, rows), b.select(0, g)));
  }
  return out;
}

TEST_CASE("experts without tokens have no gradient, whatever the grouped product gives") {
  torch::Library careless(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  careless.impl("_grouped_mm", &careless_grouped_mm);
  MoeConfig config;
  config.n_routed_experts = 4;
  config.dim = 16;
  config.moe_inter_dim = 8;
  GroupedExperts experts(config, at::TensorOptions().dtype(at::kBFloat16));
  const std::vector<int64_t> counts{3, 0, 2, 0};
  at::Tensor x = at::randn({5, 16}, at::kBFloat16), w = at::ones({5});
  experts->forward(x, counts, w, /*padded=*/false).sum().backward();
  for (const at::Tensor& p : experts->parameters())
    for (int64_t e = 0; e < 4; ++e) {
      CAPTURE(e);
      const bool idle = p.grad().select(0, e).abs().max().item<float>() == 0;
      CHECK(idle == (counts[static_cast<size_t>(e)] == 0));
    }
}
