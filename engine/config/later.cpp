#include "engine/config/later.h"

#include <string_view>

namespace meshwright::config {
namespace {

constexpr const char* kQuantised = "a quantised base";

struct Later {
  const char* key;
  std::string_view word;
  const char* what;
  std::string_view instead;
};
constexpr Later kLater[] = {
    {"optimizer.name", "muon", "Muon, which updates whole matrices,", "adamw"},
    {"optimizer.name", "lion", "Lion", "adamw"},
    {"lora.base_dtype", "nf4", kQuantised, "bfloat16"},
    {"lora.base_dtype", "fp4", kQuantised, "bfloat16"},
    {"lora.base_dtype", "int4", kQuantised, "bfloat16"},
    {"lora.base_dtype", "int8", kQuantised, "bfloat16"},
};

struct LaterKey {
  std::string_view key;
  const char* what;
};
constexpr LaterKey kLaterKeys[] = {
    {"optimizer.layer_decay", "a learning rate that falls from layer to layer"},
    {"optimizer.state_dtype", "a dtype of the optimizer's state of its own"},
};

}  // namespace

std::optional<Error> later_than_this(const std::string& key, const Value& value) {
  if (value.kind != Value::Kind::string) return std::nullopt;
  for (const Later& one : kLater)
    if (key == one.key && value.text == one.word)
      return Error(ErrorCode::not_in_release,
                   key + " = \"" + value.text + "\": " + one.what + " is not in this version")
          .key(key)
          .help("set " + key + " = \"" + std::string(one.instead) + "\"");
  return std::nullopt;
}

std::optional<Error> later_key(const std::string& key, bool from_set) {
  for (const LaterKey& one : kLaterKeys)
    if (key == one.key)
      return Error(ErrorCode::not_in_release, key + ": " + one.what + " is not in this version")
          .key(key)
          .help(from_set ? "remove --set " + key : std::string("remove the line"));
  return std::nullopt;
}

}  // namespace meshwright::config
