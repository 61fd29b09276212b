#include "engine/config/idle.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace meshwright::config {
namespace {

// One key, or all keys of a table ("*"), and when it has an effect.
struct Rule {
  const char* table;
  const char* key;
  bool (*works)(const Config&);
  const char* because;  // "... has no effect " + this, the other key being its second word
};

// Whether the other key was given a value that cannot be: then its default says nothing.
bool in_doubt(const Rule& rule, const Diagnostics& diagnostics) {
  const std::string_view because = rule.because;
  const std::string_view other = because.substr(because.find(' ') + 1);
  return std::any_of(
      diagnostics.errors().begin(), diagnostics.errors().end(), [&](const Error& error) {
        return !error.key().empty() && other.substr(0, other.find(' ')) == error.key();
      });
}

std::string choice(const Config& config, const char* table, const char* key) {
  return config.table(table).get_string(key);
}

bool may_use_devices(const Config& config) { return choice(config, "dist_env", "device") != "cpu"; }
bool with_tp(const Config& config) { return config.shared.sizes.tp > 1; }
bool with_ep(const Config& config) { return config.shared.sizes.ep > 1; }
bool recomputes(const Config& config) {
  return config.shared.activation_checkpointing != ActivationCheckpointing::none;
}
bool adamw(const Config& config) { return choice(config, "optimizer", "name") == "adamw"; }
bool decays_weights(const Config& config) {
  return config.table("optimizer").get_number("weight_decay") > 0;
}
// lora.adapter brings an r where none is set.
bool adapts(const Config& config) {
  const Options& lora = config.table("lora");
  return lora.get_int("r") > 0 || (lora.is_set("adapter") && !lora.is_given("r"));
}
bool begins_anew(const Config& config) {
  return !adapts(config) || !config.table("lora").is_set("adapter");
}
bool sgd(const Config& config) { return choice(config, "optimizer", "name") == "sgd"; }
bool decays(const Config& config) {
  return choice(config, "lr_scheduler", "lr_decay_style") != "constant";
}
// Of data that a plugin brings only the rules with "plugin" speak.
template <int which>
constexpr const char* kData = which == 0 ? "dataset" : "validation_dataset";
template <int which>
bool has_plugin(const Config& config) {
  return config.table(kData<which>).is_set("plugin");
}
template <int which>
bool has_no_plugin(const Config& config) {
  return !has_plugin<which>(config);
}
template <int which>
bool reads_files(const Config& config) {
  return has_plugin<which>(config) || choice(config, kData<which>, "kind") != "mock";
}
template <int which>
bool reads_tokens(const Config& config) {
  return has_plugin<which>(config) || choice(config, kData<which>, "kind") == "tokens";
}

constexpr const char* kNoFloat16 = "unless distributed.mp_policy.param_dtype is float16";
constexpr const char* kCpu = "with dist_env.device = \"cpu\"";
constexpr const char* kTp1 = "with distributed.tp_size = 1";
constexpr const char* kR0 = "with lora.r = 0";
constexpr const char* kEp1 = "with distributed.ep_size = 1";

constexpr Rule kRules[] = {
    {"run", "float32_matmul_precision", may_use_devices, kCpu},
    {"dist_env", "expandable_segments", may_use_devices, kCpu},
    {"optimizer", "betas", adamw, "with optimizer.name = \"sgd\""},
    {"optimizer", "eps", adamw, "with optimizer.name = \"sgd\""},
    {"optimizer", "momentum", sgd, "with optimizer.name = \"adamw\""},
    {"optimizer", "loss_scale", float16_gradients, kNoFloat16},
    {"optimizer", "dynamic_loss_scale", float16_gradients, kNoFloat16},
    {"optimizer", "no_decay", decays_weights, "with optimizer.weight_decay = 0"},
    {"lora", "alpha", adapts, kR0},
    {"lora", "target_modules", adapts, kR0},
    {"lora", "exclude_modules", adapts, kR0},
    {"lora", "rank_pattern", adapts, kR0},
    {"lora", "alpha_pattern", adapts, kR0},
    {"lora", "dropout", adapts, kR0},
    {"lora", "rslora", adapts, kR0},
    {"lora", "init", adapts, kR0},
    {"lora", "init", begins_anew, "with lora.adapter"},
    {"lora", "adapter", adapts, kR0},
    {"lora", "export", adapts, kR0},
    {"lora", "base_dtype", adapts, kR0},
    {"lora", "base_sharding", adapts, kR0},
    {"lr_scheduler", "min_lr", decays, "with lr_scheduler.lr_decay_style = \"constant\""},
    {"dataset", "path", reads_files<0>, "with dataset.kind = \"mock\""},
    {"dataset", "dtype", reads_tokens<0>, "unless dataset.kind = \"tokens\""},
    {"dataset", "kind", has_no_plugin<0>, "with dataset.plugin"},
    {"dataset", "dtype", has_no_plugin<0>, "with dataset.plugin"},
    {"validation_dataset", "path", reads_files<1>, "with validation_dataset.kind = \"mock\""},
    {"validation_dataset", "dtype", reads_tokens<1>, "unless validation_dataset.kind = \"tokens\""},
    {"validation_dataset", "kind", has_no_plugin<1>, "with validation_dataset.plugin"},
    {"validation_dataset", "dtype", has_no_plugin<1>, "with validation_dataset.plugin"},
    {"distributed", "tp_plan", with_tp, kTp1},
    {"distributed", "enable_async_tensor_parallel", with_tp, kTp1},
    {"distributed", "activation_checkpointing_scope", recomputes,
     "with distributed.activation_checkpointing = \"none\""},
    {"distributed.moe", "dispatcher", with_ep, kEp1},
    {"distributed.moe", "lm_head_precision", with_ep, kEp1},
    {"distributed.moe", "wrap_outer_model", with_ep, kEp1},
    {"distributed.moe.mp_policy", "*", with_ep, kEp1},
};

}  // namespace

bool float16_gradients(const Config& config) {
  const SharedOptions& shared = config.shared;
  auto in = [](const std::optional<MixedPrecision>& mp) {
    return mp && (mp->param == DType::float16 || mp->reduce == DType::float16);
  };
  return in(shared.mp) || (with_ep(config) && in(shared.moe.mp_policy)) ||
         shared.autocast_dtype == DType::float16 || shared.pipeline.dtype == DType::float16 ||
         config.table("model").find_dtype("torch_dtype") == DType::float16;
}

void tell_idle(const Config& config, Diagnostics& diagnostics) {
  for (const Rule& rule : kRules) {
    if (rule.works(config) || in_doubt(rule, diagnostics)) continue;
    const Options& table = config.table(rule.table);
    for (const meshwright_option* option : table.schema().options) {
      if (std::string_view(rule.key) != "*" && std::string_view(rule.key) != option->name) continue;
      // Said to those who ask for something, not to those who write the default down.
      if (!table.is_given(option->name) || table.value(option->name) == default_of(*option))
        continue;
      diagnostics.notice(table.schema().table + "." + option->name + " has no effect " +
                         rule.because);
    }
  }
  if (with_ep(config) &&
      config.shared.moe.lm_head_precision.value_or(DType::float32) != DType::float32)
    diagnostics.notice(
        "distributed.moe.lm_head_precision = \"" +
        std::string(dtype_name(*config.shared.moe.lm_head_precision)) +
        "\" has no effect: only \"float32\" has, otherwise the head computes as all else does");
}

}  // namespace meshwright::config
