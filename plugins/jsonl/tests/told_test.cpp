// What is told of files, roles, calls and templates, and the key that says whether data is the
// same.
#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "given.h"
#include "plugins/jsonl/kind.h"
#include "sdk/base/files/foreign_file.h"

namespace told_test {

namespace fs = std::filesystem;
namespace json = boost::json;
using jsonl_test::Given;
using meshwright::jsonl::JsonlKind;
using meshwright::jsonl::JsonlOptions;

json::object parts_of(const Given& given) {
  return json::parse(key_parts(JsonlOptions::read(given.request))).as_object();
}

std::string field(const json::object& parts, const char* list, size_t at, const char* key) {
  return std::string(parts.at(list).as_array().at(at).as_object().at(key).as_string());
}

// The names of the parts that differ.
std::set<std::string> others(const json::object& a, const json::object& b) {
  std::set<std::string> out;
  for (const auto& [name, value] : a)
    if (!b.contains(name) || json::serialize(b.at(name)) != json::serialize(value))
      out.insert(std::string(name));
  return out;
}

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
  for (const std::string& path : {folder / "nowhere.jsonl", folder / "*.jsonl"})
    CHECK(jsonl_test::thrown([&] { JsonlKind().open(Given(path).request); }).helps() ==
          std::vector<std::string>{"set dataset.path to a file, a folder (its *.jsonl, *.json "
                                   "and *.parquet), or a pattern: \"data/*.jsonl\""});
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
    CHECK(report[2] == "the system text of 1 row stands before its messages");
    CHECK(report[3] == "the \"chat_template_kwargs\" of 1 row go to the template");
    CHECK(report[4] == "keys of rows that are not read, with how many rows have them: \"id\" 1");
  }
}

TEST_CASE("what became of columns is told, from rows and from the cache") {
  const jsonl_test::TemporaryFolder folder;
  jsonl_test::write(folder / "a.jsonl",
                    "{\"instruction\": \"a\", \"output\": \"b\", \"w\": 0.5, \"id\": 1}\n"
                    "{\"instruction\": \"a\", \"input\": \"c\", \"output\": \"b\", \"w\": 0}\n");
  Given given(folder / "a.jsonl", folder / "cache");
  JsonlKind kind;
  CHECK(kind.open(given.request)->report()[2] ==
        "rows are alpaca: instruction -> user; output -> assistant");
  given.set("fields", meshwright::StringMap{{"weight", "w"}});
  for (int time = 0; time < 2; ++time) {
    const auto source = JsonlKind().open(given.request);
    CHECK(source->has_weights());
    const auto report = source->report();
    CHECK(report[0].starts_with("2 rows, 1 used, 1 left out with a weight of 0; "));
    CHECK(report[2] == "rows are alpaca: instruction -> user; output -> assistant; w -> weight");
    CHECK(report[3] == "keys of rows that are not read, with how many rows have them: \"id\" 1");
  }
  const auto told = kind.numbers(given.request);
  CHECK(std::map<std::string, int64_t>(told.begin(), told.end()).at("of_weight_0") == 1);
  // As its chat template writes it.
  CHECK(kind.row(given.request, 1).text.find("user\na\nc<|im_end|>") != std::string::npos);
  // What is wrong with the option is told without rows, at its key.
  given.set("fields", meshwright::StringMap{{"promt", "w"}});
  meshwright::Diagnostics found;
  kind.validate(given.request, found);
  REQUIRE(found.errors().size() == 1);
  CHECK(found.errors()[0].key() == "dataset.jsonl.fields.promt");
}

TEST_CASE("a row is shown as the whole is read, by the first row") {
  const jsonl_test::TemporaryFolder folder;
  const std::string pair = R"("prompt": "a", "completion": "b"})";
  jsonl_test::write(folder / "a.jsonl", R"({"system": "S", )" + pair + "\n{" + pair + "\n");
  const JsonlKind kind;
  const Given given(folder / "a.jsonl");
  CHECK(kind.row(given.request, 1).text.find("user\na<|im_end|>") != std::string::npos);
  CHECK(JsonlKind().open(given.request)->report()[0].starts_with("2 rows, 2 used"));
  // Where the first row says nothing, by its own.
  jsonl_test::write(folder / "a.jsonl", "{}\n{" + pair + "\n");
  CHECK(kind.row(given.request, 1).text == "ab");
}

