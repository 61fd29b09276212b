// What a cache says of its key: which part of it is another one.
#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "given.h"
#include "plugins/jsonl/cache_key.h"
#include "plugins/jsonl/kind.h"
#include "temporary_folder.h"

namespace key_parts_test {

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

TEST_CASE("the parts of a key: those differ that are others") {
  const jsonl_test::TemporaryFolder folder;
  fs::copy(jsonl_test::kTokenizer, folder / "language");
  jsonl_test::write(folder / "a.jsonl", "{\"text\": \"a\"}\n");
  jsonl_test::write(folder / "b.jsonl", "{\"text\": \"a\"}\n");
  auto request = [&](const char* path = "*.jsonl") {
    Given given(folder / path);
    given.set("tokenizer", folder / "language");
    return given;
  };
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

  using Names = std::set<std::string>;
  CHECK(others(first, parts_of(request())).empty());
  CHECK(others(first, parts_of(request().set("train_on", std::string("last")))) ==
        Names{"options"});
  jsonl_test::write(folder / "b.jsonl", "{\"text\": \"b\"}\n");
  const json::object edited = parts_of(request());
  CHECK(others(first, edited) == Names{"files"});
  CHECK(field(edited, "files", 0, "xxh128") == field(first, "files", 0, "xxh128"));
  CHECK(field(edited, "files", 1, "xxh128") != field(first, "files", 1, "xxh128"));
  jsonl_test::write(folder / "language/chat_template.jinja", "x");
  CHECK(others(edited, parts_of(request())) == Names{"language", "templates"});
  // Length, packing and seed are no part of it.
  Given same = request();
  same.request.seq_len = 7;
  same.request.seed = 99;
  CHECK(json::serialize(parts_of(same.set("packing", std::string("none")))) ==
        json::serialize(parts_of(request())));
}

TEST_CASE("a cache begins with its key and the parts of it") {
  const jsonl_test::TemporaryFolder folder;
  jsonl_test::write(folder / "a.jsonl", "{\"text\": \"a\"}\n");
  const Given given(folder / "a.jsonl", folder / "cache");
  JsonlKind().open(given.request);
  const JsonlOptions options = JsonlOptions::read(given.request);
  const std::string key = cache_key(options);
  std::ifstream in((folder / "cache") + "/" + key + ".mwtokens", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  REQUIRE(bytes.size() > 24);
  CHECK(bytes.substr(24).starts_with(R"({"version":6,"key":")" + key + R"(","parts":)" +
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

}  // namespace key_parts_test
