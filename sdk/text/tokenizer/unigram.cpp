// Of all ways to cut a piece into tokens the one whose scores add up to the most.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "sdk/text/tokenizer/model.h"
#include "sdk/text/tokenizer/normalize.h"
#include "sdk/text/tokenizer/piece_cache.h"

namespace meshwright::tokenizer {

namespace {

// The tokens by their bytes. Children of a node stand side by side.
class Trie {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};
  // Ascending by token, each once.
  explicit Trie(const std::vector<std::pair<std::string_view, uint32_t>>& tokens) {
    nodes_.push_back({});
    struct Range {
      uint32_t node;
      size_t begin, end, depth;
    };
    // Breadth first, so that children are put together.
    std::vector<Range> level{{0, 0, tokens.size(), 0}}, next;
    while (!level.empty()) {
      next.clear();
      for (const Range& range : level) {
        size_t begin = range.begin;
        if (begin < range.end && tokens[begin].first.size() == range.depth)
          nodes_[range.node].id = tokens[begin++].second;
        nodes_[range.node].first = static_cast<uint32_t>(nodes_.size());
        while (begin < range.end) {
          const char byte = tokens[begin].first[range.depth];
          size_t end = begin + 1;
          while (end < range.end && tokens[end].first[range.depth] == byte) ++end;
          next.push_back({static_cast<uint32_t>(nodes_.size()), begin, end, range.depth + 1});
          nodes_.push_back({});
          nodes_.back().byte = static_cast<uint8_t>(byte);
          ++nodes_[range.node].count;
          begin = end;
        }
      }
      level.swap(next);
    }
    roots_.fill(0);
    for (uint32_t i = 0; i < nodes_[0].count; ++i)
      roots_[nodes_[nodes_[0].first + i].byte] = nodes_[0].first + i;
  }

  uint32_t root(uint8_t byte) const { return roots_[byte]; }  // 0: none begins with it
  uint32_t child(uint32_t node, uint8_t byte) const {
    const Node& it = nodes_[node];
    uint32_t begin = it.first, count = it.count;
    while (count > 8) {
      const uint32_t half = count / 2;
      if (nodes_[begin + half].byte <= byte) {
        begin += half;
        count -= half;
      } else {
        count = half;
      }
    }
    for (; count > 0; ++begin, --count)
      if (nodes_[begin].byte == byte) return begin;
    return 0;
  }
  uint32_t id(uint32_t node) const { return nodes_[node].id; }

 private:
  struct Node {
    uint32_t first = 0;
    uint32_t id = kNone;
    uint16_t count = 0;
    uint8_t byte = 0;
  };
  std::vector<Node> nodes_;
  std::array<uint32_t, 256> roots_{};
};

class Unigram final : public Model {
 public:
  explicit Unigram(const Field& model) {
    const Field vocab = model.at("vocab");
    const boost::json::array& entries = vocab.array();
    if (entries.empty()) vocab.refuse("is empty");
    double least = std::numeric_limits<double>::infinity();
    scores_.reserve(entries.size());
    for (size_t i = 0; i < entries.size(); ++i) {
      const Field entry = vocab.at(i);
      if (entry.array().size() != 2) entry.refuse("is not a pair of a token and its score");
      vocabulary.add(entry.at(size_t{0}).string(), static_cast<uint32_t>(i));
      scores_.push_back(entry.at(size_t{1}).number());
      least = std::min(least, scores_.back());
    }
    vocabulary.seal();
    unknown_score_ = least - 10;
    if (const Field unknown = model.at("unk_id"); !unknown.absent()) {
      unknown_ = unknown.id();
      if (*unknown_ >= entries.size())
        unknown.refuse("is " + std::to_string(*unknown_) + " of " + std::to_string(entries.size()) +
                       " tokens");
    }
    std::vector<std::pair<std::string_view, uint32_t>> tokens;
    for (std::string_view token : vocabulary.tokens())
      if (!token.empty()) tokens.emplace_back(token, *vocabulary.find(token));
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    trie_.emplace(tokens);
    if (model.at("byte_fallback").boolean_or(false))
      for (size_t byte = 0; byte < 256; ++byte)
        byte_ids_[byte] = vocabulary.find(byte_token(static_cast<uint8_t>(byte)));
  }

