// libcuda.so.1: what LibTorch calls of the driver's own interface. Devices have a capability, and
// multicast, so that buffers are registered with NCCL, and no other attribute.
#include <cuda.h>

#include "device.h"

extern "C" {
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* out) {
  *out = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* out, int device) {
  *out = device;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* out, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *out = fake_device_capability() / 10;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *out = fake_device_capability() % 10;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
      *out = 1;
      break;
    default:
      *out = 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice) {
  *major = fake_device_capability() / 10;
  *minor = fake_device_capability() % 10;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** out) {
  *out = "error of the fake device";
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* out) {
  static char context;
  *out = reinterpret_cast<CUcontext>(&context);
  return CUDA_SUCCESS;
}

// Memory and its addresses apart, of which LibTorch's allocator makes segments that grow. No other
// process can open it. A handle is the bytes, and the device in the lowest byte.
CUresult cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t, CUdeviceptr,
                             unsigned long long) {
  *out = fake_device_reserve(bytes);
  return *out != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  fake_device_unreserve(address, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t bytes,
                     const CUmemAllocationProp* wanted, unsigned long long) {
  if (wanted->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_PERMITTED;
  const int device = wanted->location.id;
  if (fake_device_take(device, bytes) == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = (bytes << 8) | static_cast<unsigned>(device);
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle memory) {
  fake_device_give(static_cast<int>(memory & 0xff), memory >> 8);
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle,
                  unsigned long long) {
  fake_device_map(address, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return fake_device_unmap(address, bytes) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}
}
