#include "sdk/text/trainer/word_counts.h"

#include <deque>
#include <memory>
#include <utility>

#include "meshwright/error.h"
#include "sdk/base/files/hash.h"
#include "sdk/text/tokenizer/divide.h"
#include "sdk/text/tokenizer/pattern.h"

namespace meshwright::tokenizer {

void WordCounts::grow() {
  std::vector<Slot> before(slots_.size() * 2);
  before.swap(slots_);
  const size_t mask = slots_.size() - 1;
  for (const Slot& slot : before) {
    if (slot.next == 0) continue;
    size_t place = slot.hash & mask;
    while (slots_[place].next != 0) place = (place + 1) & mask;
    slots_[place] = slot;
  }
}

void WordCounts::add(std::string_view text, int64_t count) {
  words_ += count;
  bytes_ += count * static_cast<int64_t>(text.size());
  const auto hash = static_cast<uint32_t>(base::mix64(base::fnv1a(text)));
  const size_t mask = slots_.size() - 1;
  size_t place = hash & mask;
  for (; slots_[place].next != 0; place = (place + 1) & mask)
    if (slots_[place].hash == hash && word(slots_[place].next - 1) == text) {
      entries_[slots_[place].next - 1].count += count;
      return;
    }
  // Four billion different words are more than a machine's memory holds; one of four gigabytes is
  // no word.
  if (entries_.size() >= UINT32_MAX - 1 || text.size() > UINT32_MAX)
    throw Error(ErrorCode::bad_dataset,
                "the text has too many different words, or one that is "
                "longer than 4 GiB")
        .help("train on a part of the text: a few gigabytes give the same tokenizer");
  entries_.push_back({text_.size(), static_cast<uint32_t>(text.size()), count});
  text_ += text;
  slots_[place] = {static_cast<uint32_t>(entries_.size()), hash};
  if (entries_.size() * 2 > slots_.size()) grow();
}

void WordCounts::add(const WordCounts& others) {
  for (size_t i = 0; i < others.size(); ++i) add(others.word(i), others.count(i));
}

std::string_view pattern_text(WordPattern pattern) {
  switch (pattern) {
    case WordPattern::gpt2:
      return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    case WordPattern::gpt4:
      return R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++)"
             R"([\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
    case WordPattern::llama3:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
             R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case WordPattern::qwen2:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
             R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  }
  return {};
}

namespace {

class Counting : public PieceWork {
 public:
  Counting(const Pattern& pattern, WordCounts& words) : pattern_(pattern), words_(words) {}

  void part(const TextPart& part) override {
    PatternScratch scratch;
    Matches matches(pattern_, part.text, scratch);
    auto add = [&](size_t begin, size_t end) {
      if (begin < end) words_.add(part.text.substr(begin, end - begin));
    };
    size_t done = 0;
    try {
      while (auto found = matches.next()) {
        add(done, found->begin);
        add(found->begin, found->end);
        done = found->end;
      }
    } catch (const PatternProblem& problem) {
      throw Error(ErrorCode::bad_dataset, part.file + ": the pattern " + problem.what +
                                              " at byte " +
                                              std::to_string(part.at + problem.offset))
          .help("leave the file out, if it is no text")
          .help("--pattern gpt2, the simplest one");
    }
    add(done, part.text.size());
  }

 private:
  const Pattern& pattern_;
  WordCounts& words_;
};

}  // namespace

CountedText count_words(const std::vector<std::string>& files, const CountOptions& options,
                        const std::function<void(int64_t bytes)>& progress) {
  const Pattern pattern{pattern_text(options.pattern)};
  // One table a thread: where a word is counted changes no sum.
  std::deque<WordCounts> tables(static_cast<size_t>(options.threads));
  // Every pattern above ends a match at both kinds of places.
  const WalkOptions walk{options.documents, options.text_key, options.threads, options.piece,
                         Cuts{true, true}};
  CountedText out;
  out.walked = walk_files(
      files, walk,
      [&](size_t thread) { return std::make_unique<Counting>(pattern, tables[thread]); },
      [&](PieceWork&, int64_t bytes) { progress(bytes); });
  out.words = std::move(tables.front());
  for (tables.pop_front(); !tables.empty(); tables.pop_front()) out.words.add(tables.front());
  return out;
}

}  // namespace meshwright::tokenizer
