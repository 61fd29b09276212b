// One attempt of a job: its ranks, watched from their start to their end, and who was at fault.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "engine/launch/output.h"
#include "engine/launch/spawn.h"
#include "engine/launch/supervisor.h"

namespace meshwright::launch {

// To the user, and to what records the run, once that has begun.
void tell(const LocalJob& job, Sink& sink, const std::string& lines);

class Attempt {
 public:
  Attempt(const LocalJob& job, Sink& sink, int64_t restart)
      : job_(job), sink_(sink), restart_(restart) {}
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;
  void run();
  int result() const;
  // "rank 1 was ended by signal 9 (SIGKILL)"; empty when nothing failed, or in a way that a new
  // attempt would repeat.
  std::string may_heal() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    int64_t number;
    Process process;
    RankOutput output;
    bool ended = false;
    int status = 0;
    Clock::time_point when;
  };
  void wait_for_news();
  void reap();
  void pass_on_signals();
  void judge();
  bool excused(const Rank& rank) const;
  bool ended_silently(const Rank& rank) const;
  static bool collateral(const Rank& rank);
  const Rank* at_fault() const;
  std::string stopped_ranks();
  void announce(const Rank& fault, const std::string& stopped);
  void aftermath();
  void signal_all(int number);
  bool all_ended() const;
  bool keeps_logs() const;

  const LocalJob& job_;
  Sink& sink_;
  int64_t restart_;
  std::deque<Rank> ranks_;
  int passed_on_ = 0;  // signals
  std::optional<Clock::time_point> first_failure_, told_, killed_;
  const Rank* fault_ = nullptr;  // decided when the others are told to end
  std::string fault_words_;
  std::vector<int64_t> stopped_;  // when the others were told to end
};

}  // namespace meshwright::launch
