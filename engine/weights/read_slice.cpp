// Reading parts of tensors, and the arithmetic of narrow floats.
#include <cstring>

#include "engine/weights/safetensors.h"

namespace meshwright::weights {

namespace {

float half_to_float(uint16_t h) {
  uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023, bits;
  if (exponent == 0) {
    float value = static_cast<float>(mantissa) * 0x1p-24f;
    std::memcpy(&bits, &value, 4);
    bits |= sign;
  } else {
    bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  }
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
uint16_t float_to_half(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  uint32_t rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return sign | 0x7e00;   // NaN
  if (rest >= 0x477ff000) return sign | 0x7c00;  // rounds to infinity
  if (rest < 0x38800000) {                       // subnormal: one unit is 2^-24
    float value;
    std::memcpy(&value, &rest, 4);
    float scaled = value + 0.5f;  // the addition rounds to the unit, to nearest even
    uint32_t out;
    std::memcpy(&out, &scaled, 4);
    return static_cast<uint16_t>(sign | (out - 0x3f000000));
  }
  rest += 0xfff + ((rest >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rest - 0x38000000) >> 13));
}
float bfloat_to_float(uint16_t b) {
  uint32_t bits = static_cast<uint32_t>(b) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
uint16_t float_to_bfloat(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

double load(const std::byte* at, DType type) {
  switch (type) {
    case DType::float64: {
      double v;
      std::memcpy(&v, at, 8);
      return v;
    }
    case DType::float32: {
      float v;
      std::memcpy(&v, at, 4);
      return static_cast<double>(v);
    }
    default: {
      uint16_t v;
      std::memcpy(&v, at, 2);
      return static_cast<double>(type == DType::float16 ? half_to_float(v) : bfloat_to_float(v));
    }
  }
}
void store(std::byte* at, DType type, double value) {
  auto single = static_cast<float>(value);
  uint16_t narrow = 0;
  switch (type) {
    case DType::float64:
      std::memcpy(at, &value, 8);
      return;
    case DType::float32:
      std::memcpy(at, &single, 4);
      return;
    case DType::float16:
      narrow = float_to_half(single);
      break;
    default:
      narrow = float_to_bfloat(single);
      break;
  }
  std::memcpy(at, &narrow, 2);
}

bool floating(DType type) { return type == DType::float64 || type == DType::float32 || type == DType::float16 || type == DType::bfloat16; }

}  // namespace

void read_slice(const TensorEntry& tensor, std::span<const int64_t> offsets, std::span<const int64_t> sizes, DType target, void* out) {
  size_t dims = tensor.shape.size();
  auto mismatch = [&](const std::string& what) {
    throw Error(ErrorCode::weights_mismatch, tensor.file->path() + ": tensor \"" + tensor.name + "\" " + what)
        .key("model.pretrained")
        .help("check that config.json and the safetensors files belong together");
  };
  if (offsets.size() != dims || sizes.size() != dims)
    mismatch("has " + std::to_string(dims) + " dimensions, " + std::to_string(sizes.size()) + " are wanted");
  for (size_t d = 0; d < dims; ++d)
    if (offsets[d] < 0 || sizes[d] < 0 || offsets[d] > tensor.shape[d] || sizes[d] > tensor.shape[d] - offsets[d])
      mismatch("has " + std::to_string(tensor.shape[d]) + " rows in dimension " + std::to_string(d) + ", wanted are " +
               std::to_string(sizes[d]) + " from " + std::to_string(offsets[d]) + " on");
  bool same = tensor.dtype == target;
  if (!same && (!floating(tensor.dtype) || !floating(target)))
    mismatch("is " + std::string(dtype_name(tensor.dtype)) + ", wanted is " + std::string(dtype_name(target)));
  int64_t from_size = dtype_size(tensor.dtype), to_size = dtype_size(target);
  // Dimensions from `inner` on are whole, so they are one run together with the one before.
  size_t inner = dims;
  int64_t run = 1;
  while (inner > 0 && (inner == dims || sizes[inner] == tensor.shape[inner])) run *= sizes[--inner];
  for (size_t d = 0; d < dims; ++d)
    if (sizes[d] == 0) return;
  tensor.file->check_size();
  std::vector<int64_t> strides(dims, 1);
  for (size_t d = dims; d-- > 1;) strides[d - 1] = strides[d] * tensor.shape[d];
  std::vector<int64_t> at(offsets.begin(), offsets.end());
  auto* to = static_cast<std::byte*>(out);
  for (;;) {
    int64_t element = 0;
    for (size_t d = 0; d < dims; ++d) element += at[d] * strides[d];
    const std::byte* from = tensor.data + element * from_size;
    if (same)
      std::memcpy(to, from, static_cast<size_t>(run * to_size));
    else
      for (int64_t i = 0; i < run; ++i) store(to + i * to_size, target, load(from + i * from_size, tensor.dtype));
    to += run * to_size;
    size_t d = inner;
    for (; d-- > 0;) {
      if (++at[d] < offsets[d] + sizes[d]) break;
      at[d] = offsets[d];
    }
    if (d == SIZE_MAX) return;
  }
}

}  // namespace meshwright::weights
