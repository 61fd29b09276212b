#include "engine/launch/rendezvous/store_table.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace meshwright::rendezvous {

namespace {

using wire::Message, wire::Op, wire::Status;

// What the table itself takes for a key.
constexpr size_t kEntry = 128;

Message done(int64_t number = 0, std::vector<std::string> parts = {}) {
  return {static_cast<uint8_t>(Status::done), number, std::move(parts)};
}
Message impossible(std::string why) {
  return {static_cast<uint8_t>(Status::impossible), 0, {std::move(why)}};
}
Message done_or_full(bool done_so) { return done_so ? done() : impossible("the store is full"); }

}  // namespace

bool StoreTable::put(const std::string& key, std::string value) {
  auto known = keys_.find(key);
  const size_t before = known == keys_.end() ? 0 : key.size() + known->second.size() + kEntry,
               after = key.size() + value.size() + kEntry;
  if (bytes_ - before + after > limits_.stored && after > before) return false;
  bytes_ += after - before;
  if (known != keys_.end()) {
    known->second = std::move(value);
    return true;
  }
  keys_.emplace(key, std::move(value));
  auto wanted = wanted_.find(key);
  if (wanted == wanted_.end()) return true;
  for (Client client : wanted->second)
    if (auto it = waiting_.find(client); it != waiting_.end() && --it->second.missing == 0)
      ready_.push_back(client);
  wanted_.erase(wanted);
  return true;
}

Message StoreTable::add(const std::string& key, int64_t more) {
  int64_t sum = 0;
  if (auto known = keys_.find(key); known != keys_.end()) {
    const std::string& text = known->second;
    auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), sum);
    if (failed != std::errc() || end != text.data() + text.size())
      return impossible("the key " + key + " holds no number");
    if (more == 0) return done(sum);
  }
  if (__builtin_add_overflow(sum, more, &sum))
    return impossible("the key " + key + " would hold too large a number");
  return put(key, std::to_string(sum)) ? done(sum) : done_or_full(false);
}

Message StoreTable::values(const Message& request) const {
  if (static_cast<Op>(request.what) == Op::wait) return done();
  Message out = done();
  size_t bytes = 0;
  for (const std::string& key : request.parts) {
    auto it = keys_.find(key);
    if (it == keys_.end()) return impossible("the key " + key + " was removed");
    bytes += 4 + it->second.size();
    if (bytes + 64 > limits_.reply) return impossible("too much is asked for at once");
    out.parts.push_back(it->second);
  }
  return out;
}

StoreTable::Outcome StoreTable::ask(Client client, const Message& request) {
  const std::vector<std::string>& parts = request.parts;
  const size_t count = parts.size();
  switch (static_cast<Op>(request.what)) {
    case Op::set: {
      if (count % 2 != 0) break;
      bool room = true;
      for (size_t i = 0; i < count; i += 2) room = put(parts[i], parts[i + 1]) && room;
      return {true, done_or_full(room)};
    }
    case Op::get:
    case Op::wait: {
      size_t missing = 0;
      for (const std::string& key : parts) missing += keys_.contains(key) ? 0 : 1;
      if (missing == 0) return {true, values(request)};
      for (const std::string& key : parts)
        if (!keys_.contains(key)) wanted_[key].push_back(client);
      waiting_[client] = {request, missing};
      return {true, std::nullopt};
    }
    case Op::check: {
      const bool all = std::all_of(parts.begin(), parts.end(),
                                   [&](const std::string& key) { return keys_.contains(key); });
      return {true, done(all ? 1 : 0)};
    }
    case Op::add:
      if (count != 1) break;
      return {true, add(parts[0], request.number)};
    case Op::remove: {
      if (count != 1) break;
      auto known = keys_.find(parts[0]);
      if (known == keys_.end()) return {true, done(0)};
      bytes_ -= known->first.size() + known->second.size() + kEntry;
      keys_.erase(known);
      return {true, done(1)};
    }
    case Op::count:
      if (count != 0) break;
      return {true, done(static_cast<int64_t>(keys_.size()))};
    case Op::compare_set: {
      if (count != 3) break;
      auto known = keys_.find(parts[0]);
      // A key that is not there counts as empty; the expected value comes back when it was not.
      if (known == keys_.end() ? !parts[1].empty() : known->second != parts[1])
        return {true, done(0, {known == keys_.end() ? parts[1] : known->second})};
      if (!put(parts[0], parts[2])) return {true, done_or_full(false)};
      return {true, done(0, {parts[2]})};
    }
    case Op::append: {
      if (count != 2) break;
      auto known = keys_.find(parts[0]);
      return {true, done_or_full(
                        put(parts[0], known == keys_.end() ? parts[1] : known->second + parts[1]))};
    }
  }
  return {false, std::nullopt};
}

std::vector<std::pair<StoreTable::Client, Message>> StoreTable::take_ready() {
  std::vector<std::pair<Client, Message>> out;
  for (Client client : std::exchange(ready_, {}))
    if (auto it = waiting_.find(client); it != waiting_.end()) {
      out.emplace_back(client, values(it->second.request));
      waiting_.erase(it);
    }
  return out;
}

void StoreTable::forget(Client client) {
  auto it = waiting_.find(client);
  if (it == waiting_.end()) return;
  for (const std::string& key : it->second.request.parts) {
    auto wanted = wanted_.find(key);
    if (wanted == wanted_.end()) continue;
    std::erase(wanted->second, client);
    if (wanted->second.empty()) wanted_.erase(wanted);
  }
  waiting_.erase(it);
}

}  // namespace meshwright::rendezvous
