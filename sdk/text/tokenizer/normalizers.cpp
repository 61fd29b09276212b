#include "sdk/text/tokenizer/normalizers.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <optional>

#include "sdk/text/tokenizer/character_classes.h"
#include "sdk/text/tokenizer/charsmap.h"
#include "sdk/text/tokenizer/normalize.h"
#include "sdk/text/tokenizer/read_pattern.h"
#include "sdk/text/tokenizer/unicode_forms.h"

namespace meshwright::tokenizer {

namespace {

constexpr std::string_view kNormalizers =
    "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Replace, Prepend, Nmt, "
    "Precompiled, BertNormalizer, ByteLevel";

// Calls change(out, code, source) for each character for which `looks` is true; the others are
// kept. `first`: it is true of none that begins with a lower byte; a byte within characters is none
// that one of more bytes begins with.
template <class Looks, class Change>
void each_character(Aligned& text, const Looks& looks, const Change& change, uint8_t first = 0) {
  const std::string_view in = text.text;
  std::optional<Aligned> out;
  size_t kept = 0;
  for (size_t at = 0;;) {
    while (at < in.size() && static_cast<uint8_t>(in[at]) < first) ++at;
    if (at == in.size()) break;
    const Character one = next_character(in, at);
    const size_t end = at + one.bytes;
    if (looks(one.code)) {
      if (!out) out = Aligned::after(text);
      out->keep(text, kept, at);
      change(*out, one.code, text.source(at, end));
      kept = end;
    }
    at = end;
  }
  if (!out) return;
  out->keep(text, kept, in.size());
  text = std::move(*out);
}

// Marks: none begins with a lower byte than U+0300.
template <class Drops>
void drop(Aligned& text, const Drops& drops) {
  each_character(text, drops, [](Aligned&, int32_t, ByteRange) {}, 0xCC);
}

void lower(Aligned& text) {
  for (char& c : text.text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  each_character(
      text, [](int32_t code) { return utf8proc_tolower(code) != code; },
      [](Aligned& out, int32_t code, ByteRange source) {
        out.put(utf8proc_tolower(code), source);
        if (code == 0x130) out.put("\u0307", source);  // the one letter of which two become
      },
      0x80);
}

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(Form form) : form_(form) {}
  void apply(Aligned& text, SplitContext&) const override { to_form(text, form_); }
  void heed(CutPlaces&) const override {}

 private:
  Form form_;
};

class Lowercase final : public Normalizer {
 public:
  void apply(Aligned& text, SplitContext&) const override { lower(text); }
  void heed(CutPlaces&) const override {}
};

class StripAccents final : public Normalizer {
 public:
  void apply(Aligned& text, SplitContext&) const override { drop(text, is_accent); }
  void heed(CutPlaces&) const override {}
};

class StripNormalizer final : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  void apply(Aligned& text, SplitContext&) const override {
    const std::string_view in = text.text;
    size_t begin = 0, end = in.size();
    while (left_ && begin < end && is_space(character_at(in, begin).code))
      begin += character_at(in, begin).bytes;
    while (right_ && end > begin) {
      size_t last = end - 1;
      while ((static_cast<uint8_t>(in[last]) & 0xC0) == 0x80) --last;
      if (!is_space(character_at(in, last).code)) break;
      end = last;
    }
    if (begin == 0 && end == in.size()) return;
    Aligned out = Aligned::after(text);
    out.keep(text, begin, end);
    text = std::move(out);
  }
  void heed(CutPlaces& places) const override {
    if (left_) places.at_spaces = false;
    if (right_) places.at_lines = false;
  }

