#include "engine/loader/descriptor.h"

#include <algorithm>
#include <cctype>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "meshwright/error.h"
#include "sdk/base/check_schema.h"
#include "sdk/base/words.h"

namespace meshwright::loader {
namespace {

constexpr size_t kMaxStrategies = 256, kMaxOptions = 4096, kMaxStruct = 4096, kMaxExtensions = 64;

Error bad(const std::string& file, const std::string& what) {
  return Error(ErrorCode::plugin_bad_descriptor,
               "the descriptor of " + file + " is not consistent: " + what);
}

bool is_name(const char* text) {
  return text != nullptr && text::is_identifier({text, ::strnlen(text, 65)});
}

// The size of an array's element: at least what we know, and such that the next one lies where one
// can be.
template <class T>
bool is_struct_size(size_t size) {
  return size >= sizeof(T) && size <= kMaxStruct && size % alignof(T) == 0;
}

// MAJOR.MINOR.PATCH with an optional -pre or +build.
bool is_semver(const std::string& text) {
  size_t at = 0;
  for (int part = 0; part < 3; ++part) {
    size_t digits = 0;
    for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])); ++at) ++digits;
    if (digits == 0 || digits > 9) return false;
    if (part == 2) break;
    if (at >= text.size() || text[at] != '.') return false;
    ++at;
  }
  return at == text.size() || text[at] == '-' || text[at] == '+';
}

// A later minor version of the SDK may know more of them.
void check_capabilities(const meshwright_strategy& raw, uint32_t sdk_minor,
                        const std::string& file) {
  constexpr uint64_t kKnown = MESHWRIGHT_CAN_PLAN | MESHWRIGHT_CAN_PARALLELIZE;
  if (sdk_minor > MESHWRIGHT_SDK_MINOR || (raw.capabilities & ~kKnown) == 0) return;
  char bits[20];
  std::snprintf(bits, sizeof bits, "0x%" PRIx64, raw.capabilities & ~kKnown);
  throw bad(file, std::string("strategy ") + raw.name + " has the capabilities " + bits +
                      ", which do not exist (MESHWRIGHT_CAN_PLAN, MESHWRIGHT_CAN_PARALLELIZE)");
}

bool alike(const meshwright_option& a, const meshwright_option& b) {
  auto same = [](const char* x, const char* y) {
    return x == y || (x != nullptr && y != nullptr && std::strcmp(x, y) == 0);
  };
  return a.type == b.type && a.flags == b.flags && a.min == b.min && a.max == b.max &&
         same(a.name, b.name) && same(a.default_value, b.default_value) &&
         same(a.choices, b.choices) && same(a.aliases, b.aliases);
}

// A table is read by one schema, whichever strategy is asked for.
void check_shared_table(const StrategyInfo& one, const StrategyInfo& other,
                        const std::string& file) {
  if (one.schema.table != other.schema.table) return;
  for (const auto& [mine, theirs] : {std::pair{&one, &other}, std::pair{&other, &one}})
    for (const meshwright_option* option : mine->schema.options)
      if (const meshwright_option* same = theirs->schema.find(option->name);
          same == nullptr || !alike(*option, *same))
        throw bad(file, "strategies " + one.name + " and " + other.name + " share the table [" +
                            one.schema.table + "], but not the option " + option->name +
                            ": give them the same options, or tables of their own");
}

StrategyInfo read_strategy(const meshwright_strategy& raw, const std::string& file) {
  if (!is_name(raw.name))
    throw bad(file, "a strategy has no proper name (a-z, 0-9 and _, a letter first, at most 64)");
  StrategyInfo info;
  info.name = raw.name;
  if (raw.create == nullptr || raw.destroy == nullptr)
    throw bad(file, "strategy " + info.name + " has no create or destroy function");
  if (raw.summary == nullptr) throw bad(file, "strategy " + info.name + " has no summary");
  if (raw.option_count > kMaxOptions || (raw.option_count > 0 && raw.options == nullptr))
    throw bad(file, "the options of strategy " + info.name + " point nowhere");
  info.summary = raw.summary;
  info.capabilities = raw.capabilities;
  info.aliases = text::split_names(raw.aliases, '|');
  for (const std::string& alias : info.aliases)
    if (!text::is_identifier(text::normal(alias)))
      throw bad(file,
                "strategy " + info.name + " has the alias \"" + alias + "\", which is no name");
  if (raw.options_table != nullptr && !is_name(raw.options_table))
    throw bad(file, "strategy " + info.name + " has no proper options table");
  info.schema.table =
      "distributed." + std::string(raw.options_table != nullptr ? raw.options_table : raw.name);
  info.schema.owner = info.name;
  const char* option = reinterpret_cast<const char*>(raw.options);
  for (size_t i = 0; i < raw.option_count; ++i) {
    const auto* o = reinterpret_cast<const meshwright_option*>(option);
    if (!is_struct_size<meshwright_option>(o->struct_size))
      throw bad(file, "an option of strategy " + info.name + " says that it has " +
                          std::to_string(o->struct_size) + " bytes");
    info.schema.options.push_back(o);
    option += o->struct_size;
  }
  try {
    check_schema(info.schema);
  } catch (const Error& error) {
    throw bad(file, error.message());
  }
  return info;
}

