#include "engine/plugins/verify_library.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "meshwright/error.h"
#include "sdk/base/checks.h"
#include "sdk/base/plain_text.h"
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

// The size of an array's element: at least the first version's, and such that the next one lies
// where one can be.
template <class T>
bool is_struct_size(size_t size) {
  static_assert(kFirstSize<T> > 0 && kFirstSize<T> <= sizeof(T));
  return size >= kFirstSize<T> && size <= kMaxStruct && size % alignof(T) == 0;
}

// MAJOR.MINOR.PATCH with an optional -pre or +build.
bool is_semver(const std::string& text) {
  const std::vector<std::string> parts = text::split(text.substr(0, text.find_first_of("-+")), '.');
  return parts.size() == 3 && std::ranges::all_of(parts, [](const std::string& part) {
           return !part.empty() && part.size() <= 9 &&
                  part.find_first_not_of("0123456789") == std::string::npos;
         });
}

// A later minor version of the SDK may know more of them.
void check_capabilities(const meshwright_strategy& raw, uint32_t sdk_minor,
                        const std::string& file) {
  constexpr uint64_t kKnown = MESHWRIGHT_CAN_PLAN | MESHWRIGHT_CAN_PARALLELIZE;
  if (sdk_minor > MESHWRIGHT_SDK_MINOR || (raw.capabilities & ~kKnown) == 0) return;
  const std::string bits = text::format("0x%" PRIx64, raw.capabilities & ~kKnown);
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

// What strategies and components say alike. `what`: "strategy".
template <class Raw>
void read_named(const Raw& raw, const std::string& what, const std::string& table,
                const std::string& file, ComponentInfo& info) {
  if (!is_name(raw.name))
    throw bad(file,
              "a " + what + " has no proper name (a-z, 0-9 and _, a letter first, at most 64)");
  info.name = raw.name;
  const std::string who = what + " " + info.name;
  if (raw.create == nullptr || raw.destroy == nullptr)
    throw bad(file, who + " has no create or destroy function");
  if (raw.summary == nullptr) throw bad(file, who + " has no summary");
  if (raw.option_count > kMaxOptions || (raw.option_count > 0 && raw.options == nullptr))
    throw bad(file, "the options of " + who + " point nowhere");
  info.summary = raw.summary;
  info.aliases = text::split_names(raw.aliases, '|');
  for (const std::string& alias : info.aliases)
    if (!text::is_identifier(text::normal(alias)))
      throw bad(file, who + " has the alias \"" + alias + "\", which is no name");
  info.schema.table = table + "." + info.name;
  info.schema.owner = info.name;
  for (size_t i = 0; i < raw.option_count; ++i) {
    const meshwright_option& option = element(raw.options, i);
    if (!is_struct_size<meshwright_option>(option.struct_size))
      throw bad(file, "an option of " + who + " says that it has " +
                          std::to_string(option.struct_size) + " bytes");
    info.schema.options.push_back(&option);
  }
  try {
    check_schema(info.schema);
  } catch (const Error& error) {
    throw bad(file, error.message());
  }
}

// All names are among those that the file tells without being loaded, and none is there already.
template <class Info>
void check_names(const ComponentInfo& info, const std::vector<Info>& others,
                 const std::vector<std::string>& listed, const std::string& what,
                 const std::string& many, const std::string& argument, const std::string& file) {
  std::vector<std::string> names = info.aliases;
  names.insert(names.begin(), info.name);
  for (const std::string& name : names) {
    if (std::none_of(listed.begin(), listed.end(),
                     [&](const std::string& s) { return text::normal(s) == text::normal(name); }))
      throw bad(file, what + " " + name + " is not among the " + argument +
                          " given to meshwright_add_plugin()");
    for (const Info& other : others)
      if (answers_to(other, name)) throw bad(file, "it has two " + many + " named " + name);
  }
}

StrategyInfo read_strategy(const meshwright_strategy& raw, const std::string& file) {
  StrategyInfo info;
  read_named(raw, "strategy", "distributed", file, info);
  info.strategy = &raw;
  info.capabilities = raw.capabilities;
  if (raw.options_table != nullptr && !is_name(raw.options_table))
    throw bad(file, "strategy " + info.name + " has no proper options table");
  if (raw.options_table != nullptr)
    info.schema.table = "distributed." + std::string(raw.options_table);
  if (raw.tp_plan_count > kMaxOptions || (raw.tp_plan_count > 0 && raw.tp_plans == nullptr))
    throw bad(file, "the tensor-parallel plans of strategy " + info.name + " point nowhere");
  for (size_t i = 0; i < raw.tp_plan_count; ++i) {
    const meshwright_tp_plan& plan = element(raw.tp_plans, i);
    if (!is_struct_size<meshwright_tp_plan>(plan.struct_size) || !is_name(plan.name) ||
        plan.make == nullptr)
      throw bad(file, "a tensor-parallel plan of strategy " + info.name +
                          " has no proper name, no function or too few bytes");
  }
  return info;
}

// The block of the chain of extensions with this id and at least the size of T; nullptr: none.
template <class T>
const T* block_of(const meshwright_plugin& d, uint32_t id, const std::string& file,
                  const char* what) {
  size_t blocks = 0;
  for (const meshwright_extension* block = d.extensions; block != nullptr; block = block->next) {
    if (++blocks > kMaxExtensions) throw bad(file, "the chain of extensions does not end");
    if (block->id != id) continue;
    if (!is_struct_size<T>(block->struct_size))
      throw bad(file, std::string("the block of ") + what + " is too short");
    return reinterpret_cast<const T*>(block);
  }
  return nullptr;
}

std::vector<ComponentInfo> read_components(const meshwright_plugin& d, uint32_t id,
                                           const std::vector<std::string>& listed,
                                           const std::string& file) {
  const bool models = id == MESHWRIGHT_MODELS;
  const std::string what = models ? "model" : "data set";
  std::vector<ComponentInfo> out;
  const auto* block =
      block_of<meshwright_components>(d, id, file, models ? "its models" : "its data sets");
  if (block == nullptr) return out;
  if (block->count > kMaxStrategies || (block->count > 0 && block->components == nullptr))
    throw bad(file, "its " + what + "s point nowhere");
  for (size_t i = 0; i < block->count; ++i) {
    const meshwright_component& raw = element(block->components, i);
    if (!is_struct_size<meshwright_component>(raw.struct_size))
      throw bad(file, "a " + what + "'s struct says that it has " +
                          std::to_string(raw.struct_size) + " bytes");
    ComponentInfo info;
    info.component = &raw;
    read_named(raw, what, models ? "model" : "dataset", file, info);
    check_names(info, out, listed, what, what + "s", models ? "MODELS" : "DATASETS", file);
    out.push_back(std::move(info));
  }
  return out;
}

// The file of the running half, from the chain of extensions; empty without one.
std::filesystem::path runtime_half_of(const meshwright_plugin& d, const VerifiedLibrary& verified) {
  const std::string file = verified.path.string();
  const auto* block =
      block_of<meshwright_runtime_half>(d, MESHWRIGHT_RUNTIME_HALF, file, "the running half");
  if (block == nullptr) return {};
  size_t length = block->file == nullptr ? 0 : ::strnlen(block->file, 256);
  if (length == 0 || length == 256 || std::memchr(block->file, '/', length) != nullptr)
    throw bad(file, "the running half has no proper file name");
  return verified.path.parent_path() / block->file;
}

}  // namespace

