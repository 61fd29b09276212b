// The library as a whole: its facts, its exported symbols, its descriptor.
#include <elf.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <regex>
#include <set>

#include "meshwright/components.h"
#include "sdk/base/checks.h"
#include "sdk/base/facts.h"
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
    // Facts that must match are among ours; sizes of types that both know.
    const std::string ours = "\n" + std::string(build_facts());
    const size_t found = ours.find("\n" + key + "=");
    const bool known = !key.starts_with("sizeof.") || found != std::string::npos;
    std::string value;
    if (const size_t from = found + key.size() + 2; found != std::string::npos)
      value = ours.substr(from, ours.find('\n', from) - from);
    if (known &&
        compared(key, value) != compared(key, line.substr(std::min(key.size() + 1, line.size()))))
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

// The option schema, validate() over whatever options hold, and the life of an instance.

namespace {

Answer<bool> give(const OptionSchema& schema, std::string_view name, const OptionValue& value) {
  return conformance::ask([&] {
    Options options(schema);
    options.set(name, value);
    return true;
  });
}

// The checks of one option; each method gives values to the table and looks at what comes back.
class OptionChecker {
 public:
  OptionChecker(const OptionSchema& schema, const meshwright_option& option, Report& report)
      : schema_(schema), o_(option), name_(option.name), report_(report) {}

  void run() {
    consistent();
    forms();
    range();
    choices();
    typing_mistake();
    // The default, given by hand, is taken too.
    Answer<Options> defaults = conformance::ask([&] { return Options(schema_); });
    if (o_.default_value != nullptr && defaults.value && defaults.value->is_set(name_))
      takes(defaults.value->value(name_), "its own default");
  }

 private:
  bool flag(uint32_t bit) const { return (o_.flags & bit) != 0; }
  bool type(uint32_t bit) const { return (o_.type & bit) != 0; }

  void takes(const OptionValue& value, const std::string& what) {
    Answer<bool> outcome = give(schema_, name_, value);
    if (!outcome.value) report_.fail(name_ + " refuses " + what + ", " + to_toml(value));
  }

  void refuses(const OptionValue& value, ErrorCode code, const std::string& what) {
    Answer<bool> outcome = give(schema_, name_, value);
    if (!outcome.foreign.empty()) return report_.fail(name_ + ": " + outcome.foreign);
    if (!outcome.error) return report_.fail(name_ + " takes " + what + ", " + to_toml(value));
    if (outcome.error->code() != code)
      report_.fail(name_ + " refuses " + what + " with " + code_string(outcome.error->code()) +
                   " instead of " + code_string(code));
    if (outcome.error->key().empty() || outcome.error->helps().empty())
      report_.fail(name_ + " refuses " + what + " without a key or a help line");
  }

  void consistent() {
    constexpr uint32_t numbers = MESHWRIGHT_INT | MESHWRIGHT_NUMBER | MESHWRIGHT_NUMBER_LIST;
    constexpr uint32_t words = MESHWRIGHT_STRING | MESHWRIGHT_STRING_LIST;
    bool bounded = !flag(MESHWRIGHT_NO_MIN) || !flag(MESHWRIGHT_NO_MAX);
    if (bounded && type(numbers) && (std::isnan(o_.min) || std::isnan(o_.max)))
      report_.fail(name_ + " has a bound that is not a number");
    if (!flag(MESHWRIGHT_NO_MIN) && !flag(MESHWRIGHT_NO_MAX) && type(numbers) &&
        (o_.min > o_.max || (o_.min == o_.max && flag(MESHWRIGHT_OPEN_MIN))))
      report_.fail(name_ + " has a range that holds nothing");
    if (o_.choices != nullptr && !type(words))
      report_.fail(name_ + " has choices but takes no word");
    if (flag(MESHWRIGHT_DTYPE) && !type(MESHWRIGHT_STRING))
      report_.fail(name_ + " is a dtype but takes no word");
    std::vector<std::string> choices =
        o_.choices == nullptr ? std::vector<std::string>() : text::split(o_.choices, '|');
    std::sort(choices.begin(), choices.end());
    if (std::adjacent_find(choices.begin(), choices.end()) != choices.end())
      report_.fail(name_ + " has a choice twice");
    if (std::find(choices.begin(), choices.end(), "") != choices.end())
      report_.fail(name_ + " has an empty choice");
    for (std::string alias : text::split_names(o_.aliases, '|')) {
      alias = alias.substr(0, alias.find('{'));  // "old{x=1,y=2}"
      // "vision.size": what used to stand in a table of its own.
      std::vector<std::string> parts = text::split(alias, '.');
      if (!std::all_of(parts.begin(), parts.end(), [](const std::string& part) {
            return text::is_identifier(text::normal(part));
          }))
        report_.fail(name_ + ": the older name \"" + alias + "\" is no name");
      if (schema_.find(alias) != nullptr)
        report_.fail(name_ + ": the older name " + alias + " is the name of another option");
    }
  }

