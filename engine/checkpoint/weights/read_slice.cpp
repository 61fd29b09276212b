// Reading parts of tensors, in another floating type where asked for.
#include "engine/checkpoint/weights/convert.h"
#include "engine/checkpoint/weights/safetensors.h"

namespace meshwright::weights {

void read_slice(const TensorEntry& tensor, std::span<const int64_t> offsets,
                std::span<const int64_t> sizes, DType target, void* out) {
  size_t dims = tensor.shape.size();
  auto mismatch = [&](const std::string& what) {
    throw Error(ErrorCode::weights_mismatch,
                tensor.file->path() + ": tensor \"" + tensor.name + "\" " + what)
        .key("model.pretrained")
        .help("check that config.json and the safetensors files belong together");
  };
  if (offsets.size() != dims || sizes.size() != dims)
    mismatch("has " + std::to_string(dims) + " dimensions, " + std::to_string(sizes.size()) +
             " are wanted");
  for (size_t d = 0; d < dims; ++d)
    if (offsets[d] < 0 || sizes[d] < 0 || offsets[d] > tensor.shape[d] ||
        sizes[d] > tensor.shape[d] - offsets[d])
      mismatch("has " + std::to_string(tensor.shape[d]) + " rows in dimension " +
               std::to_string(d) + ", wanted are " + std::to_string(sizes[d]) + " from " +
               std::to_string(offsets[d]) + " on");
  bool same = tensor.dtype == target;
  if (!same && (!is_floating(tensor.dtype) || !is_floating(target)))
    mismatch("is " + std::string(dtype_name(tensor.dtype)) + ", wanted is " +
             std::string(dtype_name(target)));
  for (size_t d = 0; d < dims; ++d)
    if (sizes[d] == 0) return;
  int64_t from_size = dtype_size(tensor.dtype), to_size = dtype_size(target);
  // Dimensions from `inner` on are whole, so they are one run together with the one before.
  size_t inner = dims;
  int64_t run = 1;
  while (inner > 0 && (inner == dims || sizes[inner] == tensor.shape[inner])) run *= sizes[--inner];
  tensor.file->check_size();
  std::vector<int64_t> strides(dims, 1);
  for (size_t d = dims; d-- > 1;) strides[d - 1] = strides[d] * tensor.shape[d];
  std::vector<int64_t> at(offsets.begin(), offsets.end());
  auto* to = static_cast<std::byte*>(out);
  for (;;) {
    int64_t element = 0;
    for (size_t d = 0; d < dims; ++d) element += at[d] * strides[d];
    const std::byte* from = tensor.data + element * from_size;
    convert_elements(from, tensor.dtype, to, target, run);
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
