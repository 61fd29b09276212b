// A store that tests serve, and who comes to it.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "engine/launch/rendezvous/connectivity.h"
#include "engine/launch/rendezvous/notices.h"
#include "engine/launch/rendezvous/store.h"
#include "engine/launch/spawn.h"

namespace served_store {

using namespace meshwright;
using namespace meshwright::rendezvous;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using wire::Refusal;

inline const std::string kSecret = "a secret of this test";

inline wire::Badge badge(const std::string& secret, int64_t rank = 1, int64_t world = 4,
                         const std::string& job = "") {
  return {secret, job, rank, world, launch::random_bytes(wire::kProcess)};
}

// A rank that comes to whoever listens at the port of this host.
inline StorePtr come_to(int port, const wire::Badge& as,
                        milliseconds patience = milliseconds(20000)) {
  return remote_store({"127.0.0.1", port, as}, Clock::now() + patience, milliseconds(20000));
}

struct Served {
  int port = 0;
  std::shared_ptr<StoreServer> server;
  explicit Served(const wire::Badge& of = badge(kSecret, 0)) {
    const int fd = listen_at(kLoopback, 0);
    port = local_end(fd).port;
    server = std::make_shared<StoreServer>(std::vector<int>{fd}, of);
  }
  StorePtr come(const wire::Badge& as, milliseconds patience = milliseconds(20000)) const {
    return come_to(port, as, patience);
  }
};

// Why such a rank gets no store there, it or the other end refusing; refused with none: it does.
inline NoStore refusal_at(int port, const wire::Badge& as) {
  try {
    come_to(port, as);
  } catch (const NoStore& why) {
    return why;
  }
  return {NoStore::Why::refused, "", Refusal::none};
}
inline NoStore refusal_of(const Served& served, const wire::Badge& as) {
  return refusal_at(served.port, as);
}

inline int probe(int port) {
  return connect_to("127.0.0.1", port, Clock::now() + milliseconds(10000));
}

// Whether the other end hangs up within the time.
inline bool hung_up(int fd, milliseconds patience) {
  pollfd ready{fd, POLLIN, 0};
  char byte = 0;
  return ::poll(&ready, 1, static_cast<int>(patience.count())) > 0 &&
         ::recv(fd, &byte, 1, MSG_DONTWAIT) <= 0;
}

}  // namespace served_store
