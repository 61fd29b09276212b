#include "apps/performance/calibrate/measured.h"
#include "engine/train/run/attached.h"
#include "meshwright/export.h"

extern "C" MESHWRIGHT_API int meshwright_calibrate_rank(const void* request) {
  return meshwright::train::run_guarded([&](auto& ending) {
    return meshwright::calibrate::calibrate_rank(
        *static_cast<const meshwright::calibrate::Request*>(request), ending);
  });
}
