// Writing safetensors: equal to what the format's own library writes, whatever the pieces are.
#include "engine/checkpoint/weights/safetensors.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "sdk/base/files/foreign_file.h"
#include "sdk/base/tests/scratch.h"

namespace writer_test {

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::weights;
using scratch::Folder, scratch::has, scratch::message_of;

namespace {

std::span<const std::byte> bytes(const TensorEntry& entry) {
  return {entry.data, static_cast<size_t>(entry.bytes)};
}

}  // namespace

TEST_CASE(
    "files of the format's own library are written again to the byte, in pieces of any size, and a "
    "sink sees each byte") {
  Folder folder;
  std::vector<fs::path> goldens = {MESHWRIGHT_SOURCE_DIR
                                   "/tests/data/safetensors/all_types.safetensors"};
  for (const fs::directory_entry& net :
       fs::directory_iterator(MESHWRIGHT_SOURCE_DIR "/tests/data/nets"))
    for (const char* name : {"model.safetensors", "golden.safetensors"})
      goldens.push_back(net.path() / name);
  CHECK(goldens.size() > 20);
  std::mt19937 random(11);
  for (const fs::path& golden : goldens) {
    CAPTURE(golden);
    SafetensorsFile file(golden);
    std::vector<TensorSpec> tensors;
    for (const TensorEntry& entry : file.tensors())
      tensors.push_back({entry.name, entry.dtype, entry.shape});
    std::shuffle(tensors.begin(), tensors.end(), random);
    std::sort(tensors.begin(), tensors.end(), as_save_file);
    std::string seen;
    SafetensorsWriter writer(folder.path / "again.safetensors", tensors, file.metadata(),
                             [&](std::span<const std::byte> part) {
                               seen.append(reinterpret_cast<const char*>(part.data()), part.size());
                             });
    for (size_t i = 0; i < tensors.size(); ++i) {
      const TensorEntry& entry =
          *std::find_if(file.tensors().begin(), file.tensors().end(),
                        [&](const TensorEntry& e) { return e.name == tensors[i].name; });
      CHECK(writer.offset(i) == entry.offset);
      for (auto rest = bytes(entry); !rest.empty();) {
        size_t piece = std::min<size_t>(rest.size(), 1 + random() % 700);
        writer.append(i, rest.first(piece));
        rest = rest.subspan(piece);
      }
    }
    writer.finish();
    std::string wanted = base::read_file(golden),
                found = base::read_file(folder.path / "again.safetensors");
    CHECK(writer.size() == static_cast<int64_t>(wanted.size()));
    CHECK((found == wanted));
    CHECK((seen == wanted));
  }
}

TEST_CASE("large pieces go straight through, small ones are gathered") {
  Folder folder;
  const int64_t small = 3000, large = 3 << 20;
  std::vector<std::byte> data(static_cast<size_t>(large));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7 >> 3);
  std::vector<size_t> pieces;
  bool same_memory = false;
  fs::path path = folder.path / "t.safetensors";
  SafetensorsWriter writer(
      path, {{"a", DType::int8, {small}}, {"b", DType::int8, {large}}, {"c", DType::int8, {small}}},
      {}, [&](std::span<const std::byte> part) {
        pieces.push_back(part.size());
        same_memory = same_memory || part.data() == data.data();
      });
  for (int64_t i = 0; i < small; ++i)
    writer.append(0, std::span(data).subspan(static_cast<size_t>(i), 1));
  writer.append(1, data);
  for (int64_t i = 0; i < small; ++i)
    writer.append(2, std::span(data).subspan(static_cast<size_t>(i), 1));
  writer.finish();
  CHECK(pieces == std::vector<size_t>{static_cast<size_t>(writer.offset(1)),
                                      static_cast<size_t>(large), static_cast<size_t>(small)});
  CHECK(same_memory);
  SafetensorsFile file(path);
  for (const TensorEntry& entry : file.tensors())
    CHECK(std::equal(entry.data, entry.data + entry.bytes, data.begin()));
}

