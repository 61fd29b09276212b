#include "engine/plugins/verify_library.h"

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "engine/plugins/registry.h"
#include "meshwright/error.h"
#include "sdk/base/checks.h"
#include "sdk/base/facts.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/hash.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"

namespace meshwright::loader {
namespace {

// The texts in section meshwright_abi of a 64-bit little-endian ELF shared object, before the
// dynamic linker sees it; no byte outside of the file is asked for, whatever its headers hold. The
// table of sections stands behind all else, so that a file that was cut off lacks it. Throws
// Error(plugin_unreadable | plugin_not_elf | plugin_truncated).
std::vector<std::string> read_markers(const std::filesystem::path& path) {
  const base::ForeignFile file(path);
  const std::string name = path.string();
  if (!file.is_open()) throw Error(ErrorCode::plugin_unreadable, name + " " + file.problem());
  const auto size = static_cast<uint64_t>(file.size());
  auto damaged = [&](const std::string& what) {
    return Error(ErrorCode::plugin_truncated, name + " is damaged or cut off: " + what);
  };
  auto read = [&](uint64_t begin, uint64_t many, const std::string& what) {
    if (begin > size || many > size - begin) throw damaged(what + " end outside of the file");
    std::string out(many, '\0');
    if (::pread(file.fd(), out.data(), many, static_cast<off_t>(begin)) !=
        static_cast<ssize_t>(many))
      throw Error(ErrorCode::plugin_unreadable, "cannot read " + name);
    return out;
  };
  auto read_section = [&](const Elf64_Shdr& section, const std::string& what) {
    if (section.sh_size > (uint64_t{1} << 20)) throw damaged(what + " are too long");
    return read(section.sh_offset, section.sh_size, what);
  };
  if (read(0, std::min<uint64_t>(SELFMAG, size), "its first bytes") != ELFMAG)
    throw Error(ErrorCode::plugin_not_elf,
                name + " is not a shared library: it does not start with the ELF magic");
  Elf64_Ehdr header;
  std::memcpy(&header, read(0, sizeof header, "the bytes of its header").data(), sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      header.e_type != ET_DYN)
    throw Error(ErrorCode::plugin_not_elf,
                name + " is an ELF file, but not a 64-bit little-endian shared library");
  if (header.e_shnum == 0 || header.e_shentsize != sizeof(Elf64_Shdr) ||
      header.e_shstrndx >= header.e_shnum)
    throw damaged("the section headers make no sense");
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  std::memcpy(
      sections.data(),
      read(header.e_shoff, sections.size() * sizeof(Elf64_Shdr), "the section headers").data(),
      sections.size() * sizeof(Elf64_Shdr));
  const std::string names = read_section(sections[header.e_shstrndx], "the names of sections");
  for (const Elf64_Shdr& section : sections)
    if (section.sh_type == SHT_PROGBITS && section.sh_name < names.size() &&
        std::strcmp(names.c_str() + section.sh_name, "meshwright_abi") == 0) {
      std::vector<std::string> out = text::split(read_section(section, "the build facts"), '\0');
      std::erase(out, "");
      return out;
    }
  return {};
}

bool only_reported(const std::string& key) { return key.starts_with("info."); }

std::string mode_text(mode_t mode) {
  return text::format("%04o", static_cast<unsigned>(mode & 07777));
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

std::string hex(uint64_t number) { return text::format("%016" PRIx64, number); }

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
    // A later SDK exchanges more types, which one of the two does not know.
    if (key.starts_with("sizeof.") && (!engine.contains(key) || !plugin.contains(key))) continue;
    std::string a = value(engine, key), b = value(plugin, key);
    if (compared(key, a) != compared(key, b)) out.push_back({key, a, b});
  }
  return out;
}

// The weightiest of the differing facts decides the code.
ErrorCode code_of(const std::vector<Difference>& differences) {
  auto differs = [&](std::string_view prefix) {
    return std::ranges::any_of(differences,
                               [&](const Difference& d) { return d.key.starts_with(prefix); });
  };
  if (differs("sdk.major")) return ErrorCode::plugin_sdk_major;
  if (differs("sdk.cxx_epoch")) return ErrorCode::plugin_cxx_epoch;
  if (differs("torch.")) return ErrorCode::plugin_libtorch;
  return ErrorCode::plugin_facts;
}

}  // namespace

const std::map<std::string, std::string>& engine_facts() {
  static const Facts facts = parse_facts(std::string(build_facts()), "the engine");
  return facts;
}

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
  const std::vector<std::string> markers = read_markers(file);
  if (markers.empty())
    throw Error(ErrorCode::plugin_no_marker,
                file.string() + " has no build facts (no section meshwright_abi)")
        .help("build it with meshwright_add_plugin() in CMake");
  if (markers.size() > 1)
    throw Error(ErrorCode::plugin_bad_marker,
                file.string() + " has " + std::to_string(markers.size()) + " markers, not one");
  VerifiedLibrary out;
  out.path = file;
  out.facts_text = markers[0];
  out.facts = parse_facts(out.facts_text, file.string());
  out.hash = facts_hash(out.facts);
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
  const std::vector<std::string> markers = read_markers(file);
  if (markers.size() != 1)
    throw Error(
        markers.empty() ? ErrorCode::plugin_no_marker : ErrorCode::plugin_bad_marker,
        file.string() + " has " + std::to_string(markers.size()) + " sets of build facts, not one")
        .help("build it with meshwright_add_plugin(... RUNTIME ...) in CMake");
  if (markers[0] != planning.facts_text)
    throw Error(ErrorCode::plugin_facts,
                file.string() + " and " + planning.path.string() +
                    " come from different builds; none of their strategies was made")
        .help("rebuild the plugin from a clean build folder, and copy both libraries");
}

}  // namespace meshwright::loader
