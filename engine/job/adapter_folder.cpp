#include "engine/job/adapters.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <variant>

#include "engine/checkpoint/weights/model_tensors.h"
#include "engine/config/config.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/words.h"

namespace meshwright::plan {

namespace {

namespace json = boost::json;

constexpr const char *kAdapterKey = "lora.adapter",
                     *kNewAdapters = "set lora.adapter = \"none\" to begin with new adapters";

// What would make other adapters of these tensors, or adapters of something else. Unset, false,
// empty and these values are what is read here.
constexpr const char* kUnread[] = {
    "lora_bias",      "layer_replication", "target_parameters", "trainable_token_indices",
    "use_dora",       "use_qalora",        "use_bdlora",        "arrow_config",
    "kasa_config",    "velora_config",     "monteclora_config", "alora_invocation_tokens",
    "modules_to_save"};

bool is_unset(const json::value& value) {
  if (value.is_null()) return true;
  if (value.is_bool()) return !value.as_bool();
  if (value.is_array()) return value.as_array().empty();
  return value.is_object() && value.as_object().empty();
}

// peft's own value for weights that lie [in, out], and what an export of them says. A and B are the
// same tensors either way.
bool has_transposed(const ModelOutline& model) {
  return std::ranges::any_of(model.parameters,
                             [](const ParameterOutline& p) { return p.stored.transposed; });
}

bool is_rank(double number) { return number == std::floor(number) && number < 1e9; }

StringMap pattern_in(const Options& table, const char* name) {
  const auto* pattern = std::get_if<StringMap>(&table.value(name));
  return pattern != nullptr ? *pattern : StringMap();
}

// To compare: 4, 4.0 and "4" are the same number. The order stays, since the first entry that is
// for a module counts.
StringMap as_numbers(StringMap pattern) {
  for (auto& [name, given] : pattern)
    if (const auto number = text::to_number<double>(given)) given = to_toml(*number);
  return pattern;
}

bool has_transposed(const Job& job) try {
  const std::optional<JobModel> model = model_of(job);
  return model && has_transposed(model->outline(job.config));
} catch (const Error&) {
  return false;  // said where the job is planned
}

class AdapterConfig {
 public:
  // `table`: [lora], which outlives this; nullptr: the folder is no job's, and errors have no key.
  // Throws Error(file_unreadable | weights_mismatch).
  explicit AdapterConfig(const std::filesystem::path& folder, const Options* table = nullptr)
      : table_(table), file_(folder / "adapter_config.json") {
    std::error_code failed;
    if (!std::filesystem::is_regular_file(file_, failed))
      throw located(Error(ErrorCode::file_unreadable, "there is no " + file_.string())
                        .help("name a folder with adapter_config.json and "
                              "adapter_model.safetensors"));
    try {
      text_ = base::read_file(file_);
      config_ = base::parse_strictly(text_, {});
    } catch (const base::JsonProblem& problem) {
      throw damaged("byte " + std::to_string(problem.offset) + ": " + problem.what);
    }
    if (!config_.is_object()) throw damaged("is not a JSON object");
    if (text_of("peft_type") != "LORA")
      throw unread("peft_type is " + shown("peft_type") + ", not \"LORA\"");
  }

  // `transposed`: the model has weights that lie [in, out].
  void check_read(bool transposed, Diagnostics& diagnostics) const {
    for (const char* name : {"target_modules", "exclude_modules"})
      if (is_broken(name) && (table_ == nullptr || !table_->is_given(name)))
        diagnostics.add(broken(name));
    for (const char* name : kUnread)
      if (const json::value* value = find(name); value != nullptr && !is_unset(*value))
        diagnostics.add(unread(std::string(name) + " = " + shown(name) + " is not read here"));
    if (const json::value* bias = find("bias"); bias != nullptr && text_of("bias") != "none")
      diagnostics.add(unread("bias = " + shown("bias") + " is not read here"));
    if (const json::value* turned = find("fan_in_fan_out");
        turned != nullptr && !is_unset(*turned) && !transposed)
      diagnostics.add(unread("fan_in_fan_out = " + shown("fan_in_fan_out") +
                             ", but the model has no weights that lie so"));
    // Some change the base's weights before the first step, MiCA what an adapter is; EVA chooses A.
    if (const json::value* init = find("init_lora_weights");
        init != nullptr && !init->is_bool() && text_of("init_lora_weights") != "gaussian" &&
        text_of("init_lora_weights") != "orthogonal" && text_of("init_lora_weights") != "eva")
      diagnostics.add(unread("init_lora_weights = " + shown("init_lora_weights") +
                             (text_of("init_lora_weights") == "mica" ? " is not read here"
                                                                     : " changes the base model")));
  }

