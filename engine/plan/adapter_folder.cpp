#include "engine/plan/adapter_folder.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <filesystem>
#include <optional>

#include "sdk/files/read_file.h"
#include "sdk/files/strict_json.h"

namespace meshwright::plan {
namespace {

namespace json = boost::json;

constexpr const char* kKey = "lora.adapter";

// What would make other adapters of these tensors, or adapters of something else. Unset, false,
// empty and these values are what is read here.
constexpr const char* kUnread[] = {"lora_bias",
                                   "fan_in_fan_out",
                                   "layer_replication",
                                   "target_parameters",
                                   "trainable_token_indices",
                                   "use_dora",
                                   "use_qalora",
                                   "use_bdlora",
                                   "arrow_config",
                                   "alora_invocation_tokens",
                                   "modules_to_save",
                                   "rank_pattern",
                                   "alpha_pattern"};

bool is_unset(const json::value& value) {
  if (value.is_null()) return true;
  if (value.is_bool()) return !value.as_bool();
  if (value.is_array()) return value.as_array().empty();
  return value.is_object() && value.as_object().empty();
}

class Reading {
 public:
  // `table`: [lora], which it is held against; nullptr: nothing is.
  Reading(const std::filesystem::path& folder, const Options* table, Diagnostics& diagnostics)
      : table_(table), diagnostics_(diagnostics), file_(folder / "adapter_config.json") {}

  void check() {
    std::error_code failed;
    if (!std::filesystem::is_regular_file(file_, failed))
      return add(Error(ErrorCode::file_unreadable, "there is no " + file_.string())
                     .help("name a folder with adapter_config.json and adapter_model.safetensors"));
    try {
      config_ = base::parse_strictly(base::read_file(file_), {});
    } catch (const base::JsonProblem& problem) {
      return add(unread("byte " + std::to_string(problem.offset) + ": " + problem.what));
    }
    if (!config_.is_object()) return add(unread("is not a JSON object"));
    if (text_of("peft_type") != "LORA")
      return add(unread("peft_type is " + shown("peft_type") + ", not \"LORA\""));
    for (const char* name : kUnread)
      if (const json::value* value = find(name); value != nullptr && !is_unset(*value))
        add(unread(std::string(name) + " = " + shown(name) + " is not read here"));
    if (const json::value* bias = find("bias"); bias != nullptr && text_of("bias") != "none")
      add(unread("bias = " + shown("bias") + " is not read here"));
    // Some change the base's weights before the first step.
    if (const json::value* init = find("init_lora_weights");
        init != nullptr && !init->is_bool() && text_of("init_lora_weights") != "gaussian" &&
        text_of("init_lora_weights") != "orthogonal")
      add(unread("init_lora_weights = " + shown("init_lora_weights") + " changes the base model"));
    compare_number("r", "r");
    compare_number("lora_alpha", "alpha");
    const bool root = is_true("use_rslora");
    if (table_ != nullptr && root != table_->get_bool("rslora"))
      differs("use_rslora", "rslora", root ? "true" : "false");
  }

  // After check(), where it has added nothing.
  AdapterFolder contents() const {
    const double r = find("r")->to_number<double>();
    if (r < 1 || r != std::floor(r) || r > INT32_MAX)
      throw unread("r is " + shown("r") + ", not an integer above 0");
    return {.r = static_cast<int64_t>(r),
            .alpha = find("lora_alpha")->to_number<double>(),
            .rank_stabilized = is_true("use_rslora"),
            .base = text_of("base_model_name_or_path")};
  }

 private:
  const json::value* find(const char* name) const { return config_.as_object().if_contains(name); }
  std::string text_of(const char* name) const {
    const json::value* value = find(name);
    return value != nullptr && value->is_string() ? std::string(value->as_string()) : "";
  }
  bool is_true(const char* name) const {
    const json::value* value = find(name);
    return value != nullptr && value->is_bool() && value->as_bool();
  }
  std::string shown(const char* name) const {
    const json::value* value = find(name);
    return value == nullptr ? "not set" : json::serialize(*value);
  }
  void add(Error error) {
    if (table_ != nullptr && error.key().empty()) error.key(kKey).at(table_->origin("adapter"));
    diagnostics_.add(std::move(error));
  }
  Error unread(const std::string& what) const {
    Error error(ErrorCode::weights_mismatch, file_.string() + ": " + what);
    if (table_ != nullptr) error.help("set lora.adapter = \"none\" to begin with new adapters");
    return error;
  }
  void differs(const char* theirs, const char* ours, const std::string& value) {
    add(Error(ErrorCode::conflict, file_.string() + ": " + theirs + " is " + shown(theirs) +
                                       ", but lora." + ours + " = " + to_toml(table_->value(ours)))
            .key(std::string("lora.") + ours)
            .at(table_->origin(ours))
            .help(std::string("set lora.") + ours + " = " + value));
  }
  void compare_number(const char* theirs, const char* ours) {
    const json::value* value = find(theirs);
    if (value == nullptr || !value->is_number())
      return add(unread(std::string(theirs) + " is " + shown(theirs) + ", not a number"));
    if (table_ != nullptr && value->to_number<double>() != table_->get_number(ours))
      differs(theirs, ours, shown(theirs));
  }

  const Options* table_;
  Diagnostics& diagnostics_;
  std::filesystem::path file_;
  json::value config_;
};

}  // namespace

void check_adapter_folder(const config::Config& config, Diagnostics& diagnostics) {
  const Options& table = config.table("lora");
  if (!table.is_set("adapter") || table.get_int("r") == 0) return;
  Reading(table.get_string("adapter"), &table, diagnostics).check();
}

AdapterFolder read_adapter_folder(const std::filesystem::path& folder) {
  Diagnostics problems;
  Reading reading(folder, nullptr, problems);
  reading.check();
  problems.throw_if_any();
  return reading.contents();
}

}  // namespace meshwright::plan
