#include "engine/plugins/verify_library.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "engine/plugins/elf.h"
#include "engine/plugins/registry.h"
#include "meshwright/error.h"
#include "sdk/base/files/hash.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"

namespace meshwright::loader {
namespace {

bool only_reported(const std::string& key) { return key.starts_with("info."); }

std::string mode_text(mode_t mode) {
  char text[8];
  std::snprintf(text, sizeof text, "%04o", static_cast<unsigned>(mode & 07777));
  return text;
}

void check_owner_and_mode(const std::filesystem::path& path, const struct stat& info,
                          const char* what) {
  if (info.st_uid != 0 && info.st_uid != ::geteuid())
    throw Error(ErrorCode::plugin_owner, std::string(what) + " " + path.string() +
                                             " belongs to user " + std::to_string(info.st_uid) +
                                             ", neither to root nor to you (user " +
                                             std::to_string(::geteuid()) + ")")
        .help("copy the library to a folder of your own and load it from there");
  if ((info.st_mode & S_IWOTH) != 0)
    throw Error(ErrorCode::plugin_permissions, std::string(what) + " " + path.string() +
                                                   " may be written by anybody (mode " +
                                                   mode_text(info.st_mode) + ")")
        .help("chmod o-w " + path.string());
}

std::string hex(uint64_t number) {
  char text[20];
  std::snprintf(text, sizeof text, "%016" PRIx64, number);
  return text;
}

struct Difference {
  std::string key, engine, plugin;
};

std::vector<Difference> compare(const Facts& engine, const Facts& plugin) {
  std::vector<Difference> out;
  auto value = [](const Facts& facts, const std::string& key) {
    auto it = facts.find(key);
    return it == facts.end() ? std::string("-") : it->second;
  };
  Facts all = engine;
  all.insert(plugin.begin(), plugin.end());
  for (const auto& [key, unused] : all) {
    if (only_reported(key)) continue;
    std::string a = value(engine, key), b = value(plugin, key);
    if (a != b) out.push_back({key, a, b});
  }
  return out;
}

// The weightiest of the differing facts decides the code.
ErrorCode code_of(const std::vector<Difference>& differences) {
  auto differs = [&](std::string_view prefix) {
    for (const Difference& d : differences)
      if (d.key.starts_with(prefix)) return true;
    return false;
  };
  if (differs("sdk.major")) return ErrorCode::plugin_sdk_major;
  if (differs("sdk.cxx_epoch")) return ErrorCode::plugin_cxx_epoch;
  if (differs("torch.")) return ErrorCode::plugin_libtorch;
  return ErrorCode::plugin_facts;
}

}  // namespace

Facts parse_facts(const std::string& text, const std::string& file) {
  Facts facts;
  std::string previous;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    size_t equals = text.find('=', at);
    if (end == std::string::npos || equals == std::string::npos || equals > end || equals == at)
      throw Error(ErrorCode::plugin_bad_marker,
                  "the build facts in " + file + " are not key=value lines");
    std::string key = text.substr(at, equals - at);
    if (!previous.empty() && key <= previous)
      throw Error(ErrorCode::plugin_bad_marker,
                  "the build facts in " + file + " are not sorted at " + key);
    facts[key] = text.substr(equals + 1, end - equals - 1);
    previous = key;
    at = end + 1;
  }
  if (facts.empty())
    throw Error(ErrorCode::plugin_bad_marker, "the build facts in " + file + " are empty");
  return facts;
}

std::string facts_hash(const Facts& facts) {
  base::Hash hash;  // as the build computes it
  for (const auto& [key, value] : facts) {
    if (only_reported(key)) continue;
    hash.add(key + "=" + value + "\n");
  }
  return hex(hash.value());
}

void check_file(const std::filesystem::path& file) {
  struct stat info{};
  if (::stat(file.c_str(), &info) != 0)
    throw Error(ErrorCode::plugin_unreadable,
                "cannot read the plugin " + file.string() + ": " + std::strerror(errno))
        .help("check the path; those in [plugins] start at the folder of the TOML file");
  if (S_ISDIR(info.st_mode))
    throw Error(ErrorCode::plugin_is_directory, file.string() + " is a folder, not a library")
        .help("put folders into [plugins] path = [\"" + file.string() + "\"]");
  if (!S_ISREG(info.st_mode))
    throw Error(ErrorCode::plugin_unreadable, file.string() + " is not a regular file");
  // A symbolic link is verified by what it points to: that is what gets loaded.
  std::error_code failed;
  std::filesystem::path real = std::filesystem::canonical(file, failed);
  if (failed)
    throw Error(ErrorCode::plugin_unreadable,
                "cannot resolve " + file.string() + ": " + failed.message());
  check_owner_and_mode(real, info, "the library");
  for (const std::filesystem::path& folder :
       {real.parent_path(), std::filesystem::absolute(file).parent_path()}) {
    struct stat folder_info{};
    if (::stat(folder.c_str(), &folder_info) == 0)
      check_owner_and_mode(folder, folder_info, "the folder");
  }
}