  // A value of each TOML form: taken or, where the type lacks it, refused as such.
  void forms() {
    constexpr uint32_t bits[] = {0,
                                 MESHWRIGHT_BOOL,
                                 MESHWRIGHT_INT | MESHWRIGHT_NUMBER,
                                 MESHWRIGHT_NUMBER,
                                 MESHWRIGHT_STRING,
                                 MESHWRIGHT_STRING_LIST,
                                 MESHWRIGHT_NUMBER_LIST,
                                 MESHWRIGHT_STRING_MAP,
                                 MESHWRIGHT_STRING_TABLE};
    for (const OptionValue& value : one_of_each_form())
      if (!type(bits[value.index()]))
        refuses(value, ErrorCode::wrong_type, "a value that is not of its type");
  }

  void range() {
    bool whole = !type(MESHWRIGHT_NUMBER);
    if (!type(MESHWRIGHT_INT | MESHWRIGHT_NUMBER)) return;
    constexpr double inf = std::numeric_limits<double>::infinity();
    auto value = [&](double v) {
      return whole ? OptionValue(static_cast<int64_t>(v)) : OptionValue(v);
    };
    // The nearest number beyond a bound; further ones would hide a bound that is off by one.
    auto beyond = [&](double bound, double direction) {
      if (!whole) return value(std::nextafter(bound, direction));
      return value(direction < 0 ? std::ceil(bound) - 1 : std::floor(bound) + 1);
    };
    constexpr double exact = 9007199254740992.0;  // whole numbers further out are not all doubles
    if (!flag(MESHWRIGHT_NO_MIN) && std::abs(o_.min) < exact) {
      refuses(beyond(o_.min, -inf), ErrorCode::out_of_range, "a number below its minimum");
      if (flag(MESHWRIGHT_OPEN_MIN))
        refuses(value(o_.min), ErrorCode::out_of_range,
                "its minimum, which is not part of its range");
      else if (!whole || o_.min == std::floor(o_.min))
        takes(value(o_.min), "its own minimum");
    }
    if (!flag(MESHWRIGHT_NO_MAX) && std::abs(o_.max) < exact) {
      refuses(beyond(o_.max, inf), ErrorCode::out_of_range, "a number above its maximum");
      if (!whole || o_.max == std::floor(o_.max)) takes(value(o_.max), "its own maximum");
    }
    if (!whole) refuses(OptionValue(std::nan("")), ErrorCode::out_of_range, "what is not a number");
  }

  void choices() {
    if (o_.choices == nullptr || !type(MESHWRIGHT_STRING)) return;
    for (const std::string& choice : text::split_names(o_.choices, '|'))
      takes(OptionValue(choice), "its choice");
    if (!flag(MESHWRIGHT_DTYPE))
      refuses(OptionValue(std::string("surely not a choice")), ErrorCode::bad_choice,
              "a word that is not among its choices");
  }

