#include "sdk/text/trainer/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <queue>
#include <set>
#include <unordered_map>

#include "sdk/base/files/hash.h"
#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

namespace {

uint64_t pair_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

// Numbers by pair of ids; a pair that was never asked for has 0.
class PairTable {
 public:
  PairTable() : slots_(1024) {}
  int64_t& operator[](uint64_t pair) {
    if (count_ * 2 > slots_.size()) grow();
    Slot& slot = slots_[place_of(pair)];
    if (slot.pair != pair) {
      slot.pair = pair;
      ++count_;
    }
    return slot.value;
  }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  struct Slot {
    uint64_t pair = kNone;
    int64_t value = 0;
  };
  size_t place_of(uint64_t pair) const {
    const size_t mask = slots_.size() - 1;
    size_t place = base::mix64(pair) & mask;
    while (slots_[place].pair != kNone && slots_[place].pair != pair) place = (place + 1) & mask;
    return place;
  }
  void grow() {
    std::vector<Slot> before(slots_.size() * 2);
    before.swap(slots_);
    for (const Slot& slot : before)
      if (slot.pair != kNone) slots_[place_of(slot.pair)] = slot;
  }
  std::vector<Slot> slots_;
  size_t count_ = 0;
};

// Words that have a pair, or had it.
using Places = std::vector<uint32_t>;

// A pair that may be merged, where it was found at one time. What is found later is a candidate of
// its own, although both have all there are of the pair as their count.
struct Candidate {
  int64_t count;
  uint64_t pair;
  size_t places;  // which list of them
  bool operator<(const Candidate& other) const {
    if (count != other.count) return count < other.count;
    if (pair != other.pair) return pair > other.pair;
    return places > other.places;
  }
};

class Trainer {
 public:
  Trainer(const WordCounts& words, const TrainerOptions& options)
      : options_(options), longest_(options.max_token_length.value_or(SIZE_MAX)) {
    for (const std::string& token : options.special) (void)id_of(token);
    take_letters(words);
    take_words(words);
    count_pairs();
  }

  TrainedBpe run(const std::function<void(size_t tokens)>& progress) {
    while (out_.tokens.size() < options_.vocab_size && !queue_.empty()) {
      Candidate best = queue_.top();
      queue_.pop();
      if (const int64_t now = counts_[best.pair]; now != best.count) {
        best.count = now;
        queue_.push(best);
        continue;
      }
      if (best.count < 1 || best.count < options_.min_frequency) break;
      merge(best);
      progress(out_.tokens.size());
    }
    keep_last_merges();
    for (const Word& word : words_) out_.text_tokens += word.count * word.size;
    return std::move(out_);
  }

 private:
  struct Word {
    size_t begin;  // of its symbols
    uint32_t size;
    int64_t count;
  };

  // What one merge does to the pairs of which a token is a part, by the token.
  struct Side {
    int64_t lost = 0, gained = 0;
    Places places;  // where it gains
    bool met = false;
  };
  struct Neighbours {
    std::vector<Side> sides;
    std::vector<uint32_t> met;
    Side& at(uint32_t id) {
      Side& side = sides[id];
      if (!side.met) met.push_back(id);
      side.met = true;
      return side;
    }
  };

  void gain(Neighbours& neighbours, uint32_t id, uint32_t index) {
    if (bytes_[id] + bytes_[made_] >= longest_) return;
    Side& side = neighbours.at(id);
    side.gained += words_[index].count;
    add(side.places, index);
  }

  uint32_t id_of(const std::string& token) {
    auto [known, fresh] = ids_.emplace(token, static_cast<uint32_t>(out_.tokens.size()));
    if (fresh) {
      out_.tokens.push_back(token);
      bytes_.push_back(1);  // a merge says so otherwise
    }
    return known->second;
  }

  // The bytes that become tokens, in the order of their letters.
  void take_letters(const WordCounts& words) {
    std::array<int64_t, 256> counts{};
    for (size_t i = 0; i < words.size(); ++i)
      for (char byte : words.word(i)) counts[static_cast<uint8_t>(byte)] += words.count(i);
    std::vector<uint8_t> kept;
    for (int byte = 0; byte < 256; ++byte)
      if (!options_.limit_alphabet || counts[static_cast<size_t>(byte)] > 0)
        kept.push_back(static_cast<uint8_t>(byte));
    auto by_letter = [](uint8_t a, uint8_t b) {
      return character_at(letter_of(a), 0).code < character_at(letter_of(b), 0).code;
    };
    std::sort(kept.begin(), kept.end(), by_letter);
    if (options_.limit_alphabet && *options_.limit_alphabet < kept.size()) {
      std::stable_sort(kept.begin(), kept.end(),
                       [&](uint8_t a, uint8_t b) { return counts[a] > counts[b]; });
      kept.resize(*options_.limit_alphabet);
      std::sort(kept.begin(), kept.end(), by_letter);
    }
    for (uint8_t byte : kept) (void)id_of(std::string(letter_of(byte)));
    for (int byte = 0; byte < 256; ++byte) {
      auto known = ids_.find(std::string(letter_of(static_cast<uint8_t>(byte))));
      if (known != ids_.end())
        letters_[static_cast<size_t>(byte)] = known->second;
      else
        out_.lost_bytes += counts[static_cast<size_t>(byte)];
    }
  }

