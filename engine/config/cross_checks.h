// What keys want of each other, words that they do not take yet, and settings that have no effect.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/config/config.h"
#include "engine/config/source.h"
#include "engine/config/toml_value.h"
#include "meshwright/error.h"

namespace meshwright::config {

// Whether the configuration has gradients computed, sent or kept in float16.
bool float16_gradients(const Config& config);

// Words that keys do not take yet, and keys that are not there yet.

// Error(not_in_release), with what to use until then, where a later version may know the value.
// nullopt: it is just wrong. `key`: dotted.
std::optional<Error> later_than_this(const std::string& key, const Value& value);
// Where the key is the optimizer's name: how a program brings one that no key names.
void help_with_own_optimizer(const std::string& key, Error& error);

// The same of a key that no table has: optimizer.layer_decay. `from_set`: it stands in a --set.
std::optional<Error> later_key(const std::string& key, bool from_set);

// An address to listen at, as a key holds it.

struct ListenAddress {
  std::string host;  // "127.0.0.1", "::1", "localhost"
  int port = 0;      // 0: one that is free
};

// "127.0.0.1:9400", "[::1]:9400", "name:9400"; ":9400" and "9400" are 127.0.0.1's. Only
// "0.0.0.0:9400" and "[::]:9400" are all interfaces. Throws Error(out_of_range) with `key`.
ListenAddress parse_listen_address(std::string_view text, const std::string& key);

// Rules between keys that need no strategy, of a configuration whose tables have been read. All
// problems go to `diagnostics`, each at the place where its key was written; fills `config.shared`,
// and sets step_scheduler.max_steps to "none" where epochs say how long the run is. Settings that
// have no effect beside the others are told once each, so that nothing the file says is dropped in
// silence.
void check_between_keys(Config& config, const Source::Impl& source, const PluginSchemas& plugins,
                        Diagnostics& diagnostics);

}  // namespace meshwright::config
