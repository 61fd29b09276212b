#include "engine/train/generators.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

namespace meshwright::train {

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
