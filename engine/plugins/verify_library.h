// From the file of a library to plugins that can be called: judged by the file alone, read,
// guarded.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/plugins/registry.h"

namespace meshwright::loader {

// Judges a library by its file alone: nothing of it runs.

using Facts = std::map<std::string, std::string>;

struct VerifiedLibrary {
  std::filesystem::path path;
  Facts facts;
  std::string facts_text;  // the marker's bytes
  std::string hash;        // 16 hex digits
  // Names and aliases, from info.strategies, info.models and info.datasets.
  std::vector<std::string> strategies, models, datasets;
};

// "key=value\n" lines. Throws Error(plugin_bad_marker) for anything else.
Facts parse_facts(const std::string& text, const std::string& file);
std::string facts_hash(const Facts& facts);

// What the file says of itself, without judging it: for finding out which strategies a library has.
VerifiedLibrary read_facts(const std::filesystem::path& file);
// File kind, owner and permissions. Throws Error(plugin_unreadable | plugin_is_directory |
// plugin_owner | plugin_permissions).
void check_file(const std::filesystem::path& file);
// The running half of a verified plugin: check_file, and facts equal to the planning half's.
// Nothing of it runs. Throws Error(4xx).
void verify_runtime_half(const std::filesystem::path& file, const VerifiedLibrary& planning);
// The whole judgement: check_file, read_facts, and every fact against ours. Throws Error(4xx); a
// mismatch shows a table of just the differing facts and how to rebuild.
VerifiedLibrary verify_library(const std::filesystem::path& file);

// Checks the C descriptor of a loaded library and reads it into our own types.

// Throws Error(plugin_bad_magic | plugin_short_struct | plugin_sdk_major | plugin_bad_descriptor |
// plugin_bad_marker).
LoadedPlugin read_descriptor(const meshwright_plugin* descriptor, const VerifiedLibrary& verified,
                             const std::string& place);

// Whether this is its name or one of its aliases, in any letter case, '-' as '_'.
bool answers_to(const ComponentInfo& info, const std::string& name);

// A plugin's objects as the engine hands them on: every hook runs as code of the plugin, in
// whatever thread. What it throws and is no Error becomes Error(plugin_foreign_exception) with
// plugin, hook and rank; Errors get a note of these.

std::shared_ptr<Strategy> guard(const LoadedPlugin& plugin, std::shared_ptr<Strategy> made);
// Refuses outlines and first values that cannot be right, by Error(plugin_nonconforming).
std::shared_ptr<ModelFamily> guard(const LoadedPlugin& plugin, std::shared_ptr<ModelFamily> made);
// The data sets that it opens likewise. `named`: whether Errors get that note, too.
std::shared_ptr<DatasetKind> guard(const LoadedPlugin& plugin, std::shared_ptr<DatasetKind> made,
                                   bool named);

}  // namespace meshwright::loader
