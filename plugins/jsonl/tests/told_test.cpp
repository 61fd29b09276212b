// What is told of files, roles, calls and templates, and the key that says whether data is the
// same.
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <string>

#include "given.h"
#include "meshwright/error.h"
#include "plugins/jsonl/cache_key.h"
#include "plugins/jsonl/kind.h"
#include "temporary_folder.h"

namespace told_test {

namespace fs = std::filesystem;
using jsonl_test::Given;
using meshwright::Error;
using meshwright::jsonl::JsonlKind;
using meshwright::jsonl::JsonlOptions;

TEST_CASE("files of rows without contents are told") {
  const jsonl_test::TemporaryFolder folder;
  fs::create_directories(folder / "data/deep");
  fs::create_directories(folder / "data/.hidden");
  jsonl_test::write(folder / "data/a.jsonl", "{\"text\": \"ab\"}\n");
  jsonl_test::write(folder / "data/empty.json", "");
  jsonl_test::write(folder / "data/.hidden/b.jsonl", "");
  jsonl_test::write(folder / "data/notes.txt", "");
  fs::create_symlink("nowhere.jsonl", folder / "data/deep/broken.jsonl");
  fs::create_symlink("a.jsonl", folder / "data/link.jsonl");
  const auto source = JsonlKind().open(Given(folder / "data").request);
  CHECK(source->report()[0].starts_with("2 rows"));  // the link that leads somewhere, too
  REQUIRE(source->report().size() == 3);
  CHECK(source->report()[2] == "2 files without contents, empty or a link that leads nowhere: " +
                                   (folder / "data/deep/broken.jsonl") + ", " +
                                   (folder / "data/empty.json"));
}

TEST_CASE("a path that leads nowhere says what may stand there") {
  const jsonl_test::TemporaryFolder folder;
  for (const std::string& path : {folder / "nowhere.jsonl", folder / "*.jsonl"}) try {
      JsonlKind().open(Given(path).request);
      FAIL("no error");
    } catch (const Error& error) {
      REQUIRE(error.helps().size() == 1);
      CHECK(error.helps()[0] ==
            "set dataset.path to a file, a folder (its *.jsonl and *.json), or a pattern: "
            "\"data/*.jsonl\"");
    }
}

TEST_CASE("roles that are not known, and calls that the template leaves out, are counted") {
  const jsonl_test::TemporaryFolder folder;
  jsonl_test::write(
      folder / "a.jsonl",
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "asistant", "content": "b"}, {"role": "assistant", "content": "c", "tool_calls": [{"function": {"name": "f"}}]}], "tools": [{"name": "f"}]}
{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]}
)");
  const JsonlKind kind;
  auto numbers = [&](const Given& given) {
    const auto told = kind.numbers(given.request);
    return std::map<std::string, int64_t>(told.begin(), told.end());
  };
  // From rows, and from the cache.
  for (int time = 0; time < 2; ++time) {
    const Given given(folder / "a.jsonl", folder / "cache");
    auto counted = numbers(given);
    CHECK(counted.at("messages_of_unknown_roles") == 1);
    CHECK(counted.at("calls_left_out") == 1);
    CHECK(counted.at("rows_with_tools_left_out") == 1);
    const auto report = JsonlKind().open(given.request)->report();
    REQUIRE(report.size() == 6);
    CHECK(report[2] ==
          "1 message of roles that are not known: \"asistant\" 1 (did you mean \"assistant\"?)");
    CHECK(report[5].starts_with("chat template "));
  }
  // Tokens and targets are what they are without the calls.
  jsonl_test::write(
      folder / "b.jsonl",
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "asistant", "content": "b"}, {"role": "assistant", "content": "c"}]}
{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]}
)");
  auto with = numbers(Given(folder / "a.jsonl")), without = numbers(Given(folder / "b.jsonl"));
  CHECK(without.at("calls_left_out") == 0);
  CHECK(without.at("rows_with_tools_left_out") == 0);
  for (const char* name : {"tokens", "targets", "positions", "used"})
    CHECK(with.at(name) == without.at(name));
}

TEST_CASE("what a row says beside its messages is learnt with it, and told") {
  const jsonl_test::TemporaryFolder folder;
  jsonl_test::write(folder / "t.jinja",
                    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<|im_end|>{% endfor %}"
                    "{% if add_generation_prompt %}a:{% endif %}{{ thinking }}");
  const std::string messages =
      R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])";
  jsonl_test::write(folder / "a.jsonl",
                    "{\"system\": \"Z\", \"id\": 3, \"messages\": " + messages +
                        ", \"chat_template_kwargs\": {\"thinking\": \"own\"}}\n{\"messages\": " +
                        messages + "}\n");
  Given given(folder / "a.jsonl", folder / "cache");
  given.set("chat_template", folder / "t.jinja");
  given.set("template_variables", meshwright::StringMap{{"thinking", "all"}});
  const JsonlKind kind;
  CHECK(kind.row(given.request, 0).text == "s:Z<|im_end|>u:x<|im_end|>a:y<|im_end|>own");
  CHECK(kind.row(given.request, 1).text == "u:x<|im_end|>a:y<|im_end|>all");
  for (int time = 0; time < 2; ++time) {  // from rows, and from the cache
    const auto report = JsonlKind().open(given.request)->report();
    REQUIRE(report.size() >= 5);
    CHECK(report[2] == "the \"system\" of 1 row stands before its messages");
    CHECK(report[3] == "the \"chat_template_kwargs\" of 1 row go to the template");
    CHECK(report[4] == "keys of rows that are not read, with how many rows have them: \"id\" 1");
  }
}

TEST_CASE("a template is told where one was used") {
  const jsonl_test::TemporaryFolder folder;
  jsonl_test::write(folder / "pair.jsonl", R"({"prompt": "a", "completion": "b"})");
  jsonl_test::write(
      folder / "chat.jsonl",
      R"({"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]})");
  auto tells = [&](const std::string& file) {
    const auto report = JsonlKind().open(Given(folder / file).request)->report();
    return report.back().starts_with("chat template ");
  };
  CHECK_FALSE(tells("pair.jsonl"));
  CHECK(tells("chat.jsonl"));
}

TEST_CASE("the key of rows is the one of earlier versions, so that their runs go on") {
  const jsonl_test::TemporaryFolder folder;
  fs::create_directory(folder / "language");
  // Of nothing that other tests change: a file of rows, and texts of the options.
  jsonl_test::write(folder / "a.jsonl", "{\"text\": \"ab\"}\n");
  JsonlOptions options;
  options.files = {folder / "a.jsonl"};
  options.folder = folder / "language";
  options.key = "format = \"auto\"\n";
  CHECK(cache_key(options) == "dd1835e7769952eeeffc9ac9fb478005");
}

}  // namespace told_test
