#include "sdk/text/tokenizer/added_tokens.h"

#include <algorithm>
#include <set>

#include "sdk/text/tokenizer/character_classes.h"
#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

namespace {

// A word character as the reference's other regular expressions have it, which is not Oniguruma's.
const Pattern& word() {
  static const Pattern it(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])");
  return it;
}

size_t before(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
  return at;
}

}  // namespace

uint32_t TokenFinder::child(uint32_t node, uint8_t byte) const {
  uint32_t it = nodes_[node].first_child;
  while (it != 0 && nodes_[it].byte != byte) it = nodes_[it].next;
  return it;
}

bool TokenFinder::add(const AddedToken& token) {
  uint32_t at = 0;
  for (char c : token.matched) {
    auto byte = static_cast<uint8_t>(c);
    uint32_t next = child(at, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({0, nodes_[at].first_child, byte, nullptr});
      nodes_[at].first_child = next;
    }
    at = next;
  }
  if (at == 0 || nodes_[at].token) return false;
  begins_[static_cast<uint8_t>(token.matched[0])] = true;
  nodes_[at].token = &token;
  return true;
}

template <class Heeds>
const AddedToken* TokenFinder::longest(std::string_view text, const Heeds& heeds) const {
  const AddedToken* found = nullptr;
  uint32_t at = 0;
  for (char c : text) {
    at = child(at, static_cast<uint8_t>(c));
    if (at == 0) break;
    if (nodes_[at].token && heeds(*nodes_[at].token)) found = nodes_[at].token;
  }
  return found;
}

// No word goes on from it to either side.
bool TokenFinder::stands_alone(std::string_view text, size_t begin, size_t end,
                               PatternScratch& scratch) {
  return !(begin > 0 && word().matches_at(text, before(text, begin), scratch)) &&
         !(end < text.size() && word().matches_at(text, end, scratch));
}

std::vector<TokenFinder::Part> TokenFinder::cut(std::string_view text, PatternScratch& scratch,
                                                Plain* plain) const {
  std::vector<Part> out;
  size_t done = 0, kept_until = 0;
  auto all = [](const AddedToken&) { return true; };
  auto find = [&](size_t at) {
    const AddedToken* best = longest(text.substr(at), all);
    if (!best || !plain) return best;
    auto is_text = [&](const AddedToken& token) {
      return token.special && plain->overlaps(at, at + token.matched.size());
    };
    if (is_text(*best) && at >= kept_until) {
      size_t end = at + best->matched.size();
      if (!best->single_word || stands_alone(text, at, end, scratch)) {
        ++plain->kept;
        kept_until = end;  // what lies inside of it is not another one
      }
    }
    return longest(text.substr(at), [&](const AddedToken& token) { return !is_text(token); });
  };
  auto put = [&](size_t begin, size_t end, const AddedToken* token) {
    if (begin < end) out.push_back({text.substr(begin, end - begin), token});
  };
  for (size_t at = 0; at < text.size() && nodes_.size() > 1;) {
    const AddedToken* token = begins_[static_cast<uint8_t>(text[at])] ? find(at) : nullptr;
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->matched.size();
    at = end;
    if (token->single_word && !stands_alone(text, begin, end, scratch)) continue;
    if (token->lstrip) {
      while (begin > 0 && is_space(character_at(text, before(text, begin)).code))
        begin = before(text, begin);
      begin = std::max(begin, done);  // an earlier token may have taken those spaces
    }
    if (token->rstrip)
      while (end < text.size() && is_space(character_at(text, end).code))
        end += character_at(text, end).bytes;
    put(done, begin, nullptr);
    put(begin, end, token);
    done = end;
  }
  put(done, text.size(), nullptr);
  return out;
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
