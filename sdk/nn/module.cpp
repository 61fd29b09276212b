#include "meshwright/nn/module.h"

#include <cxxabi.h>

#include <cstdlib>

namespace meshwright {

HookHost::~HookHost() = default;

HookHost* HookHost::of(torch::nn::Module& module) { return dynamic_cast<HookHost*>(&module); }

namespace detail {

std::string plain_class_name(const std::type_info& type) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  std::string name = status == 0 ? text.get() : type.name();
  if (size_t at = name.find('<'); at != std::string::npos) name.resize(at);
  if (size_t at = name.rfind("::"); at != std::string::npos) name = name.substr(at + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

}  // namespace detail
}  // namespace meshwright