  void take_words(const WordCounts& words) {
    size_t symbols = 0;
    for (size_t i = 0; i < words.size(); ++i) symbols += words.word(i).size();
    symbols_.reserve(symbols);
    words_.reserve(words.size());
    for (size_t i = 0; i < words.size(); ++i) {
      const size_t begin = symbols_.size();
      for (char byte : words.word(i))
        if (std::optional<uint32_t> id = letters_[static_cast<uint8_t>(byte)])
          symbols_.push_back(*id);
      words_.push_back({begin, static_cast<uint32_t>(symbols_.size() - begin), words.count(i)});
    }
  }

  void count_pairs() {
    PairTable lists;
    std::vector<std::pair<uint64_t, Places>> found;
    for (uint32_t index = 0; index < words_.size(); ++index) {
      const Word& word = words_[index];
      for (size_t i = word.begin; i + 1 < word.begin + word.size; ++i) {
        const uint64_t pair = pair_of(symbols_[i], symbols_[i + 1]);
        counts_[pair] += word.count;
        int64_t& list = lists[pair];
        if (list == 0) {
          found.emplace_back(pair, Places{});
          list = static_cast<int64_t>(found.size());
        }
        add(found[static_cast<size_t>(list) - 1].second, index);
      }
    }
    for (auto& [pair, places] : found) enqueue(pair, std::move(places));
  }

  static void add(Places& places, uint32_t word) {
    if (places.empty() || places.back() != word) places.push_back(word);
  }

  void enqueue(uint64_t pair, Places places) {
    const int64_t count = counts_[pair];
    if (count < 1) return;
    size_t list = places_.size();
    if (free_lists_.empty()) {
      places_.emplace_back();
    } else {
      list = free_lists_.back();
      free_lists_.pop_back();
    }
    places_[list] = std::move(places);
    queue_.push({count, pair, list});
  }

  // The pair itself keeps its count, as in the reference: its candidates end when their places do.
  void merge(const Candidate& best) {
    left_ = static_cast<uint32_t>(best.pair >> 32), right_ = static_cast<uint32_t>(best.pair);
    made_ = id_of(out_.tokens[left_] + out_.tokens[right_]);
    bytes_[made_] = bytes_[left_] + bytes_[right_];
    out_.merges.emplace_back(left_, right_);
    before_.sides.resize(out_.tokens.size());
    after_.sides.resize(out_.tokens.size());
    const Places places = std::move(places_[best.places]);
    places_[best.places] = {};
    free_lists_.push_back(best.places);
    for (uint32_t index : places) merge_word(index);
    // All counts first: a pair may be on both sides.
    for (uint32_t id : before_.met) {
      counts_[pair_of(id, left_)] -= before_.sides[id].lost;
      counts_[pair_of(id, made_)] += before_.sides[id].gained;
    }
    for (uint32_t id : after_.met) {
      counts_[pair_of(right_, id)] -= after_.sides[id].lost;
      if (id != made_) counts_[pair_of(made_, id)] += after_.sides[id].gained;
    }
    for (uint32_t id : before_.met) {
      enqueue(pair_of(id, made_), std::move(before_.sides[id].places));
      before_.sides[id] = {};
    }
    for (uint32_t id : after_.met) {
      if (id != made_) enqueue(pair_of(made_, id), std::move(after_.sides[id].places));
      after_.sides[id] = {};
    }
    before_.met.clear();
    after_.met.clear();
  }

  void merge_word(uint32_t index) {
    Word& word = words_[index];
    uint32_t* const symbols = symbols_.data() + word.begin;
    uint32_t to = 0;
    for (uint32_t from = 0; from < word.size; ++from, ++to) {
      if (symbols[from] != left_ || from + 1 >= word.size || symbols[from + 1] != right_) {
        symbols[to] = symbols[from];
        continue;
      }
      if (to > 0) {
        before_.at(symbols[to - 1]).lost += word.count;
        gain(before_, symbols[to - 1], index);
      }
      ++from;
      if (from + 1 < word.size) {
        const uint32_t after = symbols[from + 1];
        after_.at(after).lost += word.count;
        gain(after == made_ ? before_ : after_, after, index);
      }
      symbols[to] = made_;
    }
    word.size = to;
  }

  // A pair that was merged twice has the place of the second time.
  void keep_last_merges() {
    std::set<std::pair<uint32_t, uint32_t>> seen;
    std::vector<std::pair<uint32_t, uint32_t>> kept;
    for (auto merge = out_.merges.rbegin(); merge != out_.merges.rend(); ++merge)
      if (seen.insert(*merge).second) kept.push_back(*merge);
    std::reverse(kept.begin(), kept.end());
    out_.merges = std::move(kept);
  }

  const TrainerOptions& options_;
  const size_t longest_;
  TrainedBpe out_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<size_t> bytes_;  // of each token that a text can have
  std::array<std::optional<uint32_t>, 256> letters_;
  std::vector<uint32_t> symbols_;
  std::vector<Word> words_;
  PairTable counts_;
  uint32_t left_ = 0, right_ = 0, made_ = 0;  // of the merge that is made
  Neighbours before_, after_;                 // of `made_`; (made_, made_) is in before_ alone
  std::vector<Places> places_;
  std::vector<size_t> free_lists_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

TrainedBpe train_bpe(const WordCounts& words, const TrainerOptions& options,
                     const std::function<void(size_t tokens)>& progress) {
  return Trainer(words, options).run(progress);
}

}  // namespace meshwright::tokenizer
