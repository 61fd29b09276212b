// Tensors in pieces, as collectives over hosts move them.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "host_lane.h"

namespace meshwright::detail {

inline size_t bytes_in(int64_t count, int64_t width) { return static_cast<size_t>(count * width); }

inline char* memory_of(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.mutable_data_ptr());
}

// `count` elements in pieces of one size, nearly, which fit into `room` bytes.
struct EvenPieces {
  int64_t count, width, number;
  EvenPieces(int64_t elements, int64_t element_bytes, int64_t room)
      : count(elements), width(element_bytes) {
    const int64_t most = std::max<int64_t>(1, room / width);
    number = (count + most - 1) / most;
  }
  int64_t begin(int64_t piece) const { return count * piece / number; }
  int64_t size(int64_t piece) const { return begin(piece + 1) - begin(piece); }
  size_t bytes(int64_t piece) const { return bytes_in(size(piece), width); }
  int64_t offset(int64_t piece) const { return begin(piece) * width; }
};

inline PeerMessage sent_to(int64_t host, at::Tensor tensor) {
  return {PeerMessage::Way::send, host, std::move(tensor)};
}
inline PeerMessage come_from(int64_t host, at::Tensor tensor) {
  return {PeerMessage::Way::receive, host, std::move(tensor)};
}

// Calls f(host) for all hosts but this rank's, each rank beginning behind its own.
template <class F>
void each_other_host(const HostLane& lane, F&& f) {
  const int64_t hosts = lane.map().hosts();
  for (int64_t k = 1; k < hosts; ++k) f((lane.host() + k) % hosts);
}

// What a rank wrote in a round about hosts: one part of `part` bytes for each.
inline const char* slot_part(const char* slot, int64_t host, size_t part) {
  return slot + static_cast<size_t>(host) * part;
}

}  // namespace meshwright::detail
