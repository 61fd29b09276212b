// What comes out of packed files, and what is said where it does not.
#include "sdk/base/unpack/unpacked_file.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "packed.h"
#include "sdk/base/shell_word.h"

namespace unpacked_file_test {

namespace fs = std::filesystem;
using meshwright::Error;
using meshwright::ErrorCode;
using meshwright::base::unpacked_name;
using meshwright::base::UnpackedFile;
using packed_files::gzip;
using packed_files::zstd;

// A file of a test's own.
class TemporaryFile {
 public:
  TemporaryFile(const std::string& name, std::string_view contents)
      : path_(fs::temp_directory_path() / ("unpack" + std::to_string(::getpid()) + name)) {
    std::ofstream(path_, std::ios::binary) << contents;
  }
  ~TemporaryFile() { fs::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

std::string all_of(UnpackedFile& file, size_t piece) {
  std::string out;
  std::vector<char> room(piece);
  for (;;) {
    const size_t got = file.read(room);
    out.append(room.data(), got);
    if (got < piece) return out;
  }
}
std::string unpacked(const std::string& name, std::string_view contents, size_t piece = 4096) {
  const TemporaryFile file(name, contents);
  UnpackedFile packed(file.path(), ErrorCode::bad_dataset);
  std::string out = all_of(packed, piece);
  CHECK(packed.taken() == static_cast<int64_t>(contents.size()));
  return out;
}
std::string refusal(const std::string& name, std::string_view contents) {
  try {
    unpacked(name, contents);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_dataset);
    CHECK_FALSE(error.helps().empty());
    return error.message().substr(error.message().find(name) + name.size());
  }
  return "nothing";
}

// Some that packs well and some that does not.
std::string text_of(size_t size) {
  std::mt19937 random(1);
  std::string out;
  while (out.size() < size) out += "line " + std::to_string(random() % 1'000'000) + "\n";
  out.resize(size);
  return out;
}

TEST_CASE("what was packed comes out, in pieces of any size") {
  const std::string text = text_of(700'000);
  for (const size_t piece : {size_t{1} << 20, size_t{65'536}, size_t{7}}) {
    CAPTURE(piece);
    CHECK(unpacked(".txt", text, piece) == text);
    CHECK(unpacked(".gz", gzip(text), piece) == text);
    CHECK(unpacked(".zst", zstd(text), piece) == text);
  }
  // A piece that ends where the text does: what stands behind it is read all the same.
  CHECK(unpacked(".gz", gzip("abcd"), 4) == "abcd");
  CHECK(unpacked(".zst", zstd("abcd"), 4) == "abcd");
  // The first bytes say what it is.
  CHECK(unpacked(".txt", gzip("abc")) == "abc");
  CHECK(unpacked(".txt", zstd("abc")) == "abc");
  CHECK(unpacked(".txt", "") == "");
  CHECK(unpacked(".gz", gzip("")) == "");
}

TEST_CASE("several members and frames are one text") {
  CHECK(unpacked(".gz", gzip("one ") + gzip("") + gzip("two")) == "one two");
  CHECK(unpacked(".zst", zstd("one ") + zstd("") + zstd("two")) == "one two");
  CHECK(unpacked(".gz", gzip("one ") + std::string(1000, '\0')) == "one ");
  // A frame that carries no data.
  CHECK(unpacked(".zst", zstd("one ") +
                             std::string("\x50\x2A\x4D\x18\x02\0\0\0"
                                         "ab",
                                         10) +
                             zstd("two")) == "one two");
}

TEST_CASE("a file that ends early is an error at every byte") {
  const std::string text = text_of(3000);
  for (const auto& [name, packed] : {std::pair(".gz", gzip(text)), {".zst", zstd(text)}})
    for (size_t bytes = 1; bytes < packed.size(); bytes += bytes < 40 ? 1 : 97) {
      CAPTURE(bytes);
      CHECK(refusal(name, packed.substr(0, bytes)) ==
            ": the file ends in the middle of its packed data, at byte " + std::to_string(bytes));
    }
  CHECK(refusal(".gz", gzip(text) + gzip(text).substr(0, 100)).find("ends in the middle") !=
        std::string::npos);
  CHECK(refusal(".gz", "") == ": the file is empty at byte 0");
  CHECK(refusal(".zst", "") == ": the file is empty at byte 0");
}

TEST_CASE("damage is told with its place") {
  const std::string text = text_of(3000);
  for (const auto& [name, packed] : {std::pair(".gz", gzip(text)), {".zst", zstd(text)}}) {
    int found = 0;
    for (size_t at = 12; at < packed.size(); at += 53) {
      std::string broken = packed;
      broken[at] = static_cast<char>(broken[at] ^ 0x10);
      // A bit may be one that nothing follows from, or that ends the data early.
      const std::string said = refusal(name, broken);
      found += said.find("data is damaged (") != std::string::npos ? 1 : 0;
      CHECK((said == "nothing" || said.find(" at byte ") != std::string::npos));
    }
    CHECK(found > 3);
  }
  CHECK(refusal(".gz", "no gzip at all").find("incorrect header check") != std::string::npos);
  CHECK(refusal(".zst", "no zstd at all").find("Unknown frame descriptor") != std::string::npos);
  CHECK(refusal(".gz", gzip("one") + "rubbish").find("incorrect header check") !=
        std::string::npos);
}

TEST_CASE("a bomb comes out in pieces") {
  const std::string packed = zstd(std::string(200'000'000, 'a'));
  CHECK(packed.size() < 100'000);
  const TemporaryFile file(".zst", packed);
  UnpackedFile bomb(file.path(), ErrorCode::bad_dataset);
  std::vector<char> room(1 << 16);
  int64_t all = 0;
  for (size_t got; (got = bomb.read(room)) > 0;) all += static_cast<int64_t>(got);
  CHECK(all == 200'000'000);
}

TEST_CASE("a text may begin as Parquet does") {
  const std::string text = "PAR1 is a gene of a plant.\n";
  CHECK(unpacked(".txt", text) == text);
  CHECK(unpacked(".txt", "PAR1 was found before PAR2") == "PAR1 was found before PAR2");
  // One that is named so is told what is wrong with it.
  CHECK(refusal(".parquet", text) != "nothing");
  CHECK(refusal(".txt", "PAR1....PAR1") != "nothing");
}

TEST_CASE("the command that makes rows of Parquet is one whatever the file's name is") {
  const TemporaryFile file("it's $(x) `y` \"z.parquet", "PAR1....PAR1");
  try {
    UnpackedFile reading(file.path(), ErrorCode::bad_dataset);
    FAIL("it is read");
  } catch (const Error& error) {
    // Only where the part is not there.
    for (const std::string& help : error.helps())
      if (help.find("python3") != std::string::npos)
        CHECK(help.ends_with(" " + meshwright::text::shell_word(file.path()) + " > rows.jsonl"));
  }
  CHECK(meshwright::text::shell_word("a/b-1.parquet") == "a/b-1.parquet");
  CHECK(meshwright::text::shell_word("it's $x") == "'it'\\''s $x'");
  CHECK(meshwright::text::shell_word("") == "''");
}

TEST_CASE("names without what packs them") {
  CHECK(unpacked_name("a/b.jsonl.gz") == "a/b.jsonl");
  CHECK(unpacked_name("a.txt.zst") == "a.txt");
  CHECK(unpacked_name("a.txt.zstd") == "a.txt");
  CHECK(unpacked_name("a.txt") == "a.txt");
}

}  // namespace unpacked_file_test
