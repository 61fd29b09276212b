// The data set as the engine asks for it: options, cache, threads, errors.
#include "plugins/jsonl/kind.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "given.h"
#include "meshwright/error.h"
#include "plugins/jsonl/options.h"
#include "plugins/jsonl/prepare.h"
#include "sdk/base/beside.h"
#include "sdk/base/words.h"

namespace kind_test {

namespace fs = std::filesystem;
using jsonl_test::Given;
using meshwright::DatasetRequest;
using meshwright::Diagnostics;
using meshwright::Error;
using meshwright::ErrorCode;
using meshwright::jsonl::JsonlKind;
using meshwright::jsonl::JsonlOptions;
using meshwright::jsonl::kOptions;

const std::string kChats = MESHWRIGHT_SOURCE_DIR "/configs/chats/chats.jsonl";

std::string said(const DatasetRequest& request) {
  try {
    Diagnostics found;
    const JsonlKind kind;
    kind.validate(request, found);
    found.throw_if_any();
    kind.open(request);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

TEST_CASE("the chats of the configs: packed nearly full") {
  const JsonlKind kind;
  Given given(kChats);
  given.request.seq_len = 512;
  const auto source = kind.open(given.request);
  CHECK(source->has_documents());
  CHECK(source->samples() > 20);
  REQUIRE(source->report().size() >= 2);
  CHECK(source->report()[0].starts_with("200 rows, "));
  std::vector<std::string> files = source->files();
  CHECK(files.size() == 4);  // rows, tokenizer, its configuration, template
}

TEST_CASE("numbers are those of what is open, and of other lengths others") {
  const JsonlKind asked, open;
  Given given(kChats);
  for (const int64_t length : {128, 512, 200}) {
    given.request.seq_len = length;
    const auto source = open.open(given.request);
    const auto numbers = open.numbers(given.request);
    CHECK(numbers == asked.numbers(given.request));
    CHECK(numbers == open.numbers(given.request));
    const std::map<std::string, int64_t> by_name(numbers.begin(), numbers.end());
    CHECK((by_name.at("truncated") == 0) == (length == 512));
    CHECK(source->report()[1].starts_with(
        meshwright::text::counted(by_name.at("positions"), "position")));
  }
}

TEST_CASE("the store is the same for any number of threads, and a cache gives it back") {
  const jsonl_test::TemporaryFolder folder;
  // Enough rows for several chunks of a MiB.
  std::string rows;
  for (int i = 0; i < 3000; ++i)
    rows += R"({"messages": [{"role": "user", "content": "number )" + std::to_string(i) +
            R"("}, {"role": "assistant", "content": ")" +
            std::string(static_cast<size_t>(i % 400) * 4, 'x') + "\"}]}\n";
  jsonl_test::write(folder / "rows.jsonl", rows);
  CHECK(rows.size() > (size_t{2} << 20));
  auto bytes = [&](int threads) {
    Given given(folder / "rows.jsonl");
    given.set("threads", int64_t{threads});
    const JsonlOptions options = JsonlOptions::read(given.request);
    CHECK(options.threads == threads);
    return build_store(options, cache_key(options), [](const auto&) {}, [](const auto&) {});
  };
  const std::vector<std::byte> one = bytes(1);
  CHECK(one == bytes(7));
}

TEST_CASE("the hash of a template is of its text, wherever that is from") {
  const jsonl_test::TemporaryFolder folder;
  auto hash = [&](const std::string& chat_template) {
    Given given(kChats);
    given.set("chat_template", chat_template);
    const JsonlOptions options = JsonlOptions::read(given.request);
    return meshwright::jsonl::TokenStore::in_memory(
               build_store(
                   options, "k", [](const auto&) {}, [](const auto&) {}))
        ->origin()
        .template_hash;
  };
  // chatml is built in, and not the template of this tokenizer's folder.
  const std::string built_in = hash("chatml");
  CHECK(built_in.size() == 12);
  jsonl_test::write(folder / "a.jinja", meshwright::chat::chatml());
  CHECK(hash(folder / "a.jinja") == built_in);
  jsonl_test::write(folder / "a.jinja", std::string(meshwright::chat::chatml()) + " ");
  CHECK(hash(folder / "a.jinja") != built_in);
}

TEST_CASE("variables of the template are values, not texts") {
  Given given(kChats);
  given.set("template_variables", meshwright::StringMap{{"enable_thinking", "false"},
                                                        {"most", "3"},
                                                        {"style", "terse"},
                                                        {"names", "[\"a\", 1.5]"},
                                                        {"deep.er.a", "1"},
                                                        {"deep.b", "x"}});
  const meshwright::chat::Value variables = JsonlOptions::read(given.request).encode.variables;
  CHECK_FALSE(variables.get("enable_thinking")->as_boolean());
  CHECK(variables.get("most")->as_integer() == 3);
  CHECK(variables.get("style")->as_string() == "terse");
  CHECK(variables.get("names")->as_list().at(0).as_string() == "a");
  CHECK(variables.get("names")->as_list().at(1).as_real() == 1.5);
  CHECK(variables.get("deep")->get("er")->get("a")->as_integer() == 1);
  CHECK(variables.get("deep")->get("b")->as_string() == "x");
  CHECK(variables.as_dict().size() == 5);
}

TEST_CASE("a row that is edited makes another store; the old one stays") {
  const jsonl_test::TemporaryFolder folder;
  jsonl_test::write(folder / "a.jsonl", "{\"text\": \"abc\"}\n");
  auto prints = [&] {
    return JsonlKind().open(Given(folder / "a.jsonl", folder / "cache").request)->fingerprint();
  };
  auto stores = [&] {
    int64_t out = 0;
    for (const auto& entry : fs::directory_iterator(folder / "cache"))
      out += entry.path().extension() == ".mwtokens" ? 1 : 0;
    return out;
  };
  const uint64_t before = prints();
  CHECK(stores() == 1);
  CHECK(prints() == before);
  CHECK(stores() == 1);
  jsonl_test::write(folder / "a.jsonl", "{\"text\": \"abd\"}\n");
  CHECK(prints() != before);
  CHECK(stores() == 2);
}

TEST_CASE("the earliest wrong row is the one told, whoever finds it") {
  const jsonl_test::TemporaryFolder folder;
  std::string rows;
  for (int i = 0; i < 6000; ++i)
    rows += i == 4100 || i == 5900 ? "{\"text\": 3}\n"
                                   : "{\"text\": \"" + std::string(540, 'x') + "\"}\n";
  jsonl_test::write(folder / "a.jsonl", rows);
  for (int threads : {1, 5}) {
    Given given(folder / "a.jsonl", folder / "cache");
    CHECK(said(given.set("threads", int64_t{threads}).request) ==
          "error[E0701]: " + (folder / "a.jsonl") +
              ":4101: \"text\" is a number, and not a string");
  }
  CHECK(fs::is_empty(folder / "cache"));  // no lock either
}

TEST_CASE("a named cache that cannot be written to is an error with its key") {
  const jsonl_test::TemporaryFolder folder;
  jsonl_test::write(folder / "a.jsonl", "{\"text\": \"ab\"}\n");
  const Error error = jsonl_test::thrown([&] {
    JsonlKind().open(Given(folder / "a.jsonl", (folder / "a.jsonl") + "/cache").request);
  });
  CHECK(error.code() == ErrorCode::output_unwritable);
  CHECK(error.key() == "dataset.jsonl.cache");
  CHECK(error.helps() ==
        std::vector<std::string>{"set dataset.jsonl.cache to a folder that may be written to, or "
                                 "to \"none\""});
}

TEST_CASE("several files, lines and lists") {
  const jsonl_test::TemporaryFolder folder;
  fs::create_directory(folder / "data");
  jsonl_test::write(folder / "data/a.jsonl", "{\"text\": \"ab\"}\n\n{\"text\": \"cd\"}");
  jsonl_test::write(folder / "data/b.json", "[{\"text\": \"ef\"}, {\"text\": \"gh\"}]");
  const auto source = JsonlKind().open(Given(folder / "data").request);
  CHECK(source->report()[0].starts_with("4 rows, 4 used"));
  // A row of another kind, in another file.
  jsonl_test::write(folder / "data/c.jsonl", "{\"prompt\": \"ab\", \"completion\": \"x\"}");
  CHECK(said(Given(folder / "data").request) ==
        "error[E0701]: " + (folder / "data/c.jsonl") +
            ":1: the row is of kind prompt_completion, but the rows of this data set are of kind "
            "text");
}

TEST_CASE("of a folder those files are taken that are of JSON by name, and the others told") {
  const jsonl_test::TemporaryFolder folder;
  fs::create_directories(folder / "data/more");
  jsonl_test::write(folder / "data/README.md", "# Rows");
  jsonl_test::write(folder / "data/more/a.txt", "{\"text\": \"ab\"}\n");
  const Given given(folder / "data");
  CHECK(said(given.request) == "error[E0701]: " + (folder / "data") +
                                   ": none of 2 files in it ends in .jsonl, .json or .parquet");
  jsonl_test::write(folder / "data/more/a.jsonl", "{\"text\": \"ab\"}\n");
  jsonl_test::write(folder / "data/b.json", "[{\"text\": \"ab\"}]");
  // What others keep there of it is none of it.
  fs::create_directories(folder / "data/.ipynb_checkpoints");
  jsonl_test::write(folder / "data/.ipynb_checkpoints/a-checkpoint.jsonl", "{\"text\": \"ab\"}\n");
  jsonl_test::write(folder / "data/._b.json", "not JSON");
  const auto source = JsonlKind().open(given.request);
  REQUIRE(source->report().size() == 3);
  CHECK(source->report()[0].starts_with("2 rows, 2 used"));
  CHECK(source->report()[2] ==
        "4 files left out, hidden or of other names than *.jsonl, *.json and *.parquet: " +
            (folder / "data/._b.json") + ", " +
            (folder / "data/.ipynb_checkpoints/a-checkpoint.jsonl") + ", " +
            (folder / "data/README.md") + ", ...");
  // A file or a pattern is taken at its word.
  CHECK(JsonlKind().open(Given(folder / "data/more/*").request)->report()[0].starts_with("2 rows"));
}

TEST_CASE("a row is shown whatever is wrong with the others") {
  const jsonl_test::TemporaryFolder folder;
  jsonl_test::write(folder / "a.jsonl",
                    "{\"text\": 3}\n\n{\"text\": \"ab\"}\nno JSON\n{\"messages\": []}\n");
  jsonl_test::write(folder / "b.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}");
  const JsonlKind kind;
  Given given(folder / "*.jsonl");
  CHECK(kind.rows(given.request) == 5);
  CHECK(kind.row(given.request, 1).place == (folder / "a.jsonl") + ":3");
  CHECK(kind.row(given.request, 1).text == "ab");
  const meshwright::DatasetRow last = kind.row(given.request, 4);
  CHECK(last.place == (folder / "b.jsonl") + ":1");
  REQUIRE(last.tokens.size() == 3);
  CHECK_FALSE(last.tokens[0].target);
  CHECK(last.tokens[1].target);
  auto error_of = [&](int64_t row) -> std::string {
    return jsonl_test::thrown([&] { kind.row(given.request, row); }).what();
  };
  CHECK(error_of(0) ==
        "error[E0701]: " + (folder / "a.jsonl") + ":1: \"text\" is a number, and not a string");
  CHECK(error_of(2).starts_with("error[E0701]: " + (folder / "a.jsonl") + ":4"));
  CHECK(error_of(5).ends_with("has rows 0 to 4"));
  CHECK(error_of(-1).find("there is no row -1") != std::string::npos);
  // The format that is asked for holds for every row.
  given.set("format", std::string("text"));
  CHECK(error_of(4).find("of kind prompt_completion") != std::string::npos);
  jsonl_test::write(folder / "empty.jsonl", "\n");
  given.request.path = folder / "empty.jsonl";
  CHECK(error_of(0) == "error[E0701]: " + (folder / "empty.jsonl") + " has no rows");
}

TEST_CASE("what is wrong with a request") {
  const jsonl_test::TemporaryFolder folder;
  jsonl_test::write(folder / "a.jsonl", "{\"text\": \"ab\"}\n");
  jsonl_test::write(folder / "empty.jsonl", "\n\n");
  jsonl_test::write(folder / "rows.parquet", "PAR1");
  const std::string row = folder / "a.jsonl";
  CHECK(said(Given(row).request) == "nothing");
  CHECK(said(Given("").request).starts_with("error[E0206]: dataset.path is needed"));
  CHECK(said(Given(folder / "nowhere.jsonl").request).starts_with("error[E0701]: "));
  CHECK(said(Given(folder / "empty.jsonl").request) ==
        "error[E0701]: " + (folder / "empty.jsonl") + " has no rows");
  const std::string parquet = said(Given(folder / "rows.parquet").request),
                    begins = "error[E0701]: " + (folder / "rows.parquet") + ": ";
  if (fs::exists(meshwright::beside_sdk("libmeshwright_parquet.so")))
    CHECK(parquet.starts_with(begins + "its Parquet data is damaged ("));
  else
    CHECK(parquet.starts_with(begins + "the file is Parquet, and the part that reads it is not"));
  CHECK(said(Given(row).set("tokenizer", folder.string()).request) ==
        "error[E0706]: dataset.jsonl.tokenizer: " + folder.string() +
            " has no tokenizer.json, tokenizer.model or tekken.json");
  Given none(row);
  none.request.options =
      meshwright::Options(meshwright::make_schema("dataset.jsonl", "jsonl", kOptions));
  CHECK(said(none.request) ==
        "error[E0706]: dataset.jsonl.tokenizer: there is no tokenizer, since the model has no "
        "folder with one");
  // As of dataset show, which asks for a row without any check before.
  const Error shown = jsonl_test::thrown([&] { JsonlKind().row(none.request, 0); });
  CHECK(shown.what() == said(none.request));
  CHECK(shown.helps().at(0) == "set dataset.jsonl.tokenizer to a folder with tokenizer.json");
  for (const char* date : {"2024-7-26", "2024-02-30", "2023-02-29", "26.07.2024", "2024-13-01", ""})
    CHECK(said(Given(row).set("date", std::string(date)).request) ==
          "error[E0205]: dataset.jsonl.date: \"" + std::string(date) + "\" is no date");
  CHECK(said(Given(row).set("date", std::string("2024-02-29")).request) == "nothing");
  CHECK(said(Given(row).set("chat_template", std::string("nobody")).request)
            .starts_with("error[E0710]: "));
}

TEST_CASE("what is saved beside the model: the files that options name, and no others") {
  JsonlKind kind;
  auto* language =
      static_cast<meshwright::DatasetLanguage*>(kind.extension(meshwright::kDatasetLanguage));
  REQUIRE(language != nullptr);
  Given given(kChats);
  given.set("chat_template", std::string("chatml"));
  std::map<std::string, meshwright::LanguageFile> files;
  for (const meshwright::LanguageFile& file : language->language(given.request))
    CHECK(files.emplace(file.name, file).second);
  REQUIRE(files.contains("chat_template.jinja"));
  CHECK(files.at("chat_template.jinja").path.empty());
  CHECK(files.at("chat_template.jinja").text == meshwright::chat::chatml());
  REQUIRE(files.contains("tokenizer.json"));
  CHECK(fs::equivalent(files.at("tokenizer.json").path,
                       std::string(jsonl_test::kTokenizer) + "/tokenizer.json"));
  Given plain(kChats);
  plain.request.pretrained = jsonl_test::kTokenizer;
  plain.request.options =
      meshwright::Options(meshwright::make_schema("dataset.jsonl", "jsonl", kOptions));
  CHECK(language->language(plain.request).empty());
}

}  // namespace kind_test
