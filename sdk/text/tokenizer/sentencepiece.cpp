// A sentencepiece model as the tokenizer.json that transformers makes of it. Long because each
// class of tokenizer has its own way there, and they share the pieces.
#include "sdk/text/tokenizer/sentencepiece.h"

#include <algorithm>
#include <bit>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sdk/text/tokenizer/added_tokens.h"
#include "sdk/text/tokenizer/charsmap.h"
#include "sdk/text/tokenizer/field.h"
#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

namespace json = boost::json;

namespace {

constexpr size_t kMostPieces = 1 << 20, kLongestPiece = 1024, kLargestMap = 4 << 20,
                 kMostMerges = 1 << 23;
constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, which stands for a space

// Fields of a message in the wire format of protocol buffers
// (https://protobuf.dev/programming-guides/encoding/), one after the other.
class Message {
 public:
  // `begin`: where `bytes` stand in the file.
  Message(std::string_view bytes, size_t begin, const std::string& file)
      : bytes_(bytes), begin_(begin), file_(&file) {}

  // Goes to the next field; false at the end.
  bool next() {
    if (at_ >= bytes_.size()) return false;
    const uint64_t key = varint();
    field_ = key >> 3;
    kind_ = static_cast<uint32_t>(key & 7U);
    if (field_ == 0 || field_ > (1U << 29) - 1) refuse("is no field of a protocol buffer");
    number_ = 0;
    text_ = {};
    switch (kind_) {
      case 0:
        number_ = varint();
        break;
      case 1:
        (void)take(8);
        break;
      case 2:
        text_ = take(varint());
        break;
      case 5: {
        const std::string_view four = take(4);
        for (size_t i = 4; i-- > 0;) number_ = number_ << 8 | static_cast<uint8_t>(four[i]);
        break;
      }
      default:
        refuse("has a field of a kind that protocol buffers do not have");
    }
    return true;
  }
  bool is(uint64_t field, uint32_t kind) const {
    if (field_ != field) return false;
    if (kind_ != kind) refuse("has field " + std::to_string(field) + " as another kind of value");
    return true;
  }
  bool is_text(uint64_t field) const { return is(field, 2); }
  bool is_number(uint64_t field) const { return is(field, 0); }

  std::string_view text() const { return text_; }
  bool boolean() const { return number_ != 0; }
  int32_t integer() const { return static_cast<int32_t>(static_cast<uint32_t>(number_)); }
  float real() const { return std::bit_cast<float>(static_cast<uint32_t>(number_)); }
  Message message() const { return {text_, text_begin_, *file_}; }

  [[noreturn]] void refuse(const std::string& what) const {
    tokenizer::refuse(*file_, "byte " + std::to_string(begin_ + at_), what);
  }

 private:
  uint64_t varint() {
    uint64_t out = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ >= bytes_.size()) refuse("is the end of the file, within a number");
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      out |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return out;
    }
    refuse("has a number of more than 64 bits");
  }
  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_)
      refuse("begins " + std::to_string(count) + " bytes where " +
             std::to_string(bytes_.size() - at_) + " are left");
    const std::string_view out = bytes_.substr(at_, count);
    text_begin_ = begin_ + at_;
    at_ += count;
    return out;
  }

  std::string_view bytes_;
  size_t begin_, at_ = 0;
  const std::string* file_;
  uint64_t field_ = 0, number_ = 0;
  uint32_t kind_ = 0;
  std::string_view text_;
  size_t text_begin_ = 0;
};

enum class PieceKind : uint8_t { normal = 1, unknown, control, user_defined, unused, byte };

struct ProtoPiece {
  std::string text;
  double score = 0;
  PieceKind kind = PieceKind::normal;
};

// What of sentencepiece_model.proto is used here, with the defaults that it has there.
struct ModelProto {
  std::vector<ProtoPiece> pieces;
  int32_t type = 1;  // 1: unigram, 2: BPE
  bool byte_fallback = false, whitespace_as_suffix = false;
  int32_t unknown = 0, bos = 1, eos = 2;
  std::string unknown_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>";
  std::string charsmap;
  bool dummy_prefix = true, no_extra_spaces = true, escaped = true;
};

