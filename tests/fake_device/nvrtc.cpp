// libnvrtc.so.13: what it is asked to compile, the runtime has for the host already
// (own_kernels.cpp), so instead of code there is the name of the architecture that it is for. The
// runtime loads only what its devices run. FAKE_DEVICE_NVRTC=0: it compiles nothing.
#include <nvrtc.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace {
constexpr char kLog[] = "the fake compiler was told to fail";
constexpr std::string_view kArchitecture = "--gpu-architecture=";

// For what a program was compiled.
std::string& architecture_of(nvrtcProgram program) {
  return *reinterpret_cast<std::string*>(program);
}
}  // namespace

extern "C" {
nvrtcResult nvrtcCreateProgram(nvrtcProgram* out, const char*, const char*, int, const char* const*,
                               const char* const*) {
  *out = reinterpret_cast<nvrtcProgram>(new std::string);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  const char* works = getenv("FAKE_DEVICE_NVRTC");
  if (works != nullptr && *works == '0') return NVRTC_ERROR_COMPILATION;
  std::string& architecture = architecture_of(program);
  for (int i = 0; i < count; ++i)
    if (const std::string_view option = options[i]; option.starts_with(kArchitecture))
      architecture = option.substr(kArchitecture.size());
  // Others have no code for a device.
  return architecture.starts_with("sm_") ? NVRTC_SUCCESS : NVRTC_ERROR_INVALID_OPTION;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t* out) {
  *out = sizeof kLog;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char* out) {
  memcpy(out, kLog, sizeof kLog);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* out) {
  *out = architecture_of(program).size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* out) {
  const std::string& architecture = architecture_of(program);
  memcpy(out, architecture.c_str(), architecture.size() + 1);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  delete &architecture_of(*program);
  *program = nullptr;
  return NVRTC_SUCCESS;
}
}
