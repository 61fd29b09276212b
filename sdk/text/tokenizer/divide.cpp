#include "sdk/text/tokenizer/divide.h"

#include <utf8proc.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <span>

#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

namespace {

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

bool is_number(int32_t code) {
  utf8proc_category_t category = utf8proc_category(code);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

std::vector<SplitRange> parts_by_pattern(const Pattern& pattern, bool invert, std::string_view text,
                                         PatternScratch& scratch) {
  std::vector<SplitRange> out;
  size_t done = 0;
  Matches matches(pattern, text, scratch);
  while (auto found = matches.next()) {
    if (done != found->begin) out.push_back({done, found->begin, invert});
    out.push_back({found->begin, found->end, !invert});
    done = found->end;
  }
  if (done != text.size()) out.push_back({done, text.size(), invert});
  return out;
}

std::vector<SplitRange> parts_by_numbers(std::string_view text) {
  std::vector<SplitRange> out;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    Character next = character_at(text, at);
    if (is_number(next.code)) {
      if (done < at) out.push_back({done, at, false});
      out.push_back({at, at + next.bytes, true});
      done = at + next.bytes;
    }
    at += next.bytes;
  }
  if (done < text.size()) out.push_back({done, text.size(), false});
  return out;
}

// Takes a piece through the steps that are left.
struct Walk {
  PatternScratch& scratch;
  const std::function<void(const SplitPiece&)>& take;

  void pieces(const std::vector<SplitRange>& parts, std::string_view text, size_t at,
              std::span<const Step> rest) {
    for (const SplitRange& part : parts)
      if (part.begin < part.end)
        go(text.substr(part.begin, part.end - part.begin), at + part.begin, rest);
  }

  // `at`: where `text` stands in the whole.
  void go(std::string_view text, size_t at, std::span<const Step> steps) {
    if (steps.empty()) return take({text, at});
    std::span<const Step> rest = steps.subspan(1);
    if (const auto* split = std::get_if<SplitStep>(&steps[0]))
      return pieces(apply_behavior(parts_by_pattern(split->pattern, split->invert, text, scratch),
                                   split->behavior),
                    text, at, rest);
    if (const auto* digits = std::get_if<DigitsStep>(&steps[0]))
      return pieces(
          apply_behavior(parts_by_numbers(text),
                         digits->individual ? SplitBehavior::isolated : SplitBehavior::contiguous),
          text, at, rest);
    const auto& bytes = std::get<BytesStep>(steps[0]);
    std::string prefixed;
    size_t added = 0;
    if (bytes.add_prefix_space && !text.starts_with(' ')) {
      prefixed.reserve(text.size() + 1);
      prefixed.push_back(' ');
      prefixed += text;
      text = prefixed;
      added = 1;
    }
    auto hand = [&](size_t begin, size_t end) {
      if (begin < end)
        take({text.substr(begin, end - begin), at + std::max(begin, added) - added,
              begin < added ? added - begin : 0});
    };
    if (!bytes.use_regex) return hand(0, text.size());
    static const Pattern gpt2{kGpt2};
    size_t done = 0;
    Matches matches(gpt2, text, scratch);
    while (auto found = matches.next()) {
      hand(done, found->begin);
      hand(found->begin, found->end);
      done = found->end;
    }
    hand(done, text.size());
  }
};

}  // namespace

