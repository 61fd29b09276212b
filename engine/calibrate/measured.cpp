#include "engine/calibrate/measured.h"

#include <algorithm>

namespace meshwright::calibrate {
namespace {

// All that differs between ranks, in one order.
template <class Times, class Visit>
void each(Times& times, const Visit& visit) {
  for (auto& one : times.products) visit(one.seconds);
  for (auto& one : times.moved) visit(one.seconds);
  for (auto& one : times.attention) {
    visit(one.forward);
    visit(one.backward);
  }
  for (auto* models : {&times.launches, &times.layers})
    for (auto& one : *models) {
      visit(one.forward);
      visit(one.backward);
    }
  visit(times.alone);
  for (auto& group : times.groups)
    for (auto& one : group.collectives) {
      visit(one.latency);
      visit(one.seconds);
    }
}

}  // namespace

std::vector<double> Measured::times() const {
  std::vector<double> out = {-memory};
  each(*this, [&](const double& seconds) { out.push_back(seconds); });
  return out;
}

void Measured::take_worse(const std::vector<double>& theirs) {
  if (theirs.empty()) return;
  memory = std::min(memory, -theirs.front());
  size_t at = 1;
  each(*this, [&](double& seconds) {
    if (at < theirs.size()) seconds = std::max(seconds, theirs[at]);
    ++at;
  });
}

}  // namespace meshwright::calibrate
