#include "apps/observe/monitors/sinks.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <boost/crc.hpp>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>

#include "apps/observe/monitors/numbers.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/host_facts.h"

namespace meshwright::monitor {

namespace fs = std::filesystem;

namespace {

static_assert(std::endian::native == std::endian::little);

template <class T>
std::string bytes_of(T value) {
  std::string out(sizeof value, '\0');
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

uint32_t masked_crc(std::string_view data) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(data.data(), data.size());
  const uint32_t sum = crc.checksum();
  return ((sum >> 15) | (sum << 17)) + 0xa282ead8u;
}

// A protobuf message, field after field.
class Message {
 public:
  Message& number(int field, int64_t value) {
    key(field, 0);
    varint(static_cast<uint64_t>(value));
    return *this;
  }
  Message& real(int field, double value) {
    key(field, 1);
    text_ += bytes_of(value);
    return *this;
  }
  Message& real(int field, float value) {
    key(field, 5);
    text_ += bytes_of(value);
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    text_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return bytes(field, value.text_); }
  const std::string& text() const { return text_; }

 private:
  void key(int field, int wire) { varint(static_cast<uint64_t>(field << 3 | wire)); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }
  std::string text_;
};

// Field numbers.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace session_log {
constexpr int kStatus = 1, kStart = 1;
}

namespace summary {
constexpr int kValue = 1;
}
namespace summary::value {
constexpr int kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;
}
namespace summary::metadata {
constexpr int kPluginData = 1, kPluginName = 1, kDataClass = 4, kDataClassTensor = 2;
}
namespace tensor {
constexpr int kDType = 1, kString = 7, kShape = 2, kDimension = 2, kSize = 1, kStringValue = 8;
}

Message event_at(int64_t step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  Message out;
  out.real(event::kWallTime, std::chrono::duration<double>(now).count());
  out.number(event::kStep, step);
  return out;
}

constexpr std::string_view kPrefix = "events.out.tfevents.";

// TensorBoard reads the files of a folder in the order of their names.
int64_t seconds_behind_all(const fs::path& folder) {
  int64_t out = std::chrono::duration_cast<std::chrono::seconds>(
                    std::chrono::system_clock::now().time_since_epoch())
                    .count();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    int64_t seconds = 0;
    if (name.starts_with(kPrefix) &&
        std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), seconds).ec ==
            std::errc())
      out = std::max(out, seconds + 1);
  }
  return out;
}

fs::path new_name(const fs::path& folder) {
  return folder / (std::string(kPrefix) + std::to_string(seconds_behind_all(folder)) + "." +
                   host_name() + "." + std::to_string(::getpid()) + ".meshwright");
}

}  // namespace

std::string event_record(std::string_view data) {
  const std::string length = bytes_of(uint64_t{data.size()});
  return length + bytes_of(masked_crc(length)) + std::string(data) + bytes_of(masked_crc(data));
}

EventFile::EventFile(const fs::path& folder, int64_t first_step) {
  base::make_folders(folder);
  file_.emplace(new_name(folder), base::AppendFile::Old::refused);
  Message version = event_at(0), start = event_at(first_step);
  version.bytes(event::kFileVersion, "brain.Event:2");
  start.message(event::kSessionLog, Message().number(session_log::kStatus, session_log::kStart));
  append(event_record(version.text()) + event_record(start.text()));
}

void EventFile::append(std::string_view records) const {
  if (int reason = file_->append(records); reason != 0)
    throw base::unwritable(file_->path(), reason);
}

void EventFile::scalars(int64_t step,
                        const std::vector<std::pair<std::string, double>>& tags_and_values) {
  Message values;
  for (const auto& [tag, value] : tags_and_values)
    values.message(summary::kValue,
                   Message()
                       .bytes(summary::value::kTag, tag)
                       .real(summary::value::kSimpleValue, static_cast<float>(value)));
  append(event_record(event_at(step).message(event::kSummary, values).text()));
}

void EventFile::text(int64_t step, std::string_view tag, std::string_view markdown) {
  namespace value = summary::value;
  namespace metadata = summary::metadata;
  Message told, content, all;
  told.message(metadata::kPluginData, Message().bytes(metadata::kPluginName, "text"));
  told.number(metadata::kDataClass, metadata::kDataClassTensor);
  content.number(tensor::kDType, tensor::kString);
  content.message(tensor::kShape,
                  Message().message(tensor::kDimension, Message().number(tensor::kSize, 1)));
  content.bytes(tensor::kStringValue, markdown);
  all.bytes(value::kTag, tag).message(value::kTensor, content).message(value::kMetadata, told);
  append(event_record(
      event_at(step).message(event::kSummary, Message().message(summary::kValue, all)).text()));
}

namespace {

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
