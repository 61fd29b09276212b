#include "apps/inference/ask.h"
#include "apps/inference/generate_here.h"
#include "apps/inference/running/generate_rank.h"
#include "engine/train/run/attached.h"
#include "meshwright/export.h"

extern "C" MESHWRIGHT_API int meshwright_generate_rank(const void* request) {
  return meshwright::train::run_guarded([&](auto& ending) {
    const auto& ask = *static_cast<const meshwright::generate::Ask*>(request);
    return ask.prompts ? meshwright::generate::prompts_rank(ask, ending)
                       : meshwright::generate::generate_rank(ask, ending);
  });
}

extern "C" MESHWRIGHT_API int meshwright_chat_rank(const void* here) {
  return meshwright::train::run_guarded([&](auto& ending) {
    return meshwright::generate::chat_rank(
        *static_cast<const meshwright::generate::ChatHere*>(here), ending);
  });
}

extern "C" MESHWRIGHT_API int meshwright_evaluate_rank(const void* request) {
  return meshwright::train::run_guarded([&](auto& ending) {
    return meshwright::evaluate::evaluate_rank(
        *static_cast<const meshwright::evaluate::Request*>(request), ending);
  });
}

// For libmeshwright_c.so, whose caller's process is not ours: throws Error and prints nothing.
extern "C" MESHWRIGHT_API void meshwright_generate_here(const void* here) {
  meshwright::train::quiet_libtorch();
  meshwright::generate::generate_here(
      *static_cast<const meshwright::generate::GenerateHere*>(here));
}
