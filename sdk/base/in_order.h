// Work in pieces that several threads take, and that comes back in the order in which it was given.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "sdk/base/beside.h"

namespace meshwright::base {

// give() and take() are for one thread, which says by under_way() how many pieces there are at
// most. `work` is called by several threads at once, for a piece each, with the thread's number,
// from 0 on. All inline.
template <class Piece>
class InOrder {
 public:
  InOrder(size_t threads, std::function<void(Piece&, size_t thread)> work)
      : work_(std::move(work)) {
    threads_ = detail::helpers(threads, [this] { run(); });
    if (threads_.empty()) threads_.emplace_back([this] { run(); });  // throws: there must be one
  }
  ~InOrder() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    threads_.clear();
  }
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;

  size_t under_way() const { return order_.size(); }
  void give(std::unique_ptr<Piece> piece) {
    order_.push_back({std::move(piece), nullptr, false});
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(&order_.back());
    }
    changed_.notify_all();
  }
  // The oldest piece, once it is done. Throws what its work threw.
  std::unique_ptr<Piece> take() {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return order_.front().done; });
    }
    Given oldest = std::move(order_.front());
    order_.pop_front();
    if (oldest.failure) std::rethrow_exception(oldest.failure);
    return std::move(oldest.piece);
  }

 private:
  struct Given {
    std::unique_ptr<Piece> piece;
    std::exception_ptr failure;
    bool done = false;
  };

  void run() {
    const size_t thread = started_.fetch_add(1);
    for (;;) {
      Given* given = nullptr;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
        if (ending_) return;
        given = waiting_.front();
        waiting_.pop_front();
      }
      try {
        work_(*given->piece, thread);
      } catch (...) {
        given->failure = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        given->done = true;
      }
      changed_.notify_all();
    }
  }

  std::function<void(Piece&, size_t)> work_;
  std::atomic<size_t> started_{0};
  std::deque<Given> order_;  // of the calling thread; its elements stay where they are
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Given*> waiting_;
  bool ending_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace meshwright::base