void check_utf8(const Message& at, std::string_view text, const char* what) {
  if (text.empty() || text.size() > kLongestPiece || first_invalid(text) < text.size())
    at.refuse(std::string("follows ") + what + " that is not 1 to " +
              std::to_string(kLongestPiece) + " bytes of UTF-8");
}

ProtoPiece read_piece(Message message) {
  ProtoPiece out;
  while (message.next()) {
    if (message.is_text(1)) {
      out.text = message.text();
    } else if (message.is(2, 5)) {
      out.score = message.real();
      if (!std::isfinite(out.score)) message.refuse("follows a score that is no number");
    } else if (message.is_number(3)) {
      if (message.integer() < 1 || message.integer() > 6)
        message.refuse("follows a type of piece that sentencepiece does not have");
      out.kind = static_cast<PieceKind>(message.integer());
    }
  }
  check_utf8(message, out.text, "a piece");
  return out;
}

void read_trainer(Message message, ModelProto& model) {
  auto text = [&](uint64_t field, std::string& to) {
    if (!message.is_text(field)) return;
    check_utf8(message, message.text(), "a name of a piece");
    to = message.text();
  };
  while (message.next()) {
    if (message.is_number(3)) model.type = message.integer();
    if (message.is_number(24)) model.whitespace_as_suffix = message.boolean();
    if (message.is_number(35)) model.byte_fallback = message.boolean();
    if (message.is_number(40)) model.unknown = message.integer();
    if (message.is_number(41)) model.bos = message.integer();
    if (message.is_number(42)) model.eos = message.integer();
    text(45, model.unknown_piece);
    text(46, model.bos_piece);
    text(47, model.eos_piece);
  }
}

void read_normalizer(Message message, ModelProto& model) {
  while (message.next()) {
    if (message.is_text(2)) {
      if (message.text().size() > kLargestMap)
        message.refuse("follows a map of characters of more than 4 MiB");
      model.charsmap = message.text();
    }
    if (message.is_number(3)) model.dummy_prefix = message.boolean();
    if (message.is_number(4)) model.no_extra_spaces = message.boolean();
    if (message.is_number(5)) model.escaped = message.boolean();
  }
}

ModelProto read_model(std::string_view bytes, const std::string& name) {
  ModelProto out;
  Message message(bytes, 0, name);
  while (message.next()) {
    if (message.is_text(1)) {
      if (out.pieces.size() == kMostPieces)
        message.refuse("has more than " + std::to_string(kMostPieces) + " pieces before it");
      out.pieces.push_back(read_piece(message.message()));
    } else if (message.is_text(2)) {
      read_trainer(message.message(), out);
    } else if (message.is_text(3)) {
      read_normalizer(message.message(), out);
    }
  }
  if (out.pieces.empty()) refuse(name, "the file", "has no pieces of a sentencepiece model");
  if (out.type != 1 && out.type != 2)
    refuse(name, "trainer_spec.model_type",
           "is " + std::to_string(out.type) + "; 1 (unigram) and 2 (BPE) are read here");
  if (out.whitespace_as_suffix || !out.escaped)
    refuse(name,
           out.escaped ? "trainer_spec.treat_whitespace_as_suffix"
                       : "normalizer_spec.escape_whitespaces",
           "is set as no published model has it, and is not read here");
  if (out.unknown < 0 || static_cast<size_t>(out.unknown) >= out.pieces.size())
    refuse(name, "trainer_spec.unk_id",
           "is " + std::to_string(out.unknown) + " of " + std::to_string(out.pieces.size()) +
               " pieces");
  return out;
}

// A token as transformers adds it.
struct Added {
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false, normalized = false, special = true;
};

std::string text_of(const json::value& value) {
  return std::string(value.get_string().data(), value.get_string().size());
}

bool flag_or(const json::object& object, std::string_view key, bool otherwise) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_bool() ? value->get_bool() : otherwise;
}