VerifiedLibrary read_facts(const std::filesystem::path& file) {
  ElfMarkers elf = read_elf_markers(file);
  if (elf.markers.empty())
    throw Error(ErrorCode::plugin_no_marker,
                file.string() + " has no build facts" +
                    (elf.has_section ? " under a marker symbol" : " (no section meshwright_abi)"))
        .help("build it with meshwright_add_plugin() in CMake");
  if (elf.markers.size() > 1)
    throw Error(ErrorCode::plugin_bad_marker,
                file.string() + " has " + std::to_string(elf.markers.size()) + " markers, not one");
  VerifiedLibrary out;
  out.path = file;
  out.facts_text = elf.markers[0].bytes;
  out.facts = parse_facts(out.facts_text, file.string());
  out.hash = facts_hash(out.facts);
  if (elf.markers[0].symbol != "meshwright_abi_" + out.hash)
    throw Error(ErrorCode::plugin_bad_marker,
                "the marker " + elf.markers[0].symbol + " of " + file.string() +
                    " does not belong to its facts (their hash is " + out.hash + ")")
        .help("rebuild the plugin from a clean build folder");
  if (!elf.has_descriptor)
    throw Error(ErrorCode::plugin_no_descriptor,
                file.string() + " does not export meshwright_plugin_v1")
        .help("end one source with MESHWRIGHT_PLUGIN(...)");
  auto names = [&](const char* fact) {
    auto found = out.facts.find(fact);
    return found == out.facts.end() ? std::vector<std::string>()
                                    : text::split_names(found->second.c_str(), ',');
  };
  out.strategies = names("info.strategies");
  out.models = names("info.models");
  out.datasets = names("info.datasets");
  return out;
}

VerifiedLibrary verify_library(const std::filesystem::path& file) {
  check_file(file);
  VerifiedLibrary verified = read_facts(file);
  std::vector<Difference> differences = compare(engine_facts(), verified.facts);
  if (differences.empty()) return verified;
  std::vector<std::vector<std::string>> rows = {{"fact", "engine", "plugin"}};
  for (const Difference& d : differences) rows.push_back({d.key, d.engine, d.plugin});
  ErrorCode code = code_of(differences);
  std::string table = report::table({}, rows);
  while (!table.empty() && table.back() == '\n') table.pop_back();
  throw Error(code, file.string() + " was " + std::string(error_info(code).title) +
                        "; nothing of it was run\n" + table)
      .help(
          "rebuild it against this installation: cmake -S <plugin source> -B build "
          "-DCMAKE_PREFIX_PATH=<prefix of meshwright> && cmake "
          "--build build");
}

void verify_runtime_half(const std::filesystem::path& file, const VerifiedLibrary& planning) {
  std::error_code failed;
  if (!std::filesystem::exists(file, failed))
    throw Error(ErrorCode::plugin_unreadable, planning.path.string() + " plans, and " +
                                                  file.string() + ", which runs it, is missing")
        .help("copy both libraries of the plugin into one folder");
  check_file(file);
  ElfMarkers elf = read_elf_markers(file);
  if (elf.markers.size() != 1)
    throw Error(elf.markers.empty() ? ErrorCode::plugin_no_marker : ErrorCode::plugin_bad_marker,
                file.string() + " has " + std::to_string(elf.markers.size()) +
                    " sets of build facts, not one")
        .help("build it with meshwright_add_plugin(... RUNTIME ...) in CMake");
  if (elf.markers[0].bytes != planning.facts_text)
    throw Error(ErrorCode::plugin_facts,
                file.string() + " and " + planning.path.string() +
                    " come from different builds; none of their strategies was made")
        .help("rebuild the plugin from a clean build folder, and copy both libraries");
}

}  // namespace meshwright::loader
