// encode_ranges(): the ids of encode(), and every byte of the text in its order. Long because each
// kind of tokenizer is written out.
#include <doctest/doctest.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "meshwright/error.h"
#include "sdk/text/tokenizer/normalize.h"
#include "sdk/text/tokenizer/tests/made.h"
#include "sdk/text/tokenizer/unicode_forms.h"

namespace json = boost::json;
using namespace meshwright;
using namespace meshwright::tokenizer;

namespace ranges_test {

using Ranges = std::vector<ByteRange>;

std::string quoted(std::string_view text) { return json::serialize(json::string(text)); }

// Nothing is left out and nothing goes back. Returns how many ids share bytes with the one before.
int64_t check_cover(const std::string& text, const Encoded& encoded) {
  INFO(quoted(text));
  REQUIRE(encoded.ranges.size() == encoded.ids.size());
  std::string rebuilt;
  int64_t shared = 0;
  size_t begin = 0;
  for (const ByteRange& range : encoded.ranges) {
    REQUIRE(range.begin <= range.end);
    REQUIRE(range.begin >= begin);
    REQUIRE(range.begin <= rebuilt.size());  // no gap
    REQUIRE(range.end >= rebuilt.size());
    REQUIRE(range.end <= text.size());
    shared += range.begin < rebuilt.size() ? 1 : 0;
    rebuilt += text.substr(rebuilt.size(), range.end - rebuilt.size());
    begin = range.begin;
  }
  CHECK(rebuilt == text);
  return shared;
}

// Each id stands for the bytes of its range, once composed where the tokenizer composes.
void check_bytes(const Tokenizer& tokenizer, const std::string& text, const Encoded& encoded,
                 bool composes) {
  INFO(quoted(text));
  for (size_t i = 0; i < encoded.ids.size(); ++i) {
    if (encoded.ids[i] >= 1200) continue;  // an added token: no letters of bytes
    std::string part = text.substr(encoded.ranges[i].begin,
                                   encoded.ranges[i].end - encoded.ranges[i].begin),
                bytes = from_letters(*tokenizer.token_of(encoded.ids[i])).value();
    bool whole = first_invalid(part) == part.size();
    if (composes && whole && !part.empty()) part = in_form(part, Form::nfc);
    INFO(i, ": ", part, " <-> ", bytes);
    // A changed character is not divided; where a piece of another one stands beside it the bytes
    // are no text that could be composed.
    if (!composes || whole) CHECK(part.find(bytes) != std::string::npos);
    if (!composes) CHECK(part.size() == bytes.size());
  }
}

Encoded plainly(const Tokenizer& tokenizer, const std::string& text, const Ranges& plain) {
  return tokenizer.encode_ranges(text, {.plain = plain});
}

// `style` with each special token spelled as no text has it, and so without them.
Tokenizer without_specials(json::object file) {
  for (json::value& token : file["added_tokens"].as_array())
    if (token.at("special").as_bool())
      token.at("content") = "\uE000" + std::to_string(token.at("id").as_int64());
  file["post_processor"] = nullptr;
  return made::from(file);
}

}  // namespace ranges_test

using namespace ranges_test;

TEST_CASE("ranges of the reference's texts cover them, and the ids are those of encode()") {
  for (std::string style : {"gpt2", "llama3", "qwen2"}) {
    CAPTURE(style);
    Tokenizer tokenizer = made::from(made::json_of(style));
    json::value golden = json::parse(made::file_of(style + ".golden.json"));
    int64_t shared = 0;
    for (const json::value& row : golden.at("texts").as_array()) {
      std::string text(row.at("text").as_string());
      for (bool special : {false, true}) {
        Encoded encoded = tokenizer.encode_ranges(text, {.special = special});
        CHECK(encoded.ids == tokenizer.encode(text, special));
        CHECK(encoded.kept_as_text == 0);
        shared += check_cover(text, encoded);
        if (!special) check_bytes(tokenizer, text, encoded, style == "qwen2");
      }
    }
    CHECK((shared > 0) == (style == "qwen2"));
  }
}

