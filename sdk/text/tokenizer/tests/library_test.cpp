// What the tokenizers library (0.23.3) gives where other libraries give something else: files made
// of a GGUF, words in Oniguruma's sense, composition by old tables. And what is younger than the
// tables here.
#include <doctest/doctest.h>

#include <boost/json/serialize.hpp>
#include <string>
#include <vector>

#include "made.h"
#include "sdk/text/tokenizer/normalize.h"
#include "sdk/text/tokenizer/pattern.h"
#include "sdk/text/tokenizer/unicode_forms.h"

namespace library_test {

using namespace meshwright::tokenizer;
namespace json = boost::json;
using Ids = std::vector<int64_t>;

std::string in_nfc(std::string_view text) { return in_form(text, Form::nfc); }

// As transformers writes it of a GGUF whose vocabulary lacks the bytes 0x0b and 0xc3. `more`:
// tokens of the vocabulary.
json::object of_gguf(const std::vector<std::string>& more = {}) {
  json::object file = made::smallest();
  json::object& model = file["model"].as_object();
  json::object& vocab = model["vocab"].as_object();
  vocab.erase(std::string(letter_of(0x0b)));
  vocab.erase(std::string(letter_of(0xc3)));
  vocab["<|end|>"] = 257;
  for (const std::string& token : more) vocab[token] = vocab.size() + 2;
  model["unk_token"] = "<|end|>";
  model["fuse_unk"] = true;
  model["byte_fallback"] = true;
  file["added_tokens"] = {{{"id", 257},
                           {"content", "<|end|>"},
                           {"single_word", false},
                           {"lstrip", false},
                           {"rstrip", false},
                           {"normalized", false},
                           {"special", true}}};
  file["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "ByteFallback"}},
                       {{"type", "Fuse"}},
                       {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                       {{"type", "ByteLevel"}, {"use_regex", true}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  return file;
}

TEST_CASE("a file of a GGUF: falling back to bytes that are not there, decoders without effect") {
  const Tokenizer tokenizer = made::from(of_gguf());
  struct Case {
    std::string text;
    Ids ids;
    std::string decoded, plain;
  };
  for (const Case& one : {Case{"abc", {256, 99}, "abc", "abc"},
                          Case{"\u00e9\u00e9 a",
                               {257, 169, 257, 169, 32, 97},
                               "<|end|>\uFFFD<|end|>\uFFFD a",
                               "\uFFFD\uFFFD a"},
                          Case{"a\v\u00e9"
                               "b",
                               {97, 257, 257, 169, 98},
                               "a<|end|><|end|>\uFFFDb",
                               "a\uFFFDb"},
                          Case{"  ab", {32, 32, 256}, " ab", " ab"}}) {
    CAPTURE(one.text);
    CHECK(tokenizer.encode(one.text) == one.ids);
    CHECK(tokenizer.decode(one.ids) == one.decoded);
    CHECK(tokenizer.decode(one.ids, true) == one.plain);
  }
  CHECK(tokenizer.decode(Ids{32}) == "");
  CHECK(tokenizer.decode(Ids{32, 32}) == " ");
  CHECK(tokenizer.decode(Ids{257, 32, 97}) == "<|end|> a");
  CHECK(tokenizer.decode(Ids{257, 32, 97}, true) == "a");
  CHECK(tokenizer.decode(Ids{97, 32, 257, 32}, true) == "a  ");
  // Half of the bytes of a letter are none.
  json::object half = of_gguf({"<0xC4>"});
  half["decoder"] = {{"type", "ByteLevel"}};
  CHECK(made::from(half).encode("a\vb") == Ids{97, 257, 98});
}

TEST_CASE("falling back to bytes, and decoders of every kind") {
  json::object file = of_gguf({"<0xC4>", "<0x8B>"});
  const int64_t first = *made::from(file).id_of("<0xC4>"),
                second = *made::from(file).id_of("<0x8B>");
  CHECK(made::from(file).encode("a\v") == Ids{97, first, second});
  auto decoded = [&](const json::value& decoder, const Ids& ids) {
    file["decoder"] = decoder;
    return made::from(file).decode(ids);
  };
  CHECK(decoded(nullptr, {256, 99}) == "ab c");
  CHECK(decoded({{"type", "Fuse"}}, {256, 99}) == "abc");
  CHECK(decoded({{"type", "ByteFallback"}}, {first, second, 97}) == "\u010ba");
  CHECK(decoded({{"type", "ByteFallback"}}, {first, 97}) == "\uFFFDa");
  CHECK(decoded({{"type", "BPEDecoder"}, {"suffix", "b"}}, {256, 256}) == "a a");
  CHECK(decoded({{"type", "CTC"}, {"pad_token", "c"}}, {256, 256, 99, 256}) == "abab");
  CHECK(decoded({{"type", "WordPiece"}, {"prefix", "a"}}, {256, 256, 99, '.'}) == "abb c.");
  CHECK(decoded({{"type", "Metaspace"}, {"replacement", "b"}}, {98, 256, 98}) == "a  ");
  CHECK(decoded({{"type", "Strip"}, {"content", "a"}, {"start", 1}, {"stop", 1}}, {97, 256, 99}) ==
        "bc");
  CHECK(decoded({{"type", "Sequence"},
                 {"decoders",
                  {{{"type", "Fuse"}},
                   {{"type", "Replace"}, {"pattern", {{"String", "abab"}}}, {"content", "x"}}}}},
                {256, 97, 98, 256}) == "xab");
}

TEST_CASE("what begins a text for Metaspace: behind white space that Strip took, nothing does") {
  const json::object first = {{"type", "Metaspace"},
                              {"replacement", "\u2581"},
                              {"prepend_scheme", "first"},
                              {"split", false}};
  auto same = [&](const std::string& style, const json::object& normalizer, const std::string& text,
                  const std::vector<std::string>& tokens) {
    CAPTURE(text);
    json::object file = made::json_of(style);
    if (!normalizer.empty()) file["normalizer"] = normalizer;
    file["pre_tokenizer"] = first;
    const Tokenizer tokenizer = made::from(file);
    Ids ids;
    for (const std::string& token : tokens) ids.push_back(*tokenizer.id_of(token));
    CHECK(tokenizer.encode(text, false) == ids);
  };
  const json::object strip = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  same("mistral", strip, "the ", {"\u2581the"});
  same("mistral", strip, "  the", {"t", "he"});
  same("t5", {}, "\uFEFFthe", {"\u2581the"});  // the character map takes the mark away
}

TEST_CASE("a stream gives what decode() gives, and soon where it can") {
  Tokenizer tokenizer = Tokenizer::load(made::kFolder + "llama2.json");
  TextStream stream(tokenizer);
  const Ids ids = tokenizer.encode("the \u00e9\U0001F600 ab", false);
  std::string text;
  size_t waits = 0;
  for (int64_t id : ids) {
    const std::string more = stream.add(id);
    waits += more.empty() ? 1 : 0;
    text += more;
  }
  CHECK(text + stream.finish() == "the \u00e9\U0001F600 ab");
  CHECK(waits <= 6);  // for the bytes of the characters that have no token
}

TEST_CASE(
    "where nothing of a vocabulary spans two characters, pieces are cut there, not elsewhere") {
  // "b a" merges over the space, so that a text of it stays whole.
  json::object file = made::json_of("gemma");
  CHECK(made::from(file).cuts().at_spaces);
  json::object& model = file["model"].as_object();
  const auto next = static_cast<int64_t>(model["vocab"].as_object().size());
  model["vocab"].as_object()["e\u2581"] = next + 10;
  model["merges"].as_array().push_back(json::array{"e", "\u2581"});
  file["added_tokens"] = json::array();
  file["post_processor"] = nullptr;
  const Tokenizer spans = made::from(file);
  CHECK_FALSE(spans.cuts().at_spaces);
  CHECK(spans.encode("qe qe").size() >= 3);
}

TEST_CASE("words and their edges count six numbers of Latin-1, classes do not") {
  PatternScratch scratch;
  auto found = [&](const char* pattern, const std::string& text, size_t at) {
    return Pattern(pattern).matches_at(text, at, scratch);
  };
  for (int32_t code = 0x80; code < 0x250; ++code) {
    CAPTURE(code);
    std::string one;
    append_utf8(one, code);
    const bool number =
                   code == 0xb2 || code == 0xb3 || code == 0xb9 || (code >= 0xbc && code <= 0xbe),
               letter = code == 0xaa || code == 0xb5 || code == 0xba ||
                        (code >= 0xc0 && code != 0xd7 && code != 0xf7);
    CHECK(found(R"(\w)", one, 0) == (letter || number));
    CHECK(found(R"(\W)", one, 0) == !(letter || number));
    CHECK(found(R"([\w])", one, 0) == letter);
    CHECK(found(R"(a\b)", "a" + one, 0) == !(letter || number));
    CHECK(found(R"(\b)", "." + one, 1) == (letter || number));
    CHECK(found(R"(\B)", "a" + one, 1) == (letter || number));
  }
}

TEST_CASE("characters combine and compose as in the library, which knows those of Unicode 9") {
  // Of 10, 11, 12, 13, 14 and 15 these are marks: here they stand for themselves.
  for (const char* mark : {"\u1df6", "\u09fe", "\u0eba", "\u1ac0", "\u1715", "\U0001e4ec"}) {
    const std::string before = std::string("q\u0301") + mark, behind = std::string("e") + mark;
    CAPTURE(mark);
    CHECK(in_nfc(before) == before);
    CHECK(in_nfc(before + "\u0323") == before + "\u0323");
    CHECK(in_nfc(behind + "\u0301") == behind + "\u0301");
    CHECK(in_nfc(std::string("e\u0301") + mark) == std::string("\u00e9") + mark);
  }
  CHECK(in_nfc("\U00011935\U00011930") == "\U00011935\U00011930");
  CHECK(in_nfc("q\u0323\u0307") == "q\u0323\u0307");
  CHECK(in_nfc("q\u0307\u0323") == "q\u0323\u0307");
  CHECK(in_nfc("\u0c46\u0c56") == "\u0c48");
}

TEST_CASE("characters that are younger than the tables here are counted") {
  CHECK(young_characters("abc \u00e9\u4e2d\u6587\ud55c\u3042\U0001f642\u2028") == 0);
  CHECK(young_characters("\ue000\U000f0000\ufffe\ufdd0\U0010ffff") == 0);  // nor ever will be
  CHECK(young_characters("a\u2fe0b\u2fe1") == 2);
  CHECK(tell_young(2).starts_with("2 characters are younger than Unicode "));
}

}  // namespace library_test
