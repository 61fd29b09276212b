#include "sdk/text/tokenizer/pre_tokenizers.h"

#include <algorithm>
#include <array>
#include <utility>

#include "sdk/text/tokenizer/character_classes.h"
#include "sdk/text/tokenizer/normalize.h"
#include "sdk/text/tokenizer/read_pattern.h"

namespace meshwright::tokenizer {

namespace {

constexpr std::string_view kPreTokenizers =
    "Sequence, ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, "
    "CharDelimiterSplit, UnicodeScripts, BertPreTokenizer, FixedLength";

constexpr std::string_view kSeparating[] = {
    // GPT-2
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    // GPT-4, Llama 3
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|)"
    R"(\s*[\r\n]|\s+(?!\S)|\s+)",
    // Qwen2, Qwen3
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    // GPT-4o, gpt-oss
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    // Mistral's Tekken
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    // DeepSeek-V3
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};
// Matches of these hold neither white space nor what surrounds a cut from both sides.
constexpr std::string_view kLocal[] = {R"(\p{N}{1,3})", R"(\p{N})", "[一-龥぀-ゟ゠-ヿ]+"};

bool is_one_of(std::string_view source, std::span<const std::string_view> known) {
  return std::find(known.begin(), known.end(), source) != known.end();
}

// A match, or what lies between two of them.
struct SplitRange {
  size_t begin = 0, end = 0;
  bool match = false;
};

// The pieces of a text whose matches and gaps `parts` lists in order, where neighbours are joined.
std::vector<SplitRange> joined(const std::vector<SplitRange>& parts, SplitBehavior behavior) {
  std::vector<SplitRange> out;
  out.reserve(parts.size());
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::isolated:
    case SplitBehavior::removed:
      break;
    case SplitBehavior::contiguous:
    case SplitBehavior::merged_with_previous:
      for (const SplitRange& part : parts) {
        const bool joins = behavior == SplitBehavior::contiguous ? part.match == previous
                                                                 : part.match && !previous;
        if (joins && !out.empty()) {
          out.back().end = part.end;
        } else {
          out.push_back(part);
        }
        previous = part.match;
      }
      return out;
    case SplitBehavior::merged_with_next:
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->match && !previous && !out.empty()) {
          out.back().begin = part->begin;
        } else {
          out.push_back(*part);
        }
        previous = part->match;
      }
      std::reverse(out.begin(), out.end());
      return out;
  }
  return out;
}

// Hands over what the behavior makes of matches as they come.
class Splitter {
 public:
  Splitter(const Piece& piece, SplitBehavior behavior, bool invert, const Take& take)
      : piece_(piece), behavior_(behavior), invert_(invert), take_(take) {}

  void match(size_t begin, size_t end) {
    if (done_ != begin) put(done_, begin, invert_);
    put(begin, end, !invert_);
    done_ = end;
  }
  void finish() {
    if (done_ != piece_.text.size()) put(done_, piece_.text.size(), invert_);
    for (const SplitRange& part : joined(parts_, behavior_))
      take_(piece_.part(part.begin, part.end));
  }

 private:
  void put(size_t begin, size_t end, bool is_match) {
    if (behavior_ == SplitBehavior::isolated ||
        (behavior_ == SplitBehavior::removed && !is_match)) {
      take_(piece_.part(begin, end));
    } else if (behavior_ != SplitBehavior::removed) {
      parts_.push_back({begin, end, is_match});
    }
  }

  const Piece& piece_;
  SplitBehavior behavior_;
  bool invert_;
  const Take& take_;
  size_t done_ = 0;
  std::vector<SplitRange> parts_;
};

// By a pattern; invert: what lies between its matches counts as the matches.
class Split final : public PreTokenizer {
 public:
  Split(ReadPattern read, SplitBehavior behavior, bool invert)
      : pattern_(std::move(read.pattern)),
        source_(read.literal ? std::string() : read.source),
        literal_(read.literal ? read.source : std::string()),
        behavior_(behavior),
        invert_(invert) {}

  void split(const Piece& piece, SplitContext& context, const Take& take) const override {
    Splitter out(piece, behavior_, invert_, take);
    Matches matches(pattern_, piece.text, context.scratch);
    while (auto found = matches.next()) out.match(found->begin, found->end);
    out.finish();
  }

  void heed(CutPlaces& places) const override {
    // Spaces of which none is left are found nowhere.
    if (literal_ == " " &&
        std::find(places.spaces.begin(), places.spaces.end(), " ") == places.spaces.end())
      return;
    const bool whole = behavior_ == SplitBehavior::isolated && !invert_;
    // The matches are kept and what lies between them is dropped; between those of a separating
    // pattern there is nothing.
    const bool inverted = behavior_ == SplitBehavior::removed && invert_;
    const bool separates = is_one_of(source_, kSeparating) && (whole || inverted);
    if (!places.as_they_were() || (!separates && !(whole && is_one_of(source_, kLocal))))
      places = CutPlaces::none();
    else
      places.separated = places.separated || separates;
  }

