#include "engine/cuda/own_kernels.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernel_source.h"
#include "sdk/base/device_kernels.h"
#include "sdk/base/kernels/arguments.h"

namespace meshwright::cuda {

namespace {

// NVRTC comes with LibTorch's wheel, but nothing else here needs it.
class Compiler {
 public:
  Compiler() {
    const std::string file = "libnvrtc.so." + std::to_string(CUDART_VERSION / 1000);
    library_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) throw std::runtime_error(::dlerror());
  }
  // Code for the architecture ("sm_90") of all kernels of a type.
  std::string compile(const std::string& type, const std::string& architecture) const {
    nvrtcProgram program = nullptr;
    check(call<nvrtcCreateProgram>("nvrtcCreateProgram", &program, kKernelSource, "kernels.cu", 0,
                                   nullptr, nullptr));
    const std::vector<std::string> options{
        "--gpu-architecture=" + architecture, "--std=c++17", "--device-as-default-execution-space",
        // The CPU's numbers, which does not fuse either.
        "--fmad=false", "-DMESHWRIGHT_KERNELS=MESHWRIGHT_KERNELS_" + type};
    std::vector<const char*> texts;
    for (const std::string& option : options) texts.push_back(option.c_str());
    const nvrtcResult result = call<nvrtcCompileProgram>(
        "nvrtcCompileProgram", program, static_cast<int>(texts.size()), texts.data());
    if (result == NVRTC_ERROR_COMPILATION) throw std::runtime_error(log_of(program));
    check(result);
    size_t size = 0;
    check(call<nvrtcGetCUBINSize>("nvrtcGetCUBINSize", program, &size));
    std::string out(size, 0);
    check(call<nvrtcGetCUBIN>("nvrtcGetCUBIN", program, out.data()));
    call<nvrtcDestroyProgram>("nvrtcDestroyProgram", &program);
    return out;
  }

 private:
  template <auto function, class... Arguments>
  nvrtcResult call(const char* name, Arguments... arguments) const {
    auto* found = reinterpret_cast<decltype(function)>(::dlsym(library_, name));
    if (found == nullptr) throw std::runtime_error(::dlerror());
    return found(arguments...);
  }
  void check(nvrtcResult result) const {
    if (result != NVRTC_SUCCESS)
      throw std::runtime_error("NVRTC says " + std::to_string(static_cast<int>(result)));
  }
  std::string log_of(nvrtcProgram program) const {
    size_t size = 0;
    check(call<nvrtcGetProgramLogSize>("nvrtcGetProgramLogSize", program, &size));
    std::string out(size, 0);
    check(call<nvrtcGetProgramLog>("nvrtcGetProgramLog", program, out.data()));
    return out;
  }
  void* library_;
};

// The code of a type's kernels for one architecture, on all devices of it. Never unloaded.
class Module {
 public:
  Module(const Compiler& compiler, const std::string& type, const std::string& architecture)
      : code_(compiler.compile(type, architecture)), suffix_("_" + type) {
    C10_CUDA_CHECK(
        cudaLibraryLoadData(&library_, code_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  }
  const void* kernel(const char* name) {
    const auto place = kernels_.try_emplace(name, nullptr).first;
    if (place->second == nullptr)
      C10_CUDA_CHECK(
          cudaLibraryGetKernel(&place->second, library_, (place->first + suffix_).c_str()));
    return place->second;
  }

 private:
  std::string code_, suffix_;
  cudaLibrary_t library_ = nullptr;
  std::map<std::string, cudaKernel_t, std::less<>> kernels_;
};

class Modules {
 public:
  // nullptr: it cannot be had.
  Module* of(int device, const char* type) {
    const std::pair<std::string, std::string> key{architecture(device), type};
    const auto [place, fresh] = all_.try_emplace(key, nullptr);
    if (fresh) place->second = make(key.first, key.second);
    return place->second;
  }
  std::mutex mutex;

 private:
  const std::string& architecture(int device) {
    const auto [place, fresh] = architectures_.try_emplace(device);
    if (fresh) {
      int major = 0, minor = 0;
      C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
      C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
      place->second = "sm_" + std::to_string(major) + std::to_string(minor);
    }
    return place->second;
  }
  Module* make(const std::string& architecture, const std::string& type) {
    try {
      static const Compiler compiler;
      return new Module(compiler, type, architecture);
    } catch (const std::exception& error) {
      TORCH_WARN_ONCE(
          "kernels of our own cannot be compiled for this device; operators do the same, more "
          "slowly: ",
          error.what());
      return nullptr;
    }
  }

  std::map<int, std::string> architectures_;
  std::map<std::pair<std::string, std::string>, Module*> all_;
};

Modules& modules() {
  static auto* all = new Modules;  // never destroyed: launches come from threads that outlive main
  return *all;
}

// What a thread found last, without a lock. Names are literals of libraries that stay loaded, so
// that their addresses tell them apart.
template <class Value>
class Found {
 public:
  template <class Find>
  Value get(int device, const char* name, const char* type, Find find) {
    const auto mixed = reinterpret_cast<uintptr_t>(name) * 31 + reinterpret_cast<uintptr_t>(type);
    Entry& entry = entries_[(mixed / 8 + static_cast<uintptr_t>(device)) % entries_.size()];
    if (entry.device != device || entry.name != name || entry.type != type) {
      const std::lock_guard lock(modules().mutex);
      entry = {device, name, type, find()};
    }
    return entry.value;
  }

 private:
  struct Entry {
    int device = -1;
    const char *name = nullptr, *type = nullptr;
    Value value{};
  };
  std::array<Entry, 64> entries_;
};

bool ready(int device, const char* type) {
  thread_local Found<bool> found;
  return found.get(device, nullptr, type, [&] { return modules().of(device, type) != nullptr; });
}

void launch(int device, const char* name, const char* type, unsigned blocks, unsigned shared_bytes,
            const void* arguments) {
  thread_local Found<const void*> found;
  const void* kernel = found.get(device, name, type, [&] {
    Module* module = modules().of(device, type);
    TORCH_INTERNAL_ASSERT(module != nullptr);
    return module->kernel(name);
  });
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  void* given[] = {const_cast<void*>(arguments)};
  C10_CUDA_CHECK(cudaLaunchKernel(kernel, dim3(blocks), dim3(kernels::kBlock), given, shared_bytes,
                                  c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

void offer_own_kernels() {
  static const DeviceKernels offered{ready, launch};
  set_device_kernels(&offered);
}

}  // namespace meshwright::cuda
