// Files that are not what they should be: each is refused with its place named, and damage by the
// thousand crashes nothing.
#include <doctest/doctest.h>
#include <chrono>
#include <filesystem>

#include "made.h"
#include "meshwright/error.h"

namespace damage_test {

namespace json = boost::json;
namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::tokenizer;

namespace {

using made::smallest;

// Empty: it loaded.
std::string failure(const std::string& text) {
  try {
    Tokenizer::parse(text, "tokenizer.json");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_tokenizer);
    CHECK(!error.helps().empty());
    CHECK(error.message().starts_with("tokenizer.json: "));
    return error.message();
  }
  return "";
}

// "/model/vocab/ab"
void put(json::value& file, std::string_view pointer, const json::value& value) {
  json::value* at = &file;
  while (!pointer.empty()) {
    pointer.remove_prefix(1);
    std::string_view key = pointer.substr(0, pointer.find('/'));
    pointer.remove_prefix(key.size());
    at = &at->as_object()[json::string_view(key.data(), key.size())];
  }
  *at = value;
}

json::object token(int64_t id, const char* content) {
  return {{"id", id}, {"content", content}, {"special", true}};
}

json::value split(json::value pattern, const char* behavior = "Isolated") {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", std::move(pattern)},
             {"behavior", behavior},
             {"invert", false}},
            {{"type", "ByteLevel"}, {"use_regex", false}}}}};
}

}  // namespace

TEST_CASE(
    "the smallest file loads, and what a file may leave out or call otherwise does not matter") {
  CHECK(failure(json::serialize(smallest())).empty());
  for (const char* key : {"version", "added_tokens", "normalizer", "post_processor"}) {
    json::object file = smallest();
    file.erase(key);
    CHECK(failure(json::serialize(file)).empty());
  }
  json::object file = smallest();
  file["model"].as_object().erase("type");
  file["model"].as_object()["merges"] = json::array{json::array{"a", "b"}};
  file["model"].as_object()["end_of_word_suffix"] = "";
  file["model"].as_object()["byte_fallback"] = true;  // with all bytes there it changes nothing
  CHECK(failure(json::serialize(file)).empty());
  CHECK(made::from(file).notes().empty());
  // Told and not applied, as transformers' calls do not.
  file["truncation"] = {{"max_length", 2}};
  file["padding"] = {{"pad_id", 0}};
  const Tokenizer told = made::from(file);
  CHECK(told.encode("abc") == std::vector<int64_t>{256, 'c'});
  REQUIRE(told.notes().size() == 2);
  CHECK(told.notes()[0].find("cuts texts to 2 tokens") != std::string::npos);
  CHECK(told.notes()[1].find("padding") != std::string::npos);
}

