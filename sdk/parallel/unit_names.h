// What both kinds of models check and say alike: types of parameters, names of units, and what is
// wrong with a call of a pipeline.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <string>
#include <string_view>
#include <vector>

#include "meshwright/error.h"

namespace meshwright::detail {

// float8 is a floating type too, but nothing adds up in it.
inline bool trains(c10::ScalarType type) {
  return type == c10::kFloat || type == c10::kDouble || type == c10::kHalf ||
         type == c10::kBFloat16;
}

inline std::string sizes_text(c10::ArrayRef<int64_t> sizes) {
  std::string out;
  for (int64_t size : sizes) out += (out.empty() ? "" : ", ") + std::to_string(size);
  return "[" + out + "]";
}

// Indices below `count` that are meant, in their order. `matches(index, name)`.
template <class Matches>
std::vector<size_t> units_meant(const std::vector<std::string>& names, size_t count,
                                const Matches& matches) {
  std::vector<bool> meant(count, names.empty());
  for (const std::string& name : names) {
    bool found = false;
    for (size_t i = 0; i < count; ++i)
      if (matches(i, name)) found = meant[i] = true;
    if (!found)
      throw Error(ErrorCode::internal, "the model has no unit at or in \"" + name + "\"")
          .help("give names of units, or of modules around units");
  }
  std::vector<size_t> out;
  for (size_t i = 0; i < count; ++i)
    if (meant[i]) out.push_back(i);
  return out;
}

inline void check_told(bool told) {
  if (!told)
    throw Error(ErrorCode::internal,
                "units are told to reduce in a step whose micro-batches say for themselves when")
        .help("call begin_micro_batch(GradientSync::when_told) before each forward and backward");
}

inline Error not_reduced(const std::string& units) {
  return Error(ErrorCode::internal,
               "gradients of " + units + " were not reduced after their last backward")
      .help("call reduce_units() for them before end_step()");
}

inline Error reduced_already(const std::string& what) {
  return Error(ErrorCode::not_in_release,
               what +
                   " after a reduction: whole gradients (replicas, and ZeRO levels 0 and 1) are "
                   "reduced once a step")
      .help("run all micro-batches of a step before reduce_units()");
}

inline Error second_gradient(const std::string& parameter) {
  return Error(ErrorCode::bad_module, "a second gradient of " + parameter +
                                          " came after the first was reduced: two recomputed "
                                          "modules use it, or a backward went past its unit")
      .key("distributed.activation_checkpointing")
      .help("set distributed.activation_checkpointing = \"none\"")
      .help("use the parameters of a module in its own forward only");
}

}  // namespace meshwright::detail
