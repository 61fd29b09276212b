#include "apps/observe/monitors/monitors.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "apps/observe/monitors/sinks.h"
#include "meshwright/error.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::monitor {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

void keep_earlier(const fs::path& folder, const fs::path& kept) {
  constexpr const char* kNames[][2] = {{"metrics", ".csv"}, {"tensorboard", ""}};
  const std::string ending = kept.stem().extension().string();  // ".3" of metrics.3.jsonl
  const int number = ending.size() > 1 ? std::atoi(ending.c_str() + 1) : 0;
  auto numbered = [&](const char* const(&name)[2], int n) {
    return folder / (std::string(name[0]) + "." + std::to_string(n) + name[1]);
  };
  std::error_code failed;
  for (const auto& name : kNames) {
    const fs::path here = folder / (std::string(name[0]) + name[1]);
    if (!fs::exists(fs::symlink_status(here, failed)) || fs::is_symlink(here, failed)) continue;
    if (fs::is_directory(here, failed) && fs::is_empty(here, failed)) continue;
    int n = number > 0 ? number : 1;
    while (fs::exists(numbered(name, n), failed)) ++n;
    fs::rename(here, numbered(name, n), failed);
    if (failed) throw base::unwritable(here, failed.value(), "rename");
  }
}

Monitors::Monitors(const Settings& settings, Say say)
    : say_(std::move(say)), numbers_(std::make_shared<Numbers>(settings.facts)) {
  try {
    if (settings.csv) add(csv_file(settings.folder));
    if (settings.tensorboard)
      add(tensorboard(settings.folder, settings.completed, settings.configuration));
    if (!settings.prometheus_file.empty())
      add(prometheus_file(settings.prometheus_file, settings.facts.run, numbers_));
    if (!settings.host.empty())
      add(prometheus_endpoint(settings.host, settings.port, numbers_, [this](const auto& address) {
        said("metrics for Prometheus at " + address);
      }));
  } catch (const std::exception& error) {
    said(std::string("warning: [report] is left out: ") + error.what());
  }
}

// A disk that is full may be the one that takes the words, too.
void Monitors::said(const std::string& line) noexcept {
  try {
    say_(line);
  } catch (const std::exception&) {
    return;
  }
}

Monitors::~Monitors() { end(false); }

void Monitors::add(std::unique_ptr<Sink> sink) {
  all_.push_back({.sink = std::move(sink)});
  tell(all_.back(), [](Sink&) {});
}

// The first failure is said, and once it works again. Between, it is tried at longer and longer
// intervals: a full disk costs steps nothing.
template <class Body>
void Monitors::tell(Watched& watched, const Body& body) {
  constexpr std::chrono::seconds kLongest{60};
  Sink& sink = *watched.sink;
  try {
    if (!watched.open) sink.open();
    watched.open = true;
    body(sink);
    if (std::exchange(watched.failing, false)) {
      const std::string missing =
          !sink.misses_rows() || watched.missed == 0
              ? std::string()
              : "; " + report::counted(watched.missed, "row is", "rows are") + " missing";
      watched.pause = std::chrono::seconds(1);
      watched.missed = 0;
      said("notice: " + sink.key() + ": " + sink.place() + " works again" + missing);
    }
  } catch (const std::exception& failure) {
    const Error* error = dynamic_cast<const Error*>(&failure);
    watched.next = Clock::now() + watched.pause;
    watched.pause = std::min(2 * watched.pause, kLongest);
    if (!std::exchange(watched.failing, true))
      said("warning: " + sink.key() + ": " + (error ? error->message() : failure.what()) +
           "; the run goes on without it");
  }
}

void Monitors::row(std::string_view line) {
  if (all_.empty()) return;
  try {
    const std::optional<Row> row = parse_row(line);
    if (!row) return;
    numbers_->row(*row);
    for (Watched& watched : all_) {
      if (watched.failing &&
          (Clock::now() < watched.next || (!watched.open && !watched.sink->may_try_again()))) {
        ++watched.missed;
        continue;
      }
      tell(watched, [&](Sink& sink) { sink.row(*row, line); });
      if (watched.failing) ++watched.missed;
    }
  } catch (const std::exception& error) {
    said(std::string("warning: [report] left out a row: ") + error.what());
  }
}

void Monitors::saved(int64_t completed, bool good) { numbers_->saved(completed, good); }

void Monitors::flush() {
  for (Watched& watched : all_)
    if (!watched.failing) tell(watched, [](Sink& sink) { sink.flush(); });
}

void Monitors::end(bool finished) {
  if (std::exchange(ended_, true)) return;
  numbers_->end(finished);
  for (Watched& watched : all_)
    if (watched.open || watched.sink->may_try_again())
      tell(watched, [&](Sink& sink) { sink.end(finished); });
}

}  // namespace meshwright::monitor
