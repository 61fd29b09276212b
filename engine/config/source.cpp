#include "engine/config/source.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <system_error>

#include "engine/config/config.h"
#include "engine/config/sources.h"
#include "engine/config/toml_value.h"
#include "sdk/base/files/utf8.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/words.h"
#include "sdk/text/tokenizer/folder.h"

namespace meshwright::config {

namespace {

using Environment = std::function<std::optional<std::string>(const std::string&)>;

struct BadReference {
  std::string message, help;
};

bool is_name(std::string_view name) {
  return !name.empty() && !std::isdigit(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return text::is_alphanumeric(c) || c == '_'; });
}

// One reference without its braces: VAR or VAR:-default.
std::string look_up(std::string_view body, const Environment& environment) {
  size_t colon = body.find(":-");
  std::string name(body.substr(0, colon));
  std::string shown = "${" + std::string(body) + "}";
  if (!is_name(name))
    throw BadReference{shown + " does not name an environment variable",
                       "write ${NAME} or ${NAME:-default}, or $${ for a literal ${"};
  std::optional<std::string> value = environment(name);
  if (value && base::first_invalid(*value) < value->size())
    throw BadReference{"environment variable " + name + " is not valid UTF-8", "unset " + name};
  // As in a shell, ":-" also covers a variable that is set but empty.
  if (colon != std::string_view::npos)
    return value && !value->empty() ? *value : std::string(body.substr(colon + 2));
  if (!value)
    throw BadReference{"environment variable " + name + " is not set",
                       "export " + name + "=..., or give a default: ${" + name + ":-default}"};
  return *value;
}

std::string replaced(std::string_view text, const Environment& environment) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (text.substr(i, 3) == "$${") {
      out += "${";
      i += 3;
    } else if (text.substr(i, 2) == "${") {
      size_t end = text.find('}', i);
      if (end == std::string_view::npos)
        throw BadReference{"${ without a closing }",
                           "close it: ${NAME}, or write $${ for a literal ${"};
      std::string_view body = text.substr(i + 2, end - i - 2);
      if (body.find("${") != std::string_view::npos)
        throw BadReference{"a reference inside a reference is not possible: " +
                               std::string(text.substr(i, end - i + 1)),
                           "use one ${NAME:-default} with a plain default"};
      out += look_up(body, environment);
      i = end + 1;
    } else {
      out += text[i++];
    }
  }
  return out;
}

// Replaces the references in every string of the tree; values are not scanned again. Each problem
// is an E0207 that names the key and its place in `file`.
void interpolate(Value& value, const std::string& key, const Environment& environment,
                 const std::string& file, Diagnostics& diagnostics) {
  if (value.kind == Value::Kind::string && value.text.find("${") != std::string::npos) {
    Place& place = value.place;
    try {
      std::string text = replaced(value.text, environment);
      // "$${" alone consults no environment.
      if (text != value.text && escape_references(text) != value.text &&
          place.source == Origin::Source::file)
        place.source = Origin::Source::environment;
      value.text = std::move(text);
    } catch (const BadReference& bad) {
      Origin origin{place.source, place.source == Origin::Source::file ? file : std::string(),
                    place.line, place.column};
      diagnostics.add(Error(ErrorCode::bad_interpolation, key + ": " + bad.message)
                          .key(key)
                          .at(origin)
                          .help(bad.help));
    }
  }
  for (Value& item : value.items) interpolate(item, key, environment, file, diagnostics);
  for (Entry& entry : value.entries)
    interpolate(entry.value, join_key(key, entry.key), environment, file, diagnostics);
}

}  // namespace

std::string escape_references(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "${") out += '$';
    out += text[i];
  }
  return out;
}

namespace {

void mark(Value& value) {
  value.place = {Origin::Source::command_line, 0, 0};
  for (Value& item : value.items) mark(item);
  for (Entry& entry : value.entries) {
    entry.place = value.place;
    mark(entry.value);
  }
}

bool is_section(const std::vector<std::string>& path) {
  if (path.size() == 1) return true;
  if (path[0] != "distributed") return false;
  // Below [distributed] everything that is no key of its own is a section: mp_policy, moe, a
  // strategy's table.
  return distributed_schema().find(path[1]) == nullptr;
}

void merge(Value& into, Value from) {
  for (Entry& entry : from.entries) {
    Entry* there = into.find(entry.key);
    if (there == nullptr)
      into.entries.push_back(std::move(entry));
    else
      there->value = std::move(entry.value);
  }
}

Error bad(const std::string& text, const std::string& what) {
  return Error(ErrorCode::bad_set, "--set " + text + ": " + what)
      .at({Origin::Source::command_line, {}, 0, 0});
}

// The first '=' outside quotes.
size_t equals_sign(std::string_view text) {
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quote != 0) {
      if (text[i] == quote) quote = 0;
    } else if (text[i] == '"' || text[i] == '\'') {
      quote = text[i];
    } else if (text[i] == '=') {
      return i;
    }
  }
  return std::string_view::npos;
}

}  // namespace

