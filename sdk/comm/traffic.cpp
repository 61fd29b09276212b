#include "meshwright/parallel/group.h"

namespace meshwright {

void TrafficCounter::add(const std::string& axis, const char* op, int64_t bytes) {
  if (recording) order_.push_back({axis, op, 1, bytes});
  for (Row& row : rows_)
    if (row.axis == axis && row.op == op) {
      ++row.count;
      row.bytes += bytes;
      return;
    }
  rows_.push_back({axis, op, 1, bytes});
}

void TrafficCounter::clear() {
  rows_.clear();
  order_.clear();
}

int64_t TrafficCounter::bytes() const {
  int64_t sum = 0;
  for (const Row& row : rows_) sum += row.bytes;
  return sum;
}

}  // namespace meshwright
