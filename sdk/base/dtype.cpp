#include "meshwright/dtype.h"

#include <string>

#include "meshwright/error.h"

namespace meshwright {
namespace {

struct Name {
  std::string_view text;
  DType dtype;
};
// The first name of each type is PyTorch's own.
constexpr Name kNames[] = {
    {"float32", DType::float32},   {"float", DType::float32},   {"float64", DType::float64},
    {"double", DType::float64},    {"float16", DType::float16}, {"half", DType::float16},
    {"bfloat16", DType::bfloat16}, {"bf16", DType::bfloat16},   {"int8", DType::int8},
    {"int16", DType::int16},       {"short", DType::int16},     {"int32", DType::int32},
    {"int", DType::int32},         {"int64", DType::int64},     {"long", DType::int64},
    {"bool", DType::boolean},
};

}  // namespace

DType parse_dtype(std::string_view name) {
  std::string_view bare = name.starts_with("torch.") ? name.substr(6) : name;
  for (const Name& n : kNames)
    if (n.text == bare) return n.dtype;
  throw Error(ErrorCode::bad_dtype, "\"" + std::string(name) + "\" is not a dtype")
      .help("use \"float32\", \"bfloat16\" or \"float16\"");
}

std::string_view dtype_name(DType dtype) {
  for (const Name& n : kNames)
    if (n.dtype == dtype) return n.text;
  return "";
}

int64_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::int64:
      return 8;
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::float16:
    case DType::bfloat16:
    case DType::int16:
      return 2;
    case DType::int8:
    case DType::boolean:
      return 1;
  }
  return 0;
}

}  // namespace meshwright
