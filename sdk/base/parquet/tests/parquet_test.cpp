// What Parquet becomes, held against the same rows as JSON lines (tests/data/parquet/make.py), and
// what is said of files that are damaged or have other columns.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "sdk/base/files/foreign_file.h"
#include "sdk/base/unpack/unpacked_file.h"

namespace parquet_test {

namespace fs = std::filesystem;
using meshwright::Error;
using meshwright::ErrorCode;
using meshwright::base::Columns;
using meshwright::base::FileKind;
using meshwright::base::UnpackedFile;

const std::string kData = MESHWRIGHT_SOURCE_DIR "/tests/data/parquet/";

std::string unpacked(const std::string& path, const Columns& columns = {}, size_t piece = 4096) {
  UnpackedFile file(path, ErrorCode::bad_dataset, columns);
  CHECK(file.kind() == FileKind::parquet);
  std::string out, room(piece, '\0');
  for (size_t got = piece; got == piece;) {
    got = file.read(room);
    out.append(room, 0, got);
    CHECK(file.taken() >= 0);
    CHECK(file.taken() <= file.size());
  }
  CHECK(file.taken() == file.size());
  return out;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) out.push_back(line);
  return out;
}

Error refusal(const std::string& path, const Columns& columns = {}) {
  try {
    unpacked(path, columns);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_dataset);
    CHECK(error.origin().file == path);
    CHECK_FALSE(error.helps().empty());
    return error;
  }
  FAIL(path << " is read");
  return {ErrorCode::internal, ""};
}

