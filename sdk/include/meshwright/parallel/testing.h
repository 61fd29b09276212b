// For tests of strategies and models: ranks as threads of one process, over gloo on loopback. Link
// Meshwright::testing.
//
//   meshwright::run_ranks(2, [](const std::shared_ptr<meshwright::World>& world) {
//     ... each rank's part ...
//   });
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/parallel/group.h"

namespace meshwright {

// What this rank sent, by axis and operation; and, while recording, each collective in order.
class MESHWRIGHT_API TrafficCounter {
 public:
  struct Row {
    std::string axis, op;
    int64_t count = 0, bytes = 0;
  };
  void add(const std::string& axis, const char* op, int64_t bytes);
  void clear();
  const std::vector<Row>& rows() const { return rows_; }  // sums since clear()
  const std::vector<Row>& order() const {
    return order_;
  }  // one row (count 1) each, while recording
  int64_t bytes() const;
  bool recording = false;

 private:
  std::vector<Row> rows_, order_;
  std::shared_ptr<const Later> later_;  // room for what later versions add
};

// Runs `body` once per rank, each in a thread of its own with one thread for operators. The first
// exception of any rank is thrown after all have ended; collectives that wait for a rank which does
// not come time out after `timeout`. LibTorch's default random generator is one for all threads:
// give each rank its own, or make models beforehand. `body` must not use doctest's macros from two
// ranks at once.
void run_ranks(int64_t ranks, const std::function<void(const std::shared_ptr<World>&)>& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace meshwright
