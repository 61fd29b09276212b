#include "sdk/kit/comparison/collect.h"

#include <exception>
#include <mutex>
#include <utility>

#include "meshwright/parallel/testing.h"
#include "sdk/kit/comparison/one_line.h"

namespace meshwright::comparison {

namespace {

bool is_of_group(const Error& error) {
  return error.code() == ErrorCode::collective_timeout ||
         error.code() == ErrorCode::collective_failed;
}

}  // namespace

RunOutcome collect(int64_t ranks,
                   const std::function<void(const std::shared_ptr<World>&, RankFound&)>& body,
                   std::chrono::milliseconds timeout) {
  RunOutcome out;
  std::mutex mutex;
  auto keep = [&](RankFound& found, int64_t rank) {
    std::lock_guard lock(mutex);
    if (!found.refusal.empty()) out.refusal = found.refusal;
    if (!found.problems.empty()) out.problems[rank] = std::move(found.problems);
  };
  try {
    run_ranks(
        ranks,
        [&](const std::shared_ptr<World>& world) {
          RankFound found;
          try {
            body(world, found);
          } catch (const std::exception& error) {
            // What it had found by then is mostly why.
            const auto* known = dynamic_cast<const Error*>(&error);
            if (found.problems.empty() && known != nullptr && is_of_group(*known)) throw;
            // LibTorch's exceptions go on with a backtrace.
            const std::string text = error.what();
            if (known != nullptr && (known->code() == ErrorCode::not_in_release ||
                                     known->code() == ErrorCode::device_unavailable))
              found.refusal = code_string(known->code());
            else if (found.problems.empty())
              found.problems = {known != nullptr ? one_line(*known)
                                                 : text.substr(0, text.find('\n'))};
            keep(found, world->rank());
            throw;  // the other ranks need not wait for this one
          }
          keep(found, world->rank());
        },
        timeout);
  } catch (const std::exception& error) {
    // The first line: LibTorch's exceptions go on with a backtrace.
    const std::string text = error.what();
    if (out.problems.empty() && out.refusal.empty())
      out.problems[-1] = {text.substr(0, text.find('\n'))};
  }
  return out;
}

}  // namespace meshwright::comparison
