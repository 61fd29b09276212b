#include "engine/launch/rendezvous/wire.h"

#include <algorithm>
#include <utility>

#include "engine/launch/spawn.h"
#include "sdk/base/host/sha256.h"
#include "sdk/base/words.h"

namespace meshwright::rendezvous::wire {

namespace {

// Two, so that no echo passes for an answer.
constexpr std::string_view kComes = "MWcomes1", kStore = "MWstore1";

template <class T>
void put(std::string& out, T value) {
  for (size_t i = sizeof(T); i-- > 0;)
    out += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff);
}

// Reads from the front of what is left; `good` says whether all was there.
struct Cursor {
  std::string_view left;
  bool good = true;
  std::string_view take(size_t count) {
    good = good && count <= left.size();
    if (!good) return {};
    const std::string_view out = left.substr(0, count);
    left.remove_prefix(count);
    return out;
  }
  uint64_t number(size_t bytes) {
    uint64_t out = 0;
    for (char c : take(bytes)) out = out << 8 | static_cast<unsigned char>(c);
    return out;
  }
};

bool known(uint64_t refusal) { return refusal <= static_cast<uint64_t>(Refusal::crowded); }

}  // namespace

std::string hashed_job(const std::string& job) {
  return base::text_of(base::Sha256().add(job).finish()).substr(0, kJob);
}

std::string hello_of(const Badge& badge) {
  std::string out(kComes);
  put<uint8_t>(out, badge.secret.empty() ? 0 : 1);
  out += hashed_job(badge.job);
  put(out, badge.rank);
  put(out, badge.world);
  out += badge.process;
  out += launch::random_bytes(kRandom);
  return out;
}

std::optional<Hello> read_hello(std::string_view bytes) {
  Cursor from{bytes};
  if (bytes.size() != kHello || from.take(kComes.size()) != kComes) return std::nullopt;
  Hello out;
  out.has_secret = from.number(1) != 0;
  out.job = from.take(kJob);
  out.rank = static_cast<int64_t>(from.number(8));
  out.world = static_cast<int64_t>(from.number(8));
  out.process = from.take(kProcess);
  return out;
}

std::string answer_of(const Answer& answer) {
  std::string out(kStore);
  put(out, static_cast<uint8_t>(answer.refusal));
  put(out, answer.number);
  out += launch::random_bytes(kRandom);
  return out;
}

std::optional<Answer> read_answer(std::string_view bytes) {
  Cursor from{bytes};
  if (bytes.size() != kAnswer || from.take(kStore.size()) != kStore) return std::nullopt;
  const uint64_t refusal = from.number(1);
  if (!known(refusal)) return std::nullopt;
  return Answer{static_cast<Refusal>(refusal), static_cast<int64_t>(from.number(8))};
}

std::string prove(const std::string& secret, std::string_view who, std::string_view hello,
                  std::string_view answer) {
  return base::text_of(base::Hmac(secret).add(who).add(hello).add(answer).finish());
}

std::string verdict_of(const std::string& secret, Refusal refusal, std::string_view hello,
                       std::string_view answer) {
  const std::string says(1, static_cast<char>(refusal));
  return says + (refusal == Refusal::wrong_secret ? std::string(kProof, '\0')
                                                  : prove(secret, "rank 0" + says, hello, answer));
}

std::optional<Refusal> read_verdict(const std::string& secret, std::string_view verdict,
                                    std::string_view hello, std::string_view answer) {
  if (verdict.size() != kVerdict || !known(static_cast<uint8_t>(verdict[0]))) return std::nullopt;
  const auto refusal = static_cast<Refusal>(verdict[0]);
  // Whatever it says: without the secret it says that the two have not the same.
  return base::same_secret(verdict, verdict_of(secret, refusal, hello, answer))
             ? refusal
             : Refusal::wrong_secret;
}

std::string pack(const Message& message) {
  std::string out;
  size_t size = 13;
  for (const std::string& part : message.parts) size += 4 + part.size();
  out.reserve(size);
  put(out, message.what);
  put(out, message.number);
  put(out, static_cast<uint32_t>(message.parts.size()));
  for (const std::string& part : message.parts) {
    put(out, static_cast<uint32_t>(part.size()));
    out += part;
  }
  return out;
}

std::optional<Message> unpack(std::string_view bytes) {
  Cursor from{bytes};
  Message out;
  out.what = static_cast<uint8_t>(from.number(1));
  out.number = static_cast<int64_t>(from.number(8));
  const uint64_t parts = from.number(4);
  if (!from.good || parts > bytes.size() / 4) return std::nullopt;
  out.parts.reserve(parts);
  for (uint64_t i = 0; i < parts && from.good; ++i)
    out.parts.emplace_back(from.take(from.number(4)));
  if (!from.good || !from.left.empty()) return std::nullopt;
  return out;
}

std::string Seal::mac(std::string_view message) const {
  std::string number;
  put(number, number_);
  return base::text_of(
      base::Hmac(key_).add(std::string_view(&direction_, 1)).add(number).add(message).finish());
}

std::string Seal::close(std::string_view message) {
  std::string out;
  out.reserve(4 + message.size() + kProof);
  put(out, static_cast<uint32_t>(message.size()));
  out += message;
  out += mac(message);
  ++number_;
  return out;
}

Seal::Found Seal::open(std::string& bytes, std::string& message, size_t most) {
  if (bytes.size() < 4) return Found::part;
  const size_t size = Cursor{bytes}.number(4);
  if (size > most) return Found::forged;
  if (bytes.size() < 4 + size + kProof) return Found::part;
  const std::string_view body = std::string_view(bytes).substr(4, size);
  if (!base::same_secret(mac(body), std::string_view(bytes).substr(4 + size, kProof)))
    return Found::forged;
  ++number_;
  message = body;
  bytes.erase(0, 4 + size + kProof);
  return Found::whole;
}

}  // namespace meshwright::rendezvous::wire

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
    const std::optional<int64_t> held = text::to_number(known->second);
    if (!held) return impossible("the key " + key + " holds no number");
    if (more == 0) return done(*held);
    sum = *held;
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
