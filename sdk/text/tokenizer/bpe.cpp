// Characters, or bytes, merged pair by pair.
#include <algorithm>
#include <array>
#include <bitset>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "sdk/text/tokenizer/merges.h"
#include "sdk/text/tokenizer/model.h"
#include "sdk/text/tokenizer/normalize.h"
#include "sdk/text/tokenizer/piece_cache.h"

namespace meshwright::tokenizer {

namespace {

namespace json = boost::json;

// Characters that stand side by side in some token that merges lead to. Where two stand side by
// side in a text and in none of these, no merge spans the place between them.
class Neighbours {
 public:
  void add(std::string_view token) {
    int32_t last = -1;
    for (size_t at = 0; at < token.size();) {
      const Character one = character_at(token, at);
      if (last >= 0) pairs_.push_back(key(last, one.code));
      last = one.code;
      at += one.bytes;
    }
  }
  void seal() {
    std::sort(pairs_.begin(), pairs_.end());
    pairs_.erase(std::unique(pairs_.begin(), pairs_.end()), pairs_.end());
    for (uint64_t pair : pairs_) {
      if (is_low(pair)) low_[place(pair)] = true;
      some_.set(mix(pair));
    }
  }
  bool has(int32_t left, int32_t right) const {
    const uint64_t pair = key(left, right);
    if (is_low(pair)) return low_[place(pair)];
    return some_[mix(pair)] && std::binary_search(pairs_.begin(), pairs_.end(), pair);
  }
  // Whether some other character stands before this one.
  bool any_before(int32_t right) const {
    return std::any_of(pairs_.begin(), pairs_.end(), [&](uint64_t pair) {
      return static_cast<int32_t>(pair & 0xFFFFFFFFU) == right &&
             static_cast<int32_t>(pair >> 32U) != right;
    });
  }
  bool any_behind(int32_t left) const {
    return std::any_of(pairs_.begin(), pairs_.end(), [&](uint64_t pair) {
      return static_cast<int32_t>(pair >> 32U) == left &&
             static_cast<int32_t>(pair & 0xFFFFFFFFU) != left;
    });
  }

 private:
  static uint64_t key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32U | static_cast<uint32_t>(right);
  }
  static bool is_low(uint64_t pair) { return (pair & 0xFFFFFF80FFFFFF80U) == 0; }
  static size_t place(uint64_t pair) {
    return static_cast<size_t>(pair >> 25U) | static_cast<size_t>(pair & 0x7FU);
  }
  static size_t mix(uint64_t pair) {
    return static_cast<size_t>((pair ^ pair >> 29U) * 0x9E3779B97F4A7C15U >> 44U);
  }
  std::vector<uint64_t> pairs_;
  std::bitset<size_t{1} << 14U> low_;   // of two characters of ASCII
  std::bitset<size_t{1} << 20U> some_;  // most pairs that are none are told apart by this
};

class Bpe final : public Model {
 public:
  explicit Bpe(const Field& model);

  void keep_out(const std::vector<uint32_t>& ids) override;
  bool can_take_bytes() const override { return prefix_.empty() && suffix_.empty(); }
  void take_bytes() override;
  bool allows(const CutPlaces& places) const override;
  // Merges never make what is kept out, be the piece plain or not.
  void encode(std::string_view piece, bool plain, ModelOut out) const override;

 private:
  // What a character, or a byte, begins with.
  struct Unit {
    std::optional<uint32_t> id;
    std::string_view letters;  // what falls back to bytes where there is no id
    size_t bytes = 0;          // of the piece
  };
  void read_merges(const Field& field);
  void find_neighbours();
  std::optional<uint32_t> id_of(int32_t code) const {
    if (static_cast<size_t>(code) < low_ids_.size())
      return low_ids_[static_cast<size_t>(code)] == kNone
                 ? std::nullopt
                 : std::optional(low_ids_[static_cast<size_t>(code)]);
    const auto found = high_ids_.find(code);
    return found == high_ids_.end() ? std::nullopt : std::optional(found->second);
  }
  Unit unit_at(std::string_view piece, size_t at, std::string& letters) const;
  void encode_anew(std::string_view piece, ModelOut& out) const;
  void encode_remembered_part(std::string_view piece, ModelOut& out, size_t begin) const;

