#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "apps/observe/monitors/prometheus_text.h"
#include "apps/observe/monitors/sinks.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/host/append_file.h"

namespace meshwright::monitor {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

fs::path file_in(const fs::path& path, const std::string& run) {
  if (path.extension() == ".prom") return path;
  std::string name = run;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '/' || c == '.' || c == ' '; }, '_');
  return path / ("meshwright_" + name + ".prom");
}

class PrometheusFile final : public Sink {
 public:
  PrometheusFile(const fs::path& path, const std::string& run,
                 std::shared_ptr<const Numbers> numbers)
      : path_(file_in(path, run)), numbers_(std::move(numbers)) {}
  std::string place() const override { return path_.string(); }
  std::string key() const override { return "report.prometheus_file"; }
  void open() override { write(); }
  void row(const Row&, std::string_view) override {
    if (Clock::now() - written_ >= std::chrono::seconds(1)) write();
  }
  void end(bool) override { write(); }

 private:
  // Whole, beside, and renamed: the collector sees the old one or the new one. Nothing waits for
  // the disk: after a crash of the machine there is no run to watch.
  void write() {
    const fs::path beside = path_.parent_path() / ("." + path_.filename().string() + ".tmp");
    try {
      // Also one that was removed meanwhile.
      if (!fs::exists(path_.parent_path())) base::make_folders(path_.parent_path());
      const int reason = base::AppendFile(beside, base::AppendFile::Old::emptied)
                             .append(prometheus_text(numbers_->readings()));
      if (reason != 0) throw base::unwritable(path_, reason);
      if (::rename(beside.c_str(), path_.c_str()) != 0)
        throw base::unwritable(path_, errno, "rename");
    } catch (const Error&) {
      ::unlink(beside.c_str());
      throw;
    }
    written_ = Clock::now();
  }

  fs::path path_;
  std::shared_ptr<const Numbers> numbers_;
  Clock::time_point written_{};
};

}  // namespace

std::unique_ptr<Sink> prometheus_file(const fs::path& path, const std::string& run,
                                      std::shared_ptr<const Numbers> numbers) {
  return std::make_unique<PrometheusFile>(path, run, std::move(numbers));
}

}  // namespace meshwright::monitor
