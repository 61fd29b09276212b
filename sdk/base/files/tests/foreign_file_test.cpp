// Files that somebody else may have made: nothing waits, and nothing fills the memory.
#include "sdk/base/files/foreign_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "sdk/base/tests/scratch.h"

namespace foreign_file_test {

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::base;

TEST_CASE("pipes, devices, folders, links and files of any size are told, and never waited for") {
  const scratch::Folder own;
  const fs::path& folder = own.path;
  fs::create_directories(folder / "folder");
  own.put("plain", "text");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  fs::create_symlink("/dev/zero", folder / "zero");
  fs::create_symlink("plain", folder / "link");
  own.put("huge", "");
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
}

TEST_CASE("a file, a folder, a pattern: sorted, and without empty files") {
  const scratch::Folder own;
  const fs::path& folder = own.path;
  for (const char* name : {"b.jsonl", "a.jsonl", "deep/c.txt"}) own.put(name, "x");
  own.put("empty.jsonl", "");
  auto list = [&](const fs::path& path) { return list_files(path.string(), "dataset.path", ""); };
  auto paths = [&](const std::vector<std::string>& names) {
    std::vector<std::string> out;
    for (const std::string& name : names) out.push_back((folder / name).string());
    return out;
  };
  CHECK(list(folder) == paths({"a.jsonl", "b.jsonl", "deep/c.txt"}));
  CHECK(list(folder / "*.jsonl") == paths({"a.jsonl", "b.jsonl"}));
  CHECK(list(folder / "empty.jsonl") == paths({"empty.jsonl"}));  // named itself
  for (const std::string& path : {(folder / "*.bin").string(), (folder / "none").string(),
                                  folder.string() + std::string("\0x", 2)})
    CHECK(scratch::has(scratch::message_of([&] { list(path); }, ErrorCode::bad_dataset),
                       "dataset.path"));
  // Else files of other depths would be left out without a word.
  const Error error = scratch::caught([&] { list(folder / "**" / "*.txt"); });
  CHECK(scratch::has(error.message(), "** is not read"));
  CHECK(scratch::has(error.helps().at(0), "\"" + folder.string() + "\""));
  CHECK(list(folder / "*/*.txt") == paths({"deep/c.txt"}));
}

TEST_CASE(
    "a relative path that leads nowhere: the place tried, the current folder, and the setting when "
    "the file lies beside the TOML") {
  const scratch::Folder own;
  const fs::path start = fs::current_path(), &root = own.path;
  fs::create_directories(root / "here");
  fs::current_path(root / "here");
  for (const char* name : {"jobs/a.toml", "jobs/model.json", "jobs/data/one.txt"})
    own.put(name, "x");
  using Help = std::vector<std::string>;
  std::string here = (root / "here").string();
  auto tried = [&](const std::string& path) {
    return "tried " + here + "/" + path + ": relative paths start at the current folder, " + here;
  };

  CHECK(relative_path_help("model.config", "model.json", "../jobs/a.toml") ==
        Help{"it lies beside the configuration: set model.config = \"../jobs/model.json\"",
             "or start from that folder: cd ../jobs", tried("model.json")});
  CHECK(relative_path_help("dataset.path", "data/*.txt", "../jobs/a.toml") ==
        Help{"it lies beside the configuration: set dataset.path = \"../jobs/data/*.txt\"",
             "or start from that folder: cd ../jobs", tried("data/*.txt")});
  std::string absolute = (root / "jobs/a.toml").string();
  CHECK(relative_path_help("model.config", "./model.json", absolute).front() ==
        "it lies beside the configuration: set model.config = \"" +
            (root / "jobs/model.json").string() + "\"");
  // Nothing lies there either; written elsewhere than in a file; the file's folder is the current
  // one.
  CHECK(relative_path_help("model.config", "other.json", "../jobs/a.toml") ==
        Help{tried("other.json")});
  CHECK(relative_path_help("model.config", "model.json", "") == Help{tried("model.json")});
  CHECK(relative_path_help("model.config", "model.json", "b.toml") == Help{tried("model.json")});
  CHECK(relative_path_help("model.config", "model.json", here + "/b.toml") ==
        Help{tried("model.json")});
  CHECK(relative_path_help("model.config", "/nowhere/model.json", "../jobs/a.toml").empty());
  fs::current_path(start);
}

}  // namespace foreign_file_test
