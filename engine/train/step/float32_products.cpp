#include "engine/train/step/float32_products.h"

#include <ATen/Context.h>
#include <c10/util/env.h>

namespace meshwright::train {

namespace {

constexpr const char* kHighest = "run.float32_matmul_precision = \"highest\"";
constexpr const char* kHigh = "run.float32_matmul_precision = \"high\"";
// LibTorch's own way to ask for TF32, which some container images set.
constexpr const char* kOverride = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE";

}  // namespace

std::string set_float32_products(const Options& run, const Options& dist, c10::Device device) {
  const bool tf32 = run.get_string("float32_matmul_precision") == "high";
  if (!device.is_cuda()) {
    // Where the file says "cpu", it was told already.
    if (!tf32 || dist.get_string("device") == "cpu") return {};
    return std::string(kHigh) + " has no effect: the ranks compute on the CPU";
  }
  // Not setFloat32MatmulPrecision(): in LibTorch 2.11 that lets oneDNN compute in TF32, too.
  at::globalContext().setAllowTF32CuBLAS(tf32);
  if (tf32 || c10::utils::check_env(kOverride) != true) return {};
  return std::string(kHighest) + " comes before " + kOverride + ", which asks for TF32";
}

}  // namespace meshwright::train