TEST_CASE("ranges of texts made by chance, by tokenizers of every sort") {
  std::vector<std::pair<std::string, json::object>> files;
  for (std::string style : {"gpt2", "llama3", "qwen2"})
    files.emplace_back(style, made::json_of(style));
  json::object digits = made::json_of("qwen2");
  digits["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "\\s+"}}}, {"behavior", "MergedWithNext"}},
        {{"type", "Digits"}, {"individual_digits", true}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}}}};
  files.emplace_back("steps", digits);
  json::object normalized = made::json_of("qwen2");
  made::add(normalized, "e\u0301", {{"special", true}, {"normalized", true}});
  made::add(normalized, "\u1112\u1161", {{"normalized", true}, {"single_word", true}});
  files.emplace_back("normalized", normalized);
  std::mt19937 random(11);
  for (const auto& [name, file] : files) {
    CAPTURE(name);
    Tokenizer tokenizer = made::from(file);
    for (size_t i = 0; i < 400; ++i) {
      std::string text = made::random_text(random, random() % 40);
      bool special = i % 2 == 0;
      Encoded encoded = tokenizer.encode_ranges(text, {.special = special});
      INFO(quoted(text));
      CHECK(encoded.ids == tokenizer.encode(text, special));
      int64_t shared = check_cover(text, encoded);
      if (!special) check_bytes(tokenizer, text, encoded, !file.at("normalizer").is_null());
      if (file.at("normalizer").is_null()) CHECK(shared == 0);
    }
  }
}

TEST_CASE(
    "ranges of every kind ascend, lie in the text, and those of the ids of a word are its own") {
  std::mt19937 random(17);
  for (const std::string& style : made::kStyles) {
    CAPTURE(style);
    Tokenizer tokenizer = made::from(made::json_of(style));
    for (size_t i = 0; i < 300; ++i) {
      const std::string text = made::random_text(random, random() % 40);
      INFO(quoted(text));
      const Encoded encoded = tokenizer.encode_ranges(text, {});
      CHECK(encoded.ids == tokenizer.encode(text, false));
      REQUIRE(encoded.ranges.size() == encoded.ids.size());
      ByteRange last;
      for (const ByteRange& range : encoded.ranges) {
        REQUIRE(range.begin < range.end);
        REQUIRE(range.begin >= last.begin);
        REQUIRE(range.end >= last.end);
        REQUIRE(range.end <= text.size());
        last = range;
      }
    }
  }
  // A sign put before the text, letters, and a character that falls back to its bytes.
  const Tokenizer llama = made::from(made::json_of("llama2"));
  const std::string grin = "\u4e16\U0001F600";
  Encoded encoded = llama.encode_ranges("the " + grin, {});
  CHECK(encoded.ranges.front() == ByteRange{0, 3});
  CHECK(encoded.ranges.back() == ByteRange{10, 11});
  // Words lie apart, and a character that is taken away is in none.
  encoded = made::from(made::json_of("bert")).encode_ranges("The\u0001 the\u0301!", {});
  CHECK(encoded.ranges == Ranges{{0, 3}, {5, 8}, {10, 11}});
  // One character of which two become, of one id.
  encoded = made::from(made::json_of("t5")).encode_ranges("\ufb01", {});
  CHECK(encoded.ranges.back() == ByteRange{0, 3});
}

TEST_CASE("what stands in a plain part becomes no special token by any model") {
  // The text of a special token reaches the model where it is none until it is normalized.
  json::object file = made::json_of("t5");
  const Tokenizer tokenizer = made::from(file);
  const std::string wide = "\uff1cpad\uff1e";
  const int64_t pad = *tokenizer.id_of("<pad>");
  auto has = [&](const Encoded& encoded) {
    return std::find(encoded.ids.begin(), encoded.ids.end(), pad) != encoded.ids.end();
  };
  CHECK(has(tokenizer.encode_ranges("<pad>", {})));
  CHECK(has(tokenizer.encode_ranges(wide, {})));
  CHECK_FALSE(has(plainly(tokenizer, wide, {{0, wide.size()}})));
  CHECK_FALSE(has(plainly(tokenizer, "<pad>", {{0, 5}})));
}

TEST_CASE("a long piece has the ranges of a short one") {
  Tokenizer tokenizer = made::from(made::json_of("gpt2"));
  for (size_t letters : {40, 47, 48, 49, 50, 3000}) {
    std::string text;
    for (size_t i = 0; i < letters; ++i) text += static_cast<char>('a' + i * i % 7);
    Encoded encoded = tokenizer.encode_ranges(text, {});
    CHECK(encoded.ids == tokenizer.encode(text));
    CHECK(check_cover(text, encoded) == 0);
    check_bytes(tokenizer, text, encoded, false);
  }
}

