#include "meshwright/parallel/testing.h"

#include <ATen/Parallel.h>
#include <signal.h>

#include <exception>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "meshwright/error.h"
#include "sdk/base/rank_thread.h"
#include "sdk/base/transport.h"

namespace meshwright {
namespace {

// A rank that ends closes its connections, which others may tell of before it tells why it ended.
bool follows_from_another(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.code() == ErrorCode::collective_failed;
  } catch (...) {
    return false;
  }
}

}  // namespace

void run_ranks(int64_t ranks, const std::function<void(const std::shared_ptr<World>&)>& body,
               std::chrono::milliseconds timeout) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::exception_ptr first;
  for (int64_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      auto connect = [&, rank](const std::string& name, const std::vector<int64_t>& members) {
        int place = 0;
        while (members[static_cast<size_t>(place)] != rank) ++place;
        auto options = c10d::ProcessGroupGloo::Options::create(timeout);
        options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
        options->threads = 1;
        return transport_over(c10::make_intrusive<c10d::ProcessGroupGloo>(
                                  c10::make_intrusive<c10d::PrefixStore>(name, store), place,
                                  static_cast<int>(members.size()), options),
                              at::kCPU);
      };
      const detail::RankThread this_rank(rank);
      at::set_num_threads(1);  // counted by thread
      // A peer that went away is a failed write, as in the program, and not the end of the test:
      // gloo's threads inherit this.
      sigset_t quiet;
      ::sigemptyset(&quiet);
      ::sigaddset(&quiet, SIGPIPE);
      ::pthread_sigmask(SIG_BLOCK, &quiet, nullptr);
      try {
        auto world = make_world(rank, ranks, at::kCPU, timeout, connect);
        body(world);
        world->everyone()->barrier();  // nobody closes a connection that another still reads
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!first || follows_from_another(first)) first = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace meshwright
