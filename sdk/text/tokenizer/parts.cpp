#include "sdk/text/tokenizer/parts.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <limits>
#include <set>

#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

namespace json = boost::json;

void refuse(const std::string& file, const std::string& place, const std::string& what) {
  throw Error(ErrorCode::bad_tokenizer, file + ": " + place + " " + what)
      .help(
          "tokenizers that work are byte-level BPE, as those of GPT-2, Llama 3, Qwen2 and Qwen3: "
          "put "
          "the tokenizer.json that the model was published with in its place")
      .help("token ids work with any model: meshwright generate FOLDER --tokens 1,2,3");
}

std::string shown(std::string_view text) {
  bool cut = text.size() > 60;
  if (cut) {
    text = text.substr(0, 60);
    text = text.substr(0, first_invalid(text));
  }
  return json::serialize(json::value(json::string_view(text.data(), text.size()))) +
         (cut ? "..." : "");
}

Field Field::at(std::string_view key) const {
  const json::object& here = object();
  const json::value* found = here.if_contains(json::string_view(key.data(), key.size()));
  return {*file_, found, place_.empty() ? std::string(key) : place_ + "." + std::string(key)};
}

Field Field::at(size_t index) const {
  return {*file_, &array()[index], place_ + "[" + std::to_string(index) + "]"};
}

void Field::wrong(const char* wanted) const {
  refuse(value_ == nullptr ? std::string("is missing; it must be ") + wanted
                           : std::string("must be ") + wanted + ", not " +
                                 std::string(json::to_string(value_->kind())));
}

const json::object& Field::object() const {
  if (value_ == nullptr || !value_->is_object()) wrong("an object");
  return value_->get_object();
}

const json::array& Field::array() const {
  if (value_ == nullptr || !value_->is_array()) wrong("a list");
  return value_->get_array();
}

std::string_view Field::string() const {
  if (value_ == nullptr || !value_->is_string()) wrong("a string");
  const json::string& text = value_->get_string();
  return {text.data(), text.size()};
}

uint32_t Field::id() const {
  if (value_ != nullptr && value_->is_int64()) {
    int64_t number = value_->get_int64();
    if (number >= 0 && number <= std::numeric_limits<int32_t>::max())
      return static_cast<uint32_t>(number);
  }
  if (value_ != nullptr && value_->is_number())
    refuse("is " + json::serialize(*value_) + "; an id is a whole number from 0 to 2147483647");
  wrong("a whole number");
}

bool Field::boolean() const {
  if (value_ == nullptr || !value_->is_bool()) wrong("true or false");
  return value_->get_bool();
}

namespace {

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

void read_vocabulary(const Field& field, Vocabulary& vocabulary) {
  const json::object& entries = field.object();
  if (entries.empty()) field.refuse("is empty");
  size_t bytes = 0;
  for (const auto& entry : entries) bytes += entry.key().size();
  vocabulary.reserve(entries.size(), bytes);
  for (const auto& entry : entries) {
    std::string_view token(entry.key().data(), entry.key().size());
    if (!entry.value().is_int64() || entry.value().get_int64() < 0 ||
        entry.value().get_int64() > INT32_MAX)
      (void)Field(field.file(), &entry.value(), field.place() + "[" + shown(token) + "]").id();
    vocabulary.add(token, static_cast<uint32_t>(entry.value().get_int64()));
  }
  if (auto same = vocabulary.seal())
    field.refuse("gives " + shown(same->first) + " and " + shown(same->second) + " the same id");
}

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

void read_merges(const Field& field, Bpe& bpe) {
  const json::array& merges = field.array();
  bpe.merges = MergeTable(merges.size());
  uint32_t rank = 0;
  std::string joined;
  for (size_t i = 0; i < merges.size(); ++i) {
    if (merges[i].kind() != merges[0].kind())
      field.at(i).refuse("is written in another way than the first");
    if (merges[i].is_string() && view(merges[i].get_string()).starts_with("#version"))
      continue;  // a line of merges.txt
    auto [left, right] = halves(field, merges[i], i);
    joined.assign(left);
    joined += right;
    auto id_of = [&](std::string_view token) {
      auto id = bpe.vocabulary.find(token);
      if (!id) field.at(i).refuse("needs the token " + shown(token) + ", which model.vocab lacks");
      return *id;
    };
    uint32_t a = id_of(left), b = id_of(right);
    bpe.merges.set(a, b, {rank++, id_of(joined)});
  }
}

// Older files leave the type out; then the fields tell.
std::string kind_of(const Field& model) {
  if (!model.at("type").absent()) return std::string(model.type());
  return model.at("merges").absent()
             ? (model.object().contains("max_input_chars_per_word") ? "WordPiece" : "unknown")
             : "BPE";
}

}  // namespace

