// The library as a whole: its facts, its exported symbols, its descriptor.
#include <elf.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>

#include "meshwright/facts.h"
#include "sdk/conformance/cases.h"
#include "sdk/conformance/probe.h"

namespace meshwright::conformance {
namespace {

std::string text_of(const char* text) { return text == nullptr ? std::string() : std::string(text); }

// Names of the defined dynamic symbols of a 64-bit library the loader has already judged.
std::vector<std::string> exported_symbols(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  auto read = [&]<class T>(uint64_t at, T& out) {
    if (at > bytes.size() || sizeof(T) > bytes.size() - at) return false;
    std::memcpy(&out, bytes.data() + at, sizeof(T));
    return true;
  };
  std::vector<std::string> out;
  Elf64_Ehdr header{};
  if (!read(0, header)) return out;
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section{}, names{};
    if (!read(header.e_shoff + i * sizeof(Elf64_Shdr), section) || section.sh_type != SHT_DYNSYM) continue;
    if (!read(header.e_shoff + section.sh_link * sizeof(Elf64_Shdr), names)) continue;
    for (uint64_t s = 0; s < section.sh_size / sizeof(Elf64_Sym); ++s) {
      Elf64_Sym symbol{};
      if (!read(section.sh_offset + s * sizeof(Elf64_Sym), symbol) || symbol.st_shndx == SHN_UNDEF) continue;
      uint64_t at = names.sh_offset + symbol.st_name;
      if (at >= bytes.size()) continue;
      out.push_back(bytes.substr(at, bytes.find('\0', at) - at));
    }
  }
  return out;
}

}  // namespace

void check_facts(const Subject& subject, Report& report) {
  std::string facts = text_of(subject.plugin->facts);
  size_t lines = 0;
  std::string strategies;
  for (size_t at = 0; at < facts.size();) {
    size_t end = std::min(facts.find('\n', at), facts.size());
    std::string line = facts.substr(at, end - at);
    ++lines;
    if (line.starts_with("info.strategies=")) strategies = "," + line.substr(16) + ",";
    // Facts that must match are among ours, to the letter.
    if (!line.starts_with("info.") && std::string(build_facts()).find(line + "\n") == std::string::npos)
      report.fail("a fact differs from the engine's: " + line);
    at = end + 1;
  }
  for (size_t i = 0; i < subject.plugin->strategy_count; ++i) {
    const meshwright_strategy& strategy = element(subject.plugin->strategies, i);
    std::vector<std::string> names = split_bar(strategy.aliases);
    names.push_back(text_of(strategy.name));
    for (const std::string& name : names)
      if (normal_name(strategies).find("," + normal_name(name) + ",") == std::string::npos)
        report.fail("the facts do not list \"" + name + "\"; name it in STRATEGIES of meshwright_add_plugin()");
  }
  report.note(std::to_string(lines) + " facts");
}

void check_symbols(const Subject& subject, Report& report) {
  if (subject.path.empty()) return report.skip("linked into this program");
  std::vector<std::string> names = exported_symbols(subject.path);
  int markers = 0, descriptors = 0;
  for (const std::string& name : names) {
    if (name == "meshwright_plugin_v1")
      ++descriptors;
    else if (name.starts_with("meshwright_abi_"))
      ++markers;
    else
      report.fail("exports " + name + "; link with the version script that meshwright_add_plugin() gives");
  }
  if (descriptors != 1) report.fail("exports meshwright_plugin_v1 " + std::to_string(descriptors) + " times");
  if (markers != 1) report.fail("exports " + std::to_string(markers) + " markers");
  report.note(std::to_string(names.size()) + " symbols");
}

void check_descriptor(const Subject& subject, Report& report) {
  const meshwright_plugin& p = *subject.plugin;
  auto need = [&](const char* what, const char* text) {
    if (text_of(text).empty()) report.fail(std::string("the ") + what + " is empty");
  };
  need("vendor", p.vendor);
  need("license (an SPDX name)", p.license);
  need("summary", p.summary);
  if (!is_identifier(text_of(p.name))) report.fail("the name \"" + text_of(p.name) + "\" is not made of a-z, 0-9 and _, a letter first");
  std::string version = text_of(p.version);
  if (std::count(version.begin(), version.end(), '.') < 2 || version.empty() || !std::isdigit(static_cast<unsigned char>(version[0])))
    report.fail("the version \"" + version + "\" is not like 1.2.3");
  if (p.magic != MESHWRIGHT_PLUGIN_MAGIC) report.fail("the magic number is wrong");
  if (p.sdk_major != MESHWRIGHT_SDK_MAJOR) report.fail("the SDK major version is " + std::to_string(p.sdk_major));
  if (p.strategy_count == 0) report.fail("it has no strategies");
  std::set<std::string> names;
  for (size_t i = 0; i < p.strategy_count; ++i) {
    const meshwright_strategy& s = element(p.strategies, i);
    std::string name = text_of(s.name);
    if (!is_identifier(name)) report.fail("the strategy name \"" + name + "\" is not made of a-z, 0-9 and _, a letter first");
    if (!names.insert(normal_name(name)).second) report.fail("the strategy " + name + " stands twice");
    if (text_of(s.summary).empty()) report.fail("strategy " + name + " has no summary");
    if ((s.capabilities & MESHWRIGHT_CAN_PLAN) == 0) report.fail("strategy " + name + " does not say that it can plan");
    if (s.create == nullptr || s.destroy == nullptr) report.fail("strategy " + name + " lacks create or destroy");
  }
  report.note(std::to_string(p.strategy_count) + (p.strategy_count == 1 ? " strategy" : " strategies"));
}

}  // namespace meshwright::conformance