  static constexpr uint32_t kNone = ~uint32_t{0};
  MergeTable merges_;
  std::vector<bool> merged_;  // by id: a merge leads to it
  std::string prefix_, suffix_;
  std::optional<std::string> unknown_name_;
  std::optional<uint32_t> unknown_;
  bool fuse_unknown_ = false, ignore_merges_ = false, bytes_ = false;
  std::array<std::optional<uint32_t>, 256> byte_ids_;  // of pieces of bytes
  std::array<std::optional<uint32_t>, 256> fallback_;  // where unknown text falls back to bytes
  std::vector<uint32_t> low_ids_;                      // of one character each, by its code
  std::unordered_map<int32_t, uint32_t> high_ids_;
  std::optional<Neighbours> neighbours_;  // where pieces may be divided by them
  bool fallback_merges_ = false;  // what unknown text becomes is merged with what stands beside it
  bool falls_back_always_ = false;
  KeptOut kept_out_;
};

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

// A merge's halves; "a b" or ["a", "b"].
std::pair<std::string_view, std::string_view> halves(const Field& field, const json::value& merge,
                                                     size_t index) {
  auto bad = [&](const char* what) { field.at(index).refuse(what); };
  if (const json::array* pair = merge.if_array()) {
    if (pair->size() != 2 || !(*pair)[0].is_string() || !(*pair)[1].is_string())
      bad("is not a pair of strings");
    return {view((*pair)[0].get_string()), view((*pair)[1].get_string())};
  }
  if (!merge.is_string()) bad("is neither a string nor a pair of strings");
  std::string_view text = view(merge.get_string());
  size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
    bad("is not two tokens with one space between them");
  return {text.substr(0, space), text.substr(space + 1)};
}

void Bpe::read_merges(const Field& field) {
  const json::array& merges = field.array();
  merges_ = MergeTable(merges.size());
  uint32_t rank = 0;
  std::string joined;
  KeptOut fallback;
  for (const auto& id : fallback_)
    if (id) fallback.add(*id);
  if (unknown_) fallback.add(*unknown_);
  for (size_t i = 0; i < merges.size(); ++i) {
    if (merges[i].kind() != merges[0].kind())
      field.at(i).refuse("is written in another way than the first");
    if (merges[i].is_string() && view(merges[i].get_string()).starts_with("#version"))
      continue;  // a line of merges.txt
    auto [left, right] = halves(field, merges[i], i);
    auto id_of = [&](std::string_view token) {
      auto id = vocabulary.find(token);
      if (!id) field.at(i).refuse("needs the token " + shown(token) + ", which model.vocab lacks");
      return *id;
    };
    const uint32_t a = id_of(left), b = id_of(right);
    if (right.size() < prefix_.size())
      field.at(i).refuse("has " + shown(right) + ", which is shorter than the prefix");
    joined.assign(left);
    joined += right.substr(prefix_.size());
    const uint32_t becomes = id_of(joined);
    merges_.set(a, b, {rank++, becomes});
    if (becomes >= merged_.size()) merged_.resize(size_t{becomes} + 1, false);
    merged_[becomes] = true;
    fallback_merges_ = fallback_merges_ || fallback.has(a) || fallback.has(b);
  }
}

Bpe::Bpe(const Field& model) {
  prefix_ = model.at("continuing_subword_prefix").string_or("");
  suffix_ = model.at("end_of_word_suffix").string_or("");
  if (Field dropout = model.at("dropout"); !dropout.absent() && dropout.number() != 0)
    dropout.refuse("is not 0: tokens would be drawn by chance");
  read_vocabulary(model.at("vocab"), vocabulary);
  fuse_unknown_ = model.at("fuse_unk").boolean_or(false);
  ignore_merges_ = model.at("ignore_merges").boolean_or(false);
  if (const Field unknown = model.at("unk_token"); !unknown.absent()) {
    unknown_name_ = std::string(unknown.string());
    unknown_ = vocabulary.find(*unknown_name_);
  }
  if (model.at("byte_fallback").boolean_or(false))
    for (size_t byte = 0; byte < 256; ++byte)
      fallback_[byte] = vocabulary.find(byte_token(static_cast<uint8_t>(byte)));
  falls_back_always_ = std::all_of(fallback_.begin(), fallback_.end(),
                                   [](const auto& id) { return id.has_value(); });
  low_ids_.assign(0x10000, kNone);
  for (std::string_view token : vocabulary.tokens()) {
    if (token.empty()) continue;
    const Character one = character_at(token, 0);
    if (one.bytes != token.size()) continue;
    const uint32_t id = *vocabulary.find(token);
    if (static_cast<size_t>(one.code) < low_ids_.size())
      low_ids_[static_cast<size_t>(one.code)] = id;
    else
      high_ids_[one.code] = id;
  }
  read_merges(model.at("merges"));
  if (prefix_.empty() && suffix_.empty() && !fallback_merges_ && !ignore_merges_) find_neighbours();
}

void Bpe::find_neighbours() {
  neighbours_.emplace();
  for (size_t id = 0; id < merged_.size(); ++id)
    if (merged_[id]) neighbours_->add(*vocabulary.token_of(static_cast<uint32_t>(id)));
  neighbours_->seal();
}

void Bpe::take_bytes() {
  bytes_ = true;
  neighbours_.reset();
  for (size_t byte = 0; byte < 256; ++byte)
    byte_ids_[byte] = vocabulary.find(letter_of(static_cast<uint8_t>(byte)));
}

void Bpe::keep_out(const std::vector<uint32_t>& ids) {
  std::vector<bool> all;
  for (uint32_t id : ids) {
    if (!vocabulary.token_of(id)) continue;
    kept_out_.add(id);
    if (id >= all.size()) all.resize(size_t{id} + 1, false);
    all[id] = true;
  }
  if (!all.empty()) merges_.erase_results(all);
}

bool Bpe::allows(const CutPlaces& places) const {
  if (!neighbours_) return false;
  // Whether a place is one within the text for the model: both characters are known, or become
  // bytes of their own. Where some are neither, unknown ones could be fused over it.
  if (!falls_back_always_ && (unknown_ || unknown_name_)) return false;
  if (places.at_lines && neighbours_->any_behind('\n')) return false;
  return std::none_of(places.spaces.begin(), places.spaces.end(), [&](const std::string& space) {
    return character_at(space, 0).bytes != space.size() ||
           neighbours_->any_before(character_at(space, 0).code);
  });
}

Bpe::Unit Bpe::unit_at(std::string_view piece, size_t at, std::string& letters) const {
  if (bytes_) {
    const auto byte = static_cast<uint8_t>(piece[at]);
    return {byte_ids_[byte], letter_of(byte), 1};
  }
  const Character one = character_at(piece, at);
  const std::string_view text = piece.substr(at, one.bytes);
  const bool last = at + one.bytes == piece.size();
  const bool has_prefix = at > 0 && !prefix_.empty(), has_suffix = last && !suffix_.empty();
  if (!has_prefix && !has_suffix) return {id_of(one.code), text, one.bytes};
  letters.assign(has_prefix ? prefix_ : std::string());
  letters += text;
  if (has_suffix) letters += suffix_;
  return {vocabulary.find(letters), letters, one.bytes};
}

void Bpe::encode_anew(std::string_view piece, ModelOut& out) const {
  if (ignore_merges_ && piece.size() <= vocabulary.longest()) {
    const std::string whole = bytes_ ? to_letters(piece) : std::string(piece);
    if (const auto id = vocabulary.find(whole); id && !kept_out_.has(*id))
      return out.put(*id, 0, piece.size());
  }
  thread_local std::vector<uint32_t> ids;
  thread_local std::vector<size_t> begins;
  std::string letters;
  ids.clear();
  begins.clear();
  size_t cursor = 0, waiting = 0;  // bytes of unknown text that wait for what goes on with them
  auto add = [&](uint32_t id, size_t bytes) {
    ids.push_back(id);
    begins.push_back(cursor);
    cursor += bytes;
  };
  auto flush = [&] {
    if (waiting > 0) add(*unknown_, waiting);
    waiting = 0;
  };
  for (size_t at = 0; at < piece.size();) {
    const Unit unit = unit_at(piece, at, letters);
    at += unit.bytes;
    if (unit.id) {
      flush();
      add(*unit.id, unit.bytes);
      continue;
    }
    if (std::all_of(unit.letters.begin(), unit.letters.end(),
                    [&](char c) { return fallback_[static_cast<uint8_t>(c)].has_value(); })) {
      // Unknown text that waits goes on waiting: the library puts it behind these.
      size_t left = unit.bytes;
      for (char c : unit.letters) {
        add(*fallback_[static_cast<uint8_t>(c)], left > 0 ? 1 : 0);
        left -= left > 0 ? 1 : 0;
      }
      cursor += left;
      continue;
    }
    if (!unknown_name_) {
      cursor += unit.bytes;  // it vanishes, and counts to the id before it
      continue;
    }
    if (!unknown_)
      throw ModelProblem{"has no token for " + shown(unit.letters) + ", nor its unk_token " +
                         shown(*unknown_name_)};
    if (!fuse_unknown_) flush();
    waiting += unit.bytes;
  }
  flush();
  merge(ids, begins, merges_);
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t end = i + 1 < ids.size() ? begins[i + 1] : piece.size();
    // Of several tokens for one byte each has it.
    out.put(ids[i], end == begins[i] && end > 0 ? end - 1 : begins[i], end);
  }
}

