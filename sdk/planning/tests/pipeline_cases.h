// Pipelines that the tests go through, one after the other.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "sdk/base/pipeline.h"

namespace meshwright::testing {

inline constexpr PipelineSchedule kAllSchedules[] = {
    PipelineSchedule::gpipe,
    PipelineSchedule::one_f_one_b,
    PipelineSchedule::looped_bfs,
    PipelineSchedule::interleaved_1f1b,
    PipelineSchedule::interleaved_zero_bubble,
    PipelineSchedule::zbv_zero_bubble,
    PipelineSchedule::dual_pipe_v,
};

struct PipelineCase {
  PipelineSchedule schedule;
  int64_t size, local, micro_batches;
  PipelineLists lists() const { return make_actions(schedule, size, local, micro_batches); }
  std::string text() const {
    return std::string(schedule_name(schedule)) + " " + std::to_string(size) + " x " +
           std::to_string(local) + ", " + std::to_string(micro_batches) + " micro-batches";
  }
  bool v_placed() const {
    return schedule == PipelineSchedule::zbv_zero_bubble ||
           schedule == PipelineSchedule::dual_pipe_v;
  }
};

// A file of actions for as long as it is there.
struct ActionFile {
  explicit ActionFile(const std::string& text)
      : path((std::filesystem::temp_directory_path() /
              ("meshwright_actions_" + std::to_string(::getpid()) + ".csv"))
                 .string()) {
    std::ofstream(path, std::ios::binary) << text;
  }
  explicit ActionFile(const PipelineLists& lists) : ActionFile(rows(lists)) {}
  ~ActionFile() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
  static std::string rows(const PipelineLists& lists) {
    std::string out;
    for (const PipelineList& list : lists) out += actions_row(list) + "\n";
    return out;
  }
  const std::string path;
};

// 1 to 8 ranks, 1 to 4 stages on each where the schedule allows it, 1 to 24 micro-batches.
inline std::vector<PipelineCase> pipeline_cases() {
  std::vector<PipelineCase> out;
  for (PipelineSchedule schedule : kAllSchedules)
    for (int64_t size = 1; size <= 8; ++size)
      for (int64_t local = 1; local <= 4; ++local)
        for (int64_t micro_batches = 1; micro_batches <= 24; ++micro_batches) {
          const PipelineCase one{schedule, size, local, micro_batches};
          if (is_multi_stage(schedule) ? local < 2 || (one.v_placed() && local > 2) : local > 1)
            continue;
          if (runs_micro_batches(schedule, size, micro_batches)) out.push_back(one);
        }
  return out;
}

}  // namespace meshwright::testing