void read_model(const Field& model, Bpe& bpe) {
  std::string kind = kind_of(model);
  if (kind != "BPE")
    model.refuse("is of the kind " + shown(kind) + "; only byte-level BPE is read here");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    Field field = model.at(key);
    if (!field.absent() && !field.string().empty())
      field.refuse("is " + shown(field.string()) + ", which byte-level BPE does not have");
  }
  if (Field dropout = model.at("dropout"); !dropout.absent()) {
    const json::value& value = *model.object().if_contains("dropout");
    if (!value.is_number()) dropout.refuse("must be null or 0");
    if (value.to_number<double>() != 0) dropout.refuse("is not 0: tokens would be drawn by chance");
  }
  read_vocabulary(model.at("vocab"), bpe.vocabulary);
  bpe.fuse_unknown = model.at("fuse_unk").boolean_or(false);
  bpe.ignore_merges = model.at("ignore_merges").boolean_or(false);
  size_t lacking = 0;
  uint8_t first = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    bpe.byte_ids[byte] = bpe.vocabulary.find(letter_of(static_cast<uint8_t>(byte)));
    if (!bpe.byte_ids[byte] && lacking++ == 0) first = static_cast<uint8_t>(byte);
  }
  if (lacking == 256)
    model.at("vocab").refuse(
        "has a token for none of the 256 bytes, so this is not byte-level BPE");
  read_merges(model.at("merges"), bpe);
  if (lacking == 0) return;
  // To the library a letter that the vocabulary lacks is its own bytes, where it has tokens for all
  // of them; where it lacks one, falling back changes nothing.
  const bool falls_back =
      model.at("byte_fallback").boolean_or(false) &&
      std::any_of(bpe.byte_ids.begin(), bpe.byte_ids.end(), [&](const auto& id) {
        const std::string_view letter = letter_of(static_cast<uint8_t>(&id - bpe.byte_ids.data()));
        return !id && std::all_of(letter.begin(), letter.end(), [&](char byte) {
          char token[8];
          std::snprintf(token, sizeof token, "<0x%02X>", static_cast<unsigned>(byte) & 0xffU);
          return bpe.vocabulary.find(token).has_value();
        });
      });
  std::string which = "byte " + std::to_string(first) +
                      (lacking > 1 ? " and " + std::to_string(lacking - 1) + " more" : "");
  if (falls_back)
    model.at("byte_fallback")
        .refuse("is true and model.vocab has no token for " + which +
                "; falling back to <0x..> tokens is not read here");
  Field unknown = model.at("unk_token");
  if (unknown.absent()) return;
  bpe.unknown = bpe.vocabulary.find(unknown.string());
  if (!bpe.unknown)
    unknown.refuse("is " + shown(unknown.string()) +
                   ", which model.vocab lacks, and it has no token for " + which);
}

