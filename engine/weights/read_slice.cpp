// Reading parts of tensors, in another floating type where asked for.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstring>

#include "engine/weights/safetensors.h"

namespace meshwright::weights {

namespace {

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
      return type == DType::float16 ? static_cast<double>(c10::Half(v, c10::Half::from_bits()))
                                    : static_cast<double>(c10::BFloat16(v, c10::BFloat16::from_bits()));
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
      narrow = c10::Half(single).x;
      break;
    default:
      narrow = c10::BFloat16(single).x;
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
