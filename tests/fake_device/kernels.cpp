// What devices are like, and kernels: known by their names, never run. One that is launched all the
// same belongs to an operator that operators.cpp did not replace.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graphs.h"
#include "own_kernels.h"
#include "runtime.h"

using namespace fake_device;

namespace fake_device {

namespace {

thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;

struct Configuration {
  dim3 grid, block;
  size_t shared = 0;
  void* stream = nullptr;
};
thread_local Configuration configuration;

// Functions of the driver that LibTorch asks for by name, all at once and whether it needs them or
// not. One that is called is told.
constexpr size_t kDriverFunctions = 64;
std::vector<std::string>& driver_names() {
  static auto* all = new std::vector<std::string>;
  return *all;
}
template <size_t number>
int driver_function() {
  Lock lock;
  const std::string& name = driver_names()[number];
  if (is_new("driver " + name))
    fprintf(log_file(), "fake device: driver function %s is not there\n", name.c_str());
  return cudaErrorNotSupported;
}
template <size_t... numbers>
void* driver_function_at(size_t number, std::index_sequence<numbers...>) {
  static int (*const all[])() = {driver_function<numbers>...};
  return reinterpret_cast<void*>(all[number]);
}

std::unordered_map<const void*, const char*>& names() {
  static auto* all = new std::unordered_map<const void*, const char*>;
  return *all;
}

cudaError_t stray(const void* kernel) {
  Lock lock;
  ++counts().kernels;
  auto it = names().find(kernel);
  const std::string name = it == names().end() ? "?" : it->second;
  if (!is_new("kernel " + name)) return cudaSuccess;
  fprintf(log_file(), "fake device: STRAY KERNEL %s\n", name.c_str());
  log_stack();
  return cudaSuccess;
}

// The name of an error, and what CUDA says of it.
struct Words {
  cudaError_t error;
  const char *name, *says;
};
#define ERROR(name, says) {name, #name, says}
constexpr Words kErrors[] = {
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorNoKernelImageForDevice,
          "no kernel image is available for execution on the device"),
    ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    ERROR(cudaErrorStreamCaptureInvalidated,
          "operation failed due to a previous error during capture"),
    ERROR(cudaErrorStreamCaptureMerge,
          "operation would result in a merge of separate capture sequences"),
    ERROR(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    ERROR(cudaErrorStreamCaptureIsolation,
          "dependency created on uncaptured work in another stream"),
    ERROR(cudaErrorStreamCaptureImplicit,
          "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR(cudaErrorCapturedEvent,
          "operation not permitted on an event last recorded in a capturing stream"),
    ERROR(cudaErrorStreamCaptureWrongThread,
          "attempt to terminate a thread-local capture sequence from another thread"),
};
#undef ERROR
const Words& words_of(cudaError_t error) {
  static constexpr Words kOther{cudaErrorUnknown, "an error of the fake device",
                                "error of the fake device"};
  const auto* found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                   [&](const Words& one) { return one.error == error; });
  return found != std::end(kErrors) ? *found : kOther;
}

// Whether devices run code for an architecture, of which nvrtc.cpp leaves the name ("sm_90"): that
// of their own and of earlier ones with the same first number.
bool runs_here(const char* architecture) {
  const int of = strncmp(architecture, "sm_", 3) == 0 ? atoi(architecture + 3) : 0,
            here = settings().capability;
  return of / 10 == here / 10 && of <= here;
}

bool is_a_device(int device) { return device >= 0 && device < settings().count; }

}  // namespace

int current_device() { return current; }
cudaError_t fail(cudaError_t error) { return last_error = error; }

}  // namespace fake_device