// "<s>", or an object with its content; nothing for null and what is neither.
std::optional<Added> added_of(const json::value& value) {
  Added out;
  if (value.is_string()) {
    out.content = text_of(value);
  } else if (value.is_object()) {
    const json::object& object = value.get_object();
    const json::value* content = object.if_contains("content");
    if (content == nullptr || !content->is_string()) return std::nullopt;
    out.content = text_of(*content);
    out.single_word = flag_or(object, "single_word", false);
    out.lstrip = flag_or(object, "lstrip", false);
    out.rstrip = flag_or(object, "rstrip", false);
    out.special = flag_or(object, "special", false);
    out.normalized = flag_or(object, "normalized", !out.special);
  } else {
    return std::nullopt;
  }
  return out;
}

json::object metaspace(const char* scheme, bool split) {
  return {
      {"type", "Metaspace"}, {"replacement", kSpace}, {"prepend_scheme", scheme}, {"split", split}};
}
json::object replace(std::string_view from, std::string_view to, const char* kind = "String") {
  return {{"type", "Replace"}, {"pattern", json::object{{kind, from}}}, {"content", to}};
}
json::object in_turn(const char* key, json::array steps) {
  return {{"type", "Sequence"}, {key, std::move(steps)}};
}
json::object spaces_again(bool byte_fallback, bool strip) {
  json::array steps{replace(kSpace, " ")};
  if (byte_fallback) steps.push_back(json::object{{"type", "ByteFallback"}});
  steps.push_back(json::object{{"type", "Fuse"}});
  if (strip)
    steps.push_back(json::object{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return in_turn("decoders", std::move(steps));
}

enum class Family : uint8_t { none, generic, llama, gemma, t5, xlm_roberta, albert };

// What a class of transformers names its tokens, unless the configuration does.
struct Named {
  std::string_view role, token;
};

class Conversion {
 public:
  Conversion(ModelProto model, const std::string& name, const json::object& config)
      : model_(std::move(model)), name_(name), config_(config), family_(family()) {
    for (const ProtoPiece& piece : model_.pieces) vocab_.push_back({piece.text, piece.score});
    name_tokens();
    arrange_vocabulary();
    for (size_t id = 0; id < vocab_.size(); ++id)
      if (!ids_.emplace(vocab_[id].text, id).second)
        refuse(name_, "piece " + std::to_string(id),
               "is " + shown(vocab_[id].text) + ", as an earlier one");
  }

  json::value run() {
    add_tokens();
    json::array added;
    std::vector<std::pair<int64_t, json::object>> listed;
    for (const Added& token : added_)
      listed.emplace_back(id_of(token.content), json::object{{"id", id_of(token.content)},
                                                             {"content", token.content},
                                                             {"single_word", token.single_word},
                                                             {"lstrip", token.lstrip},
                                                             {"rstrip", token.rstrip},
                                                             {"normalized", token.normalized},
                                                             {"special", token.special}});
    std::sort(listed.begin(), listed.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& [id, token] : listed) added.push_back(std::move(token));
    return json::object{{"version", "1.0"},
                        {"truncation", nullptr},
                        {"padding", nullptr},
                        {"added_tokens", std::move(added)},
                        {"normalizer", normalizer()},
                        {"pre_tokenizer", pre_tokenizer()},
                        {"post_processor", post_processor()},
                        {"decoder", decoder()},
                        {"model", is_bpe() ? bpe() : unigram()}};
  }

 private:
  struct Entry {
    std::string text;
    double score = 0;
  };

  Family family() const {
    const json::value* named = config_.if_contains("tokenizer_class");
    if (named == nullptr || !named->is_string()) return Family::none;
    std::string name = text_of(*named);
    if (name.ends_with("Fast") && name != "PreTrainedTokenizerFast") name.resize(name.size() - 4);
    static constexpr std::pair<std::string_view, Family> kKnown[] = {
        {"LlamaTokenizer", Family::llama},
        {"GemmaTokenizer", Family::gemma},
        {"T5Tokenizer", Family::t5},
        {"XLMRobertaTokenizer", Family::xlm_roberta},
        {"AlbertTokenizer", Family::albert},
        {"PreTrainedTokenizerFast", Family::generic},
        {"PreTrainedTokenizer", Family::generic},
        {"TokenizersBackend", Family::generic}};
    for (const auto& [known, family] : kKnown) {
      if (name != known) continue;
      const bool bpe = family == Family::llama || family == Family::gemma;
      if (family != Family::generic && bpe != is_bpe())
        refuse(name_, "trainer_spec.model_type",
               std::string("is ") + (is_bpe() ? "BPE" : "unigram") + ", but a " + name +
                   ", as tokenizer_config.json names it, is " + (bpe ? "BPE" : "unigram"));
      return family;
    }
    refuse(
        name_, "the file",
        "is that of a " + shown(name) +
            ", as tokenizer_config.json says; of sentencepiece models those of LlamaTokenizer, "
            "GemmaTokenizer, T5Tokenizer, XLMRobertaTokenizer and AlbertTokenizer are read here");
  }

  bool is_bpe() const { return model_.type == 2; }

  // bos, eos, unk, sep, pad, cls, mask, as far as there are such.
  void name_tokens() {
    auto take = [&](std::initializer_list<Named> defaults) {
      for (const Named& one : defaults) {
        const json::value* given = config_.if_contains(std::string(one.role) + "_token");
        std::optional<Added> token;
        if (given != nullptr)
          token = added_of(*given);
        else if (!one.token.empty())
          token = Added{std::string(one.token)};
        if (token) {
          token->special = true;
          // A special token is not normalized unless that is said.
          if (given == nullptr || !given->is_object() ||
              !given->get_object().contains("normalized"))
            token->normalized = false;
          roles_.emplace_back(one.role, *token);
        }
      }
    };
    switch (family_) {
      case Family::none:
      case Family::generic:
        take({{"bos", model_.bos >= 0 ? std::string_view(model_.bos_piece) : ""},
              {"eos", model_.eos >= 0 ? std::string_view(model_.eos_piece) : ""},
              {"unk", model_.unknown_piece},
              {"sep", ""},
              {"pad", ""},
              {"cls", ""},
              {"mask", ""}});
        break;
      case Family::llama:
        take({{"bos", "<s>"},
              {"eos", "</s>"},
              {"unk", "<unk>"},
              {"sep", ""},
              {"pad", ""},
              {"cls", ""},
              {"mask", ""}});
        break;
      case Family::gemma:
        take({{"bos", "<bos>"},
              {"eos", "<eos>"},
              {"unk", "<unk>"},
              {"sep", ""},
              {"pad", "<pad>"},
              {"cls", ""},
              {"mask", "<mask>"}});
        break;
      case Family::t5:
        take({{"bos", ""},
              {"eos", "</s>"},
              {"unk", "<unk>"},
              {"sep", ""},
              {"pad", "<pad>"},
              {"cls", ""},
              {"mask", ""}});
        break;
      case Family::xlm_roberta:
        take({{"bos", "<s>"},
              {"eos", "</s>"},
              {"unk", "<unk>"},
              {"sep", "</s>"},
              {"pad", "<pad>"},
              {"cls", "<s>"},
              {"mask", "<mask>"}});
        break;
      case Family::albert:
        take({{"bos", "[CLS]"},
              {"eos", "[SEP]"},
              {"unk", "<unk>"},
              {"sep", "[SEP]"},
              {"pad", "<pad>"},
              {"cls", "[CLS]"},
              {"mask", "[MASK]"}});
        break;
    }
  }

  const Added* role(std::string_view name) const {
    for (const auto& [known, token] : roles_)
      if (known == name) return &token;
    return nullptr;
  }
  std::string named(std::string_view name, const char* otherwise) const {
    const Added* token = role(name);
    return token ? token->content : otherwise;
  }

  // Classes whose ids are not those of the file.
  void arrange_vocabulary() {
    if (family_ == Family::t5) {
      extra_ids_ = 100;
      if (const json::value* given = config_.if_contains("extra_ids"))
        if (given->is_int64()) extra_ids_ = given->get_int64();
      if (extra_ids_ < 0 || extra_ids_ > 10000)
        refuse(name_, "extra_ids of tokenizer_config.json",
               "is " + std::to_string(extra_ids_) + "; it is 0 to 10000");
      for (int64_t i = extra_ids_; i-- > 0;)
        vocab_.push_back({"<extra_id_" + std::to_string(i) + ">", 0});
    }
    if (family_ != Family::xlm_roberta) return;
    // fairseq has four tokens where the file has three.
    std::vector<Entry> out{{named("bos", "<s>"), 0},
                           {named("pad", "<pad>"), 0},
                           {named("eos", "</s>"), 0},
                           {named("unk", "<unk>"), 0}};
    for (size_t id = 3; id < vocab_.size(); ++id) out.push_back(std::move(vocab_[id]));
    out.push_back({named("mask", "<mask>"), 0});
    vocab_ = std::move(out);
  }

  // As JSON has ids.
  int64_t id_of(const std::string& token) const { return static_cast<int64_t>(ids_.at(token)); }

  // In the order in which transformers does, by which new ones get their ids.
  void add_tokens() {
    if (const json::value* decoder = config_.if_contains("added_tokens_decoder");
        decoder != nullptr && decoder->is_object()) {
      std::vector<std::pair<int64_t, Added>> listed;
      for (const auto& [key, value] : decoder->get_object()) {
        const std::string id(key.data(), key.size());
        const std::optional<Added> token = added_of(value);
        if (!token || id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != id.npos)
          refuse(name_, "added_tokens_decoder of tokenizer_config.json",
                 "has no id with a token under " + shown(id));
        listed.emplace_back(std::stoll(id), *token);
      }
      std::sort(listed.begin(), listed.end(),
                [](const auto& a, const auto& b) { return a.first < b.first; });
      for (const auto& [id, token] : listed) add(token);
    }
    for (const auto& [name, token] : roles_) add(token);
    for (const ProtoPiece& piece : model_.pieces)
      if (piece.kind == PieceKind::control || piece.kind == PieceKind::user_defined)
        add({.content = piece.text, .special = piece.kind == PieceKind::control});
    for (int64_t i = 0; i < extra_ids_; ++i)
      add({.content = "<extra_id_" + std::to_string(i) + ">"});
  }

  void add(const Added& token) {
    if (!known_.insert(token.content).second) return;
    if (token.content.empty() || token.content.size() > TokenFinder::kMaxBytes)
      refuse(name_, "tokenizer_config.json", "names a token that is empty or too long");
    ids_.emplace(token.content, std::max(vocab_.size(), ids_.size()));
    added_.push_back(token);
  }

  bool setting(std::string_view key, bool otherwise) const {
    return flag_or(config_, key, otherwise);
  }
  bool prefixed() const { return setting("add_prefix_space", true); }
  json::object precompiled() const {
    return {{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(model_.charsmap)}};
  }

  json::value normalizer() const {
    const bool mapped = !model_.charsmap.empty();
    json::array steps;
    switch (family_) {
      case Family::llama:
        return nullptr;
      case Family::gemma:
        return replace(" ", kSpace);
      case Family::t5:
      case Family::xlm_roberta:
        // The reference takes an empty map, too, which changes nothing.
        return mapped ? json::value(precompiled()) : json::value(nullptr);
      case Family::albert:
        steps = {replace("``", "\""), replace("''", "\"")};
        if (!setting("keep_accents", false)) {
          steps.push_back(json::object{{"type", "NFKD"}});
          steps.push_back(json::object{{"type", "StripAccents"}});
        }
        if (setting("do_lower_case", true)) steps.push_back(json::object{{"type", "Lowercase"}});
        if (mapped) steps.push_back(precompiled());
        return in_turn("normalizers", std::move(steps));
      case Family::generic:
        if (mapped) steps.push_back(precompiled());
        steps.push_back(replace(" ", kSpace));
        return in_turn("normalizers", std::move(steps));
      case Family::none:
        if (mapped) steps.push_back(precompiled());
        if (model_.no_extra_spaces) {
          steps.push_back(
              json::object{{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
          steps.push_back(replace(" {2,}", " ", "Regex"));
        }
        if (model_.dummy_prefix)
          steps.push_back(json::object{{"type", "Prepend"}, {"prepend", kSpace}});
        steps.push_back(replace(" ", kSpace));
        return in_turn("normalizers", std::move(steps));
    }
    return nullptr;
  }

  json::value pre_tokenizer() const {
    switch (family_) {
      case Family::llama:
        return metaspace(!prefixed()                ? "never"
                         : setting("legacy", false) ? "always"
                                                    : "first",
                         false);
      case Family::gemma:
        return json::object{{"type", "Split"},
                            {"pattern", json::object{{"String", " "}}},
                            {"behavior", "MergedWithPrevious"},
                            {"invert", false}};
      case Family::t5:
        return words("always");
      case Family::xlm_roberta:
      case Family::albert:
        return words(prefixed() ? "always" : "never");
      case Family::generic:
        return nullptr;
      case Family::none:
        return nullptr;
    }
    return nullptr;
  }
  static json::object words(const char* scheme) {
    return in_turn("pretokenizers",
                   {json::object{{"type", "WhitespaceSplit"}}, metaspace(scheme, true)});
  }

  json::value decoder() const {
    switch (family_) {
      case Family::llama:
        return spaces_again(true, prefixed());
      case Family::gemma:
        return spaces_again(true, false);
      case Family::t5:
        return metaspace("always", true);
      case Family::xlm_roberta:
      case Family::albert:
        return metaspace(prefixed() ? "always" : "never", true);
      case Family::generic:
        return model_.byte_fallback ? spaces_again(true, false)
                                    : in_turn("decoders", {replace(kSpace, " ")});
      case Family::none:
        return spaces_again(model_.byte_fallback, model_.dummy_prefix);
    }
    return nullptr;
  }

  static json::object piece(const char* kind, std::string_view id, int type) {
    return {{kind, json::object{{"id", id}, {"type_id", type}}}};
  }

  // Before and after a text; `pair` is what a second one gets, which nothing here reads.
  json::object around(const std::vector<std::string>& before, const std::vector<std::string>& after,
                      json::array pair) const {
    json::array single;
    json::object special;
    auto put = [&](const std::vector<std::string>& tokens) {
      for (const std::string& token : tokens) {
        single.push_back(piece("SpecialToken", token, 0));
        special[token] = json::object{{"id", token},
                                      {"ids", json::array{id_of(token)}},
                                      {"tokens", json::array{json::string(token)}}};
      }
    };
    put(before);
    single.push_back(piece("Sequence", "A", 0));
    put(after);
    json::array both = single;
    both.insert(both.end(), pair.begin(), pair.end());
    return {{"type", "TemplateProcessing"},
            {"single", std::move(single)},
            {"pair", std::move(both)},
            {"special_tokens", std::move(special)}};
  }

  json::value post_processor() const {
    if (family_ == Family::none) return nullptr;
    if (family_ == Family::t5) {
      require("</s>");
      return around({}, {"</s>"}, {piece("Sequence", "B", 0), piece("SpecialToken", "</s>", 0)});
    }
    if (family_ == Family::xlm_roberta) {
      const std::string bos = named("bos", "<s>"), eos = named("eos", "</s>");
      return around({bos}, {eos},
                    {piece("SpecialToken", eos, 0), piece("Sequence", "B", 0),
                     piece("SpecialToken", eos, 0)});
    }
    const bool said = config_.contains("add_bos_token") || config_.contains("add_eos_token");
    if (family_ == Family::albert && !said) {
      require("[CLS]");
      require("[SEP]");
      return around({"[CLS]"}, {"[SEP]"},
                    {piece("Sequence", "B", 1), piece("SpecialToken", "[SEP]", 1)});
    }
    std::vector<std::string> before, after;
    json::array pair;
    if (const Added* bos = role("bos"); bos && setting("add_bos_token", false)) {
      before.push_back(bos->content);
      pair.push_back(piece("SpecialToken", bos->content, 1));
    }
    pair.push_back(piece("Sequence", "B", 1));
    if (const Added* eos = role("eos"); eos && setting("add_eos_token", false)) {
      after.push_back(eos->content);
      pair.push_back(piece("SpecialToken", eos->content, 1));
    }
    return around(before, after, std::move(pair));
  }

  void require(const char* token) const {
    if (!ids_.contains(token))
      refuse(name_, "the file",
             "has no piece " + shown(token) + ", which its class puts around a text");
  }

  json::object unigram() const {
    json::array vocab;
    vocab.reserve(vocab_.size());
    for (const Entry& entry : vocab_)
      vocab.push_back(json::array{json::string(entry.text), entry.score});
    const size_t unknown = family_ == Family::t5            ? 2
                           : family_ == Family::xlm_roberta ? 3
                           : family_ == Family::albert      ? 1
                                                            : static_cast<size_t>(model_.unknown);
    if (unknown >= vocab_.size())
      refuse(name_, "the file", "has only " + std::to_string(vocab_.size()) + " pieces");
    const bool fallback =
        (family_ == Family::none || family_ == Family::generic) && model_.byte_fallback;
    return {{"type", "Unigram"},
            {"unk_id", static_cast<int64_t>(unknown)},
            {"vocab", std::move(vocab)},
            {"byte_fallback", fallback}};
  }

  json::object bpe() const {
    json::object vocab;
    vocab.reserve(vocab_.size());
    for (size_t id = 0; id < vocab_.size(); ++id)
      vocab.emplace(vocab_[id].text, static_cast<int64_t>(id));
    json::value unknown = nullptr;
    if (family_ == Family::gemma) unknown = named("unk", "<unk>");
    if (family_ == Family::generic || family_ == Family::none) unknown = model_.unknown_piece;
    if (unknown.is_string() && !ids_.contains(text_of(unknown)))
      refuse(name_, "trainer_spec.unk_piece",
             "is " + json::serialize(unknown) + ", which no piece is");
    const bool fallback =
        family_ == Family::llama || family_ == Family::gemma || model_.byte_fallback;
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", std::move(unknown)},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", true},
            {"byte_fallback", fallback},
            {"ignore_merges", false},
            {"vocab", std::move(vocab)},
            {"merges", merges()}};
  }

  // The file has none: a piece is merged of any two others that it consists of, in the order of
  // their ids, and of one piece's pairs the one with the shortest left half first.
  json::array merges() const {
    json::array out;
    for (const Entry& entry : vocab_) {
      const std::string_view text = entry.text;
      for (size_t cut = character_at(text, 0).bytes; cut < text.size();
           cut += character_at(text, cut).bytes) {
        const std::string left(text.substr(0, cut)), right(text.substr(cut));
        auto l = ids_.find(left), r = ids_.find(right);
        if (l == ids_.end() || l->second >= vocab_.size() || r == ids_.end() ||
            r->second >= vocab_.size())
          continue;
        if (out.size() == kMostMerges) refuse(name_, "pieces", "give more than 8,388,608 merges");
        out.push_back(json::array{json::string(left), json::string(right)});
      }
    }
    return out;
  }

  ModelProto model_;
  const std::string& name_;
  const json::object& config_;
  const Family family_;
  std::vector<Entry> vocab_;  // by id
  std::unordered_map<std::string, size_t> ids_;
  std::vector<std::pair<std::string, Added>> roles_;
  std::vector<Added> added_;
  std::unordered_set<std::string> known_;  // of them
  int64_t extra_ids_ = 0;
};

}  // namespace

json::value of_sentencepiece(std::string_view bytes, const std::string& name,
                             const json::object& config) {
  return Conversion(read_model(bytes, name), name, config).run();
}

}  // namespace meshwright::tokenizer
