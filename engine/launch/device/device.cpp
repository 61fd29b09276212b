#include "engine/launch/device/device.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <boost/dll/shared_library.hpp>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "engine/launch/rendezvous/notices.h"
#include "engine/launch/spawn.h"
#include "meshwright/error.h"
#include "sdk/base/beside.h"
#include "sdk/base/host/run_lock.h"
#include "sdk/base/wait.h"

namespace meshwright::device {

namespace fs = std::filesystem;

namespace {

struct Loaded {
  const cuda::CudaPart* part = nullptr;
  std::string why;
};

// Of Boost.DLL's words those of the dynamic linker.
std::string reason_of(std::string what) {
  constexpr std::string_view kBefore = "dlerror system message: ";
  const size_t begin = what.find(kBefore);
  if (begin == std::string::npos) return what;
  what.erase(0, begin + kBefore.size());
  return what.substr(0, what.rfind("): "));
}

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
    out.why = "the part for devices cannot be loaded: " + reason_of(error.what());
  }
  return out;
}

// The CUDA libraries take seconds to load: only where they can be of use.
bool may_use_devices(const Options& table) {
  const std::string wanted = table.get_string("device");
  return wanted == "cuda" || (wanted == "auto" && launch::driver_lists_devices());
}

Error unavailable(const std::string& what, const char* key) {
  return Error(ErrorCode::device_unavailable, what).key(key);
}

constexpr const char* kSegments = "expandable_segments";

struct SaidOfSegments {
  std::string variable;
  bool expandable;
};

// What the user's environment says of them. LibTorch reads the second variable where the first is
// not set.
std::optional<SaidOfSegments> environment_of_segments() {
  for (const char* variable : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    const char* value = std::getenv(variable);
    if (value == nullptr) continue;
    std::string settings = value;
    std::erase(settings, ' ');
    const std::string name = std::string(kSegments) + ":";
    const size_t at = settings.rfind(name);
    if (at == std::string::npos) return std::nullopt;
    return SaidOfSegments{variable, settings.compare(at + name.size(), 4, "True") == 0};
  }
  return std::nullopt;
}

// Before anything is allocated on a device. Who says nothing leaves LibTorch as it is: a program
// around the job may have asked for them.
void set_segments(const Options& table, const cuda::CudaPart& part, Chosen& out) {
  if (!table.is_given(kSegments)) return;
  const bool wanted = table.get_bool(kSegments);
  const std::optional<SaidOfSegments> said = environment_of_segments();
  if (!said) {
    part.expand_segments(wanted);
    return;
  }
  if (said->expandable == wanted) return;
  auto text = [](bool value, const char* yes, const char* no) { return value ? yes : no; };
  out.notices.push_back(said->variable + " says " + kSegments + ":" +
                        text(said->expandable, "True", "False") + ", which comes before dist_env." +
                        kSegments + " = " + text(wanted, "true", "false"));
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
        .help(launch::how_to_get_devices(why_not))
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
    if (wanted == "auto" && table.get_bool(kSegments))
      out.notices.push_back(std::string("dist_env.") + kSegments +
                            " = true has no effect: the ranks compute on the CPU");
    return out;
  }
  int64_t index = ranks.local_rank % count;
  set_segments(table, *part, out);
  try {
    part->use_device(index);
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    throw unavailable("CUDA device " + std::to_string(index) + " cannot be used: " +
                          what.substr(0, std::min<size_t>(what.find('\n'), 200)),
                      "dist_env.device")
        .help(
            "in a program of your own, make the Job before anything asks LibTorch for devices: a "
            "seed, a backward")
        .help("set dist_env.device = \"cpu\"");
  }
  out.device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  out.name = out.device.str() + " (" + part->device_name(index) + ")";
  if (backend != "gloo") out.nccl = part;
  return out;
}

Chosen choose(const Options& table, const launch::RankEnvironment& ranks) {
  std::string why;
  const cuda::CudaPart* part = may_use_devices(table) ? cuda_part(&why) : nullptr;
  return choose(table, ranks, part, why);
}

void load_early(const Options& table) {
  if (may_use_devices(table)) cuda_part();
}

std::string device_name(c10::Device device) {
  const cuda::CudaPart* part = device.is_cpu() ? nullptr : cuda_part();
  return part != nullptr ? part->device_name(device.index()) : std::string();
}

namespace {
const std::string kShared = "device/shared";
using rendezvous::bytes_of, rendezvous::text_of;

// By what NCCL tells hosts apart.
std::string host() {
  const base::LockOwner self = base::this_process();
  return self.host + self.boot;
}
}  // namespace

void claim(const Chosen& chosen, c10d::Store& store, int64_t rank) {
  if (chosen.nccl == nullptr) return;
  const std::string mine = std::to_string(rank);
  const c10::DeviceIndex device = chosen.device.index();
  for (const std::string& key :
       {chosen.nccl->device_uuid(device), host() + " " + chosen.nccl->device_address(device)}) {
    const std::string first = text_of(store.compareSet("device/" + key, {}, bytes_of(mine)));
    if (first == mine) continue;
    const auto [low, high] =
        std::minmax<int64_t>({rank, rendezvous::number_of(first, "device/" + key, "a rank")});
    store.set(kShared, bytes_of("ranks " + std::to_string(low) + " and " + std::to_string(high) +
                                " share the CUDA device " + chosen.name));
    return;
  }
}

void settle(Chosen& chosen, c10d::Store& store, int64_t rank, int64_t world, const Options& table) {
  if (chosen.nccl == nullptr || !store.check({kShared})) return;
  const std::string crowd = text_of(store.get(kShared));
  if (table.get_string("backend") != "nccl") {
    chosen.nccl = nullptr;
    chosen.notices.push_back(crowd + ", so all communicate over gloo, through the host's memory");
    return;
  }
  // The store may end with rank 0, which gives the others a moment to read it. They ask no more.
  store.add("device/read", 1);
  base::wait_until(std::chrono::steady_clock::now() + std::chrono::seconds(10),
                   std::chrono::milliseconds(1),
                   [&] { return rank != 0 || store.add("device/read", 0) >= world; });
  throw unavailable(crowd + ", and NCCL wants a device of its own for every rank",
                    "dist_env.backend")
      .help("start as many ranks on each host as it has devices")
      .help("set dist_env.backend = \"gloo\" (slower: it goes through the host's memory)");
}

}  // namespace meshwright::device