std::vector<SplitRange> apply_behavior(std::vector<SplitRange> parts, SplitBehavior behavior) {
  std::vector<SplitRange> out;
  out.reserve(parts.size());
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::isolated:
      return parts;
    case SplitBehavior::removed:
      std::erase_if(parts, [](const SplitRange& part) { return part.match; });
      return parts;
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

void pre_tokenize(const std::vector<Step>& steps, std::string_view text, PatternScratch& scratch,
                  const std::function<void(const SplitPiece&)>& take) {
  if (!text.empty()) Walk{scratch, take}.go(text, 0, steps);
}

namespace {

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

bool is_letter(int32_t code) {
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}

bool is_digit(int32_t code) { return code >= '0' && code <= '9'; }

// The characters that end at `at` and that start there; nothing where the bytes are none.
std::optional<int32_t> codepoint_before(std::string_view text, size_t at) {
  size_t begin = at;
  while (begin > 0 && at - begin < 4) {
    --begin;
    if ((static_cast<uint8_t>(text[begin]) & 0xC0) != 0x80) break;
  }
  std::string_view one = text.substr(begin, at - begin);
  if (one.empty() || first_invalid(one) < one.size()) return std::nullopt;
  Character found = character_at(one, 0);
  return found.bytes == one.size() ? std::optional(found.code) : std::nullopt;
}

std::optional<int32_t> after(std::string_view text, size_t at) {
  for (size_t bytes = 1; bytes <= 4 && at + bytes <= text.size(); ++bytes)
    if (std::string_view one = text.substr(at, bytes); first_invalid(one) == one.size())
      return character_at(one, 0).code;
  return std::nullopt;
}

bool may_cut(std::string_view text, size_t at, Cuts cuts) {
  if (at == 0 || at >= text.size()) return false;
  if (cuts.at_spaces && text[at] == ' ') {
    std::optional<int32_t> last = codepoint_before(text, at);
    return last && (is_letter(*last) || is_digit(*last));
  }
  if (!cuts.at_lines || text[at - 1] != '\n') return false;
  std::optional<int32_t> last = codepoint_before(text, at - 1), next = after(text, at);
  return last && next && !is_space(*last) && *last > ' ' && (is_letter(*next) || is_digit(*next));
}

bool is_word_byte(char c) {
  return static_cast<uint8_t>(c) >= 0x80 || std::isalnum(static_cast<unsigned char>(c)) != 0;
}

// Takes away the cuts that a token could lie across, or whose spaces or neighbours it looks at.
void heed(const AddedToken& token, Cuts& cuts) {
  std::string_view text = token.matched;
  if (text.empty()) return;
  auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == ' ' && !is_blank(text[i - 1])) cuts.at_spaces = false;
    if (text[i - 1] == '\n' && !is_blank(text[i])) cuts.at_lines = false;
  }
  if (token.rstrip && is_word_byte(text.back())) cuts.at_spaces = false;
  if (token.lstrip && is_word_byte(text.front())) cuts.at_lines = false;
  if (token.single_word && text.front() == ' ') cuts.at_spaces = false;
  if (token.single_word && text.back() == '\n') cuts.at_lines = false;
}

}  // namespace

std::span<const std::string_view> separating_patterns() { return kSeparating; }

Cuts cuts_of(const std::vector<Step>& steps, const std::deque<AddedToken>& added) {
  Cuts cuts{true, true};
  bool separated = false;
  for (const Step& step : steps) {
    if (const auto* split = std::get_if<SplitStep>(&step)) {
      bool whole = split->behavior == SplitBehavior::isolated && !split->invert;
      // The matches are kept and what lies between them is dropped; between those of a separating
      // pattern there is nothing.
      bool inverted = split->behavior == SplitBehavior::removed && split->invert;
      bool separates = is_one_of(split->source, kSeparating) && (whole || inverted);
      if (!separates && !(whole && is_one_of(split->source, kLocal))) return {};
      separated = separated || separates;
    } else if (const auto* bytes = std::get_if<BytesStep>(&step)) {
      separated = separated || bytes->use_regex;
      // A part that begins with a space gets none before it, but one that begins a line would.
      if (bytes->add_prefix_space) cuts.at_lines = false;
    }
  }
  if (!separated) return {};
  for (const AddedToken& token : added) heed(token, cuts);
  return cuts;
}

size_t cut_near(std::string_view text, size_t begin, size_t end, Cuts cuts) {
  if (!cuts.any() || end >= text.size()) return text.size();
  for (size_t at = end; at > begin; --at)
    if (may_cut(text, at, cuts)) return at;
  for (size_t at = end + 1; at < text.size(); ++at)
    if (may_cut(text, at, cuts)) return at;
  return text.size();
}

}  // namespace meshwright::tokenizer
