#include "engine/checkpoint/weights/convert.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstring>
#include <type_traits>

namespace meshwright::weights {

namespace {

// One loop for each pair, so that the choice is not made again for each element.
template <class From, class To>
void loop(const std::byte* from, std::byte* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(static_cast<void*>(&value), from + i * static_cast<int64_t>(sizeof(From)),
                sizeof(From));
    To out;
    if constexpr (std::is_same_v<To, double>)
      out = static_cast<double>(value);
    else if constexpr (std::is_same_v<To, float>)
      out = static_cast<float>(value);
    else
      out = To(static_cast<float>(value));
    std::memcpy(to + i * static_cast<int64_t>(sizeof(To)), static_cast<const void*>(&out),
                sizeof(To));
  }
}

using Loop = void (*)(const std::byte*, std::byte*, int64_t);

template <class From>
Loop loop_to(DType to) {
  switch (to) {
    case DType::float64:
      return loop<From, double>;
    case DType::float32:
      return loop<From, float>;
    case DType::float16:
      return loop<From, c10::Half>;
    default:
      return loop<From, c10::BFloat16>;
  }
}

}  // namespace

bool is_floating(DType type) {
  return type == DType::float64 || type == DType::float32 || type == DType::float16 ||
         type == DType::bfloat16;
}

void convert_elements(const std::byte* from, DType from_type, std::byte* to, DType to_type,
                      int64_t count) {
  if (from_type == to_type) {
    std::memcpy(to, from, static_cast<size_t>(count * dtype_size(to_type)));
    return;
  }
  Loop run = from_type == DType::float64   ? loop_to<double>(to_type)
             : from_type == DType::float32 ? loop_to<float>(to_type)
             : from_type == DType::float16 ? loop_to<c10::Half>(to_type)
                                           : loop_to<c10::BFloat16>(to_type);
  run(from, to, count);
}

}  // namespace meshwright::weights