  void compare(Diagnostics& diagnostics) const {
    auto differ = [&](const Numbers& theirs, const char* ours, double value, const char* pattern) {
      if (theirs.value != value) diagnostics.add(differs(theirs.key, ours, to_toml(theirs.value)));
      if (as_numbers(theirs.some) != as_numbers(pattern_in(*table_, pattern)))
        diagnostics.add(differs(pattern, pattern, to_toml(theirs.some)));
    };
    try {
      differ(r(), "r", static_cast<double>(table_->get_int("r")), "rank_pattern");
      differ(alpha(), "alpha", table_->get_number("alpha"), "alpha_pattern");
    } catch (const Error& error) {
      diagnostics.add(error);
    }
    if (rank_stabilized() != table_->get_bool("rslora"))
      diagnostics.add(differs("use_rslora", "rslora", rank_stabilized() ? "true" : "false"));
  }

  // What `into`, a copy of the table, does not set.
  void fill(Options& into) const {
    auto set = [&](const char* name, const OptionValue& value) {
      if (!table_->is_given(name)) into.set(name, value, table_->origin("adapter"));
    };
    const Numbers ranks = r(), alphas = alpha();
    if (is_rank(ranks.value))
      set("r", static_cast<int64_t>(ranks.value));
    else
      set("r", ranks.value);  // which is refused as any other
    set("alpha", alphas.value);
    if (!ranks.some.empty()) set("rank_pattern", ranks.some);
    if (!alphas.some.empty()) set("alpha_pattern", alphas.some);
    set("rslora", rank_stabilized());
    if (!table_->is_given("target_modules")) set("target_modules", names_of("target_modules"));
    if (const json::value* excluded = find("exclude_modules");
        excluded != nullptr && !is_unset(*excluded) && !table_->is_given("exclude_modules"))
      set("exclude_modules", names_of("exclude_modules"));
  }

  // `model`: the folder of the model beside which they are read; empty: it is none.
  AdapterFolder contents(const std::string& model) const {
    const Numbers ranks = r(), alphas = alpha();
    if (!is_rank(ranks.value)) throw damaged("r is " + shown("r") + ", not an integer above 0");
    return {.r = static_cast<int64_t>(ranks.value),
            .alpha = alphas.value,
            .ranks = base::ModuleNumbers(ranks.value, ranks.some, /*whole=*/true),
            .alphas = base::ModuleNumbers(alphas.value, alphas.some, /*whole=*/false),
            .rank_stabilized = rank_stabilized(),
            .base = text_of("base_model_name_or_path"),
            .other_base = other_base(model),
            .targets = AdapterTargets(config_.as_object())};
  }

  // Of the model that the folder names, where that is here: a copy has another place.
  std::string other_base(const std::string& model) const {
    const std::string base = text_of("base_model_name_or_path");
    std::error_code failed;
    if (base.empty() || model.empty() || !std::filesystem::is_directory(base, failed) ||
        std::filesystem::equivalent(base, model, failed) || failed)
      return "";
    return file_.string() + ": its adapters were trained beside " + base + ", and this is " +
           model + ": beside other weights they are another model";
  }

  void tell_dropout(Diagnostics& diagnostics) const {
    const json::value* value = find("lora_dropout");
    if (value == nullptr || !value->is_number()) return;
    const double theirs = value->to_number<double>();
    if (theirs > 0 && theirs != table_->get_number("dropout"))
      diagnostics.notice(file_.string() + ": lora_dropout is " + to_toml(theirs) +
                         ", but lora.dropout = " + to_toml(table_->value("dropout")) +
                         "; set lora.dropout = " + to_toml(theirs) + " to train on as it did");
  }

 private:
  struct Numbers {
    double value;  // of all modules but some
    const char* key;
    StringMap some;
  };

