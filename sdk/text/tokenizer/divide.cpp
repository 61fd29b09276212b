#include "sdk/text/tokenizer/divide.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "sdk/text/tokenizer/character_classes.h"
#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

namespace {

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

bool may_cut(std::string_view text, size_t at, const Cuts& cuts) {
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
// `text`: the token as it is looked for, or as it is written before it is normalized.
void heed(const AddedToken& token, std::string_view text, Cuts& cuts) {
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

Cuts heed_added(const CutPlaces& places, const std::deque<AddedToken>& added) {
  Cuts cuts{places.at_spaces, places.at_lines};
  for (const AddedToken& token : added) {
    heed(token, token.matched, cuts);
    heed(token, token.content, cuts);
    // What stands behind a token is a text for itself.
    if (places.prefixed && !token.matched.empty()) {
      if (is_word_byte(token.matched.back())) cuts.at_spaces = false;
      if (token.rstrip || token.matched.back() == '\n') cuts.at_lines = false;
    }
  }
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