  // The name with one letter missing is no key, and the error knows which was meant.
  void typing_mistake() {
    std::string wrong = name_.substr(0, name_.size() - 1);
    if (wrong.size() < 4 || schema_.find(wrong) != nullptr) return;
    Answer<bool> outcome = give(schema_, wrong, OptionValue(true));
    if (!outcome.error || outcome.error->code() != ErrorCode::unknown_key)
      return report_.fail("the unknown key " + wrong + " is not refused");
    const std::vector<std::string>& helps = outcome.error->helps();
    // Another option may be as near as this one.
    bool named = std::any_of(helps.begin(), helps.end(), [&](const std::string& help) {
      return std::any_of(schema_.options.begin(), schema_.options.end(),
                         [&](const meshwright_option* option) {
                           return help.find(option->name) != std::string::npos;
                         });
    });
    if (!named)
      report_.fail("the error for the unknown key " + wrong +
                   " does not name an option that is near it");
  }

  const OptionSchema& schema_;
  const meshwright_option& o_;
  const std::string name_;
  Report& report_;
};

}  // namespace

void check_options(const Subject& subject, Report& report) {
  OptionSchema schema = schema_of(subject);
  Answer<bool> sound = ask([&] {
    check_schema(schema);
    return true;
  });
  if (!sound.value) return report.fail(sound.error ? one_line(*sound.error) : sound.foreign);
  Answer<bool> unknown = give(schema, "no_such_option_anywhere", OptionValue(true));
  if (!unknown.error || unknown.error->code() != ErrorCode::unknown_key)
    report.fail("an unknown key is not refused");
  for (const meshwright_option* option : schema.options)
    if (!report.full()) OptionChecker(schema, *option, report).run();
  report.note(
      std::to_string(schema.options.size()) + (schema.options.size() == 1 ? " option" : " options"),
      1 + std::ssize(schema.options));  // a key that no table has is tried, too
}

void check_lifecycle(const Subject& subject, Report& report) {
  check_growth([&] { Instance instance(subject); }, report);
  {  // several at once, and not in the order of a stack
    auto first = std::make_unique<Instance>(subject);
    Instance second(subject);
    check_unknown_extension(*second, report);
    first.reset();
    Answer<MeshPlan> plan =
        ask([&] { return second->plan_mesh(make_request(subject, ParallelDims{})); });
    if (!plan.foreign.empty())
      report.fail("after another instance was destroyed: " + plan.foreign + " left plan_mesh");
  }
}

void check_validate(const Subject& subject, Report& report) {
  Instance strategy(subject);
  Random random(7);
  int looked_at = 0, refused = 0;
  constexpr int kTries = 400;
  for (int i = 0; i < kTries && !report.full(); ++i) {
    ParallelDims dims = i == 0 ? ParallelDims{} : random_dims(random, 64, 10);
    if (i > 0) randomize_own(*subject.strategy, dims, random);
    if (i % 2 == 1) randomize_shared(dims, random);
    Answer<StrategyConfig> config = ask([&] { return make_config(subject, dims); });
    if (!config.value) continue;  // the engine's own rules refuse it before the strategy is asked
    ++looked_at;
    Diagnostics diagnostics;
    Answer<bool> outcome = ask([&] {
      strategy->validate(*config.value, diagnostics);
      return true;
    });
    if (outcome.error)
      report.fail(describe(dims) +
                  ": validate threw instead of reporting: " + one_line(*outcome.error));
    if (!outcome.foreign.empty())
      report.fail(describe(dims) + ": " + outcome.foreign + " left validate");
    if (i == 0 && !diagnostics.ok())
      report.fail("the defaults themselves are refused: " + one_line(diagnostics.errors().front()));
    for (const Error& error : diagnostics.errors()) {
      if (error.key().empty()) report.fail("an error of validate names no key: " + one_line(error));
      if (error.helps().empty())
        report.fail("an error of validate has no help line: " + one_line(error));
    }
    refused += diagnostics.ok() ? 0 : 1;
  }
  report.note(
      std::to_string(looked_at) + " configurations, " + std::to_string(refused) + " refused",
      looked_at);
}

}  // namespace meshwright::conformance
