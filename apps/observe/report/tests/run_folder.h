// Folders as runs leave them.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "sdk/base/tests/scratch.h"

namespace meshwright::runs {

using TestFolder = scratch::Folder;
using scratch::has;

inline void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

inline std::string row(int64_t step, double loss) {
  return "{\"step\": " + std::to_string(step) +
         ", \"completed_steps\": " + std::to_string(step + 1) +
         ", \"loss\": " + (std::isfinite(loss) ? std::to_string(loss) : "null") +
         ", \"grad_norm\": 0.5, \"lr\": 0.001, \"tokens\": 100, \"step_ms\": 20.5, "
         "\"tokens_per_second\": 4878.0, \"memory_bytes\": 1048576, \"mfu\": 0.41, "
         "\"exposed_comm_ms\": 3.25, \"slowest_rank\": " +
         (step == 0 ? "null, \"slowest_ms\": null, \"rank_work_ms\": null"
                    : "3, \"slowest_ms\": 1.5, \"rank_work_ms\": 15, \"rank_work_ms_least\": "
                      "14.5, \"rank_work_ms_most\": 16.5") +
         "}\n";
}

constexpr const char* kPlan = R"({
  "strategy": "fsdp2", "world_size": 8,
  "device_mesh": {"axes": ["pp", "dp_shard", "tp"], "shape": [2, 2, 2]}, "moe_mesh": null,
  "rank": {"rank": 0},
  "pipeline": {"schedule": "1F1B", "bubble": 0.2, "stages": [
    {"index": 0, "rank": 0, "first_layer": 0, "layers": 2, "modules": []},
    {"index": 1, "rank": 1, "first_layer": 2, "layers": 2, "modules": []}],
    "actions": ["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"]},
  "bytes": {"weights": 1000, "gradients": 1000, "optimizer": 2000, "transient": 0,
            "activations": 5000},
  "wire": [{"axis": "dp_shard", "op": "all_gather", "count": 3, "bytes": 4096}]
})";

constexpr const char* kLog =
    "2026-11-24T09:00:00Z fsdp2 on 8 ranks: LlamaForCausalLM, 1,000 parameters; batch 1 x 1 x 2 "
    "samples of 64 tokens\n"
    "2026-11-24T09:00:10Z step 2/10  loss 4.5000  grad norm 0.500\n"
    "2026-11-24T09:00:11Z step 2/10  checkpoint runs/a/checkpoints/step_00000002  1.0 MiB in 0.1 "
    "s\n"
    "2026-11-24T09:00:20Z error[E0505]: rank 3 was ended by signal 9 (SIGKILL)\n"
    " = help: look at <its> log\n"
    "2026-11-24T09:00:21Z restart 1 of 2 after a rank that died\n"
    "2026-11-24T09:00:30Z continues after step 2: runs/a/checkpoints/step_00000002\n"
    "2026-11-24T09:01:00Z done: 10 steps in 1 min 00 s; results in runs/a\n";

// `steps` rows and the rest of what a run leaves.
inline void write_run(const std::filesystem::path& folder, int64_t steps) {
  std::string rows;
  for (int64_t step = 0; step < steps; ++step)
    rows += row(step, 2 + 3 * std::exp(-static_cast<double>(step) / 100));
  write(folder / "metrics.jsonl", rows);
  write(folder / "run.log", kLog);
  write(folder / "plan.json", kPlan);
  write(folder / "env.json", R"({"world_size": 8, "device": "cpu"})");
  write(folder / "config.resolved.toml",
        "[optimizer]\nlr = 0.001  # file\n[run]\nname = \"a\"\n[step_scheduler]\nmax_steps = 10\n");
}

}  // namespace meshwright::runs
