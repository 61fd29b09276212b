// The places that a run can be watched at: report.csv, report.tensorboard, report.prometheus_file
// and report.prometheus.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "apps/observe/monitors/numbers.h"
#include "apps/observe/monitors/sink.h"

namespace meshwright::monitor {

// metrics.csv beside metrics.jsonl, and made from it: at the start, when a row brings a new column,
// and after it could not be written.
std::unique_ptr<Sink> csv_file(const std::filesystem::path& folder);

// <folder>/tensorboard. `completed`: steps that are kept of what is there; nothing: a new run.
// `configuration`: shown as text.
std::unique_ptr<Sink> tensorboard(const std::filesystem::path& folder,
                                  std::optional<int64_t> completed, std::string configuration);

// `path`: of a .prom file, or of a folder, in which it is meshwright_<run>.prom. Written at most
// once in a second.
std::unique_ptr<Sink> prometheus_file(const std::filesystem::path& path, const std::string& run,
                                      std::shared_ptr<const Numbers> numbers);

// `listens`: hears where, once it does.
std::unique_ptr<Sink> prometheus_endpoint(std::string host, int port,
                                          std::shared_ptr<const Numbers> numbers,
                                          std::function<void(const std::string&)> listens);

}  // namespace meshwright::monitor
