#include "meshwright/facts.h"
#include "engine/plugins/judge.h"
#include "engine/plugins/registry.h"

namespace meshwright::plugins {

const std::map<std::string, std::string>& engine_facts() {
  static const Facts facts = parse_facts(std::string(build_facts()), "the engine");
  return facts;
}

}  // namespace meshwright::plugins
