// What a path names: a file, a folder, a pattern, nothing.
#include "sdk/base/files/foreign_file.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "meshwright/error.h"
#include "sdk/base/files/json_codec.h"

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::base;

TEST_CASE("a file, a folder, a pattern: sorted, and without empty files") {
  fs::path folder = fs::temp_directory_path() / ("meshwright_list_" + std::to_string(::getpid()));
  fs::create_directories(folder / "deep");
  for (const char* name : {"b.jsonl", "a.jsonl", "deep/c.txt"}) std::ofstream(folder / name) << "x";
  std::ofstream(folder / "empty.jsonl");
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
                                  folder.string() + std::string("\0x", 2)}) {
    try {
      list(path);
      FAIL("listed");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_dataset);
      CHECK(error.message().find("dataset.path") != std::string::npos);
    }
  }
  // Else files of other depths would be left out without a word.
  try {
    list(folder / "**" / "*.txt");
    FAIL("listed");
  } catch (const Error& error) {
    CHECK(error.message().find("** is not read") != std::string::npos);
    CHECK(error.helps().at(0).find("\"" + folder.string() + "\"") != std::string::npos);
    CHECK(list(folder / "*/*.txt") == paths({"deep/c.txt"}));
  }
  fs::remove_all(folder);
}

TEST_CASE("JSON with one meaning and bounds") {
  auto problem = [](std::string_view text, const JsonBounds& bounds) -> std::string {
    try {
      parse_strictly(text, bounds);
    } catch (const JsonProblem& found) {
      return found.what;
    }
    return "";
  };
  CHECK(parse_strictly(" {\"a\": [1, 2]}\n", {}).at("a").as_array().size() == 2);
  CHECK(problem("[1, 2, 3]", {.depth = 2, .elements = 3}).empty());
  CHECK(problem("[1, 2, 3]", {.depth = 2, .elements = 2}) == "has a list of 3 values");
  CHECK(problem("[[[1]]]", {.depth = 3}).empty());
  CHECK(problem("[[[1]]]", {.depth = 2}).starts_with("is not valid JSON"));
  CHECK(problem(R"({"a": 1, "b": {"a": 2}})", {}).empty());
  CHECK(problem(R"({"a": 1, "\u0061": 2})", {}) == "lists \"a\" twice");
  CHECK(problem("1 2", {}).starts_with("is not valid JSON"));
}
