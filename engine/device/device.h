// Where this rank computes, and over which back end it communicates: what dist_env.device and
// dist_env.backend mean on this machine.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "engine/cuda/cuda_part.h"
#include "engine/launch/ranks.h"
#include "meshwright/options.h"

namespace meshwright::device {

// The part of the engine that needs CUDA, loaded at first use and kept; nullptr with the reason
// when it or its libraries are missing.
const cuda::CudaPart* cuda_part(std::string* why = nullptr);

struct Chosen {
  c10::Device device = c10::kCPU;
  const cuda::CudaPart* nccl = nullptr;  // set: groups communicate over NCCL; else over gloo
  std::string name;                      // "cpu", "cuda:0 (NVIDIA H200)"
  std::vector<std::string> notices;
};

// `table` is dist_env. Local ranks take the devices in turn. Makes the chosen CUDA device current.
// `part` is cuda_part() but in tests. Throws Error(device_unavailable).
Chosen choose(const Options& table, const launch::RankEnvironment& ranks,
              const cuda::CudaPart* part, const std::string& why_not);
Chosen choose(const Options& table, const launch::RankEnvironment& ranks);

}  // namespace meshwright::device
