// libnvrtc.so.13: what it is asked to compile, the runtime has for the host already
// (own_kernels.cpp), so any code will do. FAKE_DEVICE_NVRTC=0: it compiles nothing.
#include <nvrtc.h>

#include <cstdlib>
#include <cstring>

namespace {
constexpr char kLog[] = "the fake compiler was told to fail";
}

extern "C" {
nvrtcResult nvrtcCreateProgram(nvrtcProgram* out, const char*, const char*, int, const char* const*,
                               const char* const*) {
  static char program;
  *out = reinterpret_cast<nvrtcProgram>(&program);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) {
  const char* works = getenv("FAKE_DEVICE_NVRTC");
  return works != nullptr && *works == '0' ? NVRTC_ERROR_COMPILATION : NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t* out) {
  *out = sizeof kLog;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char* out) {
  memcpy(out, kLog, sizeof kLog);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t* out) {
  *out = 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char* out) {
  *out = 0;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  *program = nullptr;
  return NVRTC_SUCCESS;
}
}
