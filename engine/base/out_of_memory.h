// The error of memory that ended, on the host or on a device.
#pragma once

#include <string>

#include "meshwright/error.h"

namespace meshwright::base {

inline Error out_of_memory(const std::string& what = "out of memory") {
  return Error(ErrorCode::out_of_memory, what)
      .help(
          "lower step_scheduler.local_batch_size, or pp_microbatch_size of a pipeline: the global "
          "batch stays, in more micro-batches")
      .help("set distributed.activation_checkpointing = \"full\"")
      .help("`plan` says what a rank needs: shard over more ranks, or offload");
}

// Whether the words of LibTorch's exception say so.
inline bool tells_of_memory(const std::string& what) {
  return what.find("out of memory") != std::string::npos ||
         what.find("can't allocate memory") != std::string::npos;
}

}  // namespace meshwright::base
