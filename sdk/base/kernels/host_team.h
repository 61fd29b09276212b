// The same kernels on the host, for tests: one thread does what a team's threads do, in the same
// order of sums.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "arguments.h"

namespace meshwright::kernels {

inline float from_half(unsigned short bits) {
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}
inline unsigned short to_half(float value) {
  return std::bit_cast<unsigned short>(static_cast<_Float16>(value));
}
inline float multiply_add(float x, float y, float sum) { return x * y + sum; }
inline float float_of(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned bits_of(float value) { return std::bit_cast<unsigned>(value); }

struct Place {
  long long block = 0, blocks = 1;
  int team = 0;             // of the block
  float* shared = nullptr;  // of the block
};

template <int threads>
class Team {
 public:
  static constexpr int kOfBlock = kBlock / threads;
  explicit Team(const Place& place) : place_(place) {}
  long long index() const { return place_.block * kOfBlock + place_.team; }
  long long count() const { return place_.blocks * kOfBlock; }
  template <class Body>
  void each(long long n, Body body) const {
    for (long long i = 0; i < n; ++i) body(i);
  }
  template <class Body>
  void spread(long long n, Body body) const {
    for (long long first = index() * threads; first < n; first += count() * threads)
      for (long long i = first; i < n && i < first + threads; ++i) body(i);
  }
  template <class State, class Step>
  State reduce(long long n, State start, Step step) const {
    State lanes[threads];
    for (State& lane : lanes) lane = start;
    for (long long i = 0; i < n; i += threads)
      for (long long j = i; j < n && j < i + threads; ++j) step(lanes[j - i], j);
    // What a warp's first thread has in the end, after each joined the one so far away.
    for (int warp = 0; warp < threads; warp += 32)
      for (int away = 16; away > 0; away /= 2)
        for (int i = warp; i < warp + away; ++i) lanes[i].join(lanes[i + away]);
    for (int warp = 32; warp < threads; warp += 32) lanes[0].join(lanes[warp]);
    return lanes[0];
  }
  void synchronize() const {}
  template <class State>
  class Own {
   public:
    State& of(long long thread) { return all_[thread]; }

   private:
    State all_[threads];
  };
  float* memory(long long size) const { return place_.shared + place_.team * size; }

 private:
  Place place_;
};

struct HostKernel {
  int teams;  // of a block
  void (*run)(const Place& place, const void* arguments);
};
inline std::map<std::string, HostKernel>& host_kernels() {
  static std::map<std::string, HostKernel> all;
  return all;
}
// As a launch of so many blocks with so much shared memory each. False: there is no such kernel.
inline bool run_on_host(const std::string& name, long long blocks, size_t shared_bytes,
                        const void* arguments) {
  const auto found = host_kernels().find(name);
  if (found == host_kernels().end()) return false;
  for (Place place{.blocks = blocks}; place.block < blocks; ++place.block) {
    // What is there before is not zero.
    std::vector<float> shared(shared_bytes / sizeof(float), NAN);
    place.shared = shared.data();
    for (place.team = 0; place.team < found->second.teams; ++place.team)
      found->second.run(place, arguments);
  }
  return true;
}

}  // namespace meshwright::kernels

#define MESHWRIGHT_KERNEL(name, arguments, threads, ...)                                       \
  [[maybe_unused]] static const bool known_##name =                                            \
      host_kernels()                                                                           \
          .try_emplace(#name, HostKernel{Team<threads>::kOfBlock,                              \
                                         [](const Place& place, const void* given) {           \
                                           __VA_ARGS__(Team<threads>(place),                   \
                                                       *static_cast<const arguments*>(given)); \
                                         }})                                                   \
          .second;
