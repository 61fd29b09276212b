#include "engine/config/source.h"

#include <cstdlib>
#include <fstream>
#include <system_error>

#include "engine/config/interpolate.h"
#include "engine/config/set_option.h"
#include "engine/config/syntax.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/words.h"

namespace meshwright::config {
namespace {

namespace fs = std::filesystem;

Error unreadable(const fs::path& file, const std::string& why) {
  return Error(ErrorCode::file_unreadable, file.string() + ": " + why)
      .at({Origin::Source::file, file.string(), 0, 0});
}

const Value* descend(const Value& root, std::initializer_list<const char*> path) {
  const Value* value = &root;
  for (const char* part : path) {
    const Entry* entry = value->find(part);
    if (entry == nullptr) return nullptr;
    value = &entry->value;
  }
  return value;
}

struct PluginPath {
  fs::path path;
  Origin origin;
  std::string written;
};

std::vector<PluginPath> plugin_paths(const Source::Impl& impl, const char* key) {
  std::vector<PluginPath> out;
  const Value* value = descend(impl.root, {"plugins", key});
  if (value == nullptr) return out;
  auto add = [&](const Value& item) {
    if (item.kind != Value::Kind::string || item.text.empty()) return;  // resolve() reports it
    std::error_code error;
    // What the user types on the command line starts where the user stands.
    fs::path base =
        item.place.source == Origin::Source::command_line ? fs::path() : impl.file.parent_path();
    out.push_back({fs::absolute(base / item.text, error).lexically_normal(),
                   impl.origin(item.place), item.text});
  };
  add(*value);
  for (const Value& item : value->items) add(item);
  return out;
}

std::vector<fs::path> paths_of(std::vector<PluginPath> found) {
  std::vector<fs::path> out;
  for (PluginPath& one : found) out.push_back(std::move(one.path));
  return out;
}

// Whether it is a choice of [table] kind.
bool is_own_kind(std::string_view table, const std::string& kind) {
  for (const OptionSchema& schema : engine_schemas())
    if (schema.table == table)
      if (const meshwright_option* option = schema.find("kind"))
        for (const std::string& choice : text::split(option->choices, '|'))
          if (choice == kind) return true;
  return false;
}

}  // namespace

std::optional<std::string> read_configuration(const fs::path& file, Diagnostics& diagnostics) {
  std::error_code error;
  fs::file_status status = fs::status(file, error);
  if (status.type() == fs::file_type::not_found) {
    Error missing = unreadable(file, "there is no such file");
    std::vector<std::string> names;
    fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
    for (fs::directory_iterator it(folder, error), end; !error && it != end && names.size() < 1000;
         it.increment(error))
      if (it->path().extension() == ".toml") names.push_back(it->path().filename().string());
    if (std::string near = nearest_name(file.filename().string(), names); !near.empty())
      missing.help("did you mean " + (file.parent_path() / near).string() + "?");
    if (const fs::path here = fs::current_path(error); !error)
      missing.help("relative paths start at the current folder, " + here.string());
    diagnostics.add(missing);
    return std::nullopt;
  }
  if (error) {
    diagnostics.add(unreadable(file, error.message()).help("check the path and its permissions"));
    return std::nullopt;
  }
  if (status.type() != fs::file_type::regular) {
    diagnostics.add(
        unreadable(file, status.type() == fs::file_type::directory ? "this is a folder"
                                                                   : "this is not a regular file")
            .help("name a TOML file" + (fs::exists(file / "config.toml", error)
                                            ? ", for example " + (file / "config.toml").string()
                                            : std::string())));
    return std::nullopt;
  }
  auto too_large = [&] {
    diagnostics.add(unreadable(file, "larger than " + std::to_string(kMaxFileBytes) +
                                         " bytes, too large for a configuration")
                        .help("check that this is the file you mean"));
    return std::nullopt;
  };
  if (uintmax_t size = fs::file_size(file, error); !error && size > kMaxFileBytes)
    return too_large();
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!stream.is_open() || stream.bad()) {
    diagnostics.add(unreadable(file, std::error_code(errno, std::generic_category()).message())
                        .help("chmod u+r " + file.string()));
    return std::nullopt;
  }
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMaxFileBytes) return too_large();
  return text;
}

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Source::Source() : impl_(std::make_unique<Impl>()) {}
Source::Source(Source&&) noexcept = default;
Source& Source::operator=(Source&&) noexcept = default;
Source::~Source() = default;

