// An event file as TensorBoard reads it: records of TensorFlow's framing, each a protobuf `Event`.
// Fields and numbers are those of tensorflow/core/util/event.proto and
// tensorflow/core/framework/summary.proto; the framing is that of
// tensorflow/core/lib/io/record_writer.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sdk/base/host/append_file.h"

namespace meshwright::monitor {

// length (8 bytes), its masked CRC-32C (4), data, their masked CRC-32C (4); little-endian.
std::string event_record(std::string_view data);

// Each call is one write to the system: whoever reads along sees it at once. All throw
// Error(output_unwritable), and leave whole records.
class EventFile {
 public:
  // Makes events.out.tfevents.<seconds>.<host>.<process>.meshwright in `folder`, a name that sorts
  // behind all that are there. `first_step`: whatever older files say of it and of later steps is
  // void.
  EventFile(const std::filesystem::path& folder, int64_t first_step);
  const std::filesystem::path& path() const { return file_->path(); }
  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& tags_and_values);
  // Markdown.
  void text(int64_t step, std::string_view tag, std::string_view markdown);
  bool removed() const { return file_->removed(); }

 private:
  void append(std::string_view records) const;
  std::optional<base::AppendFile> file_;
};

}  // namespace meshwright::monitor