TEST_CASE("other kinds and wrong fields are refused by name and place") {
  struct Case {
    const char* pointer;
    json::value value;
    const char* part;
  };
  const std::vector<Case> cases = {
      {"/model/type", "Sorted",
       "model is of the kind \"Sorted\"; those read here are BPE, Unigram"},
      {"/model/type", "Unigram", "model.vocab must be a list, not object"},
      {"/model", {{"type", "Unigram"}, {"vocab", json::array()}}, "model.vocab is empty"},
      {"/model", {{"type", "Unigram"}, {"vocab", {{"a", 1, 2}}}}, "model.vocab[0] is not a pair"},
      {"/model",
       {{"type", "Unigram"}, {"vocab", {json::array{"a", "b"}}}},
       "vocab[0][1] must be a"},
      {"/model",
       {{"type", "Unigram"}, {"vocab", {json::array{"a", -1.5}}}, {"unk_id", 1}},
       "model.unk_id is 1 of 1 tokens"},
      {"/model/type", 3, "model.type must be a string, not int64"},
      {"/model", 1, "model must be an object, not int64"},
      {"/version", "2.0", "version is \"2.0\""},
      {"/normalizer",
       {{"type", "Uppercase"}},
       "normalizer is of the kind \"Uppercase\"; those read here are Sequence, NFC, NFD"},
      {"/normalizer",
       {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "Strip"}}}}},
       "normalizer.normalizers[1].strip_left is missing"},
      {"/normalizer",
       {{"type", "Precompiled"}, {"precompiled_charsmap", "AAA"}},
       "precompiled_charsmap is not base64"},
      {"/normalizer",
       {{"type", "Precompiled"}, {"precompiled_charsmap", "AAECAwQF"}},
       "precompiled_charsmap has an array of 50462976 bytes in 2"},
      {"/pre_tokenizer", {{"type", "Sideways"}}, "pre_tokenizer is of the kind \"Sideways\""},
      {"/pre_tokenizer", {{"type", "Metaspace"}}, "pre_tokenizer.replacement is missing"},
      {"/pre_tokenizer",
       {{"type", "Metaspace"}, {"replacement", "__"}},
       "pre_tokenizer.replacement is \"__\"; it must be one character"},
      {"/pre_tokenizer",
       {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "often"}},
       "prepend_scheme is \"often\"; it must be always, first or never"},
      {"/pre_tokenizer", {{"type", "FixedLength"}, {"length", 0}}, "pre_tokenizer.length is 0"},
      {"/pre_tokenizer", split({{"Regex", "a"}}, "Sideways"),
       "pre_tokenizer.pretokenizers[0].behavior is \"Sideways\""},
      {"/pre_tokenizer", split({{"Other", "a"}}), "pattern must hold either Regex or String"},
      {"/pre_tokenizer", split({{"Regex", "(a"}}),
       "pre_tokenizer.pretokenizers[0].pattern.Regex \"(a\" cannot be compiled: missing closing "
       "parenthesis (at byte 2"},
      {"/pre_tokenizer", split({{"Regex", "[a[^b]]"}}), "has a negated class inside"},
      {"/pre_tokenizer", split({{"Regex", "(*ACCEPT)"}}), "uses (*...)"},
      {"/pre_tokenizer", split({{"Regex", "\\p{NoSuchScript}"}}),
       "cannot be compiled: unknown property"},
      {"/post_processor",
       {{"type", "BertProcessing"}},
       "post_processor.cls is missing; it must be a list"},
      {"/post_processor", {{"type", "Pairs"}}, "post_processor is of the kind \"Pairs\""},
      {"/post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}},
        {"special_tokens", json::object()}},
       "which special_tokens lacks"},
      {"/post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {{{"Sequence", {{"id", "B"}}}}}},
        {"special_tokens", json::object()}},
       "a single text is A"},
      {"/post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}},
        {"special_tokens", {{"<s>", {{"ids", {999}}}}}}},
       "puts in the id 999, which no token has"},
      {"/decoder", {{"type", "Sideways"}}, "decoder is of the kind \"Sideways\""},
      {"/decoder", {{"type", "Metaspace"}}, "decoder.replacement is missing"},
      {"/model/vocab", json::object(), "model.vocab is empty"},
      {"/model/vocab", {{"abc", 0}}, "model.merges[0] needs the token \"a\""},
      {"/model/vocab/ab", 5, "model.vocab gives"},
      {"/model/vocab/ab", -1, "model.vocab[\"ab\"] is -1"},
      {"/model/vocab/ab", 4294967296, "model.vocab[\"ab\"] is 4294967296"},
      {"/model/vocab/ab", 1.5, "a whole number"},
      {"/model/vocab/ab", "x", "model.vocab[\"ab\"] must be a whole number, not string"},
      {"/model/merges", 3, "model.merges must be a list, not int64"},
      {"/model/merges", json::array{"a b", "b zz"},
       "model.merges[1] needs the token \"zz\", which model.vocab lacks"},
      {"/model/merges", {"b a"}, "model.merges[0] needs the token \"ba\""},
      {"/model/merges", {"ab"}, "model.merges[0] is not two tokens"},
      {"/model/merges", {"a b c"}, "model.merges[0] is not two tokens"},
      {"/model/merges", {7}, "model.merges[0] is neither a string nor a pair"},
      {"/model/merges", json::array{json::array{"a", 1}}, "model.merges[0] is not a pair"},
      {"/model/dropout", 0.5, "model.dropout is not 0"},
      {"/model/continuing_subword_prefix", "##", "has \"b\", which is shorter than the prefix"},
      {"/model/fuse_unk", "yes", "model.fuse_unk must be true or false"},
      {"/added_tokens",
       {token(300, "<s>")},
       "added_tokens[0].id is 300, but \"<s>\" is 257, counted on"},
      {"/added_tokens",
       {token(257, "<s>"), token(257, "</s>")},
       "added_tokens[1].id is 257, but \"</s>\" is 258"},
      {"/added_tokens", {token(257, "<s>"), token(258, "<s>")}, "twice"},
      {"/added_tokens",
       {token(1, "ab")},
       "added_tokens[0].id is 1, but \"ab\" is 256 in model.vocab"},
      {"/added_tokens", {token(257, "")}, "added_tokens[0].content is empty"},
      {"/added_tokens", {3}, "added_tokens[0] must be an object"},
  };
  for (const Case& it : cases) {
    json::value file = smallest();
    put(file, it.pointer, it.value);
    std::string found = failure(json::serialize(file));
    INFO(std::string(it.part), "  <->  ", found);
    CHECK(found.find(it.part) != std::string::npos);
  }
}

