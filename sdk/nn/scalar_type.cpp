#include "meshwright/parallel/scalar_type.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "meshwright/error.h"

namespace meshwright {

namespace {

constexpr std::array<std::pair<DType, at::ScalarType>, 9> kTypes{{
    {DType::float32, at::kFloat},
    {DType::float64, at::kDouble},
    {DType::float16, at::kHalf},
    {DType::bfloat16, at::kBFloat16},
    {DType::int8, at::kChar},
    {DType::int16, at::kShort},
    {DType::int32, at::kInt},
    {DType::int64, at::kLong},
    {DType::boolean, at::kBool},
}};

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&](const auto& row) { return row.first == dtype; });
  return found == kTypes.end() ? at::kFloat : found->second;
}

std::optional<DType> find_dtype(at::ScalarType type) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&](const auto& row) { return row.second == type; });
  return found == kTypes.end() ? std::nullopt : std::optional<DType>(found->first);
}

DType dtype_of(at::ScalarType type) {
  if (const std::optional<DType> found = find_dtype(type)) return *found;
  throw Error(ErrorCode::bad_module,
              std::string("a tensor of the dtype ") + c10::toString(type) + " cannot be stored")
      .help("use a floating dtype, or an integer one of at most 64 bits");
}

}  // namespace meshwright