TEST_CASE("a space put before a word stands for its first character, the template for nothing") {
  json::object file = made::smallest(true);
  Tokenizer prefixed = made::from(file);
  Encoded encoded = prefixed.encode_ranges("abc ab", {});
  CHECK(encoded.ids == std::vector<int64_t>{' ', 256, 'c', ' ', 256});
  CHECK(encoded.ranges == Ranges{{0, 1}, {0, 2}, {2, 3}, {3, 4}, {4, 6}});
  file["model"].at("vocab").as_object()[std::string(letter_of(' ')) + "ab"] = 257;
  file["model"].at("merges").as_array().push_back(
      json::string(std::string(letter_of(' ')) + " ab"));
  CHECK(made::from(file).encode_ranges("abc ab", {}).ranges == Ranges{{0, 2}, {2, 3}, {3, 6}});

  Tokenizer llama = made::from(made::json_of("llama3"));
  encoded = llama.encode_ranges("<|eot_id|>x", {.special = true});
  CHECK(encoded.ids == std::vector<int64_t>{1200, 1202, *llama.id_of("x")});
  CHECK(encoded.ranges == Ranges{{0, 0}, {0, 10}, {10, 11}});

  json::object around = made::smallest();
  around["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "a"}}}},
        {{"Sequence", {{"id", "A"}}}},
        {{"SpecialToken", {{"id", "b"}}}}}},
      {"special_tokens", {{"a", {{"ids", {1, 2}}}}, {"b", {{"ids", {3}}}}}}};
  CHECK(made::from(around).encode_ranges("xy", {.special = true}).ranges ==
        Ranges{{0, 0}, {0, 0}, {0, 1}, {1, 2}, {2, 2}});
  CHECK(made::from(around).encode_ranges("", {.special = true}).ranges ==
        Ranges{{0, 0}, {0, 0}, {0, 0}});
  CHECK(made::from(around).encode_ranges("xy", {}).ranges == Ranges{{0, 1}, {1, 2}});
}

TEST_CASE("bytes that the vocabulary lacks") {
  json::object file = made::smallest();
  json::object& model = file["model"].as_object();
  for (const char* letter : {"x", "y"}) model["vocab"].as_object().erase(letter);
  Tokenizer vanish = made::from(file);
  CHECK(vanish.encode_ranges("axby", {}).ranges == Ranges{{0, 4}});  // ab, with what vanished
  CHECK(vanish.encode_ranges("xc", {}).ranges == Ranges{{1, 2}});
  model["unk_token"] = "z";
  CHECK(made::from(file).encode_ranges("axyb", {}).ranges ==
        Ranges{{0, 1}, {1, 2}, {2, 3}, {3, 4}});
  model["fuse_unk"] = true;
  CHECK(made::from(file).encode_ranges("axyb", {}).ranges == Ranges{{0, 1}, {1, 3}, {3, 4}});
}

TEST_CASE("what composition changed is told apart no further, and all else to the byte") {
  Tokenizer tokenizer = made::from(made::json_of("qwen2"));
  struct Case {
    std::string text;
    Ranges changed;  // of characters
  };
  for (const Case& it :
       std::vector<Case>{{"caf\u00e9 x", {}},
                         {"cafe\u0301 x", {{3, 6}}},
                         {"e\u0301", {{0, 3}}},
                         {"\u1112\u1161\u11ab.", {{0, 9}}},
                         {"a\u0323\u0301b", {{0, 5}}},
                         {"\u0301e", {}},
                         {"<|im_end|>\u0301e\u0301", {{12, 15}}},
                         {"e<|im_end|>\u0301", {}},
                         {"\u212bx\u0958y", {{0, 3}, {4, 7}}},
                         {"e\u0301e\u0301<think>e\u0301", {{0, 3}, {3, 6}, {13, 16}}}}) {
    INFO(quoted(it.text));
    Encoded encoded = tokenizer.encode_ranges(it.text, {});
    CHECK(encoded.ids == tokenizer.encode(it.text));
    check_cover(it.text, encoded);
    for (const ByteRange& range : encoded.ranges)
      for (size_t place : {range.begin, range.end})
        for (const ByteRange& one : it.changed) CHECK(!(place > one.begin && place < one.end));
  }
  // Pieces of one character share its bytes.
  json::object file = made::smallest();
  file["normalizer"] = {{"type", "NFC"}};
  CHECK(made::from(file).encode_ranges("xe\u0301y", {}).ranges ==
        Ranges{{0, 1}, {1, 4}, {1, 4}, {4, 5}});
  CHECK(made::from(file).encode_ranges("x\u00e9y", {}).ranges ==
        Ranges{{0, 1}, {1, 2}, {2, 3}, {3, 4}});
}

