// The library as a whole: its facts, its exported symbols, its descriptor.
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "meshwright/components.h"
#include "sdk/base/build_facts.h"
#include "sdk/kit/conformance/cases.h"
#include "sdk/kit/conformance/probe.h"

namespace meshwright::conformance {
namespace {

std::string text_of(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

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
    if (!read(header.e_shoff + i * sizeof(Elf64_Shdr), section) || section.sh_type != SHT_DYNSYM)
      continue;
    if (!read(header.e_shoff + section.sh_link * sizeof(Elf64_Shdr), names)) continue;
    for (uint64_t s = 0; s < section.sh_size / sizeof(Elf64_Sym); ++s) {
      Elf64_Sym symbol{};
      if (!read(section.sh_offset + s * sizeof(Elf64_Sym), symbol) || symbol.st_shndx == SHN_UNDEF)
        continue;
      uint64_t at = names.sh_offset + symbol.st_name;
      if (at >= bytes.size()) continue;
      out.push_back(bytes.substr(at, bytes.find('\0', at) - at));
    }
  }
  return out;
}

// One line that says something: not empty, no control characters, of a length that fits a table.
void check_line(const std::string& what, const char* text, size_t most, Report& report) {
  std::string line = text_of(text);
  if (line.empty()) return report.fail(what + " is empty");
  if (line.size() > most)
    report.fail(what + " is longer than " + std::to_string(most) + " characters");
  if (std::any_of(line.begin(), line.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }))
    report.fail(what + " holds a line break or a control character");
}

void check_strategy(const meshwright_strategy& s, std::set<std::string>& names, Report& report) {
  std::string name = text_of(s.name);
  if (!text::is_identifier(name))
    report.fail("the strategy name \"" + name +
                "\" is not made of a-z, 0-9 and _, a letter first, 64 at most");
  if (!names.insert(text::normal(name)).second)
    report.fail("the strategy name " + name + " stands twice");
  for (const std::string& alias : text::split_names(s.aliases, '|')) {
    if (!text::is_identifier(text::normal(alias)))
      report.fail("strategy " + name + ": the alias \"" + alias + "\" is no name");
    // "a-b" beside "a_b" is the same name written twice, which harms nobody.
    if (text::normal(alias) != text::normal(name) && !names.insert(text::normal(alias)).second)
      report.fail("the name " + alias + " stands twice");
  }
  check_line("the summary of strategy " + name, s.summary, 120, report);
  if (s.options_table != nullptr && !text::is_identifier(s.options_table))
    report.fail("strategy " + name + ": the options table \"" + text_of(s.options_table) +
                "\" is no name");
  if (s.option_count > 0 && s.options == nullptr)
    report.fail("strategy " + name + " counts options but has none");
  if ((s.capabilities & MESHWRIGHT_CAN_PLAN) == 0)
    report.fail("strategy " + name + " does not say that it can plan");
  if (s.create == nullptr || s.destroy == nullptr)
    report.fail("strategy " + name + " lacks create or destroy");
  for (size_t i = 0; s.options != nullptr && i < s.option_count; ++i) {
    const meshwright_option& o = element(s.options, i);
    check_line("strategy " + name + ": the doc of option " + text_of(o.name), o.doc, 400, report);
  }
}

}  // namespace

void check_facts(const Subject& subject, Report& report) {
  std::string facts = text_of(subject.plugin->facts);
  size_t lines = 0;
  std::string strategies, previous;
  for (size_t at = 0; at < facts.size();) {
    size_t end = std::min(facts.find('\n', at), facts.size());
    std::string line = facts.substr(at, end - at), key = line.substr(0, line.find('='));
    ++lines;
    if (key.empty() || key.size() == line.size())
      report.fail("a fact is not key=value: \"" + line + "\"");
    if (key <= previous) report.fail("the facts are not sorted: " + key + " after " + previous);
    previous = key;
    if (line.starts_with("info.strategies=")) strategies = "," + line.substr(16) + ",";
    // Facts that must match are among ours, to the letter.
    if (!line.starts_with("info.") &&
        ("\n" + std::string(build_facts())).find("\n" + line + "\n") == std::string::npos)
      report.fail("a fact differs from the engine's: " + line);
    at = end + 1;
  }
  for (size_t i = 0; i < subject.plugin->strategy_count; ++i) {
    const meshwright_strategy& strategy = element(subject.plugin->strategies, i);
    std::vector<std::string> names = text::split_names(strategy.aliases, '|');
    names.push_back(text_of(strategy.name));
    for (const std::string& name : names)
      if (text::normal(strategies).find("," + text::normal(name) + ",") == std::string::npos)
        report.fail("the facts do not list \"" + name +
                    "\"; name it in STRATEGIES of meshwright_add_plugin()");
  }
  report.note(std::to_string(lines) + " facts", static_cast<int64_t>(lines));
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
      report.fail("exports " + name +
                  "; link with the version script that meshwright_add_plugin() gives");
  }
  if (descriptors != 1)
    report.fail("exports meshwright_plugin_v1 " + std::to_string(descriptors) + " times");
  if (markers != 1) report.fail("exports " + std::to_string(markers) + " markers");
  report.note(std::to_string(names.size()) + " symbols", std::ssize(names));
}

void check_descriptor(const Subject& subject, Report& report) {
  const meshwright_plugin& p = *subject.plugin;
  if (p.magic != MESHWRIGHT_PLUGIN_MAGIC) report.fail("the magic number is wrong");
  if (p.sdk_major != MESHWRIGHT_SDK_MAJOR)
    report.fail("the SDK major version is " + std::to_string(p.sdk_major));
  check_line("the vendor", p.vendor, 120, report);
  check_line("the summary", p.summary, 120, report);
  if (!text::is_identifier(text_of(p.name)))
    report.fail("the name \"" + text_of(p.name) +
                "\" is not made of a-z, 0-9 and _, a letter first");
  static const std::regex semver(
      R"((0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?)");
  if (!std::regex_match(text_of(p.version), semver))
    report.fail("the version \"" + text_of(p.version) + "\" is not like 1.2.3");
  // An SPDX expression: "Apache-2.0", "MIT OR GPL-2.0-only WITH Classpath-exception-2.0",
  // "LicenseRef-mine".
  static const std::regex spdx(
      R"([(]*[A-Za-z0-9.-]+\+?[)]*( (AND|OR|WITH) [(]*[A-Za-z0-9.-]+\+?[)]*)*)");
  if (!std::regex_match(text_of(p.license), spdx))
    report.fail("the license \"" + text_of(p.license) +
                "\" is no SPDX expression such as Apache-2.0 or LicenseRef-mine");
  bool components = false;
  size_t blocks = 0;
  for (const meshwright_extension* e = p.extensions; e != nullptr && blocks <= 64; e = e->next) {
    components = components || e->id == MESHWRIGHT_MODELS || e->id == MESHWRIGHT_DATASETS;
    ++blocks;
  }
  if (p.strategy_count == 0 && !components) report.fail("it has no strategies");
  std::set<std::string> names;
  for (size_t i = 0; i < p.strategy_count; ++i)
    check_strategy(element(p.strategies, i), names, report);
  if (blocks > 64) report.fail("the chain of extensions does not end");
  report.note(
      std::to_string(p.strategy_count) + (p.strategy_count == 1 ? " strategy" : " strategies"), 1);
}

}  // namespace meshwright::conformance
