// The ids and texts of the reference library, as tests/reference_pytorch/make_tokenizers.py wrote
// them down.
#include <doctest/doctest.h>

#include <boost/json/value_to.hpp>
#include <chrono>
#include <thread>

#include "made.h"

namespace json = boost::json;
using namespace meshwright::tokenizer;

namespace {

std::vector<int64_t> ids_of(const json::value& list) {
  return json::value_to<std::vector<int64_t>>(list);
}

std::string text_of(const json::value& text) { return std::string(text.as_string()); }

uint64_t fnv(const std::vector<int64_t>& ids) {
  uint64_t value = 0xcbf29ce484222325;
  for (int64_t id : ids) value = (value ^ static_cast<uint64_t>(id)) * 0x100000001b3;
  return value;
}

// As long_text() of the script.
std::string long_text(const json::array& lines) {
  std::string out;
  for (size_t i = 0; out.size() < 1 << 20; ++i)
    out += std::to_string(i) + " " + text_of(lines[i % lines.size()]) + "\n";
  return out;
}

}  // namespace

TEST_CASE("ids and texts are those of the reference") {
  for (const std::string& style : made::kStyles) {
    CAPTURE(style);
    Tokenizer tokenizer = Tokenizer::load(made::kFolder + style + ".json");
    json::value golden = json::parse(made::file_of(style + ".golden.json"));
    for (const json::value& row : golden.at("texts").as_array()) {
      std::string text = text_of(row.at("text"));
      CAPTURE(json::serialize(row.at("text")));
      std::vector<int64_t> ids = tokenizer.encode(text);
      CHECK(ids == ids_of(row.at("ids")));
      CHECK((tokenizer.encode(text, false) == ids) == row.at("bare").as_bool());
      CHECK(tokenizer.decode(ids) == text_of(row.at("decoded")));
      CHECK(tokenizer.decode(ids, true) == text_of(row.at("plain")));
    }
    for (const json::value& row : golden.at("decodes").as_array()) {
      CAPTURE(json::serialize(row));
      std::vector<int64_t> ids = ids_of(row.at("ids"));
      CHECK(tokenizer.decode(ids) == text_of(row.at("decoded")));
      CHECK(tokenizer.decode(ids, true) == text_of(row.at("plain")));
      TextStream stream(tokenizer);
      std::string streamed;
      for (int64_t id : ids) streamed += stream.add(id);
      CHECK(streamed + stream.finish() == text_of(row.at("decoded")));
    }
  }
}

TEST_CASE(
    "a megabyte is encoded as the reference does it, in seconds, and by several threads at once") {
  for (const std::string& style : made::kStyles) {
    CAPTURE(style);
    Tokenizer tokenizer = Tokenizer::load(made::kFolder + style + ".json");
    json::value golden = json::parse(made::file_of(style + ".golden.json"));
    std::string text = long_text(golden.at("lines").as_array());
    auto started = std::chrono::steady_clock::now();
    std::vector<int64_t> ids, others;
    std::jthread other([&] { others = tokenizer.encode(text); });
    ids = tokenizer.encode(text);
    other.join();
    // The square of a MiB would take hours; a machine that is busy with other things takes its
    // time.
    MESSAGE(style, ": ",
            std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count(),
            " s for a MiB, twice at once");
    CHECK(std::chrono::steady_clock::now() - started < std::chrono::seconds(120));
    CHECK(static_cast<int64_t>(ids.size()) == golden.at("long").at("count").as_int64());
    CHECK(std::to_string(fnv(ids)) == text_of(golden.at("long").at("fnv")));
    CHECK(ids == others);
    // The others change a text.
    if (style == "gpt2" || style == "llama3" || style == "llama2" || style == "gemma")
      CHECK(tokenizer.decode(ids, true) == text);
  }
}

TEST_CASE("one long piece takes no quadratic time") {
  for (const std::string style : {"qwen2", "llama2", "gemma", "t5", "bert"}) {
    CAPTURE(style);
    Tokenizer tokenizer = Tokenizer::load(made::kFolder + style + ".json");
    for (std::string unit : {"a", "ab", "the", "\u4e2d", "!", "e\u0301\u0323"}) {
      std::string text;
      while (text.size() < 1 << 20) text += unit;
      auto started = std::chrono::steady_clock::now();
      std::vector<int64_t> ids = tokenizer.encode(text);
      CAPTURE(unit);
      CHECK(std::chrono::steady_clock::now() - started < std::chrono::seconds(120));
      CHECK(ids.size() >= (style == "bert" ? 3 : 1000));  // a word of that size is unknown
    }
  }
}

TEST_CASE(
    "characters wait until their bytes are there, and broken ones are replaced as the reference "
    "does") {
  Tokenizer tokenizer = Tokenizer::load(made::kFolder + "gpt2.json");
  std::vector<int64_t> grin;
  for (const char* letter : {"\u00f0", "\u0141", "\u013a", "\u0122"}) {  // F0 9F 98 80
    REQUIRE(tokenizer.id_of(letter).has_value());
    grin.push_back(*tokenizer.id_of(letter));
  }
  CHECK(tokenizer.decode(grin) == "\U0001F600");
  TextStream stream(tokenizer);
  CHECK(stream.add(grin[0]).empty());
  CHECK(stream.add(grin[1]).empty());
  CHECK(stream.add(*tokenizer.id_of("a")) == "\uFFFDa");
  CHECK(stream.add(grin[0]).empty());
  CHECK(stream.finish() == "\uFFFD");
  CHECK(stream.finish().empty());
  CHECK(tokenizer.decode(std::vector<int64_t>{-1, 1 << 30, int64_t{1} << 40}).empty());
}