TEST_CASE("composition reaches back over no character that starts anew") {
  int64_t looked = 0;
  for (utf8proc_int32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    utf8proc_int32_t parts[8];
    auto count = utf8proc_decompose_char(
        code, parts, 8, static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE),
        nullptr);
    CAPTURE(code);
    for (utf8proc_ssize_t i = 1; i < count; ++i) {
      if (starts_anew(parts[i], Form::nfc)) CHECK(parts[i] == -1);
      ++looked;
    }
    bool wrong = count > 0 && starts_anew(code, Form::nfc) &&
                 (!starts_anew(parts[0], Form::nfc) ||
                  utf8proc_get_property(parts[0])->combining_class != 0);
    if (wrong) CHECK(code == -1);
  }
  CHECK(looked > 10000);
  // And so texts may be composed between any two such places.
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    const Form form = std::array{Form::nfc, Form::nfd, Form::nfkc, Form::nfkd}.at(size_t(i) % 4);
    std::string text = made::random_text(random, 30), parts;
    size_t begin = 0;
    for (size_t at = 0; at < text.size(); at += character_at(text, at).bytes)
      if (starts_anew(character_at(text, at).code, form)) {
        parts += in_form(text.substr(begin, at - begin), form);
        begin = at;
      }
    INFO(quoted(text));
    CHECK(parts + in_form(text.substr(begin), form) == in_form(text, form));
  }
}

TEST_CASE("in a plain part no token is special, even if it lies there only partly") {
  Tokenizer tokenizer = made::from(made::json_of("qwen2"));
  Tokenizer bare = without_specials(made::json_of("qwen2"));
  const std::string token = "<|im_end|>", text = token + "a" + token;
  auto both = [&](const Ranges& plain) { return plainly(tokenizer, text, plain); };
  auto ids = [&](bool first, bool second) {
    std::vector<int64_t> out;
    if (!first && !second) return bare.encode(text);
    auto add = [&](const std::vector<int64_t>& more) {
      out.insert(out.end(), more.begin(), more.end());
    };
    if (first) add({1202});
    add(bare.encode((first ? "" : token) + "a" + (second ? "" : token)));
    if (second) add({1202});
    return out;
  };
  struct Case {
    Ranges plain;
    bool first, second;
  };
  for (const Case& it : std::vector<Case>{{{}, true, true},
                                          {{{0, 21}}, false, false},
                                          {{{10, 11}}, true, true},
                                          {{{9, 11}}, false, true},
                                          {{{10, 12}}, true, false},
                                          {{{9, 12}}, false, false},
                                          {{{0, 1}, {20, 21}}, false, false},
                                          {{{5, 6}}, false, true},
                                          {{{5, 5}, {11, 11}}, true, true},
                                          {{{10, 10}, {10, 11}, {11, 11}}, true, true},
                                          {{{5, 5}, {6, 7}, {21, 21}}, false, true}}) {
    Encoded encoded = both(it.plain);
    CHECK(encoded.ids == ids(it.first, it.second));
    CHECK(encoded.kept_as_text == (it.first ? 0 : 1) + (it.second ? 0 : 1));
    check_cover(text, encoded);
  }
  // Tokens that are not special are found; <pad> takes the spaces around it where it is found.
  Encoded encoded = plainly(tokenizer, "<think>  <pad> <pad>", {{0, 14}});
  CHECK(encoded.ids.front() == 1203);
  CHECK(encoded.ids[1] == 1207);
  CHECK(encoded.ids.back() == 1204);
  CHECK(encoded.ranges.back() == ByteRange{14, 20});
  CHECK(encoded.kept_as_text == 1);
}

