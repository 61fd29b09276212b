// The error of memory that ended, on the host or on a device.
#pragma once

#include <algorithm>
#include <string>

#include "meshwright/error.h"

namespace meshwright::detail {

inline Error out_of_memory(std::string what = "out of memory") {
  // LibTorch names a variable of the environment; here it is a key.
  const size_t advice = what.find(" If reserved but unallocated memory is large");
  if (advice != std::string::npos) what.erase(advice);
  Error error(ErrorCode::out_of_memory, what);
  error
      .help(
          "lower step_scheduler.local_batch_size, or pp_microbatch_size of a pipeline: the global "
          "batch stays, in more micro-batches")
      .help("set distributed.activation_checkpointing = \"full\"")
      .help("`plan` says what a rank needs: shard over more ranks, or offload");
  if (advice != std::string::npos)
    error.help("set dist_env.expandable_segments = true where much is reserved and unallocated");
  return error;
}

// Whether the words of LibTorch's exception, or of NCCL's in it, say so.
inline bool tells_of_memory(const std::string& what) {
  return what.find("out of memory") != std::string::npos ||
         what.find("can't allocate memory") != std::string::npos;
}

// The line of them that does.
inline std::string line_of_memory(const std::string& what) {
  const size_t place = std::min(what.find("out of memory"), what.find("can't allocate memory"));
  if (place == std::string::npos) return what;
  const size_t before = what.rfind('\n', place),
               begin = before == std::string::npos ? 0 : before + 1;
  return what.substr(begin, what.find('\n', place) - begin);
}

}  // namespace meshwright::detail
