#include <boost/json/array.hpp>
#include <filesystem>

#include "apps/cli/common.h"
#include "sdk/base/words.h"

namespace meshwright::cli {
namespace {

namespace json = boost::json;

std::string capabilities(uint64_t bits) {
  std::string out = (bits & MESHWRIGHT_CAN_PLAN) != 0 ? "plan" : "";
  if ((bits & MESHWRIGHT_CAN_PARALLELIZE) != 0) out += out.empty() ? "train" : ", train";
  return out.empty() ? "-" : out;
}

struct Sort {
  const char* what;
  const char* key;  // in JSON
  std::vector<loader::ComponentInfo> loader::LoadedPlugin::* of;
};
constexpr Sort kSorts[] = {{"model", "models", &loader::LoadedPlugin::models},
                           {"data set", "datasets", &loader::LoadedPlugin::datasets}};

json::array names_of(const std::vector<loader::ComponentInfo>& all) {
  json::array out;
  for (const loader::ComponentInfo& info : all)
    out.push_back(json::object{{"name", info.name}, {"summary", info.summary}});
  return out;
}

// " Also called h, sync.": of "h{}|sync{x=1}"; "" where there is none.
std::string other_names(const meshwright_option& option) {
  if (option.aliases == nullptr) return "";
  std::vector<std::string> names;
  for (const std::string& alias : text::split(option.aliases, '|'))
    names.push_back(alias.substr(0, alias.find('{')));
  return " Also called " + text::join(names, ", ") + ".";
}

json::object described(const loader::ComponentInfo& info) {
  json::array options, aliases;
  for (const std::string& alias : info.aliases) aliases.emplace_back(alias);
  for (const meshwright_option* o : info.schema.options)
    options.push_back(json::object{
        {"name", o->name},
        {"type", describe_type(*o)},
        {"default",
         o->default_value == nullptr ? json::value(nullptr) : json::value(o->default_value)},
        {"aliases", o->aliases == nullptr ? json::value(nullptr) : json::value(o->aliases)},
        {"doc", o->doc}});
  return {{"name", info.name},
          {"aliases", aliases},
          {"summary", info.summary},
          {"table", info.schema.table},
          {"options", options}};
}

int run_list(Call& call) {
  loader::Registry registry(search_path(call));
  std::vector<loader::Listing> all = registry.list();
  Diagnostics said;
  for (const std::string& folder : loader::relative_plugin_folders())
    said.warning("MESHWRIGHT_PLUGIN_PATH: " + folder +
                 " is left out, for it is not an absolute path");
  call.say(said);
  if (call.json) {
    json::array rows;
    for (const loader::Listing& listing : all) {
      json::object row{{"path", listing.path.string()}, {"place", listing.place}};
      if (listing.plugin != nullptr) {
        json::array strategies;
        for (const loader::StrategyInfo& info : listing.plugin->strategies)
          strategies.push_back(json::object{{"name", info.name},
                                            {"summary", info.summary},
                                            {"capabilities", capabilities(info.capabilities)}});
        row["name"] = listing.plugin->name;
        row["version"] = listing.plugin->version;
        row["strategies"] = strategies;
        for (const Sort& sort : kSorts) row[sort.key] = names_of(listing.plugin->*sort.of);
      } else {
        row["refused"] = json::object{{"code", code_string(listing.refused->code())},
                                      {"message", listing.refused->message()}};
      }
      rows.push_back(std::move(row));
    }
    call.print_json(json::object{{"plugins", rows}});
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {
      {"strategy", "can", "plugin", "place", "what it is"}};
  for (const loader::Listing& listing : all)
    if (listing.plugin != nullptr)
      for (const loader::StrategyInfo& info : listing.plugin->strategies)
        rows.push_back({info.name, capabilities(info.capabilities),
                        listing.plugin->name + " " + listing.plugin->version, listing.place,
                        info.summary});
  if (rows.size() > 1) call.out.write(report::table(call.out_style, rows));
  bool more = rows.size() > 1;
  for (const Sort& sort : kSorts) {
    rows = {{sort.what, "plugin", "place", "what it is"}};
    for (const loader::Listing& listing : all)
      if (listing.plugin != nullptr)
        for (const loader::ComponentInfo& info : listing.plugin->*sort.of)
          rows.push_back({info.name, listing.plugin->name + " " + listing.plugin->version,
                          listing.place, info.summary});
    if (rows.size() == 1) continue;
    call.out.write((more ? "\n" : "") + report::table(call.out_style, rows));
    more = true;
  }
  for (const loader::Listing& listing : all)
    if (listing.refused)
      call.out.write("\nrefused " + listing.path.string() + " (" + listing.place + ")\n" +
                     report::format_error(call.out_style, *listing.refused));
  if (all.empty()) {
    call.out.write("no plugins; searched\n");
    for (const auto& [place, path] : registry.places())
      call.out.write("  " + place + ": " + path.string() + "\n");
  }
  return 0;
}

int run_inspect(Call& call) {
  loader::Registry registry(search_path(call));
  const loader::LoadedPlugin& plugin = plugin_of(registry, call.positional(0));
  if (call.json) {
    json::object facts;
    for (const auto& [key, value] : plugin.facts) facts[key] = value;
    json::array strategies;
    for (const loader::StrategyInfo& info : plugin.strategies) {
      json::object one = described(info);
      one["capabilities"] = capabilities(info.capabilities);
      strategies.push_back(std::move(one));
    }
    json::object out{{"name", plugin.name},
                     {"version", plugin.version},
                     {"vendor", plugin.vendor},
                     {"license", plugin.license},
                     {"summary", plugin.summary},
                     {"path", plugin.path.string()},
                     {"place", plugin.place},
                     {"facts_hash", plugin.facts_hash},
                     {"facts", facts},
                     {"strategies", strategies}};
    for (const Sort& sort : kSorts) {
      json::array all;
      for (const loader::ComponentInfo& info : plugin.*sort.of) all.push_back(described(info));
      out[sort.key] = all;
    }
    call.print_json(out);
    return 0;
  }
  const report::Style& style = call.out_style;
  call.out.write(report::paint(style, report::Tone::bold, plugin.name + " " + plugin.version) +
                 "  " + plugin.summary + "\n");
  call.out.write(report::table(style, {{"", ""},
                                       {"vendor", plugin.vendor},
                                       {"license", plugin.license},
                                       {"library", plugin.path.string()},
                                       {"found in", plugin.place},
                                       {"facts hash", plugin.facts_hash}}));
  auto show = [&](const std::string& what, const loader::ComponentInfo& info,
                  const std::string& can) {
    call.out.write(
        "\n" + report::paint(style, report::Tone::bold, what + " " + info.name) + "  " +
        info.summary + "\n" +
        (info.aliases.empty() ? "" : "also called " + text::join(info.aliases, ", ") + "\n") + can +
        "options in [" + info.schema.table + "]\n");
    std::vector<std::vector<std::string>> rows = {{"option", "default", "type", "meaning"}};
    for (const meshwright_option* o : info.schema.options)
      rows.push_back({o->name, o->default_value == nullptr ? "not set" : o->default_value,
                      describe_type(*o), std::string(o->doc) + other_names(*o)});
    if (rows.size() > 1) call.out.write(report::table(style, rows));
  };
  for (const loader::StrategyInfo& info : plugin.strategies)
    show("strategy", info, "can: " + capabilities(info.capabilities) + "; ");
  for (const Sort& sort : kSorts)
    for (const loader::ComponentInfo& info : plugin.*sort.of) show(sort.what, info, "");
  call.out.write("\n" + report::paint(style, report::Tone::bold, "build facts") + "\n");
  std::vector<std::vector<std::string>> facts = {{"fact", "value"}};
  for (const auto& [key, value] : plugin.facts) facts.push_back({key, value});
  call.out.write(report::table(style, facts));
  return 0;
}

}  // namespace

Verb plugins_list_verb() {
  return declare(run_list, R"(
plugins list
List the strategies, models and data sets that plugins bring, and the libraries that were refused

Looked for in: [plugins] load and path (with --file), MESHWRIGHT_PLUGIN_PATH, the user's data
folder, the installation.

--file FILE  Also look where this configuration's [plugins] says.
--json
)");
}

Verb plugins_inspect_verb() {
  return declare(run_inspect, R"(
plugins inspect NAME|FILE
Show a plugin: its descriptor, options and build facts

  meshwright plugins inspect fsdp2
  meshwright plugins inspect ./libmeshwright_mine.so

--file FILE  Also look where this configuration's [plugins] says.
--json
)");
}

}  // namespace meshwright::cli
