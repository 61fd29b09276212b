// Launches of kernels of our own for LibTorch's tensors.
//
//   if (auto own = OwnKernels::of(x, {size}))   // otherwise operators do it
//     own->launch("rms_norm", blocks, kernels::RmsNorm{...});
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "device_graphs.h"
#include "kernels/arguments.h"

namespace meshwright {

class OwnKernels {
 public:
  // For elements like those of x, on a device, in pieces of these lengths. nullopt: operators have
  // to do it.
  static std::optional<OwnKernels> of(const at::Tensor& x, std::initializer_list<int64_t> lengths) {
    const DeviceKernels* kernels = x.is_cuda() ? device_kernels() : nullptr;
    if (kernels == nullptr) return std::nullopt;
    const bool packs = std::all_of(lengths.begin(), lengths.end(), [&](int64_t length) {
      return length * static_cast<int64_t>(x.element_size()) % kPack == 0;
    });
    const char* type = type_of(x.scalar_type(), packs);
    if (type == nullptr || !kernels->ready(x.get_device(), type)) return std::nullopt;
    return OwnKernels(kernels, x.get_device(), type, packs);
  }

  // Kernels know no derivatives of their own, so a backward of theirs has none.
  static void refuse_second_derivative() {
    TORCH_CHECK_NOT_IMPLEMENTED(!c10::GradMode::is_enabled(),
                                "second derivatives are not there on a device");
  }
  template <class Arguments>
  void launch(const char* kernel, int64_t blocks, const Arguments& arguments,
              int64_t shared_bytes = 0) const {
    constexpr int64_t kMost = int64_t{1} << 20;
    if (blocks > 0)
      kernels_->launch(device_, kernel, type_, static_cast<unsigned>(std::min(blocks, kMost)),
                       static_cast<unsigned>(shared_bytes), &arguments);
  }

  // x where the kernels can read it: dense, or only in its last dimension.
  at::Tensor readable(const at::Tensor& x) const {
    return x.is_contiguous() && is_aligned(x) ? x : x.clone(at::MemoryFormat::Contiguous);
  }
  at::Tensor readable_rows(const at::Tensor& x) const {
    bool fits = x.stride(-1) == 1 && is_aligned(x);
    for (int64_t d = 0; d + 1 < x.dim(); ++d) fits = fits && fits_packs(x.stride(d), x);
    return fits ? x : readable(x);
  }

 private:
  static constexpr int64_t kPack = 16;  // bytes
  OwnKernels(const DeviceKernels* kernels, int device, const char* type, bool packs)
      : kernels_(kernels), device_(device), type_(type), packs_(packs) {}
  static const char* type_of(at::ScalarType type, bool packs) {
    if (type == at::kFloat) return packs ? "float_packs" : "float";
    if (type == at::kBFloat16) return packs ? "bfloat16_packs" : "bfloat16";
    if (type == at::kHalf) return packs ? "half_packs" : "half";
    return nullptr;
  }
  bool fits_packs(int64_t length, const at::Tensor& x) const {
    return !packs_ || length * static_cast<int64_t>(x.element_size()) % kPack == 0;
  }
  bool is_aligned(const at::Tensor& x) const {
    return !packs_ || reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kPack == 0;
  }

  const DeviceKernels* kernels_;
  int device_;
  const char* type_;
  bool packs_;
};

inline int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace meshwright
