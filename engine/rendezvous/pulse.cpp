#include "engine/rendezvous/pulse.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <random>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "engine/rendezvous/connectivity.h"
#include "engine/rendezvous/interfaces.h"
#include "engine/rendezvous/listen.h"
#include "engine/rendezvous/notices.h"
#include "meshwright/error.h"

namespace meshwright::rendezvous {

namespace {

// What goes over a line: the token, then who is there, from the others to rank 0; a rank that has
// ended, from rank 0; a good-bye.
struct Word {
  int64_t token, rank;
};
constexpr int64_t kGoodbye = -1;
// Lines beyond those of the ranks: the oldest that has not said who it is makes room.
constexpr size_t kMostStrangeLines = 64;

const std::string kKey = "pulse";

bool send_word(int fd, const Word& word) {
  return ::send(fd, &word, sizeof word, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof word;
}

}  // namespace

Pulse::Pulse(const launch::RankEnvironment& ranks, c10d::Store& store,
             std::chrono::milliseconds patience, const std::string& interface)
    : rank_(ranks.rank) {
  if (rank_ == 0) {
    std::random_device random;
    token_ = static_cast<int64_t>(random()) << 31 | static_cast<int64_t>(random() >> 1);
    std::string address;  // at which rank 0 listens alone; empty: MASTER_ADDR leads there
    try {
      if (!ranks.one_host())
        if (const auto open = addresses_to_open(ranks, interface); !open.empty()) address = open[0];
      door_ = address.empty() ? listen_on(ranks.ports, ranks.one_host())
                              : listen_at(address, ranks.ports);
    } catch (const Error& error) {  // nobody waits for it
      trouble_ = error.message();
    }
    const int port = door_ >= 0 ? bound_port(door_) : 0;
    store.set(kKey, bytes_of(std::to_string(port) + " " + std::to_string(token_) + " " + address));
    most_lines_ = static_cast<size_t>(ranks.world_size) + kMostStrangeLines;
    return;
  }
  const std::string told = text_of(store.get(kKey));
  const size_t first = std::min(told.find(' '), told.size()),
               second = std::min(told.find(' ', first + 1), told.size());
  const int64_t port = number_of(told.substr(0, first), kKey, "rank 0");
  token_ = number_of(told.substr(std::min(first + 1, second), second - std::min(first + 1, second)),
                     kKey, "rank 0");
  const std::string address = told.substr(std::min(second + 1, told.size()));
  if (port <= 0 || port > 65535) return;
  const auto now = std::chrono::steady_clock::now();
  int fd = -1;
  if (!address.empty()) fd = connect_to(address, static_cast<int>(port), now + patience / 2);
  if (fd < 0)
    fd = connect_to(ranks.one_host() ? "127.0.0.1" : ranks.master_addr, static_cast<int>(port),
                    now + patience);
  if (fd < 0) return;
  lines_.push_back({fd, 0});
  send_word(fd, {token_, rank_});
}

Pulse::~Pulse() {
  for (const Line& line : lines_) {
    if (line.fd < 0) continue;
    if (std::uncaught_exceptions() == 0) send_word(line.fd, {token_, kGoodbye});
    ::close(line.fd);
  }
  if (door_ >= 0) ::close(door_);
}

std::optional<int64_t> Pulse::ended() {
  std::lock_guard lock(mutex_);
  if (door_ >= 0) accept_lines();
  for (Line& line : lines_)
    if (line.fd >= 0) listen_to(line);
  return ended_;
}

void Pulse::accept_lines() {
  for (pollfd ready{door_, POLLIN, 0}; ::poll(&ready, 1, 0) > 0;) {
    const int fd = ::accept4(door_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
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
void Pulse::listen_to(Line& line) {
  Word word{};
  ssize_t got = 0;
  // MSG_DONTWAIT: it does not block. NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection)
  while ((got = ::recv(line.fd, &word, sizeof word, MSG_DONTWAIT)) == sizeof word &&
         word.token == token_ && word.rank != kGoodbye)
    if (rank_ == 0)
      line.rank = word.rank;
    else
      lose(word.rank);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  ::close(std::exchange(line.fd, -1));
  const bool silent = got <= 0;  // the connection has ended without a word
  if (silent && line.rank >= 0) lose(line.rank);
}

void Pulse::lose(int64_t rank) {
  if (ended_) return;
  ended_ = rank;
  if (rank_ != 0) return;
  for (const Line& line : lines_)
    if (line.fd >= 0) send_word(line.fd, {token_, rank});
}

}  // namespace meshwright::rendezvous
