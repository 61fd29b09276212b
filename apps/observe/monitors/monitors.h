// All that watches a run beside its own folder's files. Whatever becomes of it, training goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/observe/monitors/numbers.h"
#include "apps/observe/monitors/sinks.h"
#include "engine/train/run/attached.h"

namespace meshwright::monitor {

using Settings = train::MonitorSettings;

// Of the rank that leads. Nothing here throws.
class Monitors final : public train::RunMonitors {
 public:
  Monitors(const Settings& settings, Say say);
  ~Monitors() override;
  Monitors(const Monitors&) = delete;
  Monitors& operator=(const Monitors&) = delete;
  void row(std::string_view line) override;
  void saved(int64_t completed, bool good) override;
  void flush() override;
  void end(bool finished) override;

 private:
  struct Watched {
    std::unique_ptr<Sink> sink;
    bool open = false, failing = false;
    int64_t missed = 0;  // rows
    std::chrono::steady_clock::time_point next{};
    std::chrono::seconds pause{1};
  };
  void add(std::unique_ptr<Sink> sink);
  void said(const std::string& line) noexcept;
  template <class Body>
  void tell(Watched& watched, const Body& body);
  Say say_;
  std::shared_ptr<Numbers> numbers_;
  std::vector<Watched> all_;
  bool ended_ = false;
};

// What an earlier run of the name left in `folder` for a new one to begin afresh: metrics.csv and
// tensorboard get a number, that of `kept` (metrics.3.jsonl) where there is one. Throws
// Error(output_unwritable).
void keep_earlier(const std::filesystem::path& folder, const std::filesystem::path& kept);

}  // namespace meshwright::monitor