  void keep_out(const std::vector<uint32_t>& ids) override {
    for (uint32_t id : ids)
      if (vocabulary.token_of(id)) kept_out_.add(id);
  }

  void encode(std::string_view piece, bool plain, ModelOut out) const override {
    encode_remembered(serial(), piece, plain, out,
                      [&](ModelOut& anew) { encode_anew(piece, plain, anew); });
  }

 private:
  struct Best {
    double score = 0;
    size_t begin = kNowhere;
    uint32_t id = 0;
  };
  static constexpr size_t kNowhere = ~size_t{0};

  void encode_anew(std::string_view piece, bool plain, ModelOut& out) const {
    thread_local std::vector<Best> best;  // of what ends at each place
    best.assign(piece.size() + 1, Best{});
    auto offer = [&](size_t begin, size_t end, double score, uint32_t id) {
      Best& there = best[end];
      if (there.begin == kNowhere || score > there.score) there = {score, begin, id};
    };
    for (size_t begin = 0; begin < piece.size();) {
      const size_t bytes = character_at(piece, begin).bytes;
      const double until = best[begin].score;
      bool single = false;
      uint32_t node = trie_->root(static_cast<uint8_t>(piece[begin]));
      for (size_t end = begin + 1; node != 0; ++end) {
        if (const uint32_t id = trie_->id(node);
            id != Trie::kNone && !(plain && kept_out_.has(id))) {
          offer(begin, end, scores_[id] + until, id);
          single = single || end - begin == bytes;
        }
        if (end == piece.size()) break;
        node = trie_->child(node, static_cast<uint8_t>(piece[end]));
      }
      if (!single) {
        if (!unknown_)
          throw ModelProblem{"has no token for a character of the text, and no unk_id"};
        offer(begin, begin + bytes, unknown_score_ + until, *unknown_);
      }
      begin += bytes;
    }
    thread_local std::vector<std::pair<size_t, uint32_t>> path;  // begins and ids, from the end
    path.clear();
    for (size_t end = piece.size(); end > 0; end = best[end].begin)
      path.emplace_back(best[end].begin, best[end].id);
    for (size_t i = path.size(); i > 0; --i) {
      const auto [begin, id] = path[i - 1];
      if (unknown_ && id == *unknown_) {
        // Unknown ones that stand side by side are one.
        while (i > 1 && path[i - 2].second == *unknown_) --i;
        put_unknown(piece, begin, i > 1 ? path[i - 2].first : piece.size(), plain, out);
      } else {
        out.put(id, begin, i > 1 ? path[i - 2].first : piece.size());
      }
    }
  }

  void put_unknown(std::string_view piece, size_t begin, size_t end, bool plain,
                   ModelOut& out) const {
    const std::string_view text = piece.substr(begin, end - begin);
    if (text.size() <= vocabulary.longest())
      if (const auto id = vocabulary.find(text); id && !(plain && kept_out_.has(*id)))
        return out.put(*id, begin, end);
    const bool all_bytes = std::all_of(text.begin(), text.end(), [&](char c) {
      return byte_ids_[static_cast<uint8_t>(c)].has_value();
    });
    if (!all_bytes) return out.put(*unknown_, begin, end);
    for (char c : text) out.put(*byte_ids_[static_cast<uint8_t>(c)], begin, end);
  }

  std::vector<double> scores_;  // by id
  std::optional<Trie> trie_;
  std::optional<uint32_t> unknown_;
  double unknown_score_ = 0;
  std::array<std::optional<uint32_t>, 256> byte_ids_;  // where unknown text falls back to bytes
  KeptOut kept_out_;
};

}  // namespace

std::unique_ptr<Model> read_unigram(const Field& model) { return std::make_unique<Unigram>(model); }

}  // namespace meshwright::tokenizer