// The file of the running half, from the chain of extensions; empty without one.
std::filesystem::path runtime_half_of(const meshwright_plugin& d, const VerifiedLibrary& verified) {
  const std::string file = verified.path.string();
  size_t blocks = 0;
  for (const meshwright_extension* block = d.extensions; block != nullptr; block = block->next) {
    if (++blocks > kMaxExtensions) throw bad(file, "the chain of extensions does not end");
    if (block->id != MESHWRIGHT_RUNTIME_HALF) continue;
    if (!is_struct_size<meshwright_runtime_half>(block->struct_size))
      throw bad(file, "the block of the running half is too short");
    const char* name = reinterpret_cast<const meshwright_runtime_half*>(block)->file;
    size_t length = name == nullptr ? 0 : ::strnlen(name, 256);
    if (length == 0 || length == 256 || std::memchr(name, '/', length) != nullptr)
      throw bad(file, "the running half has no proper file name");
    return verified.path.parent_path() / name;
  }
  return {};
}

}  // namespace

bool answers_to(const StrategyInfo& info, const std::string& name) {
  const std::string wanted = text::normal(name);
  return text::normal(info.name) == wanted ||
         std::any_of(info.aliases.begin(), info.aliases.end(),
                     [&](const std::string& alias) { return text::normal(alias) == wanted; });
}

const meshwright_strategy* raw_strategy(const meshwright_plugin& descriptor, size_t index) {
  const char* at = reinterpret_cast<const char*>(descriptor.strategies);
  for (size_t i = 0; i < index; ++i)
    at += reinterpret_cast<const meshwright_strategy*>(at)->struct_size;
  return reinterpret_cast<const meshwright_strategy*>(at);
}

LoadedPlugin read_descriptor(const meshwright_plugin* d, const VerifiedLibrary& verified,
                             const std::string& place) {
  const std::string file = verified.path.string();
  if (d->magic != MESHWRIGHT_PLUGIN_MAGIC)
    throw Error(ErrorCode::plugin_bad_magic,
                "meshwright_plugin_v1 in " + file + " does not start with the magic number")
        .help("define it with MESHWRIGHT_PLUGIN(...)");
  if (d->struct_size < sizeof(meshwright_plugin))
    throw Error(ErrorCode::plugin_short_struct,
                "the descriptor of " + file + " has " + std::to_string(d->struct_size) +
                    " bytes, but version " + std::to_string(MESHWRIGHT_SDK_MAJOR) + ".0 has " +
                    std::to_string(sizeof(meshwright_plugin)));
  if (d->sdk_major != MESHWRIGHT_SDK_MAJOR)
    throw Error(ErrorCode::plugin_sdk_major,
                "the descriptor of " + file + " is of SDK major version " +
                    std::to_string(d->sdk_major) + ", the engine has " +
                    std::to_string(MESHWRIGHT_SDK_MAJOR))
        .help("rebuild the plugin against this installation");
  if (!is_name(d->name)) throw bad(file, "the plugin has no proper name");
  for (const char* text : {d->version, d->vendor, d->license, d->summary})
    if (text == nullptr) throw bad(file, "version, vendor, license or summary is missing");
  if (!is_semver(d->version))
    throw bad(file, "\"" + std::string(d->version) + "\" is not a version like 1.2.3");
  if (d->facts == nullptr || d->facts != verified.facts_text)
    throw Error(ErrorCode::plugin_bad_marker,
                "the facts in the descriptor of " + file + " are not those of its marker")
        .help("rebuild the plugin from a clean build folder");
  if (d->strategy_count == 0 || d->strategy_count > kMaxStrategies || d->strategies == nullptr)
    throw bad(file, "it has no strategies");

  LoadedPlugin plugin;
  plugin.path = verified.path;
  plugin.place = place;
  plugin.name = d->name;
  plugin.version = d->version;
  plugin.vendor = d->vendor;
  plugin.license = d->license;
  plugin.summary = d->summary;
  plugin.facts = verified.facts;
  plugin.facts_hash = verified.hash;
  plugin.descriptor = d;
  plugin.runtime_half = runtime_half_of(*d, verified);
  for (size_t i = 0; i < d->strategy_count; ++i) {
    const meshwright_strategy* raw = raw_strategy(*d, i);
    if (!is_struct_size<meshwright_strategy>(raw->struct_size))
      throw bad(file, "a strategy struct says that it has " + std::to_string(raw->struct_size) +
                          " bytes");
    StrategyInfo info = read_strategy(*raw, file);
    check_capabilities(*raw, d->sdk_minor, file);
    for (const StrategyInfo& other : plugin.strategies) check_shared_table(info, other, file);
    auto listed = [&](const std::string& name) {
      return std::any_of(
          verified.strategies.begin(), verified.strategies.end(),
          [&](const std::string& s) { return text::normal(s) == text::normal(name); });
    };
    std::vector<std::string> names = info.aliases;
    names.insert(names.begin(), info.name);
    for (const std::string& name : names) {
      if (!listed(name))
        throw bad(file, "strategy " + name +
                            " is not among the STRATEGIES given to meshwright_add_plugin()");
      for (const StrategyInfo& other : plugin.strategies)
        if (answers_to(other, name)) throw bad(file, "it has two strategies named " + name);
    }
    plugin.strategies.push_back(std::move(info));
  }
  return plugin;
}

}  // namespace meshwright::loader