  const json::value* find(const char* name) const { return config_.as_object().if_contains(name); }
  std::string text_of(const char* name) const {
    const json::value* value = find(name);
    return value != nullptr && value->is_string() ? std::string(value->as_string()) : "";
  }
  std::string shown(const char* name) const {
    const json::value* value = find(name);
    return value == nullptr ? "not set" : json::serialize(*value);
  }
  Error located(Error error) const {
    if (table_ != nullptr) error.key(kAdapterKey).at(table_->origin("adapter"));
    return error;
  }
  Error unread(const std::string& what) const {
    Error error(ErrorCode::weights_mismatch, file_.string() + ": " + what);
    error.help(table_ != nullptr ? kNewAdapters
                                 : "peft makes a whole model of such adapters: "
                                   "merge_and_unload(), save_pretrained(DIR)");
    return located(std::move(error));
  }
  // What peft could not read either.
  Error damaged(const std::string& what) const {
    Error error(ErrorCode::weights_mismatch, file_.string() + ": " + what);
    error.help("write the folder again: peft's save_pretrained(), or meshwright checkpoint export");
    if (table_ != nullptr) error.help(kNewAdapters);
    return located(std::move(error));
  }

  bool is_broken(const char* name) const {
    const std::string text = text_of(name);
    return text != "all-linear" && base::is_broken_expression(text);
  }
  // At its place in the file, which is the same whoever reads it.
  Error broken(const char* name) const {
    const std::string_view text = text_;
    const size_t at = text.find('"' + std::string(name) + '"');
    Origin place{.source = Origin::Source::file, .file = file_.string()};
    if (at != std::string_view::npos) {
      const std::string_view before = text.substr(0, at);
      place.line = static_cast<int>(std::ranges::count(before, '\n')) + 1;
      place.column = static_cast<int>(at - (before.rfind('\n') + 1)) + 1;
    }
    return damaged(std::string(name) + " = " + shown(name) + " is no regular expression")
        .at(std::move(place));
  }
  Error differs(const char* theirs, const char* ours, const std::string& value) const {
    return Error(ErrorCode::conflict, file_.string() + ": " + theirs + " is " + shown(theirs) +
                                          ", but lora." + ours + " = " +
                                          to_toml(table_->value(ours)))
        .key(std::string("lora.") + ours)
        .at(table_->origin(ours))
        .help(std::string("set lora.") + ours + " = " + value);
  }

  Numbers r() const { return numbers("r", "rank_pattern", /*whole=*/true); }
  Numbers alpha() const { return numbers("lora_alpha", "alpha_pattern", /*whole=*/false); }
  bool rank_stabilized() const {
    const json::value* value = find("use_rslora");
    return value != nullptr && value->is_bool() && value->as_bool();
  }

  // Without a pattern where it comes to one number for all modules.
  Numbers numbers(const char* name, const char* pattern, bool whole) const {
    const json::value* value = find(name);
    if (value == nullptr || !value->is_number() || !(value->to_number<double>() > 0))
      throw damaged(std::string(name) + " is " + shown(name) + ", not a number above 0");
    Numbers all{value->to_number<double>(), name, {}};
    const json::value* some = find(pattern);
    if (some == nullptr || is_unset(*some)) return all;
    auto refuse = [&](const std::string& why) {
      return damaged(std::string(pattern) + " = " + shown(pattern) + ": " + why);
    };
    if (!some->is_object()) throw refuse("is not an object of modules and numbers");
    std::set<double> different;
    for (const auto& item : some->as_object()) {
      if (!item.value().is_number()) throw refuse(json::serialize(item.value()) + " is no number");
      different.insert(item.value().to_number<double>());
      all.some.emplace_back(item.key(), to_toml(item.value().to_number<double>()));
    }
    try {
      const base::ModuleNumbers read(all.value, all.some, whole);
    } catch (const Error& error) {
      throw refuse(error.message());
    }
    if (different.size() > 1) return all;
    if (*different.begin() == all.value) return {all.value, name, {}};
    if (names_all_targets(some->as_object())) return {*different.begin(), pattern, {}};
    return all;
  }

  // A key of a pattern that is a target's name is for all that the target selects.
  bool names_all_targets(const json::object& pattern) const {
    const json::value* targets = find("target_modules");
    return targets != nullptr && targets->is_array() && !targets->as_array().empty() &&
           std::ranges::all_of(targets->as_array(), [&](const json::value& one) {
             return one.is_string() && pattern.contains(one.as_string());
           });
  }

