#include "sdk/base/files/durable.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <string>
#include <thread>

#include "sdk/base/files/foreign_file.h"
#include "sdk/base/tests/scratch.h"

namespace durable_test {

using namespace meshwright;
namespace fs = std::filesystem;
using scratch::Folder;

namespace {

size_t entries(const fs::path& path) { return scratch::names_in(path).size(); }

}  // namespace

TEST_CASE("a file is replaced as a whole and leaves nothing beside it") {
  Folder folder;
  base::write_durably(folder.path / "a", "old");
  base::write_durably(folder.path / "a", "newer");
  CHECK(base::read_file(folder.path / "a") == "newer");
  CHECK(entries(folder.path) == 1);
}

TEST_CASE("several that write one file do not meet") {
  Folder folder;
  // Another one's, at work or dead.
  fs::create_directory(folder.path / ".a.tmp");
  const std::string one(1 << 16, '1'), other(1 << 16, '2');
  std::thread beside([&] {
    for (int i = 0; i < 50; ++i) base::write_durably(folder.path / "a", other);
  });
  for (int i = 0; i < 50; ++i) base::write_durably(folder.path / "a", one);
  beside.join();
  const std::string last = base::read_file(folder.path / "a");
  CHECK((last == one || last == other));
  CHECK(entries(folder.path) == 2);
}

TEST_CASE("a file that is not finished is gone again") {
  Folder folder;
  {
    base::NewFile file(folder.path / "a");
    file.append("half");
    CHECK(file.size() == 4);
    CHECK(fs::exists(folder.path / "a"));
  }
  CHECK(entries(folder.path) == 0);
}

TEST_CASE("failures name the path, what was tried and the errno") {
  Folder folder;
  auto message_of = [](auto&& body) {
    return scratch::message_of(body, ErrorCode::output_unwritable);
  };
  fs::path gone = folder.path / "gone" / "x";
  CHECK(message_of([&] { base::NewFile file(gone); }) ==
        "cannot open " + gone.string() + ": No such file or directory (ENOENT)");
  CHECK(message_of([&] { base::make_folder(folder.path); }) ==
        "cannot make " + folder.path.string() + ": File exists (EEXIST)");
  CHECK(message_of([&] { base::rename_durably(gone, folder.path / "y"); }) ==
        "cannot rename " + (folder.path / "y").string() + ": No such file or directory (ENOENT)");
  CHECK(message_of([&] {
          base::NewFile file("/dev/full");
          file.append("x");
        }) == "cannot write /dev/full: No space left on device (ENOSPC)");
  base::write_durably(folder.path / "file", "x");
  CHECK(message_of([&] {
          base::make_folders(folder.path / "file" / "below");
        }).ends_with("file: File exists (EEXIST)"));
}

TEST_CASE("a link is moved in one step") {
  Folder folder;
  base::make_folders(folder.path / "one" / "two");
  base::link_durably("one", folder.path / "latest");
  base::link_durably("one/two", folder.path / "latest");
  CHECK(fs::read_symlink(folder.path / "latest") == "one/two");
  CHECK(entries(folder.path) == 2);
  CHECK(base::remove_tree(folder.path / "one"));
  CHECK(base::remove_tree(folder.path / "never there"));
  CHECK(entries(folder.path) == 1);
}

}  // namespace durable_test
