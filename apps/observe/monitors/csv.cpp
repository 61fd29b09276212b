#include "apps/observe/monitors/sinks.h"

#include <algorithm>
#include <charconv>
#include <functional>

#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::monitor {

namespace json = boost::json;

namespace {

constexpr std::string_view kNewline = "\r\n", kValidation = "validation_loss";

std::string quoted_cell(std::string_view cell) {
  if (cell.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(cell);
  std::string out = "\"";
  for (char c : cell) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::string line_of(const std::vector<std::string>& cells) {
  std::string out;
  for (size_t i = 0; i < cells.size(); ++i) out += (i == 0 ? "" : ",") + quoted_cell(cells[i]);
  return out + std::string(kNewline);
}

// Shortest text that reads back as the same number; a list with blanks between; null is empty.
std::string cell_of(const json::value& value) {
  char text[40];
  auto number = [&](auto what) {
    return std::string(text, std::to_chars(text, text + sizeof text, what).ptr);
  };
  switch (value.kind()) {
    case json::kind::null:
      return "";
    case json::kind::bool_:
      return value.as_bool() ? "true" : "false";
    case json::kind::int64:
      return number(value.as_int64());
    case json::kind::uint64:
      return number(value.as_uint64());
    case json::kind::double_:
      return number(value.as_double());
    case json::kind::string:
      return report::csv_cell(value.as_string());
    case json::kind::array: {
      std::string out;
      for (const json::value& item : value.as_array())
        out += (out.empty() ? "" : " ") + cell_of(item);
      return out;
    }
    case json::kind::object:
      return "";  // rows have none
  }
  return "";
}

// Whole lines alone: the last one of a run that is writing may be half there.
void each_row(std::string_view jsonl, const std::function<void(const Row&)>& body) {
  for (size_t end; (end = jsonl.find('\n')) != std::string_view::npos; jsonl.remove_prefix(end + 1))
    if (const std::optional<Row> row = parse_row(jsonl.substr(0, end))) body(*row);
}

}  // namespace

std::vector<std::string> csv_columns(std::string_view jsonl) {
  std::vector<std::string> out{"step", "completed_steps"};
  each_row(jsonl, [&](const Row& row) {
    for (const auto& [name, value] : row.fields)
      if (name != kValidation && std::find(out.begin(), out.end(), name) == out.end())
        out.emplace_back(name);
  });
  out.emplace_back(kValidation);
  return out;
}

std::string CsvLines::header() const {
  std::vector<std::string> cells;
  for (const std::string& name : columns_) cells.push_back(report::csv_cell(name));
  return line_of(cells);
}

bool CsvLines::has_columns_for(const Row& row) const {
  return std::all_of(row.fields.begin(), row.fields.end(), [&](const auto& field) {
    return std::find(columns_.begin(), columns_.end(), field.key()) != columns_.end();
  });
}

std::string CsvLines::add(const Row& row) {
  std::string out = row.completed == held_steps_ ? "" : rest();
  held_.resize(columns_.size());
  held_steps_ = row.completed;
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (const json::value* value = row.fields.if_contains(columns_[i]))
      held_[i] = cell_of(*value);
    else if (columns_[i] == "completed_steps")
      held_[i] = std::to_string(row.completed);
  }
  return out;
}

std::string CsvLines::rest() {
  if (held_steps_ < 0) return "";
  std::string out = line_of(held_);
  held_.clear();
  held_steps_ = -1;
  return out;
}

std::string csv_of(std::string_view jsonl) {
  CsvLines lines(csv_columns(jsonl));
  std::string out = lines.header();
  each_row(jsonl, [&](const Row& row) { out += lines.add(row); });
  return out + lines.rest();
}

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
    each_row(rows, [&](const Row& row) { text += lines_.add(row); });
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