 private:
  bool left_, right_;
};

class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string source, bool literal, std::string content)
      : pattern_(std::move(pattern)),
        source_(std::move(source)),
        literal_(literal),
        content_(std::move(content)) {}

  void apply(Aligned& text, SplitContext& context) const override {
    const std::string_view in = text.text;
    std::optional<Aligned> out;
    size_t kept = 0;
    Matches matches(pattern_, in, context.scratch);
    while (auto found = matches.next()) {
      if (!out) out = Aligned::after(text);
      out->keep(text, kept, found->begin);
      out->put(content_, place(text, *found));
      kept = found->end;
    }
    if (!out) return;
    out->keep(text, kept, in.size());
    text = std::move(*out);
  }

  void heed(CutPlaces& places) const override {
    // Signs that neither stand at a cut nor become white space.
    if (literal_ &&
        all_of(
            source_,
            [](int32_t code) { return !is_space(code) && !is_letter(code) && !is_number(code); }) &&
        all_of(content_, [](int32_t code) { return !is_space(code); }))
      return;
    static constexpr std::string_view kRuns[] = {" {2,}", " +", R"(\s+)"};
    const bool space = literal_ && source_ == " ";
    const bool run =
        !literal_ && std::find(std::begin(kRuns), std::end(kRuns), source_) != std::end(kRuns);
    if (!(space || run) || content_.empty() || character_at(content_, 0).bytes != content_.size() ||
        content_ == "\n") {
      places = CutPlaces::none();
      return;
    }
    // A white space that is replaced by a letter would stand behind a line feed as none.
    if (run && source_ == R"(\s+)") places.at_lines = false;
    if (space) std::erase(places.spaces, std::string(" "));
    if (std::find(places.spaces.begin(), places.spaces.end(), content_) == places.spaces.end())
      places.spaces.push_back(content_);
  }

 private:
  // Of a text that is not empty.
  template <class Is>
  static bool all_of(std::string_view text, const Is& is) {
    for (size_t at = 0; at < text.size(); at += character_at(text, at).bytes)
      if (!is(character_at(text, at).code)) return false;
    return !text.empty();
  }
  // What is put there stands for the last character of what it replaces; where that is nothing, for
  // the one before.
  static ByteRange place(const Aligned& text, Matches::Range found) {
    if (!text.tracked) return {};
    if (found.end == 0) return {text.from[0].begin, text.from[0].begin};
    size_t last = found.end - 1;
    while ((static_cast<uint8_t>(text.text[last]) & 0xC0) == 0x80) --last;
    return text.source(last, found.end);
  }

  Pattern pattern_;
  std::string source_;
  bool literal_;
  std::string content_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(Aligned& text, SplitContext& context) const override {
    if (text.text.empty() || context.continues) return;
    Aligned out = Aligned::after(text);
    out.put(prefix_, text.source(0, character_at(text.text, 0).bytes));
    out.keep(text, 0, text.text.size());
    text = std::move(out);
  }
  void heed(CutPlaces& places) const override { places.prefixed = true; }

 private:
  std::string prefix_;
};

class Nmt final : public Normalizer {
 public:
  void apply(Aligned& text, SplitContext&) const override {
    each_character(
        text, [](int32_t code) { return drops(code) || is_blank(code); },
        [](Aligned& out, int32_t code, ByteRange source) {
          if (!drops(code)) out.put(" ", source);
        });
  }

 private:
  static bool drops(int32_t code) {
    return (code >= 0x1 && code <= 0x8) || code == 0xB || (code >= 0xE && code <= 0x1F) ||
           code == 0x7F || code == 0x8F || code == 0x9F;
  }
  static bool is_blank(int32_t code) {
    return code == 0x9 || code == 0xA || code == 0xC || code == 0xD || code == 0x1680 ||
           (code >= 0x200B && code <= 0x200F) || code == 0x2028 || code == 0x2029 ||
           code == 0x2581 || code == 0xFEFF || code == 0xFFFD;
  }
};

// sentencepiece's map: of a grapheme of less than six bytes as a whole, else of each character.
class Precompiled final : public Normalizer {
 public:
  explicit Precompiled(std::string_view bytes) : map_(bytes) {
    for (size_t byte = 0; byte < 128; ++byte) {
      const char c = static_cast<char>(byte);
      if (auto found = map_.find({&c, 1})) ascii_[byte] = std::string(*found);
    }
  }

