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

// Where the words of LibTorch's exception, of NCCL's in it, or of the dynamic linker say so.
inline size_t place_of_memory(const std::string& what) {
  size_t place = std::string::npos;
  for (const char* words :
       {"out of memory", "can't allocate memory", "failed to map segment", "bad_alloc"})
    place = std::min(place, what.find(words));
  return place;
}
inline bool tells_of_memory(const std::string& what) {
  return place_of_memory(what) != std::string::npos;
}

// The line of them that does.
inline std::string line_of_memory(const std::string& what) {
  const size_t place = place_of_memory(what);
  if (place == std::string::npos) return what;
  const size_t before = what.rfind('\n', place),
               begin = before == std::string::npos ? 0 : before + 1;
  return what.substr(begin, what.find('\n', place) - begin);
}

}  // namespace meshwright::detail