TEST_CASE("a tokenizer without a chat template says how pairs are read without one") {
  const jsonl_test::TemporaryFolder folder;
  fs::create_directory(folder / "language");
  fs::copy(std::string(jsonl_test::kTokenizer) + "/tokenizer.json", folder / "language");
  jsonl_test::write(folder / "a.jsonl", R"({"question": "a", "answer": "b"})");
  Given given(folder / "a.jsonl");
  given.set("tokenizer", folder / "language");
  const auto error = jsonl_test::thrown([&] { JsonlKind().open(given.request); });
  CHECK(error.code() == meshwright::ErrorCode::bad_template);
  CHECK(error.helps() ==
        std::vector<std::string>{
            "set dataset.jsonl.chat_template to a file, or to \"chatml\"",
            "or set dataset.jsonl.format = \"prompt_completion\": prompt and completion are joined "
            "as they are"});
  given.set("format", std::string("prompt_completion"));
  CHECK(JsonlKind().row(given.request, 0).text == "ab");
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

TEST_CASE("a key and its parts are others where a document may be, and there only") {
  const jsonl_test::TemporaryFolder folder;
  fs::copy(jsonl_test::kTokenizer, folder / "language");
  jsonl_test::write(folder / "a.jsonl", "{\"text\": \"a\"}\n");
  jsonl_test::write(folder / "b.jsonl", "{\"text\": \"a\"}\n");
  auto request = [&] {
    Given given(folder / "*.jsonl");
    given.set("tokenizer", folder / "language");
    return given;
  };
  auto key = [](const Given& given) { return cache_key(JsonlOptions::read(given.request)); };
  const json::object first = parts_of(request());
  CHECK(first.at("key_version").to_number<int>() == 3);
  REQUIRE(first.at("files").as_array().size() == 2);
  CHECK(field(first, "files", 0, "name") == "a.jsonl");
  CHECK(first.at("files").as_array()[0].as_object().at("bytes").to_number<int>() == 14);
  CHECK(field(first, "files", 0, "xxh128").size() == 32);
  CHECK(field(first, "files", 0, "xxh128") == field(first, "files", 1, "xxh128"));
  CHECK(field(first, "language", 0, "name") == "tokenizer.json");
  CHECK(field(first, "templates", 0, "name") == "default");
  const std::string special = json::serialize(first.at("special_tokens"));
  CHECK(special.find(R"({"key":"eos_token","text":"<|im_end|>"})") != std::string::npos);
  const std::string options = json::serialize(first.at("options"));
  CHECK(options.find("train_on = ") != std::string::npos);
  CHECK(options.find("fields") == std::string::npos);  // as in earlier versions

  using Names = std::set<std::string>;
  std::set<std::string> keys{key(request())};
  CHECK(keys.begin()->size() == 32);
  CHECK_FALSE(keys.insert(key(request())).second);
  CHECK(others(first, parts_of(request())).empty());
  for (const auto& [name, value] : std::map<const char*, meshwright::OptionValue>{
           {"train_on", std::string("last")},
           {"format", std::string("text")},
           {"special_tokens_in_content", std::string("parse")},
           {"date", std::string("2024-07-26")},
           {"fields", meshwright::StringMap{{"text", "text?"}}},
           {"template_variables", meshwright::StringMap{{"enable_thinking", "false"}}}}) {
    CAPTURE(name);
    CHECK(keys.insert(key(request().set(name, value))).second);
    CHECK(others(first, parts_of(request().set(name, value))) == Names{"options"});
  }
  CHECK(keys.insert(key(request().set("chat_template", std::string("chatml")))).second);
  jsonl_test::write(folder / "b.jsonl", "{\"text\": \"b\"}\n");
  CHECK(keys.insert(key(request())).second);
  const json::object edited = parts_of(request());
  CHECK(others(first, edited) == Names{"files"});
  CHECK(field(edited, "files", 0, "xxh128") == field(first, "files", 0, "xxh128"));
  CHECK(field(edited, "files", 1, "xxh128") != field(first, "files", 1, "xxh128"));
  jsonl_test::write(folder / "language/chat_template.jinja", "x");
  const std::string last = key(request());
  CHECK(keys.insert(last).second);
  CHECK(others(edited, parts_of(request())) == Names{"language", "templates"});
  // Not of what is done with documents, nor of how they are made.
  Given same = request();
  same.request.seq_len = 7;
  same.request.seed = 99;
  same.set("packing", std::string("none")).set("truncate", std::string("drop"));
  CHECK(key(same.set("threads", int64_t{3})) == last);
  CHECK(json::serialize(parts_of(same)) == json::serialize(parts_of(request())));
}

TEST_CASE("a cache begins with its key and the parts of it") {
  const jsonl_test::TemporaryFolder folder;
  jsonl_test::write(folder / "a.jsonl", "{\"text\": \"a\"}\n");
  const Given given(folder / "a.jsonl", folder / "cache");
  JsonlKind().open(given.request);
  const JsonlOptions options = JsonlOptions::read(given.request);
  const std::string key = cache_key(options);
  const std::string bytes =
      meshwright::base::read_file((folder / "cache") + "/" + key + ".mwtokens");
  REQUIRE(bytes.size() > 24);
  CHECK(bytes.substr(24).starts_with(R"({"version":7,"key":")" + key + R"(","parts":)" +
                                     key_parts(options) + ","));
}

TEST_CASE("any number of files and any bytes of names are told, and fit") {
  const jsonl_test::TemporaryFolder folder;
  const std::string many = folder / "many";
  fs::create_directory(many);
  for (int i = 0; i < 70; ++i)
    jsonl_test::write(
        many + "/" + std::to_string(100 + i) + "\xE9" + std::string(240, '\x01') + ".jsonl",
        "{\"text\": \"a\"}\n");
  const Given given(many, folder / "cache");
  const json::object parts = parts_of(given);
  CHECK(parts.at("files").as_array().size() == 64);
  CHECK(parts.at("more_files").to_number<int>() == 6);
  CHECK(field(parts, "files", 0, "name").starts_with("100\xEF\xBF\xBD\x01"));  // U+FFFD
  // From rows, and from the cache.
  for (int time = 0; time < 2; ++time)
    CHECK(JsonlKind().open(given.request)->report()[0].starts_with("70 rows"));
}

}  // namespace told_test