namespace {

constexpr std::string_view kNormalizers = "NFC, Sequence",
                           kPreTokenizers = "ByteLevel, Split, Digits, Sequence",
                           kPostProcessors = "ByteLevel, TemplateProcessing, Sequence",
                           kDecoders =
                               "ByteLevel, Sequence, Strip of spaces behind it, and before it what "
                               "changes nothing: ByteFallback, Fuse, Replace";

[[noreturn]] void refuse_kind(const Field& field, std::string_view known) {
  field.refuse("is of the kind " + shown(field.type()) + "; those read here are " +
               std::string(known));
}

// A Sequence's members, or the field itself; what one of them is, is for `read`.
template <class Read>
void each(const Field& field, const char* members, const Read& read) {
  if (field.absent()) return;
  if (field.type() != "Sequence") return read(field);
  Field list = field.at(members);
  for (size_t i = 0; i < list.array().size(); ++i) each(list.at(i), members, read);
}

SplitStep read_split(const Field& field) {
  static const std::pair<std::string_view, SplitBehavior> kBehaviors[] = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  Field behavior = field.at("behavior"), pattern = field.at("pattern");
  const auto* known = std::find_if(std::begin(kBehaviors), std::end(kBehaviors),
                                   [&](const auto& it) { return it.first == behavior.string(); });
  if (known == std::end(kBehaviors))
    behavior.refuse(
        "is " + shown(behavior.string()) +
        "; it must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
  Field regex = pattern.at("Regex"), literal = pattern.at("String");
  if (regex.absent() == literal.absent()) pattern.refuse("must hold either Regex or String");
  const Field& used = regex.absent() ? literal : regex;
  try {
    return {
        Pattern(used.string(), regex.absent() ? Pattern::Syntax::literal : Pattern::Syntax::ruby),
        regex.absent() ? std::string() : std::string(used.string()), known->second,
        field.at("invert").boolean_or(false)};
  } catch (const PatternProblem& problem) {
    used.refuse(shown(used.string()) + " " + problem.what + " (at byte " +
                std::to_string(problem.offset) + " of the pattern)");
  }
}

std::vector<int64_t> read_ids(const Field& ids) {
  std::vector<int64_t> out;
  for (size_t i = 0; i < ids.array().size(); ++i) out.push_back(ids.at(i).id());
  return out;
}

Template read_template(const Field& field) {
  Template out;
  Field single = field.at("single"), tokens = field.at("special_tokens");
  for (size_t i = 0; i < single.array().size(); ++i) {
    Field piece = single.at(i), token = piece.at("SpecialToken"), sequence = piece.at("Sequence");
    if (token.absent() == sequence.absent())
      piece.refuse("must be either a SpecialToken or a Sequence");
    if (token.absent()) {
      if (sequence.at("id").string() != "A")
        sequence.at("id").refuse("is " + shown(sequence.at("id").string()) +
                                 "; a single text is A");
      out.push_back({true, {}});
      continue;
    }
    Field listed = tokens.at(token.at("id").string());
    if (listed.absent())
      token.at("id").refuse("is " + shown(token.at("id").string()) +
                            ", which special_tokens lacks");
    out.push_back({false, read_ids(listed.at("ids"))});
  }
  // What a damaged file could make of one short text.
  if (out.size() > 64) single.refuse("has more than 64 pieces");
  if (std::count_if(out.begin(), out.end(), [](const TemplatePiece& piece) { return piece.text; }) >
      2)
    single.refuse("has the text more than twice");
  return out;
}

}  // namespace

bool read_normalizer(const Field& normalizer) {
  bool composes = false;
  each(normalizer, "normalizers", [&](const Field& field) {
    if (field.type() != "NFC") refuse_kind(field, kNormalizers);
    composes = true;
  });
  return composes;
}

std::vector<Step> read_pre_tokenizer(const Field& pre_tokenizer) {
  std::vector<Step> out;
  bool bytes = false;
  each(pre_tokenizer, "pretokenizers", [&](const Field& field) {
    std::string_view type = field.type();
    if (bytes) field.refuse("comes after ByteLevel, which must be the last");
    if (out.size() >= 32) field.refuse("is the 33rd of its kind; 32 are read here");
    if (type == "Split") {
      out.emplace_back(read_split(field));
    } else if (type == "Digits") {
      out.emplace_back(DigitsStep{field.at("individual_digits").boolean_or(false)});
    } else if (type == "ByteLevel") {
      bytes = true;
      out.emplace_back(BytesStep{field.at("add_prefix_space").boolean_or(true),
                                 field.at("use_regex").boolean_or(true)});
    } else {
      refuse_kind(field, kPreTokenizers);
    }
  });
  if (!bytes) pre_tokenizer.refuse("has no ByteLevel, so this is not byte-level BPE");
  return out;
}

std::optional<Template> read_post_processor(const Field& post_processor) {
  std::optional<Template> out;
  each(post_processor, "processors", [&](const Field& field) {
    if (field.type() == "ByteLevel") return;  // moves offsets only
    if (field.type() != "TemplateProcessing") refuse_kind(field, kPostProcessors);
    if (out) field.refuse("is the second TemplateProcessing; there can be one");
    out = read_template(field);
  });
  return out;
}

namespace {

// "<0x0A>": what ByteFallback takes for a byte.
bool is_byte_token(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>') &&
         token.substr(3, 2).find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

// A token that the decoder before ByteLevel could change, or with which the text of all of them
// would be none of letters; nothing where there is none.
std::optional<std::string> changed_by(const Field& decoder,
                                      const std::vector<std::string_view>& tokens) {
  const std::string_view type = decoder.type();
  const bool replaces = type == "Replace";
  if (replaces) {
    const Field pattern = decoder.at("pattern").at("String");
    if (pattern.absent()) decoder.at("pattern").refuse("must hold String");
    // What has a character that is no letter stands in no text of letters.
    if (from_letters(pattern.string())) return std::string(pattern.string());
  }
  for (const std::string_view token : tokens)
    if (type == "ByteFallback" ? is_byte_token(token) : !from_letters(token).has_value())
      return std::string(token);
  return std::nullopt;
}

}  // namespace

int64_t read_decoder(const Field& decoder, const std::vector<std::string_view>& tokens) {
  int found = 0;
  int64_t stripped = 0;
  each(decoder, "decoders", [&](const Field& field) {
    const std::string_view type = field.type();
    if (type == "ByteLevel") {
      ++found;
    } else if (found == 0 && (type == "ByteFallback" || type == "Fuse" || type == "Replace")) {
      if (const auto token = changed_by(field, tokens))
        field.refuse("is of the kind " + shown(type) + ", which changes the text of " +
                     shown(*token) + "; it is read where it changes none");
    } else if (found > 0 && type == "Strip" && field.at("content").string() == " " &&
               stripped == 0) {
      stripped = field.at("start").id();
      if (field.at("stop").id() != 0) field.at("stop").refuse("is not 0");
    } else {
      refuse_kind(field, kDecoders);
    }
  });
  if (found != 1)
    decoder.refuse(found == 0 ? "has no ByteLevel, so this is not byte-level BPE"
                              : "has ByteLevel more than once");
  return stripped;
}

std::deque<AddedToken> read_added_tokens(const Field& added, const Vocabulary& vocabulary) {
  std::deque<AddedToken> out;
  if (added.absent()) return out;
  std::set<std::string_view> contents;
  std::set<uint32_t> ids;
  auto next = static_cast<uint32_t>(vocabulary.count());
  for (size_t i = 0; i < added.array().size(); ++i) {
    Field field = added.at(i);
    AddedToken token;
    token.content = field.at("content").string();
    token.single_word = field.at("single_word").boolean_or(false);
    token.lstrip = field.at("lstrip").boolean_or(false);
    token.rstrip = field.at("rstrip").boolean_or(false);
    token.special = field.at("special").boolean_or(false);
    token.normalized = field.at("normalized").boolean_or(!token.special);
    token.id = field.at("id").id();
    if (token.content.empty()) field.at("content").refuse("is empty");
    if (token.content.size() > TokenFinder::kMaxBytes)
      field.at("content").refuse("has " + std::to_string(token.content.size()) +
                                 " bytes; at most " + std::to_string(TokenFinder::kMaxBytes) +
                                 " are read here");
    // The reference looks the content up and counts on from the vocabulary's size, whatever the
    // file says.
    auto known = vocabulary.find(token.content);
    uint32_t id = known ? *known : next++;
    if (id != token.id)
      field.at("id").refuse(
          "is " + std::to_string(token.id) + ", but " + shown(token.content) + " is " +
          std::to_string(id) +
          (known ? " in model.vocab" : ", counted on from the vocabulary's size"));
    if (!known && vocabulary.token_of(id))
      field.at("id").refuse("is " + std::to_string(id) +
                            ", which model.vocab gives to another token");
    if (!ids.insert(id).second)
      field.at("id").refuse("is " + std::to_string(id) + ", which an earlier one has");
    out.push_back(std::move(token));
    if (!contents.insert(out.back().content).second)
      field.at("content").refuse("is " + shown(out.back().content) + ", which stands there twice");
  }
  return out;
}

}  // namespace meshwright::tokenizer