TEST_CASE("amounts that do not match are errors, and nothing is left of the file") {
  Folder folder;
  fs::path path = folder.path / "t.safetensors";
  const std::vector<TensorSpec> two = {
      {"a", DType::float32, {2}}, {"e", DType::float32, {0}}, {"b", DType::int16, {3}}};
  std::vector<std::byte> data(64);
  std::span<const std::byte> all = data;
  struct Row {
    std::vector<std::pair<size_t, size_t>> appended;  // tensor, bytes
    const char* says;
  };
  for (const Row& row : std::vector<Row>{
           {{{0, 8}, {2, 6}}, ""},
           {{{0, 8}, {1, 0}, {2, 1}, {2, 5}}, ""},
           {{}, "14 of 14 bytes of tensors were not given"},
           {{{0, 8}, {2, 5}}, "1 of 14 bytes of tensors were not given"},
           {{{0, 9}}, "tensor \"a\" has 8 bytes, and gets 9 more after 0"},
           {{{0, 8}, {0, 1}}, "tensor \"a\" has 8 bytes, and gets 1 more after 8"},
           {{{0, 8}, {1, 1}}, "tensor \"e\" has 0 bytes, and gets 1 more after 0"},
           {{{0, 8}, {2, 6}, {2, 1}}, "tensor \"b\" has 6 bytes, and gets 1 more after 6"},
           {{{0, 8}, {2, 6}, {0, 1}}, "tensor \"a\" has 8 bytes, and gets 1 more after 14"},
           {{{2, 6}}, "tensor number 2 come after only 0 bytes"},
           {{{0, 7}, {2, 6}}, "tensor number 2 come after only 7 bytes"},
           {{{3, 1}}, "tensor number 3"},
           {{{3, 0}}, "tensor number 3"}}) {
    std::string found = message_of(
        [&] {
          SafetensorsWriter writer(path, two);
          for (auto [tensor, size] : row.appended) writer.append(tensor, all.first(size));
          writer.finish();
        },
        ErrorCode::internal);
    INFO(row.says, " <- ", found);
    CHECK((*row.says == '\0' ? found.empty() : has(found, row.says)));
    CHECK(fs::exists(path) == found.empty());
    fs::remove(path);
  }
}

TEST_CASE("what no reader would take is not written") {
  Folder folder;
  fs::path path = folder.path / "t.safetensors";
  constexpr int64_t kMost = INT64_MAX;
  struct Row {
    std::vector<TensorSpec> tensors;
    const char* says;
    Metadata metadata = {};
  };
  for (const Row& row : std::vector<Row>{
           {{{"a", DType::float32, {1}}, {"a", DType::float32, {1}}}, "lists \"a\" twice"},
           {{{"__metadata__", DType::float32, {1}}}, "__metadata__"},
           {{{std::string(5000, 'n'), DType::float32, {1}}}, "key too large"},
           {{{"bad \xff utf-8", DType::float32, {1}}}, "its header is not valid JSON"},
           {{{"a", DType::float32, {-1}}}, "negative"},
           {{{"a", DType::float64, {kMost}}}, "larger than any file"},
           {{{"a", DType::float64, {0, kMost, kMost}}}, "larger than any file"},
           {{{"a", DType::int8, {kMost}}, {"b", DType::int8, {kMost}}}, "larger than any file"},
           {{{"a", DType::int8, {kMost}}}, "larger than any file"},  // with the header
           {{{"a", DType::int8, std::vector<int64_t>(17, 1)}}, "17 values"},
           {{}, "lists \"x\" twice", {{"x", "1"}, {"x", "2"}}}}) {
    const std::string found =
        message_of([&] { SafetensorsWriter writer(path, row.tensors, row.metadata); },
                   ErrorCode::bad_safetensors);
    INFO(row.says, " <- ", found);
    CHECK(has(found, row.says));
    CHECK_FALSE(fs::exists(path));
  }
  CHECK(has(message_of([&] { SafetensorsWriter writer(folder.path / "no" / "t.safetensors", {}); },
                       ErrorCode::output_unwritable),
            "No such file or directory (ENOENT)"));
}

TEST_CASE("a file without tensors, and one of names that JSON escapes, are read again") {
  Folder folder;
  fs::path path = folder.path / "t.safetensors";
  {
    SafetensorsWriter writer(path, {});
    writer.finish();
  }
  CHECK(base::read_file(path).size() == 16);
  CHECK(SafetensorsFile(path).tensors().empty());
  const std::vector<std::string> names = {
      "", "\"", "\\", "\n\r\t\b\f", std::string("nul\0l", 5), "\x01\x1f\x7f", "漢 é"};
  std::vector<TensorSpec> tensors;
  for (const std::string& name : names) tensors.push_back({name, DType::int8, {1}});
  SafetensorsWriter writer(path, tensors, {{"\"k\"", "\x02"}});
  for (size_t i = 0; i < names.size(); ++i) {
    auto value = static_cast<std::byte>(i);
    writer.append(i, {&value, 1});
  }
  writer.finish();
  SafetensorsFile file(path);
  CHECK(file.metadata() == Metadata{{"\"k\"", "\x02"}});
  REQUIRE(file.tensors().size() == names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    CHECK(file.tensors()[i].name == names[i]);
    CHECK(*file.tensors()[i].data == static_cast<std::byte>(i));
  }
}

}  // namespace writer_test
