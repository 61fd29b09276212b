// Who waited for whom when a run ended: found out from the records of all its ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/launch/rank_file.h"

namespace meshwright::postmortem {

struct Verdict {
  // The cause first, in plain words; empty: no rank left a record.
  std::vector<std::string> sentences;
  // The ranks that the others waited for; empty: none was waited for.
  std::vector<int64_t> ranks;
  // Records that could not be read, a sentence each.
  std::vector<std::string> problems;
  // Whether it says more than that the run ended.
  bool found = false;
  std::string text() const;  // a line each
  // The ranks that were waited for had ended with errors of their own, which have been told.
  bool told_already = false;
  // For who ends with the run: "verdict: rank 1 has ..."; empty: it found nothing new.
  std::string told() const;
};

// Of the folder of a run. Per group collectives are the same ones where their numbers are. The
// cause is a collective that ranks entered differently; else a rank that has not entered what
// another waits in and that waits for none itself; else ranks that wait for each other.
Verdict judge_run(const std::filesystem::path& run);
// Until all ranks have left a record, or for so long; not at all where none has.
void wait_for_all(const std::filesystem::path& run, std::chrono::milliseconds patience) noexcept;
// The same, and writes it to comm_traces/verdict.txt where there is one, as far as that goes.
// `stopped`: ranks that the launcher has seen to be.
Verdict write_verdict(const std::filesystem::path& run,
                      const std::vector<int64_t>& stopped = {}) noexcept;

}  // namespace meshwright::postmortem
