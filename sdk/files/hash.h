// FNV-1a, for telling data sets apart.
#pragma once

#include <cstddef>
#include <cstdint>

namespace meshwright::base {

class Hash {
 public:
  void add(const void* data, size_t size) {
    const auto* at = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size; ++i) value_ = (value_ ^ at[i]) * 1099511628211u;
  }
  void add(int64_t value) { add(&value, sizeof value); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037u;
};

}  // namespace meshwright::base
