#include <cerrno>
#include <cmath>
#include <map>

#include "apps/observe/monitors/event_file.h"
#include "apps/observe/monitors/names.h"
#include "apps/observe/monitors/sinks.h"
#include "sdk/base/files/durable.h"

namespace meshwright::monitor {

namespace {

namespace fs = std::filesystem;

// TensorBoard reads text as Markdown: what is indented stays as it is.
std::string indented(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    out += "    " + std::string(text.substr(0, end)) + "\n";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

class TensorBoard final : public Sink {
 public:
  TensorBoard(const fs::path& folder, std::optional<int64_t> completed, std::string configuration)
      : folder_(folder / "tensorboard"),
        first_(completed ? *completed + 1 : 0),
        configuration_(std::move(configuration)) {}
  std::string place() const override { return folder_.string(); }
  std::string key() const override { return "report.tensorboard"; }
  bool misses_rows() const override { return true; }
  void open() override {
    file_.reset();
    file_.emplace(folder_, first_);
    if (!configuration_.empty()) file_->text(first_, "configuration", indented(configuration_));
  }
  void row(const Row& row, std::string_view) override {
    if (file_ && file_->removed()) {
      file_.reset();
      throw base::unwritable(folder_, ENOENT);
    }
    if (!file_) open();
    shown_.clear();
    for (const auto& field : row.fields) {
      const std::optional<double> value = number_of(field.value());
      if (!value || counts_rows(field.key())) continue;
      const std::string& tag = tag_of(field.key());
      // Not a number: shown as a gap's mark, where there was one before.
      if (!tag.empty() && (!std::isnan(*value) || was_number_[tag]))
        shown_.emplace_back(tag, *value);
      if (!std::isnan(*value)) was_number_[tag] = true;
    }
    file_->scalars(row.completed, shown_);
    first_ = row.completed + 1;
  }
  void end(bool) override {}

 private:
  const std::string& tag_of(std::string_view field) {
    auto found = tags_.find(field);
    if (found == tags_.end()) found = tags_.emplace(field, name_of(field).tag).first;
    return found->second;
  }
  fs::path folder_;
  int64_t first_;  // of a file that is opened now
  std::string configuration_;
  std::optional<EventFile> file_;
  std::map<std::string, std::string, std::less<>> tags_;
  std::map<std::string, bool> was_number_;
  std::vector<std::pair<std::string, double>> shown_;
};

}  // namespace

std::unique_ptr<Sink> tensorboard(const fs::path& folder, std::optional<int64_t> completed,
                                  std::string configuration) {
  return std::make_unique<TensorBoard>(folder, completed, std::move(configuration));
}

}  // namespace meshwright::monitor