TEST_CASE("where a token is text, the next best one is found") {
  json::object file = made::json_of("qwen2");
  made::add(file, "<|im_end|>\n\n", {{"special", true}});  // 1208
  made::add(file, "im_end", {{"special", true}});          // 1209
  made::add(file, "<|", {});                               // 1210
  made::add(file, "Wor|", {{"special", true}, {"single_word", true}});
  Tokenizer tokenizer = made::from(file);
  Tokenizer bare = without_specials(file);
  const std::string text = "<|im_end|>\n\nx";
  auto starts = [&](const Ranges& plain, int64_t first, int64_t kept) {
    Encoded encoded = plainly(tokenizer, text, plain);
    CHECK(encoded.ids.front() == first);
    CHECK(encoded.kept_as_text == kept);
    check_cover(text, encoded);
  };
  starts({}, 1208, 0);
  starts({{11, 12}}, 1202, 1);  // the shorter one of the same start
  starts({{9, 12}}, 1210, 1);   // then one that is not special, and behind it another one
  CHECK(plainly(tokenizer, text, {{9, 12}}).ids[1] == 1209);
  CHECK(plainly(tokenizer, text, {{9, 12}}).ranges[1] == ByteRange{2, 8});
  CHECK(plainly(tokenizer, text, {{7, 12}}).ids == bare.encode(text));
  CHECK(plainly(tokenizer, text, {{0, 13}}).ids == bare.encode(text));
  CHECK(plainly(tokenizer, text, {{0, 13}}).kept_as_text == 1);  // not what lies inside, too
  // One that stands in a word is none anyway.
  CHECK(plainly(tokenizer, "a Wor| b", {{0, 8}}).kept_as_text == 1);
  CHECK(plainly(tokenizer, "aWor| b", {{0, 7}}).kept_as_text == 0);
}

TEST_CASE("no merge makes a special token of plain text, whichever way it lies in the vocabulary") {
  // A special token of the vocabulary that merges lead to, and one that only a whole piece is.
  json::object file = made::smallest();
  json::object& model = file["model"].as_object();
  for (const auto& [token, id] :
       {std::pair("abc", 257), std::pair("cd", 258), std::pair("de", 259)})
    model["vocab"].as_object()[token] = id;
  model["merges"] = {"a b", "ab c", "d e"};
  for (const auto& [token, id] : {std::pair("ab", 256), std::pair("cd", 258)}) {
    made::add(file, token, {{"special", true}});
    file["added_tokens"].as_array().back().as_object()["id"] = id;
  }
  for (bool whole : {false, true}) {
    CAPTURE(whole);
    model["ignore_merges"] = whole;
    const Tokenizer tokenizer = made::from(file);
    auto ids = [&](const std::string& text, bool plain) {
      const Encoded encoded = plainly(tokenizer, text, plain ? Ranges{{0, text.size()}} : Ranges{});
      check_cover(text, encoded);
      if (plain) CHECK(encoded.kept_as_text == 1);
      return encoded.ids;
    };
    using Ids = std::vector<int64_t>;
    CHECK(ids("ab", true) == Ids{'a', 'b'});
    CHECK(ids("xabde", true) == Ids{'x', 'a', 'b', 259});
    CHECK(ids("cd", true) == Ids{'c', 'd'});
    CHECK(ids("cde", true) == Ids{'c', 259});
    // A longer token that is made of a special one is none of them; only a whole piece has it.
    CHECK(ids("abc", true) == (whole ? Ids{257} : Ids{'a', 'b', 'c'}));
    CHECK(ids("ab", false) == Ids{256});
    CHECK(ids("xabde", false) == Ids{'x', 256, 259});
    CHECK(ids("cd", false) == Ids{258});
  }
  // One that may stand in no word is not looked for there, and merges do not make it there either.
  file["added_tokens"].as_array()[0].as_object()["single_word"] = true;
  model["ignore_merges"] = false;
  CHECK(made::from(file).encode("xab") == std::vector<int64_t>{'x', 'a', 'b'});
}

