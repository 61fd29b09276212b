// What Prometheus is told of a run: the newest value of each number, under Prometheus' names.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "apps/observe/monitors/names.h"
#include "apps/observe/monitors/row.h"
#include "apps/observe/prometheus/prometheus_part.h"
#include "engine/train/run/monitors.h"

namespace meshwright::monitor {

using RunFacts = train::RunFacts;

// One thread changes it; readings() may be called by others at any time. The one that changes it
// never waits for them.
class Numbers {
 public:
  explicit Numbers(const RunFacts& facts);
  void row(const Row& row);
  // A checkpoint of so many steps, or none in its place.
  void saved(int64_t completed, bool good);
  void end(bool finished);
  std::vector<prometheus::Reading> readings() const;

 private:
  struct Shown {
    const Name* name;
    double value;
  };
  void set(const std::string& key, double value);
  void publish();
  std::vector<std::pair<std::string, std::string>> labels_;
  prometheus::Reading info_;
  std::deque<Name> names_;  // stay where they are
  std::map<std::string, size_t>
      at_;  // in now_: of what is its own, and of fields, with a dot before
  std::vector<Shown> now_;
  mutable std::mutex mutex_;
  std::vector<Shown> published_;
};

}  // namespace meshwright::monitor
