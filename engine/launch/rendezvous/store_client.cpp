#include "engine/launch/rendezvous/store.h"

#include <c10/util/Exception.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "engine/launch/rendezvous/connectivity.h"
#include "engine/launch/rendezvous/deadlines.h"
#include "engine/launch/rendezvous/notices.h"

namespace meshwright::rendezvous {

namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<uint8_t>;
using wire::Message, wire::Op, wire::Status;

// For another connection to a store that is there.
constexpr std::chrono::milliseconds kToClone(10000);
constexpr std::chrono::milliseconds kForEver(1'000'000'000'000);  // 31 years

enum class Gone : uint8_t { no, closed, late };

// Waits until the socket is ready for `events`.
Gone await(int fd, short events, Clock::time_point end) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd ready{fd, events, 0};
    const int found =
        ::poll(&ready, 1, static_cast<int>(std::clamp<int64_t>(left + 1, 1, 1'000'000)));
    if (found > 0) return Gone::no;
    if (found < 0 && errno != EINTR) return Gone::closed;
    if (Clock::now() >= end) return Gone::late;
  }
}

Gone send_all(int fd, std::string_view bytes, Clock::time_point end) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Gone::closed;
    if (const Gone gone = await(fd, POLLOUT, end); gone != Gone::no) return gone;
  }
  return Gone::no;
}

// Appends what has come, at most so many bytes.
Gone receive_some(int fd, std::string& bytes, size_t most, Clock::time_point end) {
  std::array<char, 65536> buffer;
  for (;;) {
    // MSG_DONTWAIT: it does not block. NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection)
    const ssize_t got = ::recv(fd, buffer.data(), std::min(most, buffer.size()), MSG_DONTWAIT);
    if (got > 0) {
      bytes.append(buffer.data(), static_cast<size_t>(got));
      return Gone::no;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) return Gone::closed;
    if (const Gone gone = await(fd, POLLIN, end); gone != Gone::no) return gone;
  }
}

Gone receive_exactly(int fd, std::string& bytes, size_t count, Clock::time_point end) {
  while (bytes.size() < count)
    if (const Gone gone = receive_some(fd, bytes, count - bytes.size(), end); gone != Gone::no)
      return gone;
  return Gone::no;
}

// The key of the connection. Throws NoStore; empty: the other end hung up, as a store does that has
// too many strangers.
std::string shake_hands(int fd, const wire::Badge& badge, Clock::time_point end) {
  const std::string hello = wire::hello_of(badge);
  std::string answer, verdict;
  auto heard = [&](Gone gone) {
    if (gone == Gone::late) throw NoStore{NoStore::Why::silent, ""};
    return gone == Gone::no;
  };
  // Another program may say less than a store would, or more: its first bytes tell.
  if (!heard(send_all(fd, hello, end)) || !heard(receive_exactly(fd, answer, wire::kAnswer, end)))
    return answer.empty() ? ""
                          : throw NoStore{NoStore::Why::other_program, "it says something else"};
  const std::optional<wire::Answer> says = wire::read_answer(answer);
  if (!says) throw NoStore{NoStore::Why::other_program, "it says something else"};
  auto refuse = [&](wire::Refusal refusal) {
    if (refusal != wire::Refusal::none)
      throw NoStore{NoStore::Why::refused, "", refusal, says->number};
  };
  // Before a proof rank 0 says only this: anything else is not its word.
  const wire::Refusal its =
      badge.secret.empty() ? wire::Refusal::secret_missing : wire::Refusal::secret_unknown;
  if (says->refusal != wire::Refusal::none && says->refusal != its)
    refuse(wire::Refusal::wrong_secret);
  refuse(says->refusal);
  if (!heard(send_all(fd, wire::prove(badge.secret, "rank", hello, answer), end)) ||
      !heard(receive_exactly(fd, verdict, wire::kVerdict, end)))
    return "";
  const std::optional<wire::Refusal> refusal =
      wire::read_verdict(badge.secret, verdict, hello, answer);
  if (!refusal) throw NoStore{NoStore::Why::other_program, "it says something else"};
  refuse(*refusal);
  return wire::prove(badge.secret, "key", hello, answer);
}

}  // namespace

StoreClient::StoreClient(const StorePlace& place, Clock::time_point end,
                         std::chrono::milliseconds timeout) {
  for (;;) {
    std::string why;
    fd_ = connect_to(place.host, place.port, end, &why);
    if (fd_ < 0) throw NoStore{NoStore::Why::unreachable, why};
    int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    // While nobody listens at a port that the kernel gives out, a socket may get that port itself
    // and so be connected to itself.
    const bool itself = local_end(fd_) == remote_end(fd_);
    std::string key;
    try {
      if (!itself) key = shake_hands(fd_, place.badge, end);
    } catch (...) {
      ::close(std::exchange(fd_, -1));
      throw;
    }
    if (!key.empty()) {
      keep_alive(fd_, timeout);
      speaks_ = wire::Seal(key, wire::kToStore);
      hears_ = wire::Seal(key, wire::kFromStore);
      return;
    }
    ::close(std::exchange(fd_, -1));
    if (Clock::now() + std::chrono::milliseconds(150) >= end)
      throw itself ? NoStore{NoStore::Why::unreachable, std::strerror(ECONNREFUSED)}
                   : NoStore{NoStore::Why::other_program, "it hangs up"};
    // Not all at once with the others that were hung up on.
    std::this_thread::sleep_for(std::chrono::milliseconds(50 + std::random_device()() % 100));
  }
}

