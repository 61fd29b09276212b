// The parts of meta.json's text that its writer and its reader share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/checkpoint/meta.h"

namespace meshwright::checkpoint {

inline constexpr std::string_view kMetaFormat = "meshwright checkpoint";
// The file ends with this key, 16 hexadecimal digits and kMetaEnd. The digits are the checksum of
// all that stands before the key.
inline constexpr std::string_view kChecksumKey = ",\n  \"checksum\": \"", kMetaEnd = "\"\n}\n";

// The tensor's name in the files that hold its pieces.
inline std::string key_of(const TensorRecord& tensor) {
  return tensor.state.empty() ? tensor.name : tensor.state + "/" + tensor.name;
}

// "[2, 3]"
inline std::string list_text(std::span<const int64_t> values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + std::to_string(values[i]);
  return out + "]";
}

}  // namespace meshwright::checkpoint
