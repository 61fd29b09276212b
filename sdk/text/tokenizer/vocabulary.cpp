#include "sdk/text/tokenizer/vocabulary.h"

#include <algorithm>
#include <charconv>

namespace meshwright::tokenizer {

void Vocabulary::reserve(size_t tokens, size_t bytes) {
  text_.reserve(bytes);
  entries_.reserve(tokens);
}

void Vocabulary::add(std::string_view token, uint32_t id) {
  entries_.push_back({id, static_cast<uint32_t>(token.size()), text_.size()});
  longest_ = std::max(longest_, token.size());
  text_ += token;
}

std::optional<std::pair<std::string, std::string>> Vocabulary::seal() {
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.id < b.id; });
  auto same = std::adjacent_find(entries_.begin(), entries_.end(),
                                 [](const Entry& a, const Entry& b) { return a.id == b.id; });
  if (same != entries_.end())
    return std::pair(std::string(text_of(*same)), std::string(text_of(*(same + 1))));
  ids_.reserve(entries_.size());
  for (const Entry& entry : entries_) ids_.insert_or_assign(text_of(entry), entry.id);
  return std::nullopt;
}

std::vector<std::string_view> Vocabulary::tokens() const {
  std::vector<std::string_view> out;
  out.reserve(entries_.size());
  for (const Entry& entry : entries_) out.push_back(text_of(entry));
  return out;
}

std::optional<uint32_t> Vocabulary::find(std::string_view token) const {
  auto it = ids_.find(token);
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

std::optional<std::string_view> Vocabulary::token_of(uint32_t id) const {
  if (id < entries_.size() && entries_[id].id == id) return text_of(entries_[id]);
  auto it = std::lower_bound(entries_.begin(), entries_.end(), id,
                             [](const Entry& entry, uint32_t wanted) { return entry.id < wanted; });
  return it == entries_.end() || it->id != id ? std::nullopt : std::optional(text_of(*it));
}

std::string byte_token(uint8_t byte) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'};
}

std::optional<uint8_t> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  // A sign may stand before the digit, as the library reads numbers.
  const std::string_view digits = token.substr(token[3] == '+' ? 4 : 3, token[3] == '+' ? 1 : 2);
  uint8_t byte = 0;
  const auto [end, failed] =
      std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
  if (failed != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return byte;
}

}  // namespace meshwright::tokenizer
