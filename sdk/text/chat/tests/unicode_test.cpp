// Filters, methods and the lexer over every character, against what Python said (make_unicode.py).
#include <doctest/doctest.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "meshwright/error.h"
#include "sdk/text/chat/unicode.h"

namespace unicode_test {

using namespace meshwright::chat;

std::string fnv(const std::string& text) {
  uint64_t value = 0xcbf29ce484222325U;
  for (const char byte : text) value = (value ^ static_cast<uint8_t>(byte)) * 0x100000001b3U;
  char out[17];
  std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(value));
  return out;
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> out(1);
  for (const char c : text)
    if (c == ' ')
      out.emplace_back();
    else
      out.back() += c;
  return out;
}

struct Block {
  std::string name;  // "U+3000"
  std::vector<std::string> characters;
  Value context;
};

std::vector<Block> blocks_of(const Value& file) {
  std::vector<Block> out;
  int64_t last = -1;
  for (const Value& range : file.get("characters")->as_list())
    for (int64_t code = range.as_list()[0].as_integer(); code <= range.as_list()[1].as_integer();
         ++code) {
      if (std::exchange(last, code / 4096) != code / 4096) {
        char name[32];
        std::snprintf(name, sizeof name, "U+%04llX", static_cast<unsigned long long>(last) * 4096);
        out.push_back({name, {}, {}});
      }
      unicode::encode(static_cast<char32_t>(code), out.back().characters.emplace_back());
    }
  for (Block& block : out) {
    std::string all;
    for (const std::string& one : block.characters) all += one;
    block.context = Value::dict({{"chars", Value::string(all)}});
  }
  return out;
}

TEST_CASE("of every character filters, methods and tags make what Python makes") {
  const Value file = parse_json(testing::file_text("unicode.json"));
  const std::vector<Block> blocks = blocks_of(file);
  REQUIRE(blocks.size() > 50);
  size_t characters = 0;
  for (const Block& block : blocks) characters += block.characters.size();
  CHECK(characters > 140'000);
  for (const auto& [expression, hashes] : file.get("expressions")->as_dict()) {
    const ChatTemplate form = ChatTemplate::parse(
        "{% for c in chars %}{{ " + expression + " }}\n{% endfor %}", expression);
    const std::vector<std::string> expected = words(hashes.as_string());
    REQUIRE(expected.size() == blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i) {
      ChatTemplate::Request request;
      request.variables = &blocks[i].context;
      const std::string place = expression + " of a character from " + blocks[i].name;
      CAPTURE(place);
      CHECK(fnv(form.render(request).text) == expected[i]);
    }
  }
  const Value context = Value::dict({{"x", Value::integer(1)}});
  for (const auto& [form, hashes] : file.get("names")->as_dict()) {
    const size_t at = form.find("{}");
    const std::string before = "{{ " + form.substr(0, at), behind = form.substr(at + 2) + " }}";
    const std::vector<std::string> expected = words(hashes.as_string());
    REQUIRE(expected.size() == blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i) {
      std::string found;
      for (const std::string& one : blocks[i].characters) {
        const std::string source = before + one + behind;
        found += testing::refusal(source, &context) ? "E" : testing::rendered(source, &context);
      }
      const std::string place = form + " with a character from " + blocks[i].name;
      CAPTURE(place);
      CHECK(fnv(found) == expected[i]);
    }
  }
}

}  // namespace unicode_test
