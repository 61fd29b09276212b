#include "engine/plugins/registry.h"
#include "engine/plugins/verify_library.h"
#include "sdk/base/build_facts.h"

namespace meshwright::loader {

const std::map<std::string, std::string>& engine_facts() {
  static const Facts facts = parse_facts(std::string(build_facts()), "the engine");
  return facts;
}

}  // namespace meshwright::loader
