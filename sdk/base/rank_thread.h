// Ranks that are threads of one process.
#pragma once

#include <cstdint>

#include "meshwright/export.h"

namespace meshwright::detail {

// While one of these lives, this thread is that rank: on_this_rank() and what is told of a plugin's
// crash name it in the place of the process's.
class MESHWRIGHT_API RankThread {
 public:
  explicit RankThread(int64_t rank) noexcept;
  ~RankThread();
  RankThread(const RankThread&) = delete;
  RankThread& operator=(const RankThread&) = delete;

 private:
  int64_t before_;
};

}  // namespace meshwright::detail
