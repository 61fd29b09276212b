// How long planning takes and what it allocates, in process: mesh arithmetic and look-ups for up to
// 131,072 ranks, and the cost of a large model's layout. Prints one table; times are medians.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "engine/models/models.h"
#include "meshwright/footprint.h"
#include "meshwright/mesh_plan.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/shared_schemas.h"

namespace {

// Every allocation of the program and its libraries passes through the operators below.
struct Heap {
  int64_t calls = 0, live = 0, peak = 0;
};
Heap heap;

}  // namespace

// Never inlined, so that the compiler keeps new and delete paired.
[[gnu::noinline]] void* operator new(size_t size) {
  void* block = std::malloc(size);
  if (block == nullptr) throw std::bad_alloc();
  ++heap.calls;
  heap.live += static_cast<int64_t>(malloc_usable_size(block));
  heap.peak = std::max(heap.peak, heap.live);
  return block;
}
[[gnu::noinline]] void operator delete(void* block) noexcept {
  heap.live -= static_cast<int64_t>(malloc_usable_size(block));
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept { operator delete(block); }

namespace {

using namespace meshwright;

constexpr const char* kModel =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16384,
  "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128,
  "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "rms_norm_eps": 1e-5,
  "max_position_embeddings": 131072, "tie_word_embeddings": false})";

struct Figures {
  double microseconds = 0;  // median of the runs
  int64_t calls = 0, peak = 0;
};

template <class Body>
Figures measure(int runs, Body&& body) {
  std::vector<double> times;
  times.reserve(static_cast<size_t>(runs));
  Figures out;
  for (int run = 0; run < runs; ++run) {
    int64_t calls = heap.calls, live = heap.live;
    heap.peak = live;
    auto start = std::chrono::steady_clock::now();
    body();
    std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    out.calls = heap.calls - calls;
    out.peak = heap.peak - live;
    times.push_back(took.count());
  }
  std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
  out.microseconds = times[static_cast<size_t>(runs / 2)];
  return out;
}

void print(const char* what, int64_t world, const Figures& f) {
  std::printf("%-44s %8" PRId64 " %12.1f %12" PRId64 " %12" PRId64 "\n", what, world,
              f.microseconds, f.calls, f.peak);
}

MeshRequest request_for(int64_t world) {
  MeshRequest request;
  request.world_size = world;
  request.config.shared().sizes = {{}, 8,  8,
                                   2,  16, 1};  // dp inferred, dp_replicate 8, tp 8, cp 2, pp 16
  return request;
}

// A use the compiler cannot see through.
volatile int64_t sink = 0;

void bench_world(int64_t world) {
  constexpr int kRuns = 501;
  MeshRequest request = request_for(world);
  print("plan the mesh", world,
        measure(kRuns, [&] { sink = sink + plan_sharded_mesh(request).dp; }));
  Mesh mesh = *plan_sharded_mesh(request).device_mesh;
  std::vector<std::string> names;
  for (const MeshAxis& axis : mesh.axes()) names.push_back(axis.name);
  for (const FlattenedAxis& axis : mesh.flattened()) names.push_back(axis.name);
  int64_t rank = world - 1;
  print("coordinates of a rank on every axis", world, measure(kRuns, [&] {
          for (const std::string& name : names)
            sink = sink + mesh.coordinate(rank, name) + mesh.size(name);
        }));
  print("groups of a rank on every axis", world, measure(kRuns, [&] {
          for (const std::string& name : names) sink = sink + mesh.group(rank, name).back();
        }));
  std::vector<std::string> hybrid = {"dp_replicate", "dp_shard_cp"};
  print("the sub-mesh (dp_replicate, dp_shard_cp)", world,
        measure(kRuns, [&] { sink = sink + mesh.submesh(hybrid, rank).size(); }));
  print("coordinates of all ranks", world, measure(11, [&] {
          for (int64_t r = 0; r < world; ++r) sink = sink + mesh.coordinate(r, "dp_shard");
        }));
  print("all groups of all axes, one at a time", world, measure(11, [&] {
          for (const std::string& name : names)
            mesh.for_each_group(
                name, [](std::span<const int64_t> group) { sink = sink + group.front(); });
        }));
}

void bench_model(int64_t world) {
  constexpr int kRuns = 21;
  ModelOutline outline = outlines::parse_outline(kModel, "benchmark", DType::float32);
  print("outline of 126 layers from its config.json", world, measure(kRuns, [&] {
          sink = sink + outlines::parse_outline(kModel, "benchmark", DType::float32).layers;
        }));
  MeshRequest request = request_for(world);
  request.config.shared().sizes.pp = 1;  // every layer on the rank: the most work
  request.config.shared().sizes.dp_replicate = 8;
  MeshPlan mesh = plan_sharded_mesh(request);
  TpPlanRequest wanted{8, false, {}};
  print("its tensor-parallel plan", world, measure(kRuns, [&] {
          sink = sink + static_cast<int64_t>(select_tp_plan(outline, wanted).entries.size());
        }));
  TpPlan tp = select_tp_plan(outline, wanted);
  Workload work;
  work.seq_len = 8192;
  ShardingRequest cost{outline, mesh, tp, request.config, work, 0};
  print("its cost on a rank", world, measure(kRuns, [&] {
          sink = sink + footprint_of(cost, fully_sharded_plan(cost)).bytes.weights;
        }));
}

}  // namespace

int main() {
  std::printf("pp 16, dp_replicate 8, cp 2, tp 8, dp_shard = world / 2048; the model without pp\n");
  std::printf("%-44s %8s %12s %12s %12s\n", "what", "ranks", "us (median)", "allocations",
              "peak bytes");
  for (int64_t world : {4096, 32768, 131072}) bench_world(world);
  bench_model(131072);
  return 0;
}
