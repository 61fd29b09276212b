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

#include "engine/monitor/numbers.h"
#include "engine/monitor/sink.h"

namespace meshwright::monitor {

struct Settings {
  std::filesystem::path folder;      // of the run, which has metrics.jsonl
  std::optional<int64_t> completed;  // steps that the run continues behind; nothing: a new one
  bool tensorboard = false, csv = false;
  std::string prometheus_file;  // empty: none
  std::string host;             // to listen at; empty: nowhere
  int port = 0;
  std::string configuration;  // as TOML
  RunFacts facts;
};

// Of the rank that leads. Nothing here throws.
class Monitors {
 public:
  // `say`: a line for people: the first failure of each place, and that it works again.
  using Say = std::function<void(const std::string&)>;
  Monitors(const Settings& settings, Say say);
  ~Monitors();
  Monitors(const Monitors&) = delete;
  Monitors& operator=(const Monitors&) = delete;
  // As it is in metrics.jsonl, in which it is already.
  void row(std::string_view line);
  void saved(int64_t completed, bool good);
  // Of the last step nothing is still to come.
  void flush();
  // Nothing more comes. `finished`: all steps of the run are done.
  void end(bool finished);

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
