// Where this rank computes, and over which back end it communicates: what dist_env.device and
// dist_env.backend mean on this machine.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <vector>

#include "engine/launch/cuda/cuda_part.h"
#include "engine/launch/ranks.h"
#include "meshwright/options.h"

namespace c10d {
class Store;
}

namespace meshwright::device {

// The part of the engine that needs CUDA, loaded at first use and kept; nullptr with the reason
// when it or its libraries are missing.
const cuda::CudaPart* cuda_part(std::string* why = nullptr);

// "NVIDIA H200"; empty for a processor, or where the driver is not there.
std::string device_name(c10::Device device);

// Loads it where dist_env may choose it. LibTorch looks for devices once, when a generator is
// seeded or a backward runs: what comes later is not seen.
void load_early(const Options& table);

struct Chosen {
  c10::Device device = c10::kCPU;
  // Set: groups communicate over NCCL, once settle() has agreed; else over gloo.
  const cuda::CudaPart* nccl = nullptr;
  std::string name;  // "cpu", "cuda:0 (NVIDIA H200)"
  std::vector<std::string> notices;
};

// Of one rank, which talks to nobody. `table` is dist_env. Local ranks take the devices in turn.
// Makes the chosen CUDA device current, with segments as dist_env.expandable_segments says. `part`
// is cuda_part() but in tests. Throws
// Error(device_unavailable).
Chosen choose(const Options& table, const launch::RankEnvironment& ranks,
              const cuda::CudaPart* part, const std::string& why_not);
Chosen choose(const Options& table, const launch::RankEnvironment& ranks);

// NCCL wants a device of its own for every rank, and a rank may see another part of the host's
// devices than its neighbours (srun --gpus-per-task). So each says in the store which one it has
// and, when all have, settles: gloo where two have the same one, or Error(device_unavailable) on
// every rank where `table` insists on NCCL.
void claim(const Chosen& chosen, c10d::Store& store, int64_t rank);
void settle(Chosen& chosen, c10d::Store& store, int64_t rank, int64_t world, const Options& table);

}  // namespace meshwright::device
