#include "progress.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "sdk/base/plain_text.h"

namespace meshwright::jsonl {

std::function<void(const Preparation&)> telling_progress(
    std::function<void(const std::string&)> tell) {
  using Clock = std::chrono::steady_clock;
  const auto every = std::chrono::seconds(::isatty(STDERR_FILENO) != 0 ? 1 : 10);
  const Clock::time_point begin = Clock::now();
  return [=, told = begin, tell = std::move(tell)](const Preparation& at) mutable {
    const Clock::time_point now = Clock::now();
    if (now - told < every) return;
    told = now;
    const double seconds = std::chrono::duration<double>(now - begin).count();
    const double rate = static_cast<double>(at.bytes) / seconds;
    tell(text::format("tokenized %.0f%% of %.1f MB, %.1f MB/s, %.0f s left",
                      100 * static_cast<double>(at.bytes) / static_cast<double>(at.total),
                      static_cast<double>(at.total) / 1e6, rate / 1e6,
                      static_cast<double>(at.total - at.bytes) / rate));
  };
}

}  // namespace meshwright::jsonl
