// Judges a library by its file alone: nothing of it runs.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace meshwright::loader {

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

}  // namespace meshwright::loader