  // Modules as [lora] takes them. peft's expressions, and its choice of layers, are none.
  OptionValue names_of(const char* name) const {
    if (is_broken(name)) throw broken(name);
    const json::value* value = find(name);
    if (text_of(name) == "all-linear") return std::string("all-linear");
    std::vector<std::string> out;
    bool names = value != nullptr && value->is_array() && !value->as_array().empty();
    if (names)
      for (const json::value& one : value->as_array()) {
        names = names && one.is_string();
        if (names) out.emplace_back(one.as_string());
      }
    const json::value* layers = find("layers_to_transform");
    if (names && (layers == nullptr || is_unset(*layers))) return out;
    throw Error(ErrorCode::conflict, file_.string() + ": " + name + " = " + shown(name) +
                                         (names ? " in some layers alone" : "") +
                                         " says nothing that lora." + name + " could be")
        .key(std::string("lora.") + name)
        .at(table_->origin("adapter"))
        .help(std::string("set lora.") + name +
              " to the modules that adapter_model.safetensors has tensors for");
  }

  const Options* table_;
  std::filesystem::path file_;
  std::string text_;
  json::value config_;
};

}  // namespace

void take_from_adapter_folder(config::Config& config, Diagnostics& diagnostics) {
  Options& table = config.tables.at("lora");
  const bool asks = !table.is_given("r");
  if (!table.is_set("adapter") || (!asks && table.get_int("r") == 0)) return;
  try {
    const AdapterConfig folder(table.get_string("adapter"), &table);
    Options filled = table;
    folder.fill(filled);
    table = std::move(filled);
    if (!begins_afresh(config)) return;
    folder.tell_dropout(diagnostics);
    if (const std::string other = folder.other_base(config.table("model").get_string("pretrained"));
        !other.empty())
      diagnostics.notice(other);
  } catch (Error& error) {
    // Where r is set, a run may go on from a checkpoint without the folder; where none does,
    // check_adapter_folder() tells.
    if (!asks) return;
    if (!begins_afresh(config))
      error.help("to go on without the folder, set lora.r and what else was taken from it");
    diagnostics.add(error);
  }
}

void check_adapter_folder(const Job& job, Diagnostics& diagnostics) {
  const Options& table = job.config.table("lora");
  if (!table.is_set("adapter") || table.get_int("r") == 0) return;
  try {
    const AdapterConfig folder(table.get_string("adapter"), &table);
    folder.check_read(has_transposed(job), diagnostics);
    folder.compare(diagnostics);
  } catch (const Error& error) {
    diagnostics.add(error);
  }
}

AdapterFolder read_adapter_folder(const std::filesystem::path& folder, const ModelOutline& model,
                                  const std::filesystem::path& of) {
  const AdapterConfig config(folder);
  Diagnostics problems;
  config.check_read(has_transposed(model), problems);
  problems.throw_if_any();
  return config.contents(of.string());
}

bool begins_afresh(const config::Config& config) {
  const std::string resume = config.table("checkpoint").get_string("resume");
  if (resume != "auto" && resume != "none") return false;
  std::error_code failed;
  const bool empty =
      std::filesystem::is_empty(config::run_folder(config.table("run")) / "checkpoints", failed);
  return empty || failed;
}

namespace {

// nullopt: the job names no model, or what is wrong with it is said where it is planned.
std::optional<ModelOutline> outline_with_adapters(const Job& job) try {
  const std::optional<JobModel> model = model_of(job);
  if (!model) return std::nullopt;
  ModelOutline outline = model->outline(job.config);
  add_adapters(job.config, outline);
  return outline;
} catch (const Error&) {
  return std::nullopt;
}

}  // namespace

void check_adapter_files(const Job& job, Diagnostics& diagnostics) {
  const size_t before = diagnostics.errors().size();
  check_adapter_folder(job, diagnostics);
  const Options& table = job.config.table("lora");
  if (diagnostics.errors().size() != before || !table.is_set("adapter") || table.get_int("r") == 0)
    return;
  const std::optional<ModelOutline> outline = outline_with_adapters(job);
  if (!outline) return;
  try {
    weights::open_adapter_tensors(table.get_string("adapter"), *outline);
  } catch (Error& error) {
    diagnostics.add(error.at(table.origin("adapter")));
  }
}

}  // namespace meshwright::plan