TEST_CASE("a special token that is looked for in the composed text") {
  json::object file = made::json_of("qwen2");
  made::add(file, "[e\u0301]", {{"special", true}, {"normalized", true}});  // 1208
  Tokenizer tokenizer = made::from(file);
  for (std::string token : {"[e\u0301]", "[\u00e9]"}) {
    std::string text = "e\u0301e\u0301 " + token + " e\u0301";  // moved by two bytes, once composed
    CAPTURE(quoted(text));
    size_t end = 7 + token.size();
    auto found = [&](const Ranges& plain) {
      Encoded encoded = plainly(tokenizer, text, plain);
      check_cover(text, encoded);
      for (size_t i = 0; i < encoded.ids.size(); ++i)
        if (encoded.ids[i] == 1208) {
          CHECK(encoded.ranges[i] == ByteRange{7, end});
          CHECK(encoded.kept_as_text == 0);
          return true;
        }
      CHECK(encoded.kept_as_text == 1);
      return false;
    };
    CHECK(found({}));
    CHECK(found({{0, 7}, {end, text.size()}}));
    CHECK(!found({{6, 8}}));
    CHECK(!found({{end - 1, end}}));
    CHECK(!found({{9, 10}}));
  }
}

TEST_CASE("texts made by chance with plain parts made by chance") {
  // Scans for the special tokens itself; what lies between them is for a tokenizer without.
  std::mt19937 random(12);
  for (std::string style : {"gpt2", "llama3"}) {
    json::object file = made::json_of(style);
    Tokenizer tokenizer = made::from(file), bare = without_specials(file);
    std::vector<std::pair<std::string, int64_t>> specials;
    for (const json::value& token : file["added_tokens"].as_array())
      specials.emplace_back(token.at("content").as_string(), token.at("id").as_int64());
    int64_t found = 0, kept = 0;
    for (int i = 0; i < 600; ++i) {
      std::string text = made::random_text(random, 45);
      Ranges plain;
      for (size_t at = random() % 20; at < text.size();) {
        size_t end = std::min<size_t>(at + random() % 30, text.size());
        plain.push_back({at, end});
        at = end + random() % 30;
      }
      std::vector<int64_t> ids;
      int64_t kept_here = 0;
      size_t done = 0;
      auto flush = [&](size_t end) {
        for (int64_t id : bare.encode(text.substr(done, end - done))) ids.push_back(id);
      };
      for (size_t at = 0; at < text.size(); ++at)
        for (const auto& [content, id] : specials) {
          if (text.compare(at, content.size(), content) != 0) continue;
          bool is_plain = false;
          for (const ByteRange& part : plain)
            for (size_t byte = part.begin; byte < part.end; ++byte)
              is_plain = is_plain || (byte >= at && byte < at + content.size());
          if (is_plain) {
            ++kept_here;
            continue;
          }
          flush(at);
          ids.push_back(id);
          ++found;
          done = at + content.size();
        }
      flush(text.size());
      Encoded encoded = plainly(tokenizer, text, plain);
      INFO(quoted(text));
      CHECK(encoded.ids == ids);
      CHECK(encoded.kept_as_text == kept_here);
      check_cover(text, encoded);
      kept += kept_here;
    }
    CHECK(found > 50);
    CHECK(kept > 50);
  }
  // Those of every kind: all of the text plain is a tokenizer that has no special tokens.
  Tokenizer tokenizer = made::from(made::json_of("qwen2")),
            bare = without_specials(made::json_of("qwen2"));
  for (int i = 0; i < 600; ++i) {
    std::string text = made::random_text(random, 30);
    Encoded encoded = plainly(tokenizer, text, {{0, text.size()}});
    INFO(quoted(text));
    CHECK(encoded.ids == bare.encode(text));
    check_cover(text, encoded);
  }
}

TEST_CASE("parts that are none, and text that is none, are refused") {
  Tokenizer tokenizer = made::from(made::smallest());
  auto code_of = [&](const std::string& text, const Ranges& plain) {
    try {
      plainly(tokenizer, text, plain);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::bad_dataset;  // nothing was thrown
  };
  CHECK(code_of("abcd", {{0, 5}}) == ErrorCode::internal);
  CHECK(code_of("abcd", {{2, 1}}) == ErrorCode::internal);
  CHECK(code_of("abcd", {{0, 2}, {1, 3}}) == ErrorCode::internal);
  CHECK(code_of("abcd", {{2, 3}, {0, 1}}) == ErrorCode::internal);
  CHECK(code_of("ab\xff", {}) == ErrorCode::usage);
  CHECK(code_of("abcd", {{0, 2}, {2, 4}}) == ErrorCode::bad_dataset);
}
