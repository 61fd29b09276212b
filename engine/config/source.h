// The first pass over a configuration: references to the environment, --set, and what a Source
// holds.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/config.h"
#include "engine/config/toml_value.h"

namespace meshwright::config {

// ${VAR} and ${VAR:-default} stand inside strings, $${ for a literal ${. `text` so that
// interpolation gives it back unchanged.
std::string escape_references(std::string_view text);

// --set a.b=c: one override of the command line.

// Puts the value into the tree. A table given for a section ([run], [distributed],
// [distributed.fsdp2] ...) is merged into it key by key; any other value replaces what was there.
// E0217 for text that is not key=value.
void apply_set(Value& root, const std::string& text, Diagnostics& diagnostics);

// What a Source holds, for the files of this folder.

// Where plugins other than strategies have their options, each in a table of its name.
inline constexpr const char* kComponentTables[] = {"model", "dataset", "validation_dataset"};

// The file as it is; nullopt and an error when it cannot be read.
std::optional<std::string> read_configuration(const std::filesystem::path& file,
                                              Diagnostics& diagnostics);
std::optional<std::string> process_environment(const std::string& name);

struct Source::Impl {
  std::filesystem::path file;
  Value root;

  // The place as an Origin: what came from the command line has no file and line.
  Origin origin(const Place& place) const;
};

// A text of a table that may be absent (nullptr); "": not set.
std::string text_at(const Value* table, std::string_view key);
// The tables of [[name]] below this one.
std::vector<const Value*> tables_of(const Value& table, std::string_view name);
// Whether a table of data reads texts, and no plugin does; a source of [[dataset.mix]] takes from
// `whole`, [dataset], what it does not say.
bool reads_text(const Value& data, const Value* whole = nullptr);

}  // namespace meshwright::config