void Bpe::encode_remembered_part(std::string_view piece, ModelOut& out, size_t begin) const {
  const size_t before = out.ranges == nullptr ? 0 : out.ranges->size();
  encode_remembered(serial(), piece, false, out, [&](ModelOut& anew) { encode_anew(piece, anew); });
  for (size_t i = before; begin > 0 && out.ranges != nullptr && i < out.ranges->size(); ++i) {
    (*out.ranges)[i].begin += begin;
    (*out.ranges)[i].end += begin;
  }
}

void Bpe::encode(std::string_view piece, bool, ModelOut out) const {
  if (!neighbours_ || piece.size() <= 16) return encode_remembered_part(piece, out, 0);
  size_t begin = 0;
  int32_t last = -1;  // the character before, if nothing of it is unknown
  for (size_t at = 0; at < piece.size();) {
    const Character one = character_at(piece, at);
    const bool known = falls_back_always_ || id_of(one.code).has_value();
    if (last >= 0 && known && !neighbours_->has(last, one.code)) {
      encode_remembered_part(piece.substr(begin, at - begin), out, begin);
      begin = at;
    }
    last = known ? one.code : -1;
    at += one.bytes;
  }
  encode_remembered_part(piece.substr(begin), out, begin);
}

}  // namespace

std::unique_ptr<Model> read_bpe(const Field& model) { return std::make_unique<Bpe>(model); }

}  // namespace meshwright::tokenizer
