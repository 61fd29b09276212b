// Long texts in parts, by several threads: always the ids of the whole.
#include <doctest/doctest.h>
#include <unistd.h>

#include <boost/json/object.hpp>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "meshwright/error.h"
#include "sdk/base/beside.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/unpack/tests/packed.h"
#include "sdk/text/corpus/corpus.h"
#include "sdk/text/tokenizer/divide.h"
#include "sdk/text/tokenizer/pre_tokenizers.h"
#include "sdk/text/tokenizer/tests/made.h"

namespace json = boost::json;
namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::tokenizer;

namespace {

using made::random_text;

json::value bytes_step(bool regex, bool prefix = false) {
  return json::object{{"type", "ByteLevel"},
                      {"add_prefix_space", prefix},
                      {"trim_offsets", true},
                      {"use_regex", regex}};
}
json::value split_step(std::string_view pattern, const char* behavior = "Isolated",
                       bool invert = false) {
  return json::object{{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", behavior},
                      {"invert", invert}};
}

// Qwen2's vocabulary with other steps, and with one more added token.
Tokenizer with(const json::array& steps, bool composes = true, const json::object& token = {}) {
  static const json::object base = made::json_of("qwen2");
  json::object all = base;
  all["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  if (!composes) all["normalizer"] = nullptr;
  if (!token.empty()) made::add(all, "", token);
  return made::from(all);
}

// Cuts at every place that is allowed, and compares. Returns how many there were.
size_t compare_parts(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int64_t> whole = tokenizer.encode(text, false), parts;
  size_t cuts = 0;
  for (size_t begin = 0; begin < text.size(); ++cuts) {
    size_t end = cut_near(text, begin, begin + 1, tokenizer.cuts());
    REQUIRE(end > begin);
    const std::string_view part = std::string_view(text).substr(begin, end - begin);
    std::vector<int64_t> ids =
        begin == 0 ? tokenizer.encode(part, false) : tokenizer.encode_rest(part);
    parts.insert(parts.end(), ids.begin(), ids.end());
    begin = end;
  }
  CHECK_MESSAGE(parts == whole, json::serialize(json::string(text)));
  return cuts;
}

struct Folder {
  fs::path path = fs::temp_directory_path() / ("meshwright_corpus_" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  std::string put(const std::string& name, const std::string& text) const {
    std::ofstream(path / name, std::ios::binary) << text;
    return (path / name).string();
  }
};

std::vector<int64_t> all_of(const Tokenizer& tokenizer, const std::vector<std::string>& files,
                            const CorpusOptions& options, CorpusCounts* counts = nullptr) {
  std::vector<int64_t> out;
  CorpusCounts found = encode_files(tokenizer, files, options, [&](auto ids, int64_t) {
    out.insert(out.end(), ids.begin(), ids.end());
  });
  CHECK(found.tokens == static_cast<int64_t>(out.size()));
  if (counts != nullptr) *counts = found;
  return out;
}

}  // namespace

TEST_CASE("parts of a text give the ids of the whole, for every pattern that may be cut") {
  std::mt19937 random(7);
  std::vector<json::array> kinds = {
      {bytes_step(true)},
      {json::object{{"type", "Digits"}, {"individual_digits", true}}, bytes_step(true)},
      {json::object{{"type", "Digits"}, {"individual_digits", false}}, bytes_step(true)},
      {bytes_step(true, true)},
      {split_step("\\p{N}{1,3}"), split_step("[一-龥぀-ゟ゠-ヿ]+"),
       split_step(separating_patterns().back()), bytes_step(false)}};
  for (std::string_view pattern : separating_patterns()) {
    kinds.push_back({split_step(pattern), bytes_step(false)});
    kinds.push_back({split_step(pattern, "Removed", true), bytes_step(false)});
  }
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    CAPTURE(kind);
    for (bool composes : {true, false}) {
      Tokenizer tokenizer = with(kinds[kind], composes);
      REQUIRE(tokenizer.cuts().any());
      size_t cuts = 0;
      for (int i = 0; i < 150; ++i)
        cuts += compare_parts(tokenizer, random_text(random, 5 + random() % 60));
      CHECK(cuts > 300);
    }
  }
}

TEST_CASE("parts of a text give the ids of the whole, for every kind of tokenizer") {
  std::mt19937 random(19);
  auto meta = [](const char* scheme, bool split) {
    return json::object{{"type", "Metaspace"},
                        {"replacement", "\u2581"},
                        {"prepend_scheme", scheme},
                        {"split", split}};
  };
  std::vector<std::pair<std::string, json::object>> kinds;
  for (const std::string& style : made::kStyles) kinds.emplace_back(style, made::json_of(style));
  for (const char* scheme : {"always", "first", "never"})
    for (bool split : {true, false}) {
      json::object file = made::json_of("mistral");
      file["pre_tokenizer"] = meta(scheme, split);
      kinds.emplace_back(std::string("mistral ") + scheme + (split ? " split" : ""), file);
      file["pre_tokenizer"] = {
          {"type", "Sequence"},
          {"pretokenizers", {{{"type", "WhitespaceSplit"}}, meta(scheme, split)}}};
      kinds.emplace_back(std::string("words and ") + scheme + (split ? " split" : ""), file);
    }
  for (const char* type : {"Whitespace", "WhitespaceSplit", "BertPreTokenizer"}) {
    json::object file = made::json_of("bert");
    file["pre_tokenizer"] = {{"type", type}};
    kinds.emplace_back(type, file);
  }
  for (const auto& [name, file] : kinds) {
    CAPTURE(name);
    const Tokenizer tokenizer = made::from(file);
    CHECK(tokenizer.cuts().any());
    for (int i = 0; i < 200; ++i) compare_parts(tokenizer, random_text(random, 5 + random() % 60));
  }
}

TEST_CASE(
    "a pattern that is not known, or a token that could lie across a cut, keeps a text whole") {
  for (const json::array& steps :
       {json::array{split_step("\\w+ \\w+"), bytes_step(false)},
        json::array{split_step(separating_patterns()[2], "MergedWithNext"), bytes_step(false)},
        json::array{split_step(separating_patterns()[2], "Isolated", true), bytes_step(false)},
        json::array{bytes_step(false)}, json::array{split_step("\\p{N}"), bytes_step(false)}})
    CHECK_FALSE(with(steps).cuts().any());
  struct Row {
    json::object token;
    bool spaces, lines;
  };
  std::mt19937 random(11);
  for (const Row& row : {Row{{{"content", "the a"}}, false, true},
                         {{{"content", "x\nthe"}}, true, false},
                         {{{"content", "\n\n"}}, true, true},
                         {{{"content", "   "}}, true, true},
                         {{{"content", "the"}, {"rstrip", true}}, false, true},
                         {{{"content", "the"}, {"lstrip", true}}, true, false},
                         {{{"content", "the"}, {"single_word", true}}, true, true},
                         {{{"content", " a"}, {"single_word", true}}, false, true},
                         {{{"content", "!."}, {"rstrip", true}}, true, true},
                         {{{"content", "世"}, {"lstrip", true}, {"rstrip", true}}, false, false}}) {
    CAPTURE(json::serialize(row.token));
    Tokenizer tokenizer = with({bytes_step(true)}, false, row.token);
    CHECK(tokenizer.cuts().at_spaces == row.spaces);
    CHECK(tokenizer.cuts().at_lines == row.lines);
    for (int i = 0; i < 300; ++i) compare_parts(tokenizer, random_text(random, 40));
  }
}

TEST_CASE(
    "files give the ids of the reference library, whatever the threads and the size of a piece") {
  Folder folder;
  for (std::string style : {"gpt2", "llama3", "qwen2"}) {
    CAPTURE(style);
    Tokenizer tokenizer = Tokenizer::load(made::kFolder + style + ".json");
    json::value golden = json::parse(made::file_of(style + ".golden.json"));
    std::vector<std::string> files;
    std::vector<int64_t> expected;
    for (const json::value& row : golden.at("texts").as_array()) {
      std::string text(row.at("text").as_string());
      if (text.empty()) continue;
      files.push_back(folder.put(style + std::to_string(files.size()), text));
      for (const json::value& id : row.at("ids").as_array()) expected.push_back(id.as_int64());
      expected.push_back(7);
    }
    std::vector<std::string> packed;
    for (const std::string& file : files)
      packed.push_back(folder.put("packed_" + fs::path(file).filename().string() + ".gz",
                                  packed_files::gzip(base::read_file(file))));
    CHECK(tokenizer.cuts().at_spaces);
    for (int threads : {1, 3})
      for (size_t piece : {size_t{1}, size_t{16}, size_t{1} << 20})
        for (const auto* some : {&files, &packed}) {
          CorpusCounts counts;
          CorpusOptions options{.document_end = 7, .threads = threads, .piece = piece};
          CHECK(all_of(tokenizer, *some, options, &counts) == expected);
          CHECK(counts.documents == static_cast<int64_t>(files.size()));
        }
  }
}

TEST_CASE("lines and rows of JSON are documents of their own") {
  Folder folder;
  Tokenizer tokenizer = Tokenizer::load(made::kFolder + "llama3.json");
  std::string lines, rows;
  std::vector<int64_t> expected, bare;
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    std::string text = random_text(random, 1 + random() % 20);
    std::erase_if(text, [](char c) { return c == '\n' || c == '\r'; });
    if (text.find_first_not_of(" \t") == std::string::npos) text = "a";
    lines += text + (i % 3 == 0 ? "\r\n" : "\n") + (i % 7 == 0 ? " \n\n" : "");
    rows += json::serialize(json::object{{"id", i}, {"content", text}}) + "\n";
    std::vector<int64_t> ids = tokenizer.encode(text), without = tokenizer.encode(text, false);
    expected.insert(expected.end(), ids.begin(), ids.end());
    expected.push_back(5);
    bare.insert(bare.end(), without.begin(), without.end());
  }
  std::string text_file = folder.put("lines.txt", lines),
              json_file = folder.put("rows.jsonl", rows),
              packed = folder.put("rows.jsonl.zst", packed_files::zstd(rows));
  for (int threads : {1, 4})
    for (size_t piece : {size_t{1}, size_t{100}, size_t{1} << 20}) {
      CorpusOptions options{
          .documents = Documents::lines, .document_end = 5, .threads = threads, .piece = piece};
      CorpusCounts counts;
      CHECK(all_of(tokenizer, {text_file}, options, &counts) == expected);
      CHECK(counts.documents == 200);
      CHECK(counts.bytes == static_cast<int64_t>(lines.size()));
      options.documents = Documents::json_lines;
      options.text_key = "content";
      CHECK(all_of(tokenizer, {json_file}, options) == expected);
      CHECK(all_of(tokenizer, {packed}, options) == expected);
      options.special = false;
      options.document_end.reset();
      CHECK(all_of(tokenizer, {json_file}, options) == bare);
    }
}

TEST_CASE("Parquet is rows, whatever documents are, where there is what reads it") {
  const std::string data = MESHWRIGHT_SOURCE_DIR "/tests/data/parquet/";
  Tokenizer tokenizer = Tokenizer::load(made::kFolder + "llama3.json");
  CorpusOptions options{.documents = Documents::json_lines, .text_key = "content", .piece = 500};
  const std::vector<int64_t> expected = all_of(tokenizer, {data + "texts.jsonl"}, options);
  CHECK(expected.size() > 300);
  if (fs::exists(beside_sdk("libmeshwright_parquet.so"))) {
    try {
      all_of(tokenizer, {data + "types.parquet"}, {.piece = 500});
      FAIL("a row has no text");
    } catch (const Error& error) {
      CHECK(error.message() == data + "types.parquet: row 5 has no string \"text\"");
      REQUIRE(error.helps().size() == 1);
      CHECK(error.helps()[0].find("--documents") == std::string::npos);
    }
  }
  try {
    for (const Documents documents : {Documents::json_lines, Documents::files}) {
      if (!fs::exists(beside_sdk("libmeshwright_parquet.so"))) break;
      options.documents = documents;
      CHECK(all_of(tokenizer, {data + "texts_zstd.parquet"}, options) == expected);
    }
    options.text_key = "text";
    all_of(tokenizer, {data + "texts_zstd.parquet"}, options);
    FAIL("there is no such column");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_dataset);
    if (fs::exists(beside_sdk("libmeshwright_parquet.so")))
      CHECK(error.message().ends_with(
          ": there is no column \"text\", but these: id, content, image, tags"));
    else
      CHECK(error.helps().at(0).find("./quickstart --parquet") != std::string::npos);
  }
}

