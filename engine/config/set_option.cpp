#include "engine/config/set_option.h"

#include "engine/config/config.h"
#include "engine/config/interpolate.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/words.h"

namespace meshwright::config {
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
  if (!is_valid_utf8(text) || text.find('\0') != std::string::npos) {
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

}  // namespace meshwright::config
