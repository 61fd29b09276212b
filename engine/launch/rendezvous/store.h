// The store of rank 0: keys and values for ranks that know the job's secret; a rank's connection to
// it, and the store as LibTorch knows it.
//
// c10d::TCPStore asks nobody who they are, and listens on every interface. This one has a thread
// that never waits for anybody: who does not prove within five seconds that it knows the secret is
// hung up on; of those that have not yet, at most 128 are kept, and of the address that has most of
// them the oldest goes first.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/launch/rendezvous/wire.h"

namespace c10d {
class Store;
}

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

// Where the store is, and as whom to come.
struct StorePlace {
  std::string host;
  int port = 0;
  wire::Badge badge = {};
};

// Why there is no store.
struct NoStore {
  enum class Why : uint8_t { unreachable, silent, other_program, refused } why;
  std::string words;  // of the system, where it is unreachable
  wire::Refusal refusal = wire::Refusal::none;
  int64_t number = 0;  // with it: the world size of rank 0
};

class StoreClient {
 public:
  // Connects, and proves both ways that the other end knows the secret. Tries until `end`; throws
  // NoStore, at once where it is refused or another program answers. `timeout`: of later calls; so
  // long the other host may be silent.
  StoreClient(const StorePlace& place, std::chrono::steady_clock::time_point end,
              std::chrono::milliseconds timeout = {});
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  // One request at a time; thread-safe. Throws c10::DistNetworkError when the connection is lost or
  // there is no reply within `limit`, after which it is lost.
  wire::Message ask(const wire::Message& request, std::chrono::milliseconds limit);

 private:
  std::mutex mutex_;
  int fd_ = -1;
  wire::Seal speaks_, hears_;
  std::string in_;
};

// The store for LibTorch's groups and for ours. Throws NoStore as above. `server`, of rank 0, lives
// as long as the store and its clones. Calls throw c10::DistStoreError when what they wait for does
// not come in time, c10::DistNetworkError when the store is lost.
c10::intrusive_ptr<c10d::Store> remote_store(const StorePlace& place,
                                             std::chrono::steady_clock::time_point end,
                                             std::chrono::milliseconds timeout,
                                             std::shared_ptr<StoreServer> server = nullptr);

}  // namespace meshwright::rendezvous
