#include "apps/observe/monitors/csv.h"
#include "apps/observe/monitors/sinks.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/read_file.h"
#include "sdk/base/host/append_file.h"

namespace meshwright::monitor {

namespace {

namespace fs = std::filesystem;

class CsvFile final : public Sink {
 public:
  explicit CsvFile(const fs::path& folder)
      : path_(folder / "metrics.csv"), rows_(folder / "metrics.jsonl") {}
  std::string place() const override { return path_.string(); }
  std::string key() const override { return "report.csv"; }
  void open() override {
    if (const std::string rows = rows_so_far(); !rows.empty()) rebuild(rows);
  }
  void row(const Row& row, std::string_view line) override {
    if (!file_ || !lines_.has_columns_for(row) || file_->removed()) {
      std::string rows = rows_so_far();
      // Not there yet where metrics.jsonl itself waits for room.
      if (!rows.ends_with(line)) rows += line;
      return rebuild(rows);
    }
    append(lines_.add(row));
  }
  void flush() override {
    if (file_) append(lines_.rest());
  }
  void end(bool) override {
    if (!file_) open();
    flush();
  }

 private:
  std::string rows_so_far() const {
    std::error_code failed;  // what is no file (a pipe) cannot be read again
    return fs::is_regular_file(rows_, failed) ? base::read_file(rows_, SIZE_MAX / 2)
                                              : std::string();
  }
  void rebuild(std::string_view rows) {
    file_.reset();
    lines_ = CsvLines(csv_columns(rows));
    std::string text = lines_.header();
    for (size_t end; (end = rows.find('\n')) != std::string_view::npos; rows.remove_prefix(end + 1))
      if (const std::optional<Row> row = parse_row(rows.substr(0, end))) text += lines_.add(*row);
    base::write_durably(path_, text);
    file_.emplace(path_, base::AppendFile::Old::kept);
  }
  void append(const std::string& text) {
    const int reason = text.empty() ? 0 : file_->append(text);
    if (reason == 0) return;
    file_.reset();  // the next row begins anew
    throw base::unwritable(path_, reason);
  }

  fs::path path_, rows_;
  CsvLines lines_{{}};
  std::optional<base::AppendFile> file_;
};

}  // namespace

std::unique_ptr<Sink> csv_file(const fs::path& folder) { return std::make_unique<CsvFile>(folder); }

}  // namespace meshwright::monitor
