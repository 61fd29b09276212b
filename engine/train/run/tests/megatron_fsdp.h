// Layouts of megatron_fsdp for tests. Before doctest.h: LibTorch has a CHECK of its own.
#pragma once

#include "engine/train/run/tests/curves.h"

namespace meshwright {

inline constexpr int64_t kRows = 48;  // per step: 1 or 4 micro-batches on 1 to 4 ranks

inline std::string flat_option(const std::string& key, const std::string& value) {
  return "distributed.megatron_fsdp." + key + "=" + value;
}
inline std::string flat_level(int n) { return flat_option("zero_dp_strategy", std::to_string(n)); }

inline Layout flat_layout(const std::string& model, int64_t ranks, int64_t tp, int64_t accumulation,
                          std::vector<std::string> sets) {
  sets.push_back("optimizer.eps=1e-5");
  sets.push_back("distributed.tp_size=" + std::to_string(tp));
  sets.push_back("step_scheduler.local_batch_size=" +
                 std::to_string(kRows / (ranks / tp) / accumulation));
  return {.strategy = "megatron_fsdp",
          .ranks = ranks,
          .sets = std::move(sets),
          .model = model,
          .batch = kRows};
}

}  // namespace meshwright
