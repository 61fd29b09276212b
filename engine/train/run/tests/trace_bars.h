// The bars of a trace. Before doctest.h: LibTorch has a CHECK of its own.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "engine/train/run/tests/small_run.h"

namespace meshwright {

struct Bar {
  std::string name;
  long begin, end;
};

inline std::vector<Bar> bars_of(const std::string& trace) {
  std::vector<Bar> out;
  for (size_t at = 0; (at = trace.find("\"name\":\"", at)) != std::string::npos;) {
    at += 8;
    size_t quote = trace.find('"', at), times = trace.find("\"ts\":", at);
    if (times != quote + 2) continue;
    long begin = std::atol(trace.c_str() + times + 5),
         length = std::atol(trace.c_str() + trace.find("\"dur\":", at) + 6);
    out.push_back({trace.substr(at, quote - at), begin, begin + length});
  }
  return out;
}

// Of rank 0, without the first step.
inline std::vector<Bar> trace_of(const Layout& layout, int steps) {
  std::vector<Bar> out;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    rank.step();
    world->trace().enabled = true;
    for (int step = 0; step < steps; ++step) rank.step();
    if (world->rank() == 0) out = bars_of(world->trace().json(0));
  });
  return out;
}

}  // namespace meshwright
