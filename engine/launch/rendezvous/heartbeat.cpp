#include "engine/launch/rendezvous/heartbeat.h"

#include <c10/util/Exception.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <random>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "engine/launch/rendezvous/connectivity.h"
#include "engine/launch/rendezvous/notices.h"
#include "meshwright/error.h"
#include "sdk/base/wait.h"

namespace meshwright::rendezvous {

namespace {

using Clock = std::chrono::steady_clock;

// What goes over a line: the token, then who is there, from the others to rank 0; that it has been
// heard, and later a rank that has ended, from rank 0; a good-bye.
struct Word {
  int64_t token, rank;
};
constexpr int64_t kGoodbye = -1, kHeard = -2;
// Lines beyond those of the ranks: the oldest that has not said who it is makes room.
constexpr size_t kMostStrangeLines = 64;
// In one call, which others wait for: strangers may come as fast as they are let in.
constexpr int kMostAtOnce = 256;
// The launcher's store, which has just answered.
constexpr std::chrono::seconds kAgentAnswers(1);

// At what address rank 0 listens alone; empty: MASTER_ADDR leads there. Port 0: nowhere.
struct Listens {
  int port;
  int64_t token;
  std::string address;
};
BOOST_DESCRIBE_STRUCT(Listens, (), (port, token, address))

// Of the store: where rank 0 listens; how many others have tried to connect; "3 7 ", those that
// could not.
const std::string kKey = "heartbeat", kTried = "heartbeat/tried",
                  kUnwatched = "heartbeat/unwatched";

bool send_word(int fd, const Word& word) {
  return ::send(fd, &word, sizeof word, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof word;
}

}  // namespace

Heartbeat::Heartbeat(const launch::RankEnvironment& ranks, c10d::Store& store,
                     const HeartbeatTimes& times, const std::string& interface)
    : rank_(ranks.rank), world_(ranks.world_size) {
  if (rank_ == 0) {
    std::random_device random;
    token_ = static_cast<int64_t>(random()) << 31 | static_cast<int64_t>(random() >> 1);
    Listens mine{0, token_, ""};
    try {
      std::string here;  // an agent's MASTER_ADDR may be another host's
      if (ranks.agent_store && !ranks.one_host())
        here = route_to_master(ranks, Clock::now() + kAgentAnswers).local;
      const OpenListeners listeners = open_listeners_beside(ranks, interface, here);
      listeners_ = listeners.sockets;
      if (!ranks.one_host() && !listeners.everywhere) mine.address = listeners.own;
      mine.port = local_end(listeners_[0]).port;
    } catch (const Error& error) {  // nobody waits for it
      trouble_ = error.message();
    }
    try {
      store.set(kKey, bytes_of(base::json_text(mine)));
    } catch (...) {  // nobody will come, and the destructor is not called
      for (int listener : listeners_) ::close(listener);
      throw;
    }
    most_lines_ = static_cast<size_t>(world_) + kMostStrangeLines;
    return;
  }
  if (const int fd = reach(ranks, store, times); fd >= 0) {
    lines_.push_back({fd, -1});
    send_word(fd, {token_, rank_});
  } else {
    store.append(kUnwatched, bytes_of(std::to_string(rank_) + " "));
  }
  try {
    store.add(kTried, 1);
  } catch (const c10::Error&) {  // rank 0 waits a moment longer; the line is of use all the same
  }
}

// A connection to rank 0; -1: there is none in time.
int Heartbeat::reach(const launch::RankEnvironment& ranks, c10d::Store& store,
                     const HeartbeatTimes& times) {
  try {
    store.wait({kKey}, left_until(times.told));
  } catch (const c10::DistStoreError&) {
    return -1;
  }
  const auto [port, token, address] = told<Listens>(text_of(store.get(kKey)), kKey, "rank 0");
  token_ = token;
  if (port <= 0 || port > 65535) return -1;
  const Clock::time_point now = Clock::now(),
                          end = std::max(times.connected, now + std::chrono::milliseconds(500));
  const bool there_alone = !address.empty() && ranks.agent_store;
  int fd = -1;
  if (!address.empty()) fd = connect_to(address, port, there_alone ? end : now + (end - now) / 2);
  if (fd < 0 && !there_alone)
    fd = connect_to(ranks.one_host() ? kLoopback : ranks.master_addr, port, end);
  return fd;
}

std::string Heartbeat::unwatched(c10d::Store& store, HeartbeatTimes::Time end) {
  if (!trouble_.empty())
    return "no rank will hear at once when another has ended, but after the timeout: " + trouble_;
  base::wait_until(end, std::chrono::milliseconds(5),
                   [&] { return store.add(kTried, 0) >= world_ - 1 || ended(); });
  // Who has come is told so now: a rank that has not been heard makes nothing of the end of rank 0,
  // which may come before the watchdog's first look.
  ended();
  return name_unwatched(store, 0);
}

std::string Heartbeat::unwatched_since(c10d::Store& store) {
  return trouble_.empty() ? name_unwatched(store, named_) : "";
}

// Those that have written behind the first `from` bytes.
std::string Heartbeat::name_unwatched(c10d::Store& store, size_t from) {
  if (!store.check({kUnwatched})) return "";
  const std::string told = text_of(store.get(kUnwatched));
  named_ = told.size();
  std::vector<int64_t> out;
  for (size_t at = from; at < told.size();) {
    const size_t space = std::min(told.find(' ', at), told.size());
    out.push_back(number_of(told.substr(at, space - at), kUnwatched, "a rank"));
    at = space + 1;
  }
  if (out.empty()) return "";
  std::sort(out.begin(), out.end());
  return named_ranks(out) + " could not connect to port " +
         std::to_string(local_end(listeners_[0]).port) +
         " of rank 0, over which ranks hear at once when another has ended: whoever is not "
         "connected hears of that after the timeout, and is missed no sooner; let firewalls "
         "between the hosts pass the port (MESHWRIGHT_PORT_RANGE says of which it is)";
}

Heartbeat::~Heartbeat() {
  for (const Line& line : lines_) {
    if (line.fd < 0) continue;
    if (std::uncaught_exceptions() == 0) send_word(line.fd, {token_, kGoodbye});
    // What nobody has read makes the kernel break the connection off, and the good-bye may be lost.
    std::array<Word, 16> unread{};
    ::recv(line.fd, unread.data(), sizeof unread, MSG_DONTWAIT);
    ::close(line.fd);
  }
  for (int listener : listeners_) ::close(listener);
}

std::optional<int64_t> Heartbeat::ended() {
  std::lock_guard lock(mutex_);
  for (int listener : listeners_) accept_lines(listener);
  for (Line& line : lines_)
    if (line.fd >= 0) listen_to(line);
  return ended_;
}

void Heartbeat::accept_lines(int listener) {
  pollfd ready{listener, POLLIN, 0};
  for (int i = 0; i < kMostAtOnce && ::poll(&ready, 1, 0) > 0; ++i) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    std::erase_if(lines_, [](const Line& line) { return line.fd < 0; });
    if (lines_.size() >= most_lines_) {
      // Ranks say who they are as soon as they are connected.
      for (Line& line : lines_)
        if (line.rank < 0) listen_to(line);
      std::erase_if(lines_, [](const Line& line) { return line.fd < 0; });
    }
    if (lines_.size() >= most_lines_) {
      auto stranger = std::find_if(lines_.begin(), lines_.end(),
                                   [](const Line& line) { return line.rank < 0; });
      if (stranger == lines_.end()) {
        ::close(fd);
        continue;
      }
      ::close(stranger->fd);
      lines_.erase(stranger);
    }
    lines_.push_back({fd, -1});
    if (ended_) send_word(fd, {token_, *ended_});
  }
}

// Words are so short that none comes in parts; whoever sends others is not one of the ranks.
void Heartbeat::listen_to(Line& line) {
  Word word{};
  ssize_t got = 0;
  // MSG_DONTWAIT: it does not block. NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection)
  while ((got = ::recv(line.fd, &word, sizeof word, MSG_DONTWAIT)) == sizeof word &&
         word.token == token_ && word.rank != kGoodbye) {
    if (rank_ == 0) {
      line.rank = word.rank;
      send_word(line.fd, {token_, kHeard});
    } else if (word.rank == kHeard) {
      line.rank = 0;
    } else {
      lose(word.rank);
    }
  }
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  // The kernel of the other host has said that the process there has ended, without a word from
  // that. Where packets are lost (ETIMEDOUT, EHOSTUNREACH) nobody knows, and collectives may go
  // another way: then the line is given up. Rank 0 hangs up on strangers, and takes this rank for
  // one until it has heard it: before that its silence means nothing.
  const bool silent = got == 0 || (got < 0 && (errno == ECONNRESET || errno == EPIPE));
  ::close(std::exchange(line.fd, -1));
  if (silent && line.rank >= 0) lose(line.rank);
}

void Heartbeat::lose(int64_t rank) {
  if (ended_) return;
  ended_ = rank;
  if (rank_ != 0) return;
  for (const Line& line : lines_)
    if (line.fd >= 0) send_word(line.fd, {token_, rank});
}

}  // namespace meshwright::rendezvous
