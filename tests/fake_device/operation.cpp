#include "operation.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>

namespace fake_device {

using at::Tensor;

void* stream_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(device).native_handle();
}

Extent extent_of(const Tensor& t) {
  if (t.numel() == 0) return {};
  int64_t low = 0, high = 0;
  for (int64_t d = 0; d < t.dim(); ++d)
    (t.stride(d) < 0 ? low : high) += (t.size(d) - 1) * t.stride(d);
  const auto width = static_cast<int64_t>(t.element_size());
  return {static_cast<const char*>(t.const_data_ptr()) + low * width,
          static_cast<size_t>((high - low + 1) * width)};
}

Tensor Operation::touch(const Tensor& t, bool write) {
  const Extent extent = extent_of(t);
  if (extent.bytes > 0) touched.push_back({extent, write});
  return at::from_blob(t.numel() > 0 ? fake_device_view(t.const_data_ptr()) : nullptr, t.sizes(),
                       t.strides(), t.options().device(c10::kCPU).requires_grad(false));
}

void Operation::run(void* stream) const {
  fake_device_begin(stream, device.index(), what.c_str());
  const Ending ending;
  for (const Touched& one : touched)
    fake_device_access(stream, device.index(), one.extent.begin, one.extent.bytes,
                       one.write ? 1 : 0, what.c_str());
  at::AutoDispatchBelowADInplaceOrView below;
  if (compute) compute();
}

bool is_captured(c10::Device device, const std::string& what) {
  const int state = fake_device_capture(stream_of(device), device.index());
  TORCH_CHECK(state <= 0, "CUDA error ", state, ": ", what, " while a graph is captured");
  return state < 0;
}
void refuse_capture(c10::Device device, const std::string& what, const char* why) {
  fake_device_begin(stream_of(device), device.index(), what.c_str());
  fake_device_end();
  TORCH_CHECK(false, what, " cannot be captured in a graph: ", why);
}

}  // namespace fake_device