TEST_CASE("text that is no JSON, keys that stand twice, a file that is not there") {
  CHECK(failure("").find("is not valid JSON") != std::string::npos);
  CHECK(failure("[]").find("the file must be an object") != std::string::npos);
  CHECK(failure(R"({"model": {"vocab": {"a": 1, "\u0061": 2}}})").find("lists \"a\" twice") !=
        std::string::npos);
  CHECK(failure(std::string(100000, '[')).find("not valid JSON") != std::string::npos);
  CHECK(failure("{\"model\": \"\xff\"}").find("not valid JSON") != std::string::npos);
  for (const fs::path& path : {fs::path("/nowhere/tokenizer.json"), fs::temp_directory_path()}) {
    try {
      Tokenizer::load(path);
      FAIL("loaded");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_tokenizer);
      CHECK(error.message().find(path.string()) != std::string::npos);
    }
  }
}

TEST_CASE("no pattern and no text hangs") {
  for (const char* pattern : {"(a*)*b", "(a|a)*b", "(?:(?=a*+).)*b", "(?:a*a*a*)*b", "(.*)*\\1b"}) {
    json::value file = smallest();
    file.as_object()["pre_tokenizer"] = split({{"Regex", pattern}});
    Tokenizer tokenizer = Tokenizer::parse(json::serialize(file), "tokenizer.json");
    auto started = std::chrono::steady_clock::now();
    try {
      tokenizer.encode(std::string(60000, 'a'));
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_tokenizer);
      CHECK(error.message().find("a pattern of normalizer or pre_tokenizer takes too") !=
            std::string::npos);
    }
    CAPTURE(pattern);
    CHECK(std::chrono::steady_clock::now() - started < std::chrono::seconds(60));
  }
}

TEST_CASE("a text that is not UTF-8 is an error that names the byte") {
  Tokenizer tokenizer = Tokenizer::parse(json::serialize(smallest()), "tokenizer.json");
  for (const auto& [text, at] : std::vector<std::pair<std::string, int>>{{"ab\xff", 2},
                                                                         {"\xC3", 0},
                                                                         {"a\xED\xA0\x80", 1},
                                                                         {"\xF4\x90\x80\x80", 0},
                                                                         {"\xC0\x80", 0}}) {
    try {
      tokenizer.encode(text);
      FAIL("encoded");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::usage);
      CHECK(error.message() == "the text is not UTF-8 at byte " + std::to_string(at));
    }
  }
}

TEST_CASE("thousands of damaged files load or are refused") {
  std::mt19937 random(5);
  int loaded = 0, refused = 0;
  for (const std::string& style : made::kStyles) {
    const std::string whole = made::file_of(style + ".json");
    // Most of the file is vocabulary; half of the hits go where the structure is.
    size_t model = whole.find("\"vocab\"");
    REQUIRE(model != std::string::npos);
    for (int i = 0; i < 250; ++i) {
      std::string text = whole;
      if (i % 7 == 0) {
        text.resize(random() % text.size());
      } else {
        for (unsigned flips = 1 + random() % 3; flips > 0; --flips) {
          size_t at = random() % (i % 2 == 0 ? model : text.size());
          text[at] = i % 3 == 0 ? "{}[]\",:0-e"[random() % 10]
                                : static_cast<char>(text[at] ^ (1 << random() % 8));
        }
      }
      if (failure(text).empty()) {
        ++loaded;
        if (i % 8 == 1) {
          try {
            Tokenizer tokenizer = Tokenizer::parse(text, "tokenizer.json");
            tokenizer.decode(tokenizer.encode("it's <|im_start|> e\u0301 12345  \n\n x"));
          } catch (const Error& error) {
            CHECK(error.code() == ErrorCode::bad_tokenizer);
          }
        }
      } else {
        ++refused;
      }
    }
  }
  MESSAGE(loaded, " loaded, ", refused, " refused");
  CHECK(refused > 300);
  CHECK(loaded > 100);
}

}  // namespace damage_test
