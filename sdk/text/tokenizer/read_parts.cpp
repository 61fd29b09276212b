#include <algorithm>
#include <set>

#include "sdk/text/tokenizer/bytes.h"
#include "sdk/text/tokenizer/parts.h"

namespace meshwright::tokenizer {

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