void apply_set(Value& root, const std::string& text, Diagnostics& diagnostics) {
  if (base::first_invalid(text) < text.size() || text.find('\0') != std::string::npos) {
    diagnostics.add(Error(ErrorCode::bad_set, "a --set argument is not valid UTF-8 text")
                        .help("--set distributed.tp_size=2"));
    return;
  }
  size_t equals = equals_sign(text);
  if (equals == std::string_view::npos) {
    Error error = bad(text, "there is no '='");
    std::string key(text::trim(text));
    if (split_key(key)) error.help("--set " + key + "=VALUE");
    diagnostics.add(
        error.help("--set distributed.tp_size=2").help("--set distributed.strategy=ddp"));
    return;
  }
  std::string key(text::trim(std::string_view(text).substr(0, equals)));
  std::string value_text = text.substr(equals + 1);
  std::optional<std::vector<std::string>> path = split_key(key);
  if (!path || path->size() > 8) {
    diagnostics.add(
        bad(text, key.empty() ? "the key is missing" : "\"" + key + "\" is not a dotted key")
            .help("--set distributed.tp_size=2")
            .help("quote a part that holds other characters: --set "
                  "'distributed.tp_plan.\"model.layers.*.mlp.up_proj\"=colwise'"));
    return;
  }
  std::string why;
  std::optional<Value> value = parse_toml_value(value_text, &why);
  if (!value) {
    value = Value(value_text);
    if (std::string_view start = text::trim(value_text);
        !start.empty() && std::string_view("[{\"'").find(start[0]) != std::string_view::npos)
      diagnostics.notice("--set " + key + ": " + value_text + " is not TOML (" + why +
                         "), so it is read as plain text");
  } else if (value->kind != Value::Kind::string && value->kind != Value::Kind::list &&
             !value->is_table()) {
    value->typed = text::trim(value_text);
  }
  mark(*value);
  Value* table = &root;
  for (size_t i = 0; i + 1 < path->size(); ++i) {
    const std::string& part = (*path)[i];
    Entry* entry = table->find(part);
    if (entry == nullptr) {
      table->entries.push_back({part, value->place, Value()});
      entry = &table->entries.back();
    } else if (!entry->value.is_table()) {
      entry->value = Value();
    } else {
      table = &entry->value;
      continue;
    }
    entry->value.place = value->place;
    table = &entry->value;
  }
  Entry* last = table->find(path->back());
  if (last == nullptr) {
    table->entries.push_back({path->back(), value->place, std::move(*value)});
  } else if (last->value.is_table() && value->is_table() && is_section(*path)) {
    merge(last->value, std::move(*value));
  } else {
    last->value = std::move(*value);
    last->place = last->value.place;
  }
}

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
  interpolate(source.impl_->root, "",
              options.environment ? options.environment : process_environment,
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

std::string text_at(const Value* table, std::string_view key) {
  const Entry* entry = table == nullptr ? nullptr : table->find(key);
  const std::string* text = entry == nullptr ? nullptr : entry->value.as_text();
  return text == nullptr || *text == "none" || *text == "auto" ? "" : *text;
}

std::vector<const Value*> tables_of(const Value& table, std::string_view name) {
  std::vector<const Value*> out;
  if (const Entry* list = table.find(name))
    for (const Value& one : list->value.items) out.push_back(&one);
  return out;
}

bool reads_text(const Value& data, const Value* whole) {
  const std::string own = text_at(&data, "kind"), kind = own.empty() ? text_at(whole, "kind") : own;
  const bool plugin =
      !text_at(&data, "plugin").empty() || (own.empty() && !text_at(whole, "plugin").empty());
  return !plugin && (kind.empty() || kind == "text");
}

std::string Source::component(const char* table) const {
  const std::string named = text_at(descend(impl_->root, {table}), "plugin");
  return named.empty() && !tokenizer(table).empty() ? kTextComponent : named;
}

std::string Source::tokenizer(const char* table) const {
  const Value* whole = descend(impl_->root, {table});
  if (whole == nullptr || std::string_view(table) == "model") return {};
  const std::string list = sources_of(table).substr(std::string_view(table).size() + 1);
  const bool reads = (!text_at(whole, "path").empty() && reads_text(*whole)) ||
                     std::ranges::any_of(tables_of(*whole, list),
                                         [&](const Value* one) { return reads_text(*one, whole); });
  if (!reads) return {};
  std::string named = text_at(whole, "tokenizer");
  if (named.empty()) named = text_at(descend(impl_->root, {"dataset"}), "tokenizer");
  if (!named.empty()) return named == kBytes ? "" : named;
  const Value* model = descend(impl_->root, {"model"});
  const std::string folder =
      language_folder(text_at(model, "pretrained"), text_at(model, "config")).path;
  return !folder.empty() && tokenizer::tokenizer_file(folder) ? folder : "";
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
        // Those of a source of its own, [dataset.mix.jsonl].
        for (const Value& source : entry.value.items)
          for (const Entry& own : source.entries)
            if (own.value.is_table() && own.key != "schedule")
              out.push_back(std::string(table) + "." + own.key);
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
