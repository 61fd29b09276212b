// What the tokenizers library (0.23.3) gives where other libraries give something else: files made
// of a GGUF, words in Oniguruma's sense, composition by old tables. And what is younger than the
// tables here.
#include <doctest/doctest.h>

#include <boost/json/serialize.hpp>
#include <string>
#include <vector>

#include "made.h"
#include "meshwright/error.h"
#include "sdk/text/tokenizer/normalize.h"
#include "sdk/text/tokenizer/pattern.h"

namespace library_test {

using namespace meshwright;
using namespace meshwright::tokenizer;
namespace json = boost::json;
using Ids = std::vector<int64_t>;

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

std::string refusal(const json::object& file) {
  try {
    made::from(file);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
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

TEST_CASE("what a decoder or falling back would change is refused") {
  json::object all_bytes = of_gguf({"<0xC4>", "<0x8B>"});
  CHECK(refusal(all_bytes).find("model.byte_fallback is true") != std::string::npos);
  all_bytes["model"].as_object()["byte_fallback"] = false;
  CHECK(
      refusal(all_bytes).find("decoder.decoders[0] is of the kind \"ByteFallback\", which changes "
                              "the text of \"<0xC4>\"") != std::string::npos);
  CHECK(refusal(of_gguf({"\u4e2d"})).find("decoder.decoders[1] is of the kind \"Fuse\", which") !=
        std::string::npos);
  auto with = [](size_t place, const json::value& decoder) {
    json::object file = of_gguf();
    file["decoder"].at("decoders").as_array().at(place) = decoder;
    return refusal(file);
  };
  CHECK(with(2, {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", " "}})
            .find("which changes the text of \"a\"") != std::string::npos);
  CHECK(with(2, {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", " "}})
            .find("pattern must hold String") != std::string::npos);
  CHECK(with(4, {{"type", "Strip"}, {"content", "a"}, {"start", 1}, {"stop", 0}})
            .find("is of the kind \"Strip\"; those read here are ByteLevel") != std::string::npos);
  CHECK(with(4, {{"type", "Strip"}, {"content", " "}, {"start", 0}, {"stop", 1}})
            .find("stop is not 0") != std::string::npos);
  CHECK(with(4, {{"type", "Fuse"}}).find("those read here") != std::string::npos);
  // What helps is not what made the file.
  try {
    made::from(all_bytes);
  } catch (const Error& error) {
    CHECK(error.helps().at(0).find("that the model was published with") != std::string::npos);
  }
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
    CHECK(compose(before) == before);
    CHECK(compose(before + "\u0323") == before + "\u0323");
    CHECK(compose(behind + "\u0301") == behind + "\u0301");
    CHECK(compose(std::string("e\u0301") + mark) == std::string("\u00e9") + mark);
  }
  CHECK(compose("\U00011935\U00011930") == "\U00011935\U00011930");
  CHECK(compose("q\u0323\u0307") == "q\u0323\u0307");
  CHECK(compose("q\u0307\u0323") == "q\u0323\u0307");
  CHECK(compose("\u0c46\u0c56") == "\u0c48");
}

TEST_CASE("characters that are younger than the tables here are counted") {
  CHECK(young_characters("abc \u00e9\u4e2d\u6587\ud55c\u3042\U0001f642\u2028") == 0);
  CHECK(young_characters("\ue000\U000f0000\ufffe\ufdd0\U0010ffff") == 0);  // nor ever will be
  CHECK(young_characters("a\u2fe0b\u2fe1") == 2);
  CHECK(tell_young(2).starts_with("2 characters are younger than Unicode "));
}

}  // namespace library_test