StoreClient::~StoreClient() {
  if (fd_ >= 0) ::close(fd_);
}

Message StoreClient::ask(const Message& request, std::chrono::milliseconds limit) {
  std::lock_guard lock(mutex_);
  const std::string text = wire::pack(request);
  TORCH_CHECK_WITH(DistStoreError, text.size() <= wire::kMostBytes, "the store takes no more than ",
                   wire::kMostBytes, " bytes at once");
  auto end = Clock::now() + limit;
  std::string reply;
  Gone gone = fd_ < 0 ? Gone::closed : send_all(fd_, speaks_.close(text), end);
  while (gone == Gone::no) {
    const wire::Seal::Found found = hears_.open(in_, reply);
    if (found == wire::Seal::Found::whole) break;
    gone = found == wire::Seal::Found::forged ? Gone::closed
                                              : receive_some(fd_, in_, size_t{1} << 16, end);
  }
  std::optional<Message> out;
  if (gone == Gone::no) out = wire::unpack(reply);
  if (out) return *std::move(out);
  // What comes later would be taken for the reply to another request.
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  C10_THROW_ERROR(DistNetworkError, gone == Gone::late ? "the store of rank 0 does not answer"
                                                       : "the store of rank 0 is gone");
}

namespace {

class RemoteStore final : public c10d::Store {
 public:
  RemoteStore(StorePlace place, Clock::time_point end, std::chrono::milliseconds timeout,
              std::shared_ptr<StoreServer> server)
      : Store(timeout),
        server_(std::move(server)),
        place_(std::move(place)),
        client_(place_, end, patience(timeout)) {}

  c10::intrusive_ptr<Store> clone() override {
    try {
      return c10::make_intrusive<RemoteStore>(
          place_, Clock::now() + std::min(patience(timeout_), kToClone), timeout_, server_);
    } catch (const NoStore&) {
      C10_THROW_ERROR(DistNetworkError, "the store of rank 0 takes no other connection");
    }
  }

  using Store::set;
  void set(const std::string& key, const Bytes& value) override {
    ask(Op::set, 0, {key, text_of(value)});
  }
  using Store::compareSet;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return only(ask(Op::compare_set, 0, {key, text_of(expected), text_of(desired)}));
  }
  Bytes get(const std::string& key) override { return only(await_keys(Op::get, {key}, timeout_)); }
  int64_t add(const std::string& key, int64_t value) override {
    return ask(Op::add, value, {key}).number;
  }
  bool deleteKey(const std::string& key) override { return ask(Op::remove, 0, {key}).number != 0; }
  bool check(const std::vector<std::string>& keys) override {
    return ask(Op::check, 0, keys).number != 0;
  }
  int64_t getNumKeys() override { return ask(Op::count, 0, {}).number; }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    await_keys(Op::wait, keys, timeout);
  }
  void append(const std::string& key, const Bytes& value) override {
    ask(Op::append, 0, {key, text_of(value)});
  }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override {
    std::vector<Bytes> out;
    for (const std::string& value : await_keys(Op::get, keys, timeout_).parts)
      out.push_back(bytes_of(value));
    return out;
  }
  void multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) override {
    TORCH_CHECK_WITH(DistStoreError, keys.size() == values.size(),
                     "multiSet needs as many values as keys");
    std::vector<std::string> parts;
    for (size_t i = 0; i < keys.size(); ++i) {
      parts.push_back(keys[i]);
      parts.push_back(text_of(values[i]));
    }
    ask(Op::set, 0, std::move(parts));
  }
  bool hasExtendedApi() const override { return true; }

 private:
  // No time at all means without an end, as in LibTorch's own.
  static std::chrono::milliseconds patience(std::chrono::milliseconds timeout) {
    return timeout <= kNoTimeout ? kForEver : std::min(timeout, kForEver);
  }
  Message ask(Op op, int64_t number, std::vector<std::string> parts,
              std::chrono::milliseconds waits = std::chrono::milliseconds(0)) {
    // Beyond what the request waits for.
    Message out = client_.ask({static_cast<uint8_t>(op), number, std::move(parts)},
                              waits + store_replies(patience(timeout_)));
    if (out.what == static_cast<uint8_t>(Status::late))
      C10_THROW_ERROR(DistStoreError, "wait timeout");
    if (out.what != static_cast<uint8_t>(Status::done))
      C10_THROW_ERROR(DistStoreError, out.parts.empty() ? "the store refuses" : out.parts[0]);
    return out;
  }
  Message await_keys(Op op, std::vector<std::string> keys, std::chrono::milliseconds timeout) {
    const auto time = patience(timeout);
    return ask(op, time.count(), std::move(keys), time);
  }
  static Bytes only(const Message& message) {
    TORCH_CHECK_WITH(DistStoreError, message.parts.size() == 1, "the store sent no value");
    return bytes_of(message.parts[0]);
  }

  std::shared_ptr<StoreServer> server_;
  const StorePlace place_;
  StoreClient client_;  // ends before the server
};

}  // namespace

c10::intrusive_ptr<c10d::Store> remote_store(const StorePlace& place, Clock::time_point end,
                                             std::chrono::milliseconds timeout,
                                             std::shared_ptr<StoreServer> server) {
  return c10::make_intrusive<RemoteStore>(place, end, timeout, std::move(server));
}

}  // namespace meshwright::rendezvous
