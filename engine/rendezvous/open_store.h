// The store in which the ranks of a job meet, and the errors of those that do not get there.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "engine/launch/ranks.h"
#include "engine/rendezvous/notices.h"

namespace meshwright::rendezvous {

class StoreServer;

struct Opened {
  c10::intrusive_ptr<c10d::Store> store;
  std::shared_ptr<StoreServer> server = nullptr;  // of rank 0
  bool everywhere = false;                        // it listens on every interface
};

// Rank 0 serves a store where MASTER_ADDR and MASTER_PORT lead, and the others connect. Under a
// launcher whose agent has a store there: without a secret all are clients of it; with one rank 0
// serves its own at another port, and tells in the agent's where that is. Tries until `end`;
// `timeout`: of later calls, and in the words of errors. Throws Error.
Opened open_store(const launch::RankEnvironment& ranks, Milliseconds timeout,
                  std::chrono::steady_clock::time_point end, const std::string& interface = {});
// The launcher's store alone, for a rank that says why it does not take part: it waits for nobody.
c10::intrusive_ptr<c10d::Store> store_of_launcher(const launch::RankEnvironment& ranks,
                                                  Milliseconds timeout,
                                                  std::chrono::steady_clock::time_point end);

// A launcher's store outlives the ranks of one attempt; what they left in it means nothing to the
// next.
c10::intrusive_ptr<c10d::Store> of_this_attempt(const c10::intrusive_ptr<c10d::Store>& store,
                                                const launch::RankEnvironment& ranks);

std::string place_of(const launch::RankEnvironment& ranks);  // "node1:29555"
std::string words_of_twice(int64_t rank);                    // two processes say that they are it

}  // namespace meshwright::rendezvous
