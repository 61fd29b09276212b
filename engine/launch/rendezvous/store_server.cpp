// Long because one loop owns every connection, from its greeting to its deadline.
#include "engine/launch/rendezvous/store.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "engine/launch/rendezvous/connectivity.h"
#include "engine/launch/rendezvous/wire.h"
#include "meshwright/error.h"
#include "sdk/base/host/sha256.h"

namespace meshwright::rendezvous {

namespace {

using Clock = std::chrono::steady_clock;
using wire::Refusal;

constexpr std::chrono::seconds kToProve(5), kToRead(2);
constexpr size_t kMostStrangers = 128;
constexpr size_t kMostOfOneProcess = 256;  // NCCL clones the store for each group
// Before the ranks have met, where anybody passes for one: a rank has one connection, or two while
// it says why it does not take part.
constexpr size_t kMostMembers = 16, kMembersOfOneRank = 2;
constexpr size_t kStoredBeforeMeeting = size_t{16} << 20, kStoredOfOneRank = size_t{1} << 10;
constexpr size_t kMostRefused = 8, kMostRefusedOfOne = 2;
constexpr std::chrono::milliseconds kLongest(1'000'000'000'000);  // 31 years

// Ids of epoll; those of listeners lie between.
constexpr uint64_t kWake = 0, kFirstConnection = uint64_t{1} << 32;

std::string origin_of(const sockaddr_storage& address) {
  const auto* any = reinterpret_cast<const sockaddr*>(&address);
  const std::string out = numeric(any);
  return out.empty() ? "somebody" : out;
}

// Who has one address of IPv6 has 2^64: all of them count as one.
std::string neighbourhood_of(const sockaddr_storage& address, const std::string& origin) {
  if (address.ss_family != AF_INET6 || origin.find(':') == std::string::npos) return origin;
  const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr;
  return {reinterpret_cast<const char*>(six.s6_addr), 8};
}

std::string why_refused(Refusal refusal, const wire::Hello& says) {
  const std::string rank = "rank " + std::to_string(says.rank);
  switch (refusal) {
    case Refusal::none:
      break;
    case Refusal::wrong_secret:
      return ", which does not know the job's secret";
    case Refusal::secret_missing:
      return ", which has no secret";
    case Refusal::secret_unknown:
      return ", which has a secret where rank 0 has none";
    case Refusal::other_job:
      return ", a rank of another job";
    case Refusal::rank_taken:
      return ", a second process with RANK " + std::to_string(says.rank);
    case Refusal::other_world:
      return ", " + rank + " of WORLD_SIZE " + std::to_string(says.world);
    case Refusal::no_such_rank:
      return ", which says it is " + rank;
    case Refusal::crowded:
      return ", " + rank + " with too many connections";
  }
  return "";
}

}  // namespace

class StoreServer::Loop {
 public:
  Loop(std::vector<int> listeners, wire::Badge badge)
      : listeners_(std::move(listeners)),
        badge_(std::move(badge)),
        job_(wire::hashed_job(badge_.job)) {
    process_of_rank_.emplace(badge_.rank, badge_.process);  // nobody comes before it
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const bool ready = epoll_ >= 0 && wake_ >= 0 && watch(EPOLL_CTL_ADD, wake_, EPOLLIN, kWake);
    for (size_t i = 0; i < listeners_.size(); ++i) {
      ::fcntl(listeners_[i], F_SETFL, ::fcntl(listeners_[i], F_GETFL) | O_NONBLOCK);
      ::fcntl(listeners_[i], F_SETFD, FD_CLOEXEC);  // a child of rank 0 would keep the port
      if (!ready || !watch(EPOLL_CTL_ADD, listeners_[i], EPOLLIN, kWake + 1 + i)) {
        const std::string reason = std::strerror(errno);
        close_all();
        throw Error(ErrorCode::rendezvous_failed, "rank 0 cannot serve a store: " + reason)
            .help("raise the limit of open files (ulimit -n)");
      }
    }
  }
  ~Loop() { close_all(); }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void run() noexcept {
    std::array<epoll_event, 64> events{};
    while (!ends_) {
      const int count =
          ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), patience());
      for (int i = 0; i < count; ++i) {
        const uint64_t id = events[static_cast<size_t>(i)].data.u64;
        if (id == kWake) continue;
        try {
          if (id < kFirstConnection)
            accept_from(listeners_[id - kWake - 1]);
          else
            serve(id, events[static_cast<size_t>(i)].events);
        } catch (const std::exception&) {
          drop(id);  // no memory for it: this connection goes, the others stay
        }
      }
      pass_deadlines();
    }
  }
  void end() {
    ends_ = true;
    const uint64_t one = 1;
    while (::write(wake_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }
  void ranks_met() { met_ = true; }
  std::vector<std::string> refused() const {
    std::lock_guard lock(mutex_);
    return refused_;
  }

 private:
  struct Connection {
    int fd = -1;
    std::string from, neighbourhood;
    enum class State : uint8_t { greets, proves, member, leaves } state = State::greets;
    std::string in, out, hello, answer;
    size_t gone = 0;  // of `out`: sent already
    wire::Hello says;
    wire::Seal hears, speaks;
    bool waits = false;
    uint32_t watched = 0;
    std::optional<Clock::time_point> deadline;
  };
  using State = Connection::State;

  bool watch(int how, int fd, uint32_t events, uint64_t id) const {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    return ::epoll_ctl(epoll_, how, fd, &event) == 0;
  }
  void close_all() {
    for (auto& [id, connection] : connections_) ::close(connection.fd);
    connections_.clear();
    for (int fd : std::exchange(listeners_, {})) ::close(fd);
    for (int* fd : {&wake_, &epoll_})
      if (*fd >= 0) ::close(std::exchange(*fd, -1));
  }

  int patience() const {
    if (deadlines_.empty()) return -1;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                          deadlines_.begin()->first - Clock::now())
                          .count();
    return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 1'000'000));
  }
  void set_deadline(uint64_t id, Connection& connection, std::optional<Clock::time_point> when) {
    if (connection.deadline) deadlines_.erase(std::pair(*connection.deadline, id));
    connection.deadline = when;
    if (when) deadlines_.emplace(*when, id);
  }
  void pass_deadlines() {
    while (!deadlines_.empty() && deadlines_.begin()->first <= Clock::now()) {
      const uint64_t id = deadlines_.begin()->second;
      Connection& connection = connections_.at(id);
      if (!connection.waits) {
        drop(id);
        continue;
      }
      table_.forget(id);
      try {
        reply(id, connection, {static_cast<uint8_t>(wire::Status::late), 0, {}});
      } catch (const std::exception&) {
        drop(id);
      }
    }
  }

  void accept_from(int listener) {
    // Not all at once: those that are here already have their turns between.
    for (int turn = 0; turn < 64; ++turn) {
      sockaddr_storage address{};
      socklen_t size = sizeof address;
      const int fd = ::accept4(listener, reinterpret_cast<sockaddr*>(&address), &size,
                               SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) {
        // No descriptor is left: those that have proved nothing give theirs.
        if ((errno == EMFILE || errno == ENFILE) && !strangers_.empty()) {
          drop(first_to_go());
          continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (errno == EINTR || errno == ECONNABORTED) continue;
        return;
      }
      int on = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
      const uint64_t id = next_connection_++;
      Connection& connection = connections_[id];
      connection.fd = fd;
      connection.from = origin_of(address);
      connection.neighbourhood = neighbourhood_of(address, connection.from);
      connection.watched = EPOLLIN;
      strangers_.insert(id);
      set_deadline(id, connection, Clock::now() + kToProve);
      if (!watch(EPOLL_CTL_ADD, fd, EPOLLIN, id)) drop(id);
      if (strangers_.size() <= kMostStrangers) continue;
      // What it has sent may be its proof.
      const uint64_t goes = first_to_go();
      serve(goes, EPOLLIN);
      if (strangers_.contains(goes)) drop(goes);
    }
  }

  // Of the strangers: the oldest of those of whose address there are most. So one noisy address
  // loses its own.
  uint64_t first_to_go() const {
    std::unordered_map<std::string_view, size_t> crowd;
    size_t most = 0;
    for (uint64_t id : strangers_)
      most = std::max(most, ++crowd[connections_.at(id).neighbourhood]);
    for (uint64_t id : strangers_)
      if (crowd[connections_.at(id).neighbourhood] == most) return id;
    return *strangers_.begin();
  }

  void drop(uint64_t id) {
    auto it = connections_.find(id);
    if (it == connections_.end()) return;
    Connection& connection = it->second;
    set_deadline(id, connection, std::nullopt);
    table_.forget(id);
    strangers_.erase(id);
    if (connection.state == State::member)
      if (auto process = processes_.find(connection.says.process);
          process != processes_.end() && --process->second == 0)
        processes_.erase(process);
    ::close(connection.fd);
    connections_.erase(it);
  }

  void serve(uint64_t id, uint32_t events) {
    auto it = connections_.find(id);
    if (it == connections_.end()) return;  // dropped a moment ago
    Connection& connection = it->second;
    if ((events & EPOLLIN) != 0 && !connection.waits) {
      if (!read(connection)) return drop(id);
    } else if ((events & EPOLLOUT) == 0) {
      return drop(id);  // it has hung up
    }
    advance(id);
  }

  // Whether it has proved that it is of the job, or is one of the ranks that have met.
  bool known(const Connection& connection) const {
    if (!badge_.secret.empty()) return true;
    const auto known = process_of_rank_.find(connection.says.rank);
    return met_ && known != process_of_rank_.end() && known->second == connection.says.process;
  }
  size_t world() const { return static_cast<size_t>(std::max<int64_t>(badge_.world, 1)); }
  size_t members() const {
    size_t out = 0;
    for (const auto& [process, connections] : processes_) out += connections;
    return out;
  }

  // False: the connection has hung up, or says more than it may.
  static bool read(Connection& connection) {
    std::array<char, 65536> buffer;
    size_t most = buffer.size();
    if (connection.state == State::greets) most = wire::kHello - connection.in.size();
    if (connection.state == State::proves) most = wire::kProof - connection.in.size();
    if (connection.state == State::leaves || most == 0) return false;
    const ssize_t got = ::recv(connection.fd, buffer.data(), most, 0);
    if (got > 0) connection.in.append(buffer.data(), static_cast<size_t>(got));
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
  }

  // Does what can be done with what has come, and sends what can be sent.
  void advance(uint64_t id) {
    for (;;) {
      auto it = connections_.find(id);
      if (it == connections_.end()) return;
      Connection& connection = it->second;
      if (!send(connection)) return drop(id);
      if (connection.out.empty() && connection.state == State::leaves) return drop(id);
      if (!connection.out.empty() || connection.waits || !step(id, connection)) break;
    }
    auto it = connections_.find(id);
    if (it == connections_.end()) return;
    Connection& connection = it->second;
    const uint32_t wanted = !connection.out.empty() ? EPOLLOUT
                            : connection.waits      ? EPOLLRDHUP
                                                    : EPOLLIN;
    if (wanted != connection.watched && !watch(EPOLL_CTL_MOD, connection.fd, wanted, id))
      return drop(id);
    connection.watched = wanted;
  }

  static bool send(Connection& connection) {
    while (connection.gone < connection.out.size()) {
      const ssize_t sent = ::send(connection.fd, connection.out.data() + connection.gone,
                                  connection.out.size() - connection.gone, MSG_NOSIGNAL);
      if (sent > 0)
        connection.gone += static_cast<size_t>(sent);
      else if (errno == EAGAIN)
        return true;
      else if (errno != EINTR)
        return false;
    }
    connection.out.clear();
    connection.gone = 0;
    return true;
  }

  // One thing more; false: there is nothing to do, or the connection is gone.
  bool step(uint64_t id, Connection& connection) {
    switch (connection.state) {
      case State::greets:
        return connection.in.size() == wire::kHello && greet(id, connection);
      case State::proves:
        return connection.in.size() == wire::kProof && judge(id, connection);
      case State::member:
        return answer(id, connection);
      case State::leaves:
        return false;
    }
    return false;
  }

  bool greet(uint64_t id, Connection& connection) {
    connection.hello = std::exchange(connection.in, {});
    std::optional<wire::Hello> says = wire::read_hello(connection.hello);
    if (!says) return drop(id), false;
    connection.says = std::move(*says);
    const Refusal refusal = judge_secret(connection.says);
    connection.out = connection.answer = wire::answer_of({refusal, badge_.world});
    connection.state = State::proves;
    if (refusal != Refusal::none) leave(id, connection, refusal);
    return true;
  }

  Refusal judge_secret(const wire::Hello& says) const {
    if (says.has_secret == !badge_.secret.empty()) return Refusal::none;
    return says.has_secret ? Refusal::secret_unknown : Refusal::secret_missing;
  }

  Refusal judge_hello(const wire::Hello& says) const {
    if (says.job != job_) return Refusal::other_job;
    // A world size that differs is an error of the whole job where it is known to be this job.
    const bool known = !badge_.secret.empty() || !badge_.job.empty();
    if (!known && says.world != badge_.world) return Refusal::other_world;
    if (says.rank < 0 || says.rank >= std::max(says.world, badge_.world))
      return Refusal::no_such_rank;
    if (!known)
      if (auto other = process_of_rank_.find(says.rank);
          other != process_of_rank_.end() && other->second != says.process)
        return Refusal::rank_taken;
    return Refusal::none;
  }

  bool judge(uint64_t id, Connection& connection) {
    const std::string proof = std::exchange(connection.in, {});
    Refusal refusal = judge_hello(connection.says);
    if (!base::same_secret(proof,
                           wire::prove(badge_.secret, "rank", connection.hello, connection.answer)))
      refusal = Refusal::wrong_secret;
    else if (auto process = processes_.find(connection.says.process);
             process != processes_.end() && process->second >= kMostOfOneProcess)
      refusal = Refusal::crowded;
    else if (refusal == Refusal::none && !known(connection) &&
             members() >= kMostMembers + kMembersOfOneRank * world())
      refusal = Refusal::crowded;
    connection.out = wire::verdict_of(badge_.secret, refusal, connection.hello, connection.answer);
    if (refusal != Refusal::none) {
      leave(id, connection, refusal);
      return true;
    }
    const std::string key = wire::prove(badge_.secret, "key", connection.hello, connection.answer);
    connection.hears = wire::Seal(key, wire::kToStore);
    connection.speaks = wire::Seal(key, wire::kFromStore);
    connection.state = State::member;
    process_of_rank_.try_emplace(connection.says.rank, connection.says.process);
    ++processes_[connection.says.process];
    strangers_.erase(id);
    set_deadline(id, connection, std::nullopt);
    return true;
  }

  // Once it has heard why.
  void leave(uint64_t id, Connection& connection, Refusal refusal) {
    connection.state = State::leaves;
    set_deadline(id, connection, Clock::now() + kToRead);
    std::string words = connection.from + why_refused(refusal, connection.says);
    std::lock_guard lock(mutex_);
    if (refused_.size() >= kMostRefused ||
        std::find(refused_.begin(), refused_.end(), words) != refused_.end())
      return;
    // One address that says ever other words does not hide the others.
    if (size_t& told = told_of_[connection.neighbourhood]; told < kMostRefusedOfOne) {
      ++told;
      refused_.push_back(std::move(words));
    }
  }

  bool answer(uint64_t id, Connection& connection) {
    std::string text;
    const size_t most = known(connection) ? wire::kMostBytes : wire::kMostBeforeMeeting;
    switch (connection.hears.open(connection.in, text, most)) {
      case wire::Seal::Found::part:
        return false;
      case wire::Seal::Found::forged:
        return drop(id), false;
      case wire::Seal::Found::whole:
        break;
    }
    std::optional<wire::Message> request = wire::unpack(text);
    if (!request) return drop(id), false;
    table_.set_limits(!badge_.secret.empty() || met_
                          ? StoreTable::kUsual
                          : StoreTable::Limits{kStoredBeforeMeeting + kStoredOfOneRank * world(),
                                               2 * wire::kMostBeforeMeeting});
    StoreTable::Outcome outcome = table_.ask(id, *request);
    if (!outcome.sense) return drop(id), false;
    if (outcome.reply) {
      connection.out += connection.speaks.close(wire::pack(*outcome.reply));
    } else {
      connection.waits = true;
      const std::chrono::milliseconds time(
          std::clamp<int64_t>(request->number, 0, kLongest.count()));
      set_deadline(id, connection, Clock::now() + time);
    }
    for (auto& [client, message] : table_.take_ready())
      if (auto it = connections_.find(client); it != connections_.end())
        reply(client, it->second, message);
    return true;
  }

  // To a connection that waited.
  void reply(uint64_t id, Connection& connection, const wire::Message& message) {
    connection.waits = false;
    set_deadline(id, connection, std::nullopt);
    connection.out += connection.speaks.close(wire::pack(message));
    // What does not go out now goes when the socket takes more; what came meanwhile is read then.
    if (!watch(EPOLL_CTL_MOD, connection.fd, EPOLLOUT, id)) return drop(id);
    connection.watched = EPOLLOUT;
  }

  std::vector<int> listeners_;
  const wire::Badge badge_;
  const std::string job_;
  int epoll_ = -1, wake_ = -1;
  std::atomic<bool> ends_ = false, met_ = false;
  uint64_t next_connection_ = kFirstConnection;
  std::unordered_map<uint64_t, Connection> connections_;
  std::set<uint64_t> strangers_;  // have proved nothing yet; oldest first
  std::set<std::pair<Clock::time_point, uint64_t>> deadlines_;
  std::map<int64_t, std::string> process_of_rank_;     // rank -> process
  std::unordered_map<std::string, size_t> processes_;  // their connections
  StoreTable table_;
  mutable std::mutex mutex_;  // of what follows
  std::vector<std::string> refused_;
  std::map<std::string, size_t> told_of_;  // by neighbourhood: in refused_
};

StoreServer::StoreServer(std::vector<int> listeners, const wire::Badge& badge)
    : loop_(std::make_unique<Loop>(std::move(listeners), badge)),
      thread_([loop = loop_.get()] { loop->run(); }) {}

StoreServer::~StoreServer() {
  loop_->end();
  thread_.join();
}

void StoreServer::ranks_met() { loop_->ranks_met(); }

std::vector<std::string> StoreServer::refused() const { return loop_->refused(); }

}  // namespace meshwright::rendezvous
