#include "apps/doctor/running/doctor_rank.h"
#include "engine/train/run/attached.h"
#include "meshwright/export.h"

extern "C" MESHWRIGHT_API int meshwright_doctor_rank(const void* request) {
  return meshwright::train::run_guarded([&](auto& ending) {
    return meshwright::doctor::doctor_rank(
        *static_cast<const meshwright::doctor::Request*>(request), ending);
  });
}
