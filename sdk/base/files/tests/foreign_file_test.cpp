// Files that somebody else may have made: nothing waits, and nothing fills the memory.
#include "sdk/base/files/foreign_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace foreign_file_test {

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::base;

TEST_CASE("pipes, devices, folders, links and files of any size are told, and never waited for") {
  const fs::path folder =
      fs::temp_directory_path() / ("meshwright_foreign_" + std::to_string(::getpid()));
  fs::create_directories(folder / "folder");
  std::ofstream(folder / "plain") << "text";
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  fs::create_symlink("/dev/zero", folder / "zero");
  fs::create_symlink("plain", folder / "link");
  std::ofstream(folder / "huge");
  fs::resize_file(folder / "huge", int64_t{1} << 40);
  struct Row {
    const char *name, *problem;
    ForeignFile::Links links = ForeignFile::Links::followed;
  };
  for (const Row& row : std::initializer_list<Row>{
           {"plain", ""},
           {"link", ""},
           {"link", "is a link", ForeignFile::Links::refused},
           {"folder", "is a folder"},
           {"pipe", "is not a regular file"},
           {"zero", "is not a regular file"},
           {"huge", "has more than 64 MiB"},
           {"none", "cannot be opened: No such file or directory"},
       }) {
    CAPTURE(row.name);
    ForeignFile file(folder / row.name, row.links);
    const std::string text = file.read(kSmallFile);
    CHECK(file.problem() == row.problem);
    CHECK(text == (*row.problem == 0 ? "text" : ""));
    if (*row.problem == 0 || row.links == ForeignFile::Links::refused) continue;
    CHECK(read_file(folder / row.name) == "");
    CHECK_THROWS_WITH_AS(read_foreign(folder / row.name, kSmallFile, ErrorCode::bad_dataset),
                         doctest::Contains(row.problem), Error);
    if (std::string(row.name) != "huge")
      CHECK_THROWS_WITH_AS(MappedFile((folder / row.name).string(), ErrorCode::bad_dataset),
                           doctest::Contains(row.problem), Error);
  }
  CHECK(ForeignFile(folder / "plain").read(4) == "text");
  CHECK(ForeignFile(folder / "plain").read(3) == "");
  CHECK(read_file("/proc/self/stat").size() > 10);  // it says that it has no bytes
  CHECK(ForeignFile(std::string("a\0b", 3)).problem() == "the name holds a NUL");
  fs::remove_all(folder);
}

}  // namespace foreign_file_test