  void apply(Aligned& text, SplitContext&) const override {
    const std::string_view in = text.text;
    Aligned out = Aligned::after(text);
    auto is_plain = [&](size_t at) {  // a grapheme for itself if it begins one
      return static_cast<uint8_t>(in[at]) < 0x80 && in[at] != '\r' &&
             (at + 1 == in.size() || static_cast<uint8_t>(in[at + 1]) < 0x80);
    };
    for (size_t begin = 0, end = 0; begin < in.size(); begin = end) {
      if (is_plain(begin)) {
        end = begin + 1;
        const std::optional<std::string>& known = ascii_[static_cast<uint8_t>(in[begin])];
        if (known) {
          out.put(*known, text.source(begin, end));
          continue;
        }
        while (end < in.size() && is_plain(end) && !ascii_[static_cast<uint8_t>(in[end])]) ++end;
        out.keep(text, begin, end);
        continue;
      }
      end = grapheme_end(in, begin);
      if (end - begin < 6)
        if (const auto found = map_.find(in.substr(begin, end - begin))) {
          put(out, text, begin, end, *found);
          continue;
        }
      for (size_t at = begin; at < end;) {
        const size_t next = at + character_at(in, at).bytes;
        if (const auto found = map_.find(in.substr(at, next - at)))
          put(out, text, at, next, *found);
        else
          out.keep(text, at, next);
        at = next;
      }
    }
    // What the map takes away before the first character goes to that one, so that it
    // begins the text for Metaspace, as in the library. After a Strip it does not.
    if (!out.from.empty()) out.from[0].begin = text.from[0].begin;
    text = std::move(out);
  }

  // What a letter or a space becomes is for the map to say; it is asked for the space alone, which
  // is its own grapheme.
  void heed(CutPlaces& places) const override {
    const std::optional<std::string>& space = ascii_[' '];
    if (space && *space != " ") places = CutPlaces::none();
    places.at_lines = false;
  }

 private:
  static size_t grapheme_end(std::string_view in, size_t begin) {
    utf8proc_int32_t state = 0;
    Character one = character_at(in, begin);
    size_t end = begin + one.bytes;
    while (end < in.size()) {
      const Character next = character_at(in, end);
      if (utf8proc_grapheme_break_stateful(one.code, next.code, &state)) break;
      end += next.bytes;
      one = next;
    }
    return end;
  }

  // Its characters stand for those they replace one by one, and what there is more of them for the
  // last.
  static void put(Aligned& out, const Aligned& text, size_t begin, size_t end,
                  std::string_view content) {
    size_t at = begin, next = begin;
    for (size_t i = 0; i < content.size();) {
      const Character one = character_at(content, i);
      if (next < end) {
        at = next;
        next += character_at(text.text, at).bytes;
      }
      out.put(content.substr(i, one.bytes), text.source(at, next));
      i += one.bytes;
    }
  }

  Charsmap map_;
  std::array<std::optional<std::string>, 128> ascii_;
};

class Bert final : public Normalizer {
 public:
  struct Options {
    bool clean = true, chinese = true, accents = true, lowercase = true;
  };
  explicit Bert(Options options) : options_(options) {}

  void apply(Aligned& text, SplitContext&) const override {
    if (options_.clean) {
      for (char& c : text.text)
        if (c == '\t' || c == '\n' || c == '\r') c = ' ';
      each_character(
          text,
          [](int32_t code) {
            if (code < 0x80) return code < ' ' || code == 0x7F;
            return code == 0xFFFD || is_space(code) || is_control(code);
          },
          [](Aligned& out, int32_t code, ByteRange source) {
            if (is_space(code) && !is_control(code)) out.put(" ", source);
          });
    }
    if (options_.chinese)
      each_character(
          text, is_chinese,
          [](Aligned& out, int32_t code, ByteRange source) {
            out.put(" ", source);
            out.put(code, source);
            out.put(" ", source);
          },
          0xE3);
    if (options_.accents) {
      to_form(text, Form::nfd);
      drop(text, is_nonspacing);
    }
    if (options_.lowercase) lower(text);
  }
  // A line feed becomes a space, and so ends a piece as one does.
  void heed(CutPlaces& places) const override {
    places.at_lines = places.at_lines && options_.clean;
    places.bare = places.bare && !options_.chinese;
  }

