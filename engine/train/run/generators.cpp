#include "engine/train/run/generators.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

#include "engine/train/step/draws.h"

namespace meshwright::train {

uint64_t generator_seed(uint64_t seed, int64_t step, const plan::JobPlan& plan) {
  return (seed + static_cast<uint64_t>(step) * 0x2545f4914f6cdd1du) * 0x9e3779b97f4a7c15u +
         static_cast<uint64_t>(place_of_draws(plan));
}

std::vector<std::pair<std::string, at::Generator>> generators_of(const World& world) {
  std::vector<std::pair<std::string, at::Generator>> out{
      {"cpu", at::detail::getDefaultCPUGenerator()}};
  if (world.device().is_cuda())
    out.emplace_back("cuda", at::globalContext().defaultGenerator(world.device()));
  return out;
}

at::Tensor state_of(at::Generator generator) {
  std::lock_guard lock(generator.mutex());
  return generator.get_state().clone();
}

}  // namespace meshwright::train
