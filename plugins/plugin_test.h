// What the plugins' own tests share: the strategy linked into the test, and requests as a
// configuration would make them.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>

#include "meshwright/parallel/parallel.h"
#include "meshwright/strategy.h"
#include "sdk/base/shared_schemas.h"

extern "C" const meshwright_plugin meshwright_plugin_v1;

namespace plugin_test {

using namespace meshwright;

inline const meshwright_strategy& about() { return meshwright_plugin_v1.strategies[0]; }

inline std::shared_ptr<Strategy> make() {
  meshwright_status status{};
  void* made = about().create(&status);
  REQUIRE(made != nullptr);
  return {static_cast<Strategy*>(made), [](Strategy* s) { about().destroy(s); }};
}

inline OptionSchema schema() {
  std::string table = about().options_table != nullptr ? about().options_table : about().name;
  return make_schema("distributed." + table, about().name, {about().options, about().option_count});
}

using Values = std::map<std::string, OptionValue>;

// `shared` are keys of [distributed], `own` of the strategy's table.
inline MeshRequest request(int64_t world, const Values& shared = {}, const Values& own = {}) {
  MeshRequest out;
  out.world_size = world;
  Options distributed(distributed_schema());
  for (const auto& [key, value] : shared) distributed.set(key, value);
  Diagnostics diagnostics;
  out.config.shared() = read_shared_options(distributed, diagnostics);
  diagnostics.throw_if_any();
  out.config.distributed() = distributed;
  out.config.own() = Options(schema());
  for (const auto& [key, value] : own) out.config.own().set(key, value);
  return out;
}

inline Diagnostics validated(const Values& shared, const Values& own = {}) {
  Diagnostics diagnostics;
  make()->validate(request(8, shared, own).config, diagnostics);
  return diagnostics;
}

// One refusal, about this key, with help.
inline void check_refused(const Values& shared, const Values& own, ErrorCode code,
                          const std::string& key) {
  Diagnostics found = validated(shared, own);
  REQUIRE(found.errors().size() == 1);
  CHECK(found.errors()[0].code() == code);
  CHECK(found.errors()[0].key() == key);
  CHECK(!found.errors()[0].helps().empty());
}

inline void check_defaults(const std::map<std::string, std::string>& expected) {
  Options defaults(schema());
  CHECK(defaults.schema().options.size() == expected.size());
  for (const auto& [name, value] : expected) {
    CAPTURE(name);
    REQUIRE(defaults.schema().find(name) != nullptr);
    CHECK(to_toml(defaults.value(name)) == value);
  }
}

inline void check_trains() {
  CHECK((about().capabilities & MESHWRIGHT_CAN_PLAN) != 0);
  CHECK((about().capabilities & MESHWRIGHT_CAN_PARALLELIZE) != 0);
}

}  // namespace plugin_test
