#include "apps/prove/running/prove_ranks.h"
#include "engine/train/run/attached.h"
#include "meshwright/export.h"

// `request` is a prove::Request, whose findings it fills. Throws Error.
extern "C" MESHWRIGHT_API void meshwright_prove(const void* request) {
  meshwright::train::quiet_libtorch();
  const auto& wanted = *static_cast<const meshwright::prove::Request*>(request);
  *wanted.found = meshwright::prove::prove(wanted);
}
