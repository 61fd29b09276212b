// The store of rank 0: keys and values for ranks that know the job's secret.
//
// c10d::TCPStore asks nobody who they are, and listens on every interface. This one has a thread
// that never waits for anybody: who does not prove within five seconds that it knows the secret is
// hung up on; of those that have not yet, at most 128 are kept, and of the address that has most of
// them the oldest goes first.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/launch/rendezvous/wire.h"

namespace meshwright::rendezvous {

class StoreServer {
 public:
  // Serves at these listening sockets, which are its own from now on. `badge`: of rank 0. Where the
  // job has neither secret nor name nobody can tell a rank of it from one of another job: the first
  // that comes as rank 1 is rank 1, and later ones, or those of another world size, are refused.
  StoreServer(std::vector<int> listeners, const wire::Badge& badge);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // All ranks are there: what they say may be long from now on. Until then, and from others after
  // that, a job without a secret takes little from each connection, so that no stranger fills the
  // memory of rank 0. Thread-safe.
  void ranks_met();

  // Who was refused, oldest first: "10.70.0.9, which does not know the job's secret". A few, two at
  // most of one address.
  // Thread-safe.
  std::vector<std::string> refused() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace meshwright::rendezvous