Origin Source::Impl::origin(const Place& place) const {
  return {place.source, place.line > 0 ? file.string() : std::string(), place.line, place.column};
}

Source Source::load(const LoadOptions& options, Diagnostics& diagnostics) {
  if (options.file.empty()) return parse("", options, diagnostics);
  std::optional<std::string> text = read_configuration(options.file, diagnostics);
  return text ? parse(*text, options, diagnostics) : Source();
}

Source Source::parse(std::string_view text, const LoadOptions& options, Diagnostics& diagnostics) {
  Source source;
  std::optional<Value> root = parse_toml(text, options.file.string(), diagnostics);
  if (!root) return source;
  source.impl_->file = options.file;
  source.impl_->root = std::move(*root);
  for (const std::string& set : options.sets) apply_set(source.impl_->root, set, diagnostics);
  interpolate(source.impl_->root, options.environment ? options.environment : process_environment,
              options.file.string(), diagnostics);
  return source;
}

std::string Source::strategy() const {
  const Value* value = descend(impl_->root, {"distributed", "strategy"});
  const std::string* text = value == nullptr ? nullptr : value->as_text();
  return text == nullptr ? "fsdp2" : *text;
}

Origin Source::strategy_origin() const {
  const Value* value = descend(impl_->root, {"distributed", "strategy"});
  return value == nullptr ? Origin{} : impl_->origin(value->place);
}

std::vector<fs::path> Source::plugin_files() const {
  return paths_of(plugin_paths(*impl_, "load"));
}
std::vector<fs::path> Source::plugin_folders() const {
  return paths_of(plugin_paths(*impl_, "path"));
}
std::vector<Origin> Source::plugin_file_origins() const {
  std::vector<Origin> out;
  for (PluginPath& file : plugin_paths(*impl_, "load")) out.push_back(std::move(file.origin));
  return out;
}

std::vector<std::string> Source::relative_plugins() const {
  std::vector<std::string> out;
  for (const char* key : {"load", "path"})
    for (const PluginPath& one : plugin_paths(*impl_, key))
      if (one.origin.source == Origin::Source::file && !fs::path(one.written).is_absolute())
        out.push_back(one.written);
  return out;
}

std::vector<std::string> Source::strategy_tables() const {
  std::vector<std::string> out;
  const Value* distributed = descend(impl_->root, {"distributed"});
  if (distributed == nullptr) return out;
  for (const Entry& entry : distributed->entries) {
    const std::string& key = entry.key;
    bool shared = key == "mp_policy" || key == "moe" || key == "pipeline" || key == "context" ||
                  distributed_schema().find(key) != nullptr;
    if (entry.value.is_table() && !shared) out.push_back(key);
  }
  return out;
}

std::string Source::component(const char* table) const {
  const Value* value = descend(impl_->root, {table, "plugin"});
  const std::string* text = value == nullptr ? nullptr : value->as_text();
  return text == nullptr || *text == "none" || *text == "auto" ? "" : *text;
}

Origin Source::component_origin(const char* table) const {
  const Value* value = descend(impl_->root, {table, "plugin"});
  return value == nullptr ? Origin{} : impl_->origin(value->place);
}

std::vector<std::string> Source::component_tables() const {
  std::vector<std::string> out;
  for (const char* table : kComponentTables)
    if (const Value* found = descend(impl_->root, {table}))
      for (const Entry& entry : found->entries) {
        if (entry.value.is_table()) out.push_back(std::string(table) + "." + entry.key);
        // A kind that is none of the engine's is perhaps a plugin's name.
        if (const std::string* kind = entry.key == "kind" ? entry.value.as_text() : nullptr;
            kind != nullptr && !is_own_kind(table, *kind))
          out.push_back(std::string(table) + "." + *kind);
      }
  return out;
}

std::vector<std::string> Source::foreign_keys() const {
  std::vector<std::string> out;
  if (const Value* distributed = descend(impl_->root, {"distributed"}))
    for (const Entry& entry : distributed->entries)
      if (!entry.value.is_table() && distributed_schema().find(entry.key) == nullptr)
        out.push_back(entry.key);
  return out;
}

}  // namespace meshwright::config