class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view bytes)
      : path_(fs::temp_directory_path() / ("parquet" + std::to_string(::getpid()) + ".parquet")) {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~TemporaryFile() { fs::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

TEST_CASE("rows of Parquet are those of JSON lines, of every type, in pieces of any size") {
  for (const char* name : {"types", "chats", "sharegpt"}) {
    CAPTURE(name);
    const std::string text = unpacked(kData + name + ".parquet");
    const std::vector<std::string> found = lines_of(text),
                                   wanted = lines_of(
                                       meshwright::base::read_file(kData + name + ".jsonl"));
    REQUIRE(found.size() == wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      CAPTURE(found[i]);
      CHECK(boost::json::parse(found[i]) == boost::json::parse(wanted[i]));
    }
    for (const size_t piece : {1, 7, 100'000})
      CHECK(unpacked(kData + name + ".parquet", {}, piece) == text);
  }
}

TEST_CASE("one column of Parquet, whatever packs it, beside those that are not read") {
  for (const char* packed : {"none", "snappy", "gzip", "zstd", "brotli", "lz4"}) {
    CAPTURE(packed);
    const std::string path = kData + "texts_" + packed + ".parquet";
    std::string expected;
    for (const std::string& line : lines_of(meshwright::base::read_file(kData + "texts.jsonl")))
      expected += boost::json::serialize(boost::json::parse(line)) + "\n";
    CHECK(unpacked(path, {{{"content"}}}) == expected);
    CHECK(unpacked(path, {{{"content"}, {"absent", true}}}) == expected);
  }
  // A path leads into a column.
  const std::string deep = unpacked(kData + "types.parquet", {{{"deep.b.0.c"}}});
  CHECK(deep.starts_with("{\"deep\":{\"a\":0,\"b\":[]}}\n{\"deep\":"));
}

TEST_CASE("columns of Parquet that are absent, or of a type that is not read") {
  const std::string path = kData + "texts_zstd.parquet";
  const Error absent = refusal(path, {{{"text"}}, "dataset.text.text_field", "set it"});
  CHECK(absent.message() ==
        path + ": there is no column \"text\", but these: id, content, image, tags");
  CHECK(absent.key() == "dataset.text.text_field");
  CHECK(absent.helps() == std::vector<std::string>{"set it"});
  const Error bytes = refusal(path, {{}, "dataset.jsonl.fields", "name others"});
  CHECK(bytes.message() == path + ": column \"image\" is of type binary, which is not read");
  CHECK(bytes.key() == "dataset.jsonl.fields");
  CHECK(bytes.helps().front() == "name others");
  CHECK(refusal(path, {{{"tags"}}, "k", "h"})
            .message()
            .starts_with(path + ": column \"tags\" is of type map<string, string"));
}

TEST_CASE("two columns of one name in Parquet are refused") {
  const std::string path = kData + "twice.parquet";
  const Error twice = refusal(path, {{{"text"}}, "k", "h"});
  CHECK(twice.message() == path + ": it has two columns of the name \"text\"");
  CHECK(twice.key() == "k");
}

// Of this process in bytes, from /proc: "VmHWM:", "VmSize:".
int64_t memory(const std::string& what) {
  std::ifstream in("/proc/self/status");
  int64_t kib = 0;
  for (std::string word; in >> word;)
    if (word == what) in >> kib;
  return kib << 10;
}

TEST_CASE(
    "long texts of Parquet lie in memory a few at a time, however little they are packed to") {
  UnpackedFile file(kData + "repeated.parquet", ErrorCode::bad_dataset, {{{"text"}}});
  std::string room(1 << 20, '\0');
  const int64_t before = memory("VmHWM:");
  REQUIRE(before > 0);
  int64_t bytes = 0, rows = 0;
  for (size_t got = room.size(); got == room.size();) {
    got = file.read(room);
    bytes += static_cast<int64_t>(got);
    rows += std::count(room.begin(), room.begin() + static_cast<ptrdiff_t>(got), '\n');
  }
  CHECK(rows == 2000);
  CHECK(bytes == 2000 * (100'000 + std::ssize(std::string("{\"text\":\"\"}\n"))));
  const int64_t grown = memory("VmHWM:") - before;
  CAPTURE(grown);
  CHECK(grown < int64_t{48} << 20);
}

TEST_CASE("want of memory, a disk that fails and what packs columns are told as what they are") {
  auto said = [](UnpackedFile& file) {
    std::string room(1 << 20, '\0');
    try {
      while (file.read(room) == room.size()) {
      }
    } catch (const Error& error) {
      CHECK_FALSE(error.helps().empty());
      return error.message();
    }
    return std::string("nothing");
  };
  const std::string path = kData + "long.parquet";
  {
    UnpackedFile file(path, ErrorCode::bad_dataset, {{{"text"}}});
    rlimit limit{};
    REQUIRE(::getrlimit(RLIMIT_AS, &limit) == 0);
    const rlimit tight{static_cast<rlim_t>(memory("VmSize:") + (32 << 20)), limit.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_AS, &tight) == 0);
    const std::string found = said(file);
    REQUIRE(::setrlimit(RLIMIT_AS, &limit) == 0);
    CHECK(found ==
          path + ": no memory is left to read its Parquet data, in row group 1 of 1, behind row 0");
  }
  {
    UnpackedFile file(path, ErrorCode::bad_dataset, {{{"text"}}});
    const int folder = ::open(kData.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    REQUIRE(folder >= 0);
    std::error_code failed;
    int taken = 0;
    for (int fd = 3; fd < 256; ++fd) {
      if (fs::read_symlink("/proc/self/fd/" + std::to_string(fd), failed) != path) continue;
      // Arrow's own does not go to processes that others start meanwhile.
      CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
      REQUIRE(::dup2(folder, fd) == fd);
      ++taken;
    }
    ::close(folder);
    CHECK(taken == 2);
    CHECK(said(file) ==
          path + ": cannot be read, in row group 1 of 1, behind row 0: Is a directory");
  }
  // The codec is a field of each column's description: 6, zstd, becomes 3, LZO.
  std::string changed = meshwright::base::read_file(path);
  size_t found = 0;
  for (size_t at = changed.rfind(std::string("\x15\x0C")); at != std::string::npos && found == 0;
       at = at == 0 ? std::string::npos : changed.rfind("\x15\x0C", at - 1)) {
    std::string other = changed;
    other[at + 1] = '\x06';
    const TemporaryFile file(other);
    try {
      UnpackedFile(file.path(), ErrorCode::bad_dataset, {{{"text"}}});
    } catch (const Error& error) {
      found +=
          error.message() == file.path() + ": its columns are packed by lzo, which is not read";
    }
  }
  CHECK(found == 1);
}

TEST_CASE("Parquet that is cut or changed is told, and never more than that") {
  const std::string whole = meshwright::base::read_file(kData + "texts_zstd.parquet");
  const std::string text = unpacked(kData + "texts_zstd.parquet", {{{"content"}}});
  size_t wrong = 0;  // without a word
  // What is said of such a file behind its name.
  auto outcome = [&](std::string_view bytes) {
    const TemporaryFile file(bytes);
    std::string out;
    try {
      UnpackedFile reading(file.path(), ErrorCode::bad_dataset, {{{"content"}}, "k", "h"});
      std::string found(2 * text.size(), '\0');
      found.resize(reading.read(found));
      wrong += found != text ? 1 : 0;
    } catch (const Error& error) {
      CHECK(error.message().starts_with(file.path() + ": "));
      CHECK_FALSE(error.helps().empty());
      out = error.message().substr(file.path().size());
    }
    return out;
  };
  CHECK(outcome("") == ": the file is empty at byte 0");
  CHECK(outcome("{\"content\": \"a\"}\n") ==
        ": no Parquet file begins so: \"PAR1\" is missing at byte 0");
  for (size_t size = 4; size < whole.size(); size += 11) {
    CAPTURE(size);
    CHECK(outcome(std::string_view(whole).substr(0, size))
              .starts_with(": its Parquet data is damaged ("));
  }
  // Pages have sums; of what describes the file not every bit decides about these rows.
  size_t refused = 0, tried = 0;
  for (size_t at = 4; at < whole.size(); at += 3, ++tried) {
    CAPTURE(at);
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ (1 << (at % 8)));
    refused += outcome(changed).empty() ? 0 : 1;
  }
  CHECK(refused > tried / 3);
  CHECK(wrong <= tried / 100);
  std::string changed = whole;
  const size_t page = whole.size() / 4;
  changed[page] = static_cast<char>(changed[page] ^ 1);
  const std::string said = outcome(changed);
  CAPTURE(said);
  CHECK(said.starts_with(": its Parquet data is damaged, in row group "));
}

}  // namespace parquet_test
