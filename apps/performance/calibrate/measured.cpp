#include "apps/performance/calibrate/measured.h"

#include <algorithm>

namespace meshwright::calibrate {
namespace {

// All that differs between ranks, in one order. `messages`: of collectives, which end together.
template <class Times, class Kernels, class Messages>
void each(Times& times, const Kernels& kernels, const Messages& messages) {
  for (auto& one : times.products) kernels(one.seconds);
  for (auto& one : times.moved) kernels(one.seconds);
  for (auto& one : times.attention) {
    kernels(one.forward);
    kernels(one.backward);
  }
  for (auto* models : {&times.launches, &times.layers})
    for (auto& one : *models) {
      kernels(one.forward);
      kernels(one.backward);
    }
  messages(times.alone);  // of one rank
  for (auto* seconds : {&times.beside.alone, &times.beside.beside, &times.beside.gathers})
    messages(*seconds);
  for (auto& group : times.groups)
    for (auto& one : group.collectives) {
      messages(one.latency);
      messages(one.seconds);
    }
}

}  // namespace

std::vector<double> Measured::times() const {
  std::vector<double> out = {memory};
  auto add = [&](const double& seconds) { out.push_back(seconds); };
  each(*this, add, add);
  return out;
}

void Measured::take_all(const std::vector<std::vector<double>>& of_ranks) {
  size_t at = 1;
  auto slowest = [&](double& seconds) {
    for (const std::vector<double>& times : of_ranks) seconds = std::max(seconds, times.at(at));
    ++at;
  };
  auto kernel = [&](double& seconds) {
    if (!cores_shared) return slowest(seconds);
    double calls = 0;  // a second, of all ranks
    for (const std::vector<double>& times : of_ranks) calls += 1 / std::max(times.at(at), 1e-9);
    seconds = static_cast<double>(of_ranks.size()) / calls;
    ++at;
  };
  for (const std::vector<double>& times : of_ranks) memory = std::min(memory, times.at(0));
  each(*this, kernel, slowest);
}

}  // namespace meshwright::calibrate
