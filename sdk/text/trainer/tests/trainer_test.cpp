// Trained tokenizers, held against what the reference library makes of the same texts.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <filesystem>
#include <fstream>

#include "meshwright/error.h"
#include "sdk/base/files/hash.h"
#include "sdk/text/tokenizer/pre_tokenizers.h"
#include "sdk/text/tokenizer/tests/made.h"
#include "sdk/text/trainer/bpe_trainer.h"
#include "sdk/text/trainer/trained_files.h"

namespace trainer_test {

namespace json = boost::json;
namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::tokenizer;

namespace {

struct TextFile {
  explicit TextFile(const std::string& text)
      : path(fs::temp_directory_path() / ("trainer_test" + std::to_string(::getpid()) + ".txt")) {
    std::ofstream(path, std::ios::binary) << text;
  }
  ~TextFile() { fs::remove(path); }
  fs::path path;
};

CountedText count(const std::string& text, const CountOptions& options) {
  const TextFile file(text);
  return count_words({file.path.string()}, options, [](int64_t) {});
}

WordPattern pattern_named(std::string_view name) {
  return name == "gpt2"    ? WordPattern::gpt2
         : name == "gpt4"  ? WordPattern::gpt4
         : name == "qwen2" ? WordPattern::qwen2
                           : WordPattern::llama3;
}

TrainerOptions options_of(const json::object& row) {
  TrainerOptions out;
  out.vocab_size = row.at("vocab_size").to_number<size_t>();
  if (auto* least = row.if_contains("min_frequency")) out.min_frequency = least->as_int64();
  if (auto* most = row.if_contains("max_token_length"))
    out.max_token_length = most->to_number<size_t>();
  if (auto* most = row.if_contains("limit_alphabet"))
    out.limit_alphabet = most->to_number<size_t>();
  if (auto* special = row.if_contains("special"))
    for (const json::value& token : special->as_array())
      out.special.emplace_back(token.as_string());
  return out;
}

const json::array& goldens() {
  static const json::value all = json::parse(made::file_of("trained.golden.json"));
  return all.as_array();
}

TrainedBpe train(const CountedText& text, const TrainerOptions& options) {
  return train_bpe(text.words, options, [](size_t) {});
}

}  // namespace

TEST_CASE("vocabulary, merges and file are those of the reference library, with any threads") {
  CHECK(goldens().size() == 12);
  for (const json::value& value : goldens()) {
    const json::object& row = value.as_object();
    const WordPattern pattern = pattern_named(row.at("pattern").as_string());
    const TrainerOptions options = options_of(row);
    const std::string text(row.at("text").as_string());
    CAPTURE(json::serialize(row.at("pattern")));
    CAPTURE(options.vocab_size);
    for (int threads : {1, 3}) {
      CAPTURE(threads);
      const CountedText counted =
          count(text, {.pattern = pattern, .threads = threads, .piece = 100});
      CHECK(counted.words.bytes() == static_cast<int64_t>(text.size()));
      const TrainedBpe trained = train(counted, options);
      json::array merges;
      for (const auto& [left, right] : trained.merges)
        merges.push_back(
            json::array{json::string(trained.tokens[left]), json::string(trained.tokens[right])});
      CHECK(json::value(merges) == row.at("merges"));
      CHECK(trained.tokens.size() == row.at("size").to_number<size_t>());
      if (!row.at("tokens").is_null()) CHECK(trained.text_tokens == row.at("tokens").as_int64());
      const std::string file = laid_out(tokenizer_json(trained, options, pattern, {}));
      CHECK(std::to_string(base::fnv1a(file)) == row.at("fnv").as_string());
    }
  }
}

TEST_CASE("what is trained reads every text and gives it back, a beginning before it") {
  const std::string text(goldens()[0].as_object().at("text").as_string());
  TrainerOptions options{.vocab_size = 400, .special = {"<e>", "<b>"}};
  for (const char* name : {"gpt2", "gpt4", "llama3", "qwen2"}) {
    const WordPattern pattern = pattern_named(name);
    const TrainedBpe trained = train(count(text, {.pattern = pattern}), options);
    const TokenRoles roles{.eos = "<e>", .bos = "<b>"};
    const Tokenizer tokenizer =
        Tokenizer::parse(laid_out(tokenizer_json(trained, options, pattern, roles)), "made here");
    const std::vector<int64_t> ids = tokenizer.encode(text);
    REQUIRE(ids.size() > 1);
    CHECK(ids[0] == 1);
    CHECK(tokenizer.encode(text, false).size() + 1 == ids.size());
    CHECK(static_cast<int64_t>(ids.size()) == trained.text_tokens + 1);
    CHECK(tokenizer.decode(ids, true) == text);
    const std::string other = "\xf0\x9f\xa6\x9c \t1234567\r\n\r\nzzz";
    CHECK(tokenizer.decode(tokenizer.encode(other), true) == other);
    CHECK(tokenizer.cuts().any());
  }
}

TEST_CASE("long texts may be cut for every pattern") {
  for (WordPattern pattern :
       {WordPattern::gpt2, WordPattern::gpt4, WordPattern::llama3, WordPattern::qwen2}) {
    const std::span<const std::string_view> known = separating_patterns();
    CHECK(std::find(known.begin(), known.end(), pattern_text(pattern)) != known.end());
  }
}

TEST_CASE("words are counted once each, also across tables and as they grow") {
  WordCounts one, other;
  for (int i = 0; i < 5000; ++i) (i % 3 == 0 ? other : one).add("w" + std::to_string(i % 2000));
  one.add("");
  one.add(other);
  CHECK(one.size() == 2001);
  CHECK(one.words() == 5001);
  int64_t sum = 0;
  for (size_t i = 0; i < one.size(); ++i)
    if (std::string_view word = one.word(i); !word.empty()) {
      CHECK(one.count(i) == (std::stoi(std::string(word.substr(1))) < 1000 ? 3 : 2));
      sum += one.count(i);
    }
  CHECK(sum == 5000);
}

TEST_CASE("a limited alphabet keeps the most frequent bytes, and says what it loses") {
  const CountedText text = count("aaa bb c d", {.pattern = WordPattern::gpt2});
  const TrainedBpe trained = train(text, {.vocab_size = 3, .limit_alphabet = 3});
  CHECK(trained.tokens == std::vector<std::string>{"a", "b", "\u0120"});
  CHECK(trained.lost_bytes == 2);
  // Of bytes that are there equally often, those with the first letters.
  const TrainedBpe fewer = train(text, {.vocab_size = 4, .limit_alphabet = 4});
  CHECK(fewer.tokens == std::vector<std::string>{"a", "b", "c", "\u0120"});
}

TEST_CASE("what is no text is told with its file and place") {
  auto failure = [](const std::string& text, const CountOptions& options) {
    try {
      (void)count(text, options);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_dataset);
      return error.message();
    }
    return std::string("none");
  };
  CHECK(failure("abc\xff", {}).ends_with(".txt: the text is not UTF-8 at byte 3"));
  CHECK(failure("{\"text\": \"a\"}\n{\"t\": 1}\n", {.documents = Documents::json_lines})
            .find("line 2 has no string \"text\" at byte 14") != std::string::npos);
}

}  // namespace trainer_test
