// Data sets by name: the tables of [[dataset.mix]] and of [[validation_dataset.set]].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/config.h"
#include "meshwright/error.h"
#include "meshwright/options.h"

namespace meshwright::config {

inline constexpr const char* kMixTable = "dataset.mix";
inline constexpr const char* kSetTable = "validation_dataset.set";
// The list below [dataset] or [validation_dataset].
std::string sources_of(const std::string& table);

// The folder whose tokenizer and chat template texts and rows are read with where they name none,
// and the key of [model] that says so: `pretrained`, whatever it holds; without it the folder of
// `config`, if it has a tokenizer. An empty path: there is none.
ModelPath language_folder(const std::string& pretrained, const std::string& config);
ModelPath language_folder(const Options& model);

struct NamedSource {
  std::string name;
  Options options;  // as those of [dataset], which says what the source does not
  Origin place;     // where the name was written
  // Of a mix: at most one of both, and other weights from steps on, in their order.
  std::optional<double> weight = {}, epochs = {};
  std::vector<std::pair<int64_t, double>> schedule = {};
  // Of the plugin that reads it: what [dataset.jsonl] says, where its own [dataset.mix.jsonl] does
  // not. Empty: the engine reads it.
  std::optional<Options> plugin = {};
};

// Where a Config has what the tables of a list say below themselves, [dataset.mix.jsonl]: a list of
// this name, as long as the other one.
std::string list_below(const std::string& list, const std::string& name);
// Those of a list, with the names of the tables.
std::vector<std::pair<std::string, const std::vector<Options>*>> lists_below_tables(
    const Config& config, const std::string& list);
// The table that says to all sources what this one, [dataset.mix.jsonl], says to one of them; "":
// it is no such table.
std::string table_of_all(const std::string& table);
// Whether anything of it was given.
bool says_any(const Options& table);

// Those of [dataset] or [validation_dataset], in the order of the file; none: the table names its
// data itself. Throws Error(out_of_range) for a schedule that is none.
std::vector<NamedSource> named_sources(const Config& config, const std::string& table);

// The component_of() each source, with its place, of those that have one: before the tables are
// checked.
std::vector<std::pair<std::string, Origin>> source_plugins(const Source& source,
                                                           const std::string& table);

// The plugin's component that reads a source: its `plugin`, or that of texts which a tokenizer
// reads; "": the engine itself.
std::string component_of(const Options& source);

// Whether the table names data; whether all that it names are the bytes of texts.
bool names_data(const Config& config, const std::string& table);
bool reads_bytes(const Config& config, const std::string& table);

// What keys of the sources want of each other, each error at its line.
void check_sources(const Config& config, const std::string& table, Diagnostics& diagnostics);

}  // namespace meshwright::config