 private:
  static bool is_chinese(int32_t code) {
    return (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0x3400 && code <= 0x4DBF) ||
           (code >= 0x20000 && code <= 0x2A6DF) || (code >= 0x2A700 && code <= 0x2B81F) ||
           (code >= 0x2B920 && code <= 0x2CEAF) || (code >= 0xF900 && code <= 0xFAFF) ||
           (code >= 0x2F800 && code <= 0x2FA1F);
  }
  Options options_;
};

class ByteLetters final : public Normalizer {
 public:
  void apply(Aligned& text, SplitContext&) const override {
    Aligned out = Aligned::after(text);
    for (size_t i = 0; i < text.text.size(); ++i)
      out.put(letter_of(static_cast<uint8_t>(text.text[i])), text.source(i, i + 1));
    text = std::move(out);
  }
};

std::unique_ptr<Normalizer> read_precompiled(const Field& field) {
  const Field map = field.at("precompiled_charsmap");
  const std::optional<std::string> bytes = from_base64(map.string());
  if (!bytes) map.refuse("is not base64");
  try {
    return std::make_unique<Precompiled>(*bytes);
  } catch (const std::string& what) {
    map.refuse(what);
  }
}

std::unique_ptr<Normalizer> read_replace(const Field& field) {
  ReadPattern read = read_pattern(field.at("pattern"));
  return std::make_unique<ReplaceNormalizer>(std::move(read.pattern), std::move(read.source),
                                             read.literal,
                                             std::string(field.at("content").string()));
}

template <class Kind, class... Arguments>
std::unique_ptr<Normalizer> make(Arguments&&... arguments) {
  return std::make_unique<Kind>(std::forward<Arguments>(arguments)...);
}

std::unique_ptr<Normalizer> read_bert(const Field& field) {
  Bert::Options options;
  options.clean = field.at("clean_text").boolean_or(true);
  options.chinese = field.at("handle_chinese_chars").boolean_or(true);
  options.lowercase = field.at("lowercase").boolean_or(true);
  options.accents = field.at("strip_accents").boolean_or(options.lowercase);
  return make<Bert>(options);
}

using Read = std::unique_ptr<Normalizer> (*)(const Field& field);
const std::pair<std::string_view, Read> kNormalizerKinds[] = {
    {"NFC", [](const Field&) { return make<UnicodeForm>(Form::nfc); }},
    {"NFD", [](const Field&) { return make<UnicodeForm>(Form::nfd); }},
    {"NFKC", [](const Field&) { return make<UnicodeForm>(Form::nfkc); }},
    {"NFKD", [](const Field&) { return make<UnicodeForm>(Form::nfkd); }},
    {"Lowercase", [](const Field&) { return make<Lowercase>(); }},
    {"StripAccents", [](const Field&) { return make<StripAccents>(); }},
    {"Strip",
     [](const Field& field) {
       const bool left = field.at("strip_left").boolean();
       return make<StripNormalizer>(left, field.at("strip_right").boolean());
     }},
    {"Replace", read_replace},
    {"Prepend",
     [](const Field& field) { return make<Prepend>(std::string(field.at("prepend").string())); }},
    {"Nmt", [](const Field&) { return make<Nmt>(); }},
    {"Precompiled", read_precompiled},
    {"BertNormalizer", read_bert},
    {"ByteLevel", [](const Field&) { return make<ByteLetters>(); }},
};

}  // namespace

Normalizers read_normalizer(const Field& normalizer) {
  Normalizers out;
  each(normalizer, "normalizers", [&](const Field& field) {
    const std::string_view type = field.type();
    const auto* kind = std::find_if(std::begin(kNormalizerKinds), std::end(kNormalizerKinds),
                                    [&](const auto& it) { return it.first == type; });
    if (kind == std::end(kNormalizerKinds)) refuse_kind(field, kNormalizers);
    if (out.size() >= 64) field.refuse("is the 65th of its kind; 64 are read here");
    out.push_back(kind->second(field));
  });
  return out;
}

}  // namespace meshwright::tokenizer