 private:
  Pattern pattern_;
  std::string source_, literal_;  // the pattern as the file has it, in one of them
  SplitBehavior behavior_;
  bool invert_;
};

// At characters of a class.
template <class Is>
class SplitAt final : public PreTokenizer {
 public:
  // separates: it ends a piece at white space, of which it leaves nothing.
  SplitAt(Is is, SplitBehavior behavior, bool separates)
      : is_(is), behavior_(behavior), separates_(separates) {
    for (size_t code = 0; code < ascii_.size(); ++code)
      ascii_[code] = is_(static_cast<int32_t>(code));
  }

  void split(const Piece& piece, SplitContext&, const Take& take) const override {
    Splitter out(piece, behavior_, false, take);
    for (size_t at = 0; at < piece.text.size();) {
      const Character one = next_character(piece.text, at);
      if (one.bytes == 1 ? ascii_[static_cast<size_t>(one.code)] : is_(one.code))
        out.match(at, at + one.bytes);
      at += one.bytes;
    }
    out.finish();
  }
  // Otherwise what it does on one side of a cut does not depend on the other.
  void heed(CutPlaces& places) const override {
    const auto is_blank = [](const std::string& space) {
      return is_space(character_at(space, 0).code);
    };
    if (separates_ && std::all_of(places.spaces.begin(), places.spaces.end(), is_blank))
      places.separated = true;
  }

 private:
  Is is_;
  std::array<bool, 128> ascii_{};  // what it says of these
  SplitBehavior behavior_;
  bool separates_;
};

template <class Is>
std::unique_ptr<PreTokenizer> split_at(Is is, SplitBehavior behavior, bool separates = false) {
  return std::make_unique<SplitAt<Is>>(is, behavior, separates);
}

// Words and what is neither word nor white space, as the library's other regular expressions have
// them, which are not Oniguruma's.
class Words final : public PreTokenizer {
 public:
  void split(const Piece& piece, SplitContext& context, const Take& take) const override {
    static const Pattern words{R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]+|)"
                               R"([^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}\s]+)"};
    Matches matches(words, piece.text, context.scratch);
    while (auto found = matches.next()) take(piece.part(found->begin, found->end));
  }
  void heed(CutPlaces& places) const override {
    if (places.spaces != std::vector<std::string>{" "})
      places = CutPlaces::none();
    else
      places.separated = true;
  }
};

// From here on a character stands for each byte; `letters`: the pieces are put in them, else they
// stay bytes.
class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool prefix, bool use_pattern, bool letters)
      : prefix_(prefix), use_pattern_(use_pattern), letters_(letters) {}

  void split(const Piece& whole, SplitContext& context, const Take& take) const override {
    Piece piece = whole;
    std::string text;
    std::vector<ByteRange> from;
    if (prefix_ && !piece.text.starts_with(' ')) {
      text.reserve(piece.text.size() + 1);
      text.push_back(' ');
      text += piece.text;
      if (piece.from != nullptr) {
        const size_t first = character_at(piece.text, 0).bytes;
        from.reserve(text.size());
        from.push_back({piece.from[0].begin, piece.from[first - 1].end});
        from.insert(from.end(), piece.from, piece.from + piece.text.size());
      }
      piece = {text, from.empty() ? nullptr : from.data(), piece.at};
    }
    if (!use_pattern_) return hand(piece, take);
    static const Pattern gpt2{kSeparating[0]};
    size_t done = 0;
    Matches matches(gpt2, piece.text, context.scratch);
    while (auto found = matches.next()) {
      if (done < found->begin) hand(piece.part(done, found->begin), take);
      hand(piece.part(found->begin, found->end), take);
      done = found->end;
    }
    if (done < piece.text.size()) hand(piece.part(done, piece.text.size()), take);
  }
  bool rewrites() const override { return letters_ || prefix_; }

  void heed(CutPlaces& places) const override {
    if (!places.as_they_were() && (use_pattern_ || prefix_)) places = CutPlaces::none();
    places.separated = places.separated || use_pattern_;
    // A part that begins with a space gets none before it, but one that begins a line would.
    if (prefix_) places.at_lines = false;
    for (std::string& space : places.spaces)
      if (letters_) space = to_letters(space);
  }

 private:
  void hand(const Piece& piece, const Take& take) const {
    if (!letters_) return take(piece);
    const std::string text = to_letters(piece.text);
    std::vector<ByteRange> from;
    for (size_t i = 0; piece.from != nullptr && i < piece.text.size(); ++i)
      from.insert(from.end(), letter_of(static_cast<uint8_t>(piece.text[i])).size(), piece.from[i]);
    take({text, from.empty() ? nullptr : from.data(), piece.at});
  }
  bool prefix_, use_pattern_, letters_;
};

