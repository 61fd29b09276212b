// What a run has of this app while it trains.
#include <chrono>
#include <memory>
#include <string>

#include "apps/observe/flight_recorder/verdict.h"
#include "apps/observe/monitors/monitors.h"
#include "engine/train/run/attached.h"

namespace meshwright {

namespace {

std::string verdict(const std::filesystem::path& folder) {
  // A moment for the others' records.
  postmortem::wait_for_all(folder, std::chrono::seconds(1));
  return postmortem::write_verdict(folder).told();
}

std::unique_ptr<train::RunMonitors> monitors(const train::MonitorSettings& settings,
                                             train::RunMonitors::Say say) {
  return std::make_unique<monitor::Monitors>(settings, std::move(say));
}

[[maybe_unused]] const bool kAttached = [] {
  train::Attached& to = train::attached();
  to.monitors = monitors;
  to.keep_earlier = monitor::keep_earlier;
  to.verdict = verdict;
  return true;
}();

}  // namespace

}  // namespace meshwright
