// Read back by the `tensorboard` package itself in tests/reference_pytorch/check_monitors.py; here
// by the framing and protobuf's wire format alone.
#include "apps/observe/monitors/sinks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "apps/observe/monitors/tests/folder.h"
#include "sdk/base/files/foreign_file.h"

namespace event_file_test {

using namespace meshwright::monitor;
using monitor_tests::Folder;
using monitor_tests::step_row;
namespace fs = std::filesystem;

namespace {

template <class T>
T at(const std::string& text, size_t offset) {
  T out;
  REQUIRE(offset + sizeof out <= text.size());
  std::memcpy(&out, text.data() + offset, sizeof out);
  return out;
}

std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> out;
  for (size_t here = 0; here < file.size();) {
    const size_t length = at<uint64_t>(file, here);
    REQUIRE(here + length + 16 <= file.size());
    out.push_back(file.substr(here + 12, length));
    CHECK(event_record(out.back()) == file.substr(here, length + 16));
    here += length + 16;
  }
  return out;
}

// Fields of a message: those of 4 and 8 bytes and the texts as they are, numbers in decimal.
std::multimap<int, std::string> fields_of(const std::string& message) {
  std::multimap<int, std::string> out;
  size_t here = 0;
  auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(here++));
      value |= uint64_t{byte & 127u} << shift;
      if (byte < 128) return value;
    }
  };
  while (here < message.size()) {
    const uint64_t key = varint();
    const int wire = static_cast<int>(key & 7), field = static_cast<int>(key >> 3);
    if (wire == 0) {
      out.emplace(field, std::to_string(varint()));
    } else {
      const size_t size = wire == 1 ? 8 : wire == 5 ? 4 : varint();
      REQUIRE(here + size <= message.size());
      out.emplace(field, message.substr(here, size));
      here += size;
    }
  }
  return out;
}

const std::string& one(const std::multimap<int, std::string>& fields, int field) {
  REQUIRE(fields.count(field) == 1);
  return fields.find(field)->second;
}

// Tags and values of an event's summary.
std::map<std::string, float> scalars_of(const std::string& record) {
  std::map<std::string, float> out;
  const auto values = fields_of(one(fields_of(record), 5));
  for (auto [it, end] = values.equal_range(1); it != end; ++it) {
    const auto value = fields_of(it->second);
    out[one(value, 1)] = at<float>(one(value, 2), 0);
  }
  return out;
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(folder)) out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

TEST_CASE("a record is framed as TensorFlow's own files are") {
  // How every event file of TensorFlow begins: an event of 24 bytes.
  CHECK(event_record(std::string(24, 'x')).substr(0, 12) ==
        std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
  CHECK(event_record("").size() == 16);
}

TEST_CASE("an event file has its version, where it begins, the configuration and every step") {
  Folder folder;
  const std::unique_ptr<Sink> sink = tensorboard(folder.path, 4, "[run]\nname = \"x\"\n");
  sink->open();
  for (int64_t step : {4, 5}) {
    const std::string line = step_row(step, ", \"mfu\": null, \"expert_imbalance\": [1.5, 2.5]");
    sink->row(*parse_row(line), line);
  }
  const std::vector<fs::path> files = files_in(folder.path / "tensorboard");
  REQUIRE(files.size() == 1);
  CHECK(files[0].filename().string().starts_with("events.out.tfevents."));
  // All of it is there while the run goes on.
  const std::vector<std::string> records = records_of(meshwright::base::read_file(files[0]));
  REQUIRE(records.size() == 5);
  CHECK(one(fields_of(records[0]), 3) == "brain.Event:2");
  // From step 5 on older files are void: SessionLog.START.
  CHECK(one(fields_of(records[1]), 2) == "5");
  CHECK(one(fields_of(one(fields_of(records[1]), 7)), 1) == "1");
  CHECK(records[2].find("    name = \"x\"\n") != std::string::npos);
  CHECK(one(fields_of(records[3]), 2) == "5");
  CHECK(at<double>(one(fields_of(records[3]), 1), 0) > 1.7e9);
  const std::map<std::string, float> values = scalars_of(records[3]);
  CHECK(values.size() == 9);  // what was never a number is not there
  CHECK(values.at("train/loss") == 2.0F);
  CHECK(values.at("train/lr") == 1.5e-05F);
  CHECK(values.at("speed/step_ms") == 250.125F);
  CHECK(values.at("memory/memory_bytes") == 1048576.0F);
  CHECK(values.at("experts/imbalance") == 2.5F);
}

TEST_CASE("each file sorts behind those before it, however fast they follow") {
  Folder folder;
  std::vector<fs::path> made;
  for (int n = 0; n < 3; ++n) made.push_back(EventFile(folder.path, n).path());
  CHECK(files_in(folder.path) == made);
}

TEST_CASE("a loss that is no number any more is told as such") {
  Folder folder;
  const std::unique_ptr<Sink> sink = tensorboard(folder.path, std::nullopt, "");
  sink->open();
  for (const char* loss : {"1.5", "null"}) {
    const std::string line = "{\"step\": 0, \"loss\": " + std::string(loss) + "}\n";
    sink->row(*parse_row(line), line);
  }
  const std::vector<std::string> records =
      records_of(meshwright::base::read_file(files_in(folder.path / "tensorboard").at(0)));
  REQUIRE(records.size() == 4);
  CHECK(one(fields_of(records[1]), 2) == "0");
  CHECK(scalars_of(records[2]).at("train/loss") == 1.5F);
  CHECK(std::isnan(scalars_of(records[3]).at("train/loss")));
}

}  // namespace event_file_test
