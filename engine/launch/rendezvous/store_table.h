// The keys of a store, and who waits for them. No sockets, no clock, one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/launch/rendezvous/wire.h"

namespace meshwright::rendezvous {

class StoreTable {
 public:
  using Client = uint64_t;
  struct Outcome {
    bool sense = true;                        // false: no request at all
    std::optional<wire::Message> reply = {};  // nullopt: it waits for keys
  };
  // A client waits in one request at a time.
  Outcome ask(Client client, const wire::Message& request);
  // Those whose keys are all there since the last call, with their replies.
  std::vector<std::pair<Client, wire::Message>> take_ready();
  // It waits no longer.
  void forget(Client client);
  // Bytes of all keys and values with what it takes to keep them, and of one reply.
  struct Limits {
    size_t stored, reply;
  };
  void set_limits(const Limits& limits) { limits_ = limits; }
  // A job of thousands of ranks has a few MiB.
  static constexpr Limits kUsual{size_t{512} << 20, wire::kMostBytes};

 private:
  struct Waiting {
    wire::Message request;
    size_t missing = 0;
  };
  wire::Message values(const wire::Message& request) const;
  bool put(const std::string& key, std::string value);  // false: there is no room
  wire::Message add(const std::string& key, int64_t more);
  std::unordered_map<std::string, std::string> keys_;
  std::unordered_map<std::string, std::vector<Client>> wanted_;
  std::unordered_map<Client, Waiting> waiting_;
  std::vector<Client> ready_;
  Limits limits_ = kUsual;
  size_t bytes_ = 0;
};

}  // namespace meshwright::rendezvous
