#include "engine/device/device.h"

#include <boost/dll/shared_library.hpp>
#include <exception>
#include <filesystem>

#include "engine/launch/devices.h"
#include "meshwright/error.h"
#include "sdk/base/beside.h"

namespace meshwright::device {

namespace fs = std::filesystem;

namespace {

struct Loaded {
  const cuda::CudaPart* part = nullptr;
  std::string why;
};

// The part lies beside the libraries of the SDK.
Loaded load() {
  Loaded out;
  fs::path path = beside_sdk("libmeshwright_cuda.so");
  if (!fs::exists(path)) {
    out.why = "this build has no CUDA part (" + path.string() + " is not there)";
    return out;
  }
  try {
    static boost::dll::shared_library
        library;  // for good: kernels and threads of its libraries outlive any scope
    library.load(path.string(),
                 boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
    out.part = library.get<const cuda::CudaPart*()>("meshwright_cuda_part")();
  } catch (const std::exception& error) {
    out.why = std::string("its CUDA part cannot be loaded: ") + error.what();
  }
  return out;
}

Error unavailable(const std::string& what, const char* key) {
  return Error(ErrorCode::device_unavailable, what).key(key);
}

}  // namespace

const cuda::CudaPart* cuda_part(std::string* why) {
  static const Loaded loaded = load();
  if (why) *why = loaded.why;
  return loaded.part;
}

Chosen choose(const Options& table, const launch::RankEnvironment& ranks,
              const cuda::CudaPart* part, const std::string& why_not) {
  std::string wanted = table.get_string("device"), backend = table.get_string("backend");
  Chosen out;
  out.name = "cpu";
  int64_t count = part ? part->device_count() : 0;
  if (wanted == "cuda" && part == nullptr)
    throw unavailable("dist_env.device = \"cuda\", but " + why_not, "dist_env.device")
        .help(
            "run ./quickstart --cuda once: it fetches the CUDA libraries and builds the part that "
            "uses them")
        .help("set dist_env.device = \"cpu\"");
  if (wanted == "cuda" && count == 0)
    throw unavailable("dist_env.device = \"cuda\", but rank " + std::to_string(ranks.rank) +
                          " finds no CUDA device",
                      "dist_env.device")
        .help("look at nvidia-smi and at CUDA_VISIBLE_DEVICES")
        .help("set dist_env.device = \"cpu\"");
  if (wanted == "cpu" || count == 0) {
    if (backend == "nccl")
      throw unavailable(
          "dist_env.backend = \"nccl\" needs CUDA devices, and the ranks compute on the CPU",
          "dist_env.backend")
          .help("set dist_env.backend = \"gloo\"");
    if (wanted == "auto" && part == nullptr && !why_not.empty())
      out.notices.push_back("training on the CPU, though the driver lists a CUDA device: " +
                            why_not);
    return out;
  }
  int64_t index = ranks.local_rank % count;
  part->use_device(index);
  out.device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  out.name = out.device.str() + " (" + part->device_name(index) + ")";
  bool shared = ranks.local_world_size > count;
  std::string crowd = std::to_string(ranks.local_world_size) + " ranks on this host share " +
                      std::to_string(count) + (count == 1 ? " CUDA device" : " CUDA devices");
  if (backend == "nccl" && shared)
    throw unavailable(crowd + ", and NCCL wants a device of its own for every rank",
                      "dist_env.backend")
        .help("start " + std::to_string(count) + (count == 1 ? " rank" : " ranks") + " a host")
        .help("set dist_env.backend = \"gloo\" (slower: it goes through the host's memory)");
  if (backend == "nccl" || (backend == "auto" && !shared))
    out.nccl = part;
  else if (backend == "auto")
    out.notices.push_back(crowd + ", so they communicate over gloo, through the host's memory");
  return out;
}

Chosen choose(const Options& table, const launch::RankEnvironment& ranks) {
  std::string wanted = table.get_string("device"), why;
  // The CUDA libraries take seconds to load: only where they can be of use.
  bool load = wanted == "cuda" || (wanted == "auto" && launch::driver_lists_devices());
  const cuda::CudaPart* part = load ? cuda_part(&why) : nullptr;
  return choose(table, ranks, part, why);
}

}  // namespace meshwright::device