TEST_CASE(
    "what is no text is refused with its file and place, the first in the order of the files") {
  Folder folder;
  Tokenizer tokenizer = Tokenizer::load(made::kFolder + "gpt2.json");
  std::string good = folder.put("good.txt", std::string(5000, 'a') + " b"),
              bad = folder.put("bad.txt", std::string(3000, 'a') + " b\xff c"),
              worse = folder.put("worse.txt", "\xff"),
              rows = folder.put("rows.jsonl", "{\"text\": \"a\"}\n\n{\"text\": 3}\n"),
              broken = folder.put("broken.jsonl", "{\"text\": \"a\"}\n{\"text\": \n"),
              empty = folder.put("empty.txt", ""),
              packed = folder.put("rows.jsonl.gz",
                                  packed_files::gzip("{\"text\": \"a\"}\n\n{\"text\": 3}\n")),
              twice = folder.put("twice.txt.gz", packed_files::gzip(packed_files::gzip("a"))),
              within = folder.put("a.parquet.gz", packed_files::gzip("PAR1\x15\xFF"));
  struct Row {
    std::vector<std::string> files;
    Documents documents;
    std::string message;
  };
  for (const Row& row :
       {Row{{good, bad, worse}, Documents::files, bad + ": the text is not UTF-8 at byte 3002"},
        Row{{good, bad, worse}, Documents::lines, bad + ": the text is not UTF-8 at byte 3002"},
        Row{{rows}, Documents::json_lines, rows + ": line 3 has no string \"text\" at byte 15"},
        Row{{packed}, Documents::json_lines, packed + ": line 3 has no string \"text\" at byte 15"},
        Row{{twice}, Documents::files, twice + ": the file is packed, and what comes out is gzip"},
        Row{{within},
            Documents::json_lines,
            within + ": the file is packed, and what comes out is Parquet"},
        Row{{broken}, Documents::json_lines, broken + ": line 2 is not valid JSON"},
        Row{{good, empty}, Documents::files, empty},
        Row{{(folder.path / "nowhere").string()}, Documents::files, "nowhere"}})
    for (int threads : {1, 4})
      for (size_t piece : {size_t{64}, size_t{1} << 20}) {
        INFO(row.message);
        try {
          all_of(tokenizer, row.files,
                 {.documents = row.documents, .threads = threads, .piece = piece});
          FAIL("it was encoded");
        } catch (const Error& error) {
          INFO(error.what());
          CHECK(error.code() == ErrorCode::bad_dataset);
          CHECK(error.message().find(row.message) != std::string::npos);
        }
      }
  // What the caller throws comes back to it, with pieces under way.
  CHECK_THROWS_AS(encode_files(tokenizer, {good}, {.threads = 3, .piece = 64},
                               [](auto, int64_t) { throw std::runtime_error("full"); }),
                  std::runtime_error);
}
