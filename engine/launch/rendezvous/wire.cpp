#include "engine/launch/rendezvous/wire.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "meshwright/error.h"
#include "sdk/base/host/sha256.h"

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

std::string random_bytes(size_t count) {
  std::string out(count, '\0');
  for (size_t at = 0; at < count;) {
    const ssize_t got = ::getrandom(out.data() + at, count - at, 0);
    if (got > 0)
      at += static_cast<size_t>(got);
    else if (errno != EINTR)
      throw Error(ErrorCode::rendezvous_failed,
                  std::string("the kernel gives no random bytes: ") + std::strerror(errno));
  }
  return out;
}

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
  out += random_bytes(kRandom);
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
  out += random_bytes(kRandom);
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