bool answers_to(const ComponentInfo& info, const std::string& name) {
  const std::string wanted = text::normal(name);
  return text::normal(info.name) == wanted ||
         std::any_of(info.aliases.begin(), info.aliases.end(),
                     [&](const std::string& alias) { return text::normal(alias) == wanted; });
}

LoadedPlugin read_descriptor(const meshwright_plugin* d, const VerifiedLibrary& verified,
                             const std::string& place) {
  const std::string file = verified.path.string();
  if (d->magic != MESHWRIGHT_PLUGIN_MAGIC)
    throw Error(ErrorCode::plugin_bad_magic,
                "meshwright_plugin_v1 in " + file + " does not start with the magic number")
        .help("define it with MESHWRIGHT_PLUGIN(...)");
  if (d->struct_size < kFirstSize<meshwright_plugin>)
    throw Error(ErrorCode::plugin_short_struct,
                "the descriptor of " + file + " has " + std::to_string(d->struct_size) +
                    " bytes, but version " + std::to_string(MESHWRIGHT_SDK_MAJOR) + ".0 has " +
                    std::to_string(kFirstSize<meshwright_plugin>));
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
  if (d->strategy_count > kMaxStrategies || (d->strategy_count > 0 && d->strategies == nullptr))
    throw bad(file, "its strategies point nowhere");

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
    const meshwright_strategy& raw = element(d->strategies, i);
    if (!is_struct_size<meshwright_strategy>(raw.struct_size))
      throw bad(file,
                "a strategy struct says that it has " + std::to_string(raw.struct_size) + " bytes");
    StrategyInfo info = read_strategy(raw, file);
    check_capabilities(raw, d->sdk_minor, file);
    for (const StrategyInfo& other : plugin.strategies) check_shared_table(info, other, file);
    check_names(info, plugin.strategies, verified.strategies, "strategy", "strategies",
                "STRATEGIES", file);
    plugin.strategies.push_back(std::move(info));
  }
  plugin.models = read_components(*d, MESHWRIGHT_MODELS, verified.models, file);
  plugin.datasets = read_components(*d, MESHWRIGHT_DATASETS, verified.datasets, file);
  if (plugin.strategies.empty() && plugin.models.empty() && plugin.datasets.empty())
    throw bad(file, "it has no strategies, models or data sets");
  return plugin;
}

}  // namespace meshwright::loader
