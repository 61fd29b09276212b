// libcuda.so.1: what LibTorch calls of the driver's own interface. Devices have multicast,
// so that buffers are registered with NCCL, and no other attribute.
#include <cuda.h>

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
  *out = attribute == CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED ? 1 : 0;
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
}