extern "C" {

cudaError_t cudaGetDeviceCount(int* out) {
  *out = settings().count;
  return *out > 0 ? cudaSuccess : fail(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* out) {
  *out = current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (!is_a_device(device)) return fail(cudaErrorInvalidDevice);
  current = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
  if (!is_a_device(device)) return fail(cudaErrorInvalidDevice);
  memset(out, 0, sizeof *out);
  strcpy(out->name, "Fake device");
  out->major = settings().capability / 10;
  out->minor = settings().capability % 10;
  out->totalGlobalMem = settings().memory;
  out->multiProcessorCount = 132;
  out->warpSize = 32;
  out->maxThreadsPerBlock = 1024;
  out->maxThreadsPerMultiProcessor = 2048;
  out->regsPerBlock = out->regsPerMultiprocessor = 65536;
  out->sharedMemPerBlock = 49152;
  out->sharedMemPerBlockOptin = 232448;
  out->sharedMemPerMultiprocessor = 233472;
  out->l2CacheSize = 50 << 20;
  out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
  out->maxThreadsDim[2] = 64;
  out->maxGridSize[0] = 0x7fffffff;
  out->maxGridSize[1] = out->maxGridSize[2] = 65535;
  out->unifiedAddressing = out->concurrentKernels = out->canMapHostMemory = 1;
  out->asyncEngineCount = 3;
  out->pciBusID = settings().number[device] / settings().instances + 1;
  out->uuid.bytes[0] = static_cast<char>(settings().number[device] + 1);
  out->textureAlignment = 512;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* out, cudaDeviceAttr attribute, int) {
  *out = attribute == cudaDevAttrComputeCapabilityMajor   ? settings().capability / 10
         : attribute == cudaDevAttrComputeCapabilityMinor ? settings().capability % 10
         : attribute == cudaDevAttrMultiProcessorCount    ? 132
         : attribute == cudaDevAttrWarpSize               ? 32
         : attribute == cudaDevAttrMaxThreadsPerBlock     ? 1024
                                                          : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* out, int bytes, int device) {
  snprintf(out, static_cast<size_t>(bytes), "0000:%02x:00.0", static_cast<unsigned>(device) + 1U);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* out, int, int) {
  *out = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* low, int* high) {
  *low = 0;
  *high = -5;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* out) {
  *out = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* out) {
  *out = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** out, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  *out = dlsym(RTLD_DEFAULT, name);  // of driver.cpp
  if (*out != nullptr) return cudaSuccess;
  Lock lock;
  std::vector<std::string>& names = driver_names();
  const auto number =
      static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  if (number == kDriverFunctions) return fail(cudaErrorNotSupported);
  if (number == names.size()) names.emplace_back(name);
  *out = driver_function_at(number, std::make_index_sequence<kDriverFunctions>());
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) { return words_of(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return words_of(error).says; }
cudaError_t cudaGetLastError() {
  const cudaError_t out = last_error;
  last_error = cudaSuccess;
  return out;
}
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3, void** arguments, size_t shared,
                             cudaStream_t stream) {
  if (!is_own_kernel(kernel)) return stray(kernel);
  if (const int state = fake_device_capture(stream, -1); state > 0)
    return static_cast<cudaError_t>(state);
  return run_own_kernel(kernel, grid.x, shared, *arguments, stream) ? cudaSuccess
                                                                    : fail(cudaErrorInvalidValue);
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t* out, const void* code, cudaJitOption*, void**,
                                unsigned, cudaLibraryOption*, void**, unsigned) {
  static char library;
  if (!runs_here(static_cast<const char*>(code))) return fail(cudaErrorNoKernelImageForDevice);
  *out = reinterpret_cast<cudaLibrary_t>(&library);
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* out, cudaLibrary_t, const char* name) {
  *out = reinterpret_cast<cudaKernel_t>(const_cast<void*>(own_kernel(name)));
  return *out != nullptr ? cudaSuccess : fail(cudaErrorSymbolNotFound);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* kernel, void**) {
  return stray(kernel);
}
cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3, dim3, void**, size_t,
                                        cudaStream_t) {
  return stray(kernel);
}
cudaError_t cudaGetSymbolAddress(void** out, const void*) { return cudaMalloc(out, 4096); }
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) {
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void*) {
  *out = {};
  out->maxThreadsPerBlock = 1024;
  out->numRegs = 32;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* out, const void*, int, size_t) {
  *out = 2;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* out, const void*, int,
                                                                   size_t, unsigned) {
  *out = 2;
  return cudaSuccess;
}

// What compiled kernels call when their library is loaded, and before a launch.
// NOLINTBEGIN(bugprone-reserved-identifier)
cudaError_t __cudaGetKernel(cudaKernel_t* out, const void* kernel) {
  *out = reinterpret_cast<cudaKernel_t>(const_cast<void*>(kernel));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return stray(kernel);
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<void**>(stream) = configuration.stream;
  return cudaSuccess;
}
void** __cudaRegisterFatBinary(void*) {
  static void* binary[1];
  return binary;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  names()[kernel] = name;
}
char __cudaInitModule(void**) { return 0; }
// NOLINTEND(bugprone-reserved-identifier)
}
