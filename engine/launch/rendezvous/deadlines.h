// How long the ranks' steps may take beyond the timeout of collectives: of a fault between hosts
// every rank ends within the timeout and ten seconds more, whatever the timeout is.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace meshwright::rendezvous {

inline constexpr std::chrono::milliseconds kAfterTimeout(10000);

// A call of the store that takes longer has nobody at its other end.
inline constexpr std::chrono::milliseconds kStoreAnswers(5000);
// For a store that has not answered before (a network between two hosts may be gone), and for words
// that nobody waits for.
inline constexpr std::chrono::milliseconds kStoreOnceMore(1000);

// How long the keeper of the store stays for ranks that are in the middle of a long computation.
inline constexpr std::chrono::milliseconds kStay(30000);
// Of a rank that posts why it ends. `silent`: the store did not answer the last time, not even its
// keeper. `says`: else it has no more to tell than that another rank is gone.
struct Posting {
  bool silent, keeper, says;
};
constexpr std::chrono::milliseconds post_limit(const Posting& of,
                                               std::chrono::milliseconds timeout) {
  if (of.silent) return kStoreOnceMore;
  if (of.keeper) return std::min(timeout, kStay) + kStoreAnswers;
  return of.says ? kStoreAnswers : kStoreOnceMore;
}

// Of one connection to the store: whoever has a shorter limit (notices.h) gives up before it, and
// says so in words of its own. A connection that is given up is lost for good, so under a long
// timeout a pause that others would wait for is no end.
constexpr std::chrono::milliseconds store_replies(std::chrono::milliseconds timeout) {
  return std::max(std::chrono::milliseconds(60000), timeout);
}
// How the kernel asks whether the other host is still there: after two minutes of silence, or the
// timeout where that is longer, the connection is closed, and frees its descriptor.
struct KeepAlive {
  int idle_s, between_s, times;
};
constexpr KeepAlive keep_alive_times(std::chrono::milliseconds timeout) {
  constexpr int64_t kIdle = 60, kTimes = 4, kLongest = 32767;  // of the kernel
  const int64_t rest = std::chrono::ceil<std::chrono::seconds>(timeout).count() - kIdle;
  return {kIdle, static_cast<int>(std::clamp<int64_t>((rest + kTimes - 1) / kTimes, 15, kLongest)),
          kTimes};
}

// Of a rank that timed out and asks who did not.
struct RollCallTimes {
  std::chrono::milliseconds window;  // for others to say that they did, too
  std::chrono::milliseconds stays;   // after it: rank 0, for those that did and have to read
  std::chrono::milliseconds all;     // from then on the store counts as silent
};
// Ranks of one collective begin to wait, and so run out of time, within a step's differences of
// each other, and those of a chain within a step. Who comes later than the window is taken for
// silent.
constexpr RollCallTimes roll_call_times(std::chrono::milliseconds timeout) {
  using std::chrono::milliseconds;
  RollCallTimes out{std::clamp(timeout / 10, milliseconds(1000), milliseconds(4000)),
                    milliseconds(2000), milliseconds(500)};
  out.all += out.window + out.stays;
  return out;
}

// How long one connection is tried: the kernel repeats a lost packet after 1, 3 and 7 seconds.
inline constexpr std::chrono::milliseconds kProbe(12000);

// Of ranks that look whether their hosts reach each other. Each waits a little longer than those
// whose words it needs, so that what they say arrives.
struct LookTimes {
  using Time = std::chrono::steady_clock::time_point;
  Time probe;  // until then connections are tried
  Time found;  // rank 0 waits for what each has found
  Time heard;  // and for whose packets have come
  Time told;   // the others wait for its verdict
  Time all;    // from then on the store counts as silent
};
// `end`: of the timeout, which began before the ranks told each other where they are.
inline LookTimes look_times(LookTimes::Time now, LookTimes::Time end) {
  using std::chrono::milliseconds;
  // Who has heard late where the others are has less time, for rank 0 waits for its word.
  const auto least = std::min(now + milliseconds(2000), end + milliseconds(2500));
  return {std::min(now + kProbe, std::max(end, least)), end + milliseconds(3000),
          end + milliseconds(4000), end + milliseconds(6000), end + milliseconds(7000)};
}

// Of ranks that connect to the port of rank 0 over which they hear who has ended. The first group,
// which takes the timeout where a host is lost meanwhile, is made after that.
struct HeartbeatTimes {
  using Time = std::chrono::steady_clock::time_point;
  Time told;       // rank 0 asks a name server for 5 s at most before it tells where it listens
  Time connected;  // the kernel repeats a lost packet after a second
  Time counted;    // rank 0 waits for what became of all; it asks for later words with a group
  Time all;        // who has not come so far goes on without
};
inline HeartbeatTimes heartbeat_times(HeartbeatTimes::Time now) {
  using std::chrono::milliseconds;
  return {now + milliseconds(5500), now + milliseconds(2500), now + milliseconds(3200),
          now + milliseconds(6500)};
}

}  // namespace meshwright::rendezvous
