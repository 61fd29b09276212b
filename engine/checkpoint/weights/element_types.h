// The names that safetensors files give to element types.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "meshwright/dtype.h"

namespace meshwright::weights {

struct ElementType {
  std::string_view name;  // "BF16"
  DType dtype;
};

// In the order in which safetensors' own library lays tensors out (largest alignment first), and
// the first of a dtype is the name it is written with. U8 is read as int8: the bytes are the same,
// and nothing here computes with them.
inline constexpr ElementType kElementTypes[] = {
    {"I64", DType::int64},   {"F64", DType::float64},   {"F32", DType::float32},
    {"I32", DType::int32},   {"BF16", DType::bfloat16}, {"F16", DType::float16},
    {"I16", DType::int16},   {"I8", DType::int8},       {"U8", DType::int8},
    {"BOOL", DType::boolean}};

constexpr std::optional<DType> parse_element_type(std::string_view name) {
  for (const ElementType& type : kElementTypes)
    if (type.name == name) return type.dtype;
  return std::nullopt;
}
constexpr size_t element_type_rank(DType dtype) {
  size_t at = 0;
  while (kElementTypes[at].dtype != dtype) ++at;
  return at;
}
constexpr std::string_view element_type_name(DType dtype) {
  return kElementTypes[element_type_rank(dtype)].name;
}
// Bytes of a whole tensor; nothing for a negative size, and for more than 2^63 where each size of 0
// counts as 1: who computes strides must not overflow either.
inline std::optional<int64_t> tensor_bytes(DType dtype, std::span<const int64_t> shape) {
  int64_t product = dtype_size(dtype);
  bool empty = false;
  for (int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product))
      return std::nullopt;
    empty = empty || size == 0;
  }
  return empty ? 0 : product;
}

}  // namespace meshwright::weights
