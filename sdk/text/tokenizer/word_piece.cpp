// Models that look words up: WordLevel as a whole, WordPiece by the longest pieces that it knows.
#include <optional>

#include "sdk/text/tokenizer/model.h"
#include "sdk/text/tokenizer/normalize.h"
#include "sdk/text/tokenizer/piece_cache.h"

namespace meshwright::tokenizer {

namespace {

// Both have a token for words that they do not know.
class WordModel : public Model {
 public:
  explicit WordModel(const Field& model) : unknown_name_(model.at("unk_token").string_or("[UNK]")) {
    read_vocabulary(model.at("vocab"), vocabulary);
    unknown_ = vocabulary.find(unknown_name_);
  }
  void keep_out(const std::vector<uint32_t>& ids) override {
    for (uint32_t id : ids)
      if (vocabulary.token_of(id)) kept_out_.add(id);
  }

 protected:
  std::optional<uint32_t> find(std::string_view token, bool plain) const {
    const std::optional<uint32_t> id = vocabulary.find(token);
    return id && !(plain && kept_out_.has(*id)) ? id : std::nullopt;
  }
  void put_unknown(std::string_view piece, ModelOut& out) const {
    if (!unknown_)
      throw ModelProblem{"has no token for " + shown(piece) + ", nor its unk_token " +
                         shown(unknown_name_)};
    out.put(*unknown_, 0, piece.size());
  }

 private:
  std::string unknown_name_;
  std::optional<uint32_t> unknown_;
  KeptOut kept_out_;
};

class WordLevel final : public WordModel {
 public:
  using WordModel::WordModel;
  void encode(std::string_view piece, bool plain, ModelOut out) const override {
    if (const auto id = find(piece, plain))
      out.put(*id, 0, piece.size());
    else
      put_unknown(piece, out);
  }
};

class WordPiece final : public WordModel {
 public:
  explicit WordPiece(const Field& model)
      : WordModel(model),
        prefix_(model.at("continuing_subword_prefix").string_or("##")),
        most_(model.at("max_input_chars_per_word").absent()
                  ? 100
                  : model.at("max_input_chars_per_word").id()) {}

  void encode(std::string_view piece, bool plain, ModelOut out) const override {
    encode_remembered(serial(), piece, plain, out,
                      [&](ModelOut& anew) { encode_anew(piece, plain, anew); });
  }

 private:
  void encode_anew(std::string_view piece, bool plain, ModelOut& out) const {
    size_t characters = 0;
    for (char c : piece) characters += (static_cast<uint8_t>(c) & 0xC0) != 0x80 ? 1 : 0;
    if (characters > most_) return put_unknown(piece, out);
    const size_t before = out.ids.size(), ranges_before = out.ranges ? out.ranges->size() : 0;
    std::string token;
    for (size_t begin = 0; begin < piece.size();) {
      const std::string_view prefix = begin > 0 ? std::string_view(prefix_) : std::string_view();
      // Nothing longer than its longest token is one.
      if (vocabulary.longest() < prefix.size()) return give_up(piece, before, ranges_before, out);
      size_t end = std::min(piece.size(), begin + (vocabulary.longest() - prefix.size()));
      std::optional<uint32_t> id;
      for (; end > begin; --end) {
        if (end < piece.size() && (static_cast<uint8_t>(piece[end]) & 0xC0) == 0x80) continue;
        token.assign(prefix);
        token += piece.substr(begin, end - begin);
        if ((id = find(token, plain))) break;
      }
      if (!id) return give_up(piece, before, ranges_before, out);
      out.put(*id, begin, end);
      begin = end;
    }
  }
  void give_up(std::string_view piece, size_t ids, size_t ranges, ModelOut& out) const {
    out.ids.resize(ids);
    if (out.ranges != nullptr) out.ranges->resize(ranges);
    put_unknown(piece, out);
  }

  std::string prefix_;
  size_t most_;
};

}  // namespace

std::unique_ptr<Model> read_word_piece(const Field& model) {
  return std::make_unique<WordPiece>(model);
}
std::unique_ptr<Model> read_word_level(const Field& model) {
  return std::make_unique<WordLevel>(model);
}

}  // namespace meshwright::tokenizer
