#include "sdk/text/chat/value.h"

#include <algorithm>
#include <unordered_map>

namespace meshwright::chat {

Value Value::boolean(bool value) {
  Value out;
  out.held_ = value;
  return out;
}

Value Value::integer(int64_t value) {
  Value out;
  out.held_ = value;
  return out;
}

Value Value::big_integer(std::string digits) {
  Value out;
  out.held_ = Digits{std::move(digits)};
  return out;
}

Value Value::real(double value) {
  Value out;
  out.held_ = value;
  return out;
}

Value Value::string(std::string text) {
  Value out;
  out.held_ = std::move(text);
  return out;
}

Value Value::list(List items) {
  Value out;
  out.held_ = std::move(items);
  return out;
}

Value Value::dict(Dict members) {
  Value out;
  // A row may have many keys: comparing each with each takes too long for these.
  constexpr size_t kFew = 16;
  Dict kept;
  kept.reserve(members.size());
  std::unordered_map<std::string, size_t> places;
  for (Member& member : members) {
    size_t place = kept.size();
    if (members.size() > kFew) {
      place = places.emplace(member.first, place).first->second;
    } else {
      auto same = [&](const Member& one) { return one.first == member.first; };
      place = static_cast<size_t>(std::find_if(kept.begin(), kept.end(), same) - kept.begin());
    }
    if (place < kept.size())
      kept[place].second = std::move(member.second);
    else
      kept.push_back(std::move(member));
  }
  out.held_ = std::move(kept);
  return out;
}

std::string_view Value::kind_name() const {
  switch (held_.index()) {
    case 0:
      return "null";
    case 1:
      return "a boolean";
    case 5:
      return "a string";
    case 6:
      return "a list";
    case 7:
      return "an object";
    default:
      return "a number";
  }
}

const Value* Value::get(std::string_view key) const {
  const Dict* members = std::get_if<Dict>(&held_);
  if (members == nullptr) return nullptr;
  for (const Member& member : *members)
    if (member.first == key) return &member.second;
  return nullptr;
}

void Value::set(std::string key, Value value) {
  Dict& members = std::get<Dict>(held_);
  for (Member& member : members)
    if (member.first == key) {
      member.second = std::move(value);
      return;
    }
  members.emplace_back(std::move(key), std::move(value));
}

bool is_role(std::string_view role) {
  return !role.empty() && std::all_of(role.begin(), role.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-';
  });
}

}  // namespace meshwright::chat