// sentencepiece's way: a sign for each space, and one before the text.
class Metaspace final : public PreTokenizer {
 public:
  enum class Prepend { always, first, never };
  // alone: no step stands before it.
  Metaspace(std::string sign, Prepend prepend, bool splits, bool alone)
      : sign_(std::move(sign)), prepend_(prepend), splits_(splits), alone_(alone) {}

  void split(const Piece& whole, SplitContext& context, const Take& take) const override {
    std::string text;
    std::vector<ByteRange> from;
    const std::string_view in = whole.text;
    text.reserve(in.size() + in.size() / 2 + sign_.size());
    if (whole.from != nullptr) from.reserve(text.capacity());
    auto put = [&](std::string_view bytes, ByteRange source) {
      text += bytes;
      if (whole.from != nullptr) from.insert(from.end(), bytes.size(), source);
    };
    if (!in.empty() && !in.starts_with(' ') && !in.starts_with(sign_) && prepends(whole, context))
      put(sign_, whole.from == nullptr ? ByteRange{}
                                       : ByteRange{whole.from[0].begin,
                                                   whole.from[character_at(in, 0).bytes - 1].end});
    for (size_t at = 0; at < in.size();) {
      const size_t space = std::min(in.find(' ', at), in.size());
      text += in.substr(at, space - at);
      if (whole.from != nullptr) from.insert(from.end(), whole.from + at, whole.from + space);
      if (space < in.size()) put(sign_, whole.from == nullptr ? ByteRange{} : whole.from[space]);
      at = space + 1;
    }
    const Piece piece{text, from.empty() ? nullptr : from.data(), whole.at};
    if (!splits_) return take(piece);
    // A sign begins a piece; where several stand together, the last of them.
    size_t begin = 0;
    for (size_t at = text.find(sign_); at != std::string::npos;
         at = text.find(sign_, begin + sign_.size())) {
      if (at > begin) take(piece.part(begin, at));
      begin = at;
    }
    take(piece.part(begin, text.size()));
  }

  bool needs_begins() const override { return prepend_ == Prepend::first; }
  bool rewrites() const override { return true; }
  void heed(CutPlaces& places) const override {
    for (std::string& space : places.spaces)
      if (space == " ") space = sign_;
    const bool all = std::all_of(places.spaces.begin(), places.spaces.end(),
                                 [&](const std::string& space) { return space == sign_; });
    if (splits_ && all) places.separated = true;
    if (prepend_ == Prepend::always) places.prefixed = true;
    // A line would begin with a sign where it is not the beginning of a piece.
    if (!alone_ || splits_) places.at_lines = false;
    if ((!all && prepend_ != Prepend::never) || !places.bare) places = CutPlaces::none();
  }

 private:
  bool prepends(const Piece& piece, const SplitContext& context) const {
    const bool cut = context.continues && piece.begin() == 0;
    switch (prepend_) {
      case Prepend::always:
        return !(cut && alone_);
      case Prepend::first:
        return piece.begin() == 0 && !cut;
      case Prepend::never:
        return false;
    }
    return false;
  }
  std::string sign_;
  Prepend prepend_;
  bool splits_, alone_;
};

class UnicodeScripts final : public PreTokenizer {
 public:
  void split(const Piece& piece, SplitContext&, const Take& take) const override {
    size_t done = 0;
    uint8_t last = 0;
    bool begun = false;
    for (size_t at = 0; at < piece.text.size();) {
      const Character one = character_at(piece.text, at);
      const uint8_t script = one.code == ' ' ? 0 : script_of(one.code);
      if (script != 0 && script != last) {
        // What stands before the first script is lost, as in the library.
        if (begun) take(piece.part(done, at));
        done = at;
        begun = true;
      }
      if (script != 0) last = script;
      at += one.bytes;
    }
    if (begun) take(piece.part(done, piece.text.size()));
  }
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(size_t length) : length_(length) {}
  void split(const Piece& piece, SplitContext&, const Take& take) const override {
    size_t begin = 0, count = 0;
    for (size_t at = 0; at < piece.text.size();) {
      at += character_at(piece.text, at).bytes;
      if (++count < length_) continue;
      take(piece.part(begin, at));
      begin = at;
      count = 0;
    }
    take(piece.part(begin, piece.text.size()));
  }

 private:
  size_t length_;
};

