#include "sdk/text/tokenizer/split.h"

#include <utf8proc.h>

#include <algorithm>
#include <span>

#include "sdk/text/tokenizer/utf8.h"

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

}  // namespace meshwright::tokenizer
