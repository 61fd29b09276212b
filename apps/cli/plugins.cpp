#include <algorithm>
#include <boost/json/array.hpp>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "apps/cli/common.h"
#include "sdk/base/host_facts.h"
#include "sdk/base/shell_word.h"
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

// plugins new: a plugin to start from, built out of tree against the installed package.

namespace {

namespace fs = std::filesystem;

struct Template {
  const char* kind;
  const char* folder;
  const char* word;  // which the new name replaces, also in CamelCase
  bool plans;        // its job can be planned for several ranks
};
constexpr Template kTemplates[] = {{"strategy", "template", "my_strategy", true},
                                   {"model", "template_model", "my_model", true},
                                   {"data", "template_data", "my_data", false}};

const Template& template_of(const std::string& kind) {
  std::vector<std::string> kinds;
  for (const Template& one : kTemplates) {
    if (kind == one.kind) return one;
    kinds.emplace_back(one.kind);
  }
  throw Error(ErrorCode::usage, "there is no template of a plugin of kind \"" + kind + "\"")
      .help("there is --kind " + text::join(kinds, ", --kind "));
}

// What is already called so; empty: nothing.
std::string taken_by(const std::string& name) {
  loader::Registry registry({});
  for (const loader::Listing& listing : registry.list()) {
    if (listing.plugin == nullptr) continue;
    for (const loader::StrategyInfo& info : listing.plugin->strategies)
      if (info.name == name) return "a strategy " + name + ", in " + listing.path.string();
    for (const loader::ComponentInfo& info : listing.plugin->models)
      if (info.name == name) return "a model " + name + ", in " + listing.path.string();
    for (const loader::ComponentInfo& info : listing.plugin->datasets)
      if (info.name == name) return "a data set " + name + ", in " + listing.path.string();
  }
  return "";
}

std::string camel(const std::string& name) {
  std::string out;
  bool upper = true;
  for (char c : name) {
    if (c == '_') {
      upper = true;
      continue;
    }
    out += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    upper = false;
  }
  return out;
}

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// Writes one file and the folders above it.
void write_file(const fs::path& file, const std::string& text) {
  auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::output_unwritable, "cannot write " + file.string() + ": " + why)
        .help("--dir FOLDER: write it elsewhere");
  };
  std::error_code failed;
  fs::create_directories(file.parent_path(), failed);
  if (failed) throw refuse(failed.message());
  errno = 0;
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw refuse(errno == 0 ? "the disk takes no more" : std::strerror(errno));
}

int run_new(Call& call) {
  std::string name = call.positional(0);
  const Template& made = template_of(call.value("kind", "strategy"));
  bool good =
      !name.empty() && name.size() <= 48 && std::islower(static_cast<unsigned char>(name[0])) &&
      std::all_of(name.begin(), name.end(),
                  [](unsigned char c) { return std::islower(c) || std::isdigit(c) || c == '_'; });
  if (!good)
    throw Error(
        ErrorCode::usage,
        "\"" + name +
            "\" is not a plugin name: a-z, 0-9 and _, a letter first, at most 48 characters")
        .help("meshwright plugins new my_strategy");
  fs::path target = call.value("dir", name);
  std::error_code failed;
  if (fs::exists(target, failed) &&
      (!fs::is_directory(target, failed) || !fs::is_empty(target, failed)))
    throw Error(ErrorCode::usage, target.string() + " is already there and not an empty folder")
        .help("meshwright plugins new " + name + " --dir ANOTHER");
  if (const std::string there = taken_by(name); !there.empty())
    throw Error(ErrorCode::usage, "there is already " + there)
        .help("choose another name, for example " + name + "_2");

  const fs::path source =
      shipped(fs::path("meshwright") / made.folder, fs::path("sdk/kit") / made.folder);
  const std::string word = made.word;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(source)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    fs::path to = target / replace_all(fs::relative(entry.path(), source).string(), word, name);
    write_file(to, replace_all(replace_all(text.str(), word, name), camel(word), camel(name)));
  }
  // As it was called, where PATH leads to it; the commands are for another folder.
  const std::string called = called_as();
  const std::string run =
      called.find('/') == called.npos ? called : text::shell_word(program_path().string());
  call.out.write(
      "made " + target.string() + "/\n\nnext:\n  cd " + text::shell_word(target.string()) +
      "\n  cmake -B build -DCMAKE_PREFIX_PATH=" + text::shell_word(installation().string()) +
      "\n  cmake --build build\n  ctest --test-dir build\n  " +
      (made.plans ? run + " plan job.toml --world-size 8\n  " : "") + run +
      " train job.toml --nproc 2\n");
  return 0;
}

}  // namespace

Verb plugins_new_verb() {
  return declare(run_new, R"(
plugins new NAME
Make a new plugin from a template

Writes CMakeLists.txt, a small strategy that trains (or a small model, or a small kind of data set),
its tests and a job, and says how to build them.

--kind KIND=strategy|model|data
              What it brings: strategy, model or data. Default: strategy.
--dir FOLDER  Where to. Default: NAME in the current folder.
)");
}

}  // namespace meshwright::cli