SplitBehavior read_behavior(const Field& behavior) {
  static constexpr std::pair<std::string_view, SplitBehavior> kBehaviors[] = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  const std::string_view name = behavior.string();
  const auto* known = std::find_if(std::begin(kBehaviors), std::end(kBehaviors),
                                   [&](const auto& it) { return it.first == name; });
  if (known == std::end(kBehaviors))
    behavior.refuse(
        "is " + shown(name) +
        "; it must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
  return known->second;
}

std::unique_ptr<PreTokenizer> read_metaspace(const Field& field, bool alone) {
  const Field replacement = field.at("replacement"), scheme = field.at("prepend_scheme"),
              prefix = field.at("add_prefix_space");
  std::string sign;
  append_utf8(sign, replacement.character());
  const std::string name = scheme.string_or(prefix.boolean_or(true) ? "always" : "never");
  static constexpr std::pair<std::string_view, Metaspace::Prepend> kSchemes[] = {
      {"always", Metaspace::Prepend::always},
      {"first", Metaspace::Prepend::first},
      {"never", Metaspace::Prepend::never}};
  const auto* known = std::find_if(std::begin(kSchemes), std::end(kSchemes),
                                   [&](const auto& it) { return it.first == name; });
  if (known == std::end(kSchemes))
    scheme.refuse("is " + shown(name) + "; it must be always, first or never");
  if (!prefix.boolean_or(true) && known->second != Metaspace::Prepend::never)
    prefix.refuse("is false and prepend_scheme " + shown(name));
  return std::make_unique<Metaspace>(sign, known->second, field.at("split").boolean_or(true),
                                     alone);
}

void read_step(const Field& field, bool last, bool takes_bytes, PreTokenizers& out) {
  const std::string_view type = field.type();
  auto& steps = out.steps;
  if (type == "Split") {
    const SplitBehavior behavior = read_behavior(field.at("behavior"));
    steps.push_back(std::make_unique<Split>(read_pattern(field.at("pattern")), behavior,
                                            field.at("invert").boolean_or(false)));
  } else if (type == "Digits") {
    steps.push_back(split_at(is_number, field.at("individual_digits").boolean_or(false)
                                            ? SplitBehavior::isolated
                                            : SplitBehavior::contiguous));
  } else if (type == "ByteLevel") {
    out.bytes = last && takes_bytes;
    steps.push_back(std::make_unique<ByteLevel>(field.at("add_prefix_space").boolean_or(true),
                                                field.at("use_regex").boolean_or(true),
                                                !out.bytes));
  } else if (type == "Metaspace") {
    steps.push_back(read_metaspace(field, steps.empty()));
  } else if (type == "Punctuation") {
    const Field behavior = field.at("behavior");
    steps.push_back(split_at(
        is_punctuation, behavior.absent() ? SplitBehavior::isolated : read_behavior(behavior)));
  } else if (type == "Whitespace") {
    steps.push_back(std::make_unique<Words>());
  } else if (type == "WhitespaceSplit") {
    steps.push_back(split_at(is_space, SplitBehavior::removed, true));
  } else if (type == "BertPreTokenizer") {
    steps.push_back(split_at(is_space, SplitBehavior::removed, true));
    steps.push_back(split_at(is_punctuation, SplitBehavior::isolated));
  } else if (type == "CharDelimiterSplit") {
    const int32_t delimiter = field.at("delimiter").character();
    steps.push_back(
        split_at([delimiter](int32_t code) { return code == delimiter; }, SplitBehavior::removed));
  } else if (type == "UnicodeScripts") {
    steps.push_back(std::make_unique<UnicodeScripts>());
  } else if (type == "FixedLength") {
    const Field length = field.at("length");
    const uint32_t count = length.absent() ? 5 : length.id();
    if (count == 0) length.refuse("is 0");
    steps.push_back(std::make_unique<FixedLength>(count));
  } else {
    refuse_kind(field, kPreTokenizers);
  }
}

}  // namespace

PreTokenizers read_pre_tokenizer(const Field& pre_tokenizer, bool takes_bytes) {
  std::vector<Field> fields;
  each(pre_tokenizer, "pretokenizers", [&](const Field& field) { fields.push_back(field); });
  if (fields.size() > 32) fields[32].refuse("is the 33rd of its kind; 32 are read here");
  PreTokenizers out;
  for (const Field& field : fields) read_step(field, &field == &fields.back(), takes_bytes, out);
  return out;
}

void pre_tokenize(std::span<const std::unique_ptr<PreTokenizer>> steps, const Piece& piece,
                  SplitContext& context, const Take& take) {
  if (piece.text.empty()) return;
  if (steps.empty()) return take(piece);
  steps[0]->split(piece, context,
                  [&](const Piece& part) { pre_tokenize(steps.subspan(1), part, context, take); });
}

std::span<const std::string_view> separating_patterns() { return kSeparating; }

}  // namespace meshwright::tokenizer
