#include "engine/config/cross_checks.h"

#include <arpa/inet.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/config/sources.h"
#include "engine/config/toml_value.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/words.h"

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
// Whether any source of the table's list, or the table itself where it has none, is such a one.
// `unknown`: the answer where check_sources() says what is wrong with the list.
bool any_source(const Config& config, const std::string& table, bool (*is_such)(const Options&),
                bool unknown) {
  try {
    const std::vector<NamedSource> sources = named_sources(config, table);
    return sources.empty() ? is_such(config.table(table))
                           : std::ranges::any_of(sources, is_such, &NamedSource::options);
  } catch (const Error&) {
    return unknown;
  }
}
bool is_of_tokens(const Options& data) {
  return !data.is_set("plugin") && data.get_string("kind") == "tokens";
}
bool is_of_text(const Options& data) {
  return !data.is_set("plugin") && data.get_string("kind") == "text";
}
template <int which>
bool has_tokens(const Config& config) {
  return any_source(config, kData<which>, is_of_tokens, true);
}
bool asks_for_tokenizer(const Options& data) {
  return is_of_text(data) && !data.is_set("tokenizer");
}
// dataset.tokenizer is also that of validation texts which say no other one.
template <int which>
bool has_text(const Config& config) {
  return any_source(config, kData<which>, is_of_text, true) ||
         (which == 0 && names_data(config, kData<1>) &&
          any_source(config, kData<1>, asks_for_tokenizer, true));
}
// Beside a plugin in the table itself another rule speaks, and sources of a mix may still differ.
template <int which>
bool may_have_tokens(const Config& config) {
  return has_plugin<which>(config) || has_tokens<which>(config);
}
template <int which>
bool may_have_text(const Config& config) {
  return has_plugin<which>(config) || has_text<which>(config);
}
template <int which>
bool no_plugin_or_tokens(const Config& config) {
  return has_no_plugin<which>(config) || has_tokens<which>(config);
}
template <int which>
bool no_plugin_or_text(const Config& config) {
  return has_no_plugin<which>(config) || has_text<which>(config);
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
    {"dataset", "dtype", may_have_tokens<0>, "unless dataset.kind = \"tokens\""},
    {"dataset", "tokenizer", may_have_text<0>, "unless dataset.kind = \"text\""},
    {"dataset", "kind", has_no_plugin<0>, "with dataset.plugin"},
    {"dataset", "tokenizer", no_plugin_or_text<0>, "with dataset.plugin"},
    {"dataset", "dtype", no_plugin_or_tokens<0>, "with dataset.plugin"},
    {"validation_dataset", "path", reads_files<1>, "with validation_dataset.kind = \"mock\""},
    {"validation_dataset", "dtype", may_have_tokens<1>,
     "unless validation_dataset.kind = \"tokens\""},
    {"validation_dataset", "tokenizer", may_have_text<1>,
     "unless validation_dataset.kind = \"text\""},
    {"validation_dataset", "kind", has_no_plugin<1>, "with validation_dataset.plugin"},
    {"validation_dataset", "tokenizer", no_plugin_or_text<1>, "with validation_dataset.plugin"},
    {"validation_dataset", "dtype", no_plugin_or_tokens<1>, "with validation_dataset.plugin"},
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

namespace {

constexpr const char* kQuantised = "a quantised base";

struct Later {
  const char *key, *word, *what, *instead;
};
constexpr Later kLater[] = {
    {"optimizer.name", "muon", "Muon, which updates whole matrices,", "adamw"},
    {"optimizer.name", "lion", "Lion", "adamw"},
    {"lora.base_dtype", "nf4", kQuantised, "bfloat16"},
    {"lora.base_dtype", "fp4", kQuantised, "bfloat16"},
    {"lora.base_dtype", "int4", kQuantised, "bfloat16"},
    {"lora.base_dtype", "int8", kQuantised, "bfloat16"},
};

constexpr std::pair<const char*, const char*> kLaterKeys[] = {
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
          .help("set " + key + " = \"" + one.instead + "\"");
  return std::nullopt;
}

void help_with_own_optimizer(const std::string& key, Error& error) {
  if (key == "optimizer.name")
    error.help(
        "for an optimizer of your own, call Trainer::set_optimizer() in a program that embeds the "
        "engine (meshwright/trainer.h; docs/guide.md, section 7; examples/recipes/embed)");
}

std::optional<Error> later_key(const std::string& key, bool from_set) {
  for (const auto& [later, what] : kLaterKeys)
    if (key == later)
      return Error(ErrorCode::not_in_release, key + ": " + what + " is not in this version")
          .key(key)
          .help(from_set ? "remove --set " + key : std::string("remove the line"));
  return std::nullopt;
}

namespace {

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Empty, or what is wrong with a name or an IPv4 address. What looks like an address must be one:
// the system takes "0" and "127.1" for addresses, too.
std::string wrong_host(const std::string& host) {
  in_addr address{};
  if (::inet_pton(AF_INET, host.c_str(), &address) == 1) return {};
  if (host == "*") return "* is no address: all interfaces are 0.0.0.0";
  const std::string last = host.substr(host.rfind('.') + 1);  // the whole, where there is no dot
  if (all_digits(last) || host.starts_with("0x") || host.starts_with("0X"))
    return "\"" + host + "\" is no IPv4 address of four numbers";
  const bool named = std::all_of(host.begin(), host.end(), [](char c) {
    return text::is_alphanumeric(c) || c == '-' || c == '.' || c == '_';
  });
  if (!named || host.size() > 253 || host.starts_with('.') || host.starts_with('-'))
    return "\"" + host + "\" is no name of a host";
  return {};
}

}  // namespace

ListenAddress parse_listen_address(std::string_view text, const std::string& key) {
  auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::out_of_range,
                 key + " = \"" + std::string(text) + "\" is no address to listen at: " + why)
        .key(key)
        .help("set " + key + " = \"127.0.0.1:9400\", which this machine alone can reach")
        .help("set " + key + " = \"0.0.0.0:9400\", which others can reach, too");
  };
  ListenAddress out{"127.0.0.1", 0};
  std::string_view port = text;
  if (text.starts_with('[')) {
    const size_t end = text.find("]:");
    if (end == std::string_view::npos) throw refuse("after [ADDRESS] comes :PORT");
    out.host = text.substr(1, end - 1);
    port = text.substr(end + 2);
    in6_addr address{};
    if (::inet_pton(AF_INET6, out.host.c_str(), &address) != 1)
      throw refuse("\"" + out.host + "\" is no IPv6 address");
    if (IN6_IS_ADDR_UNSPECIFIED(&address) && out.host != "::")
      throw refuse("all interfaces are written [::]");
  } else if (const size_t colon = text.rfind(':'); colon != std::string_view::npos) {
    port = text.substr(colon + 1);
    const std::string host(text.substr(0, colon));
    if (host.find(':') != std::string::npos)
      throw refuse("an IPv6 address stands in brackets, [::1]:9400");
    if (const std::string why = host.empty() ? "" : wrong_host(host); !why.empty())
      throw refuse(why);
    if (!host.empty()) out.host = host;
  } else if (!all_digits(text)) {
    throw refuse("it wants HOST:PORT");
  }
  if (!all_digits(port)) throw refuse("after the colon comes the number of a port");
  out.port = text::to_number<int>(port).value_or(65536);
  if (out.port > 65535) throw refuse("ports go up to 65535; 0 takes one that is free");
  return out;
}

namespace {

// A notice for this key of the table, or for all of them ("*").
void tell_without_effect(const Options& table, std::string_view key, const std::string& because,
                         Diagnostics& diagnostics) {
  for (const meshwright_option* option : table.schema().options) {
    if (key != "*" && key != option->name) continue;
    // Said to those who ask for something, not to those who write the default down.
    if (table.is_given(option->name) && table.value(option->name) != default_of(*option))
      diagnostics.notice(table.schema().table + "." + option->name + " has no effect " + because);
  }
}

// Whether texts may be read by the tokenizer of a model's folder that cannot be read, or not yet.
bool awaits_tokenizer(const Config& config, const std::string& table) {
  const Options& model = config.table("model");
  if (!model.is_set("pretrained") || config.table("dataset").is_set("tokenizer") ||
      !names_data(config, table) || !any_source(config, table, asks_for_tokenizer, true))
    return false;
  std::error_code failed;
  std::filesystem::directory_iterator(model.get_string("pretrained"), failed);
  return static_cast<bool>(failed);
}

// The same of tables of kinds of data that nothing is read by: texts without a tokenizer are bytes.
void tell_idle_data(const Config& config, const PluginSchemas& plugins, Diagnostics& diagnostics) {
  for (const PluginSchemas::Component& one : plugins.components) {
    const std::string table = one.schema.table.substr(0, one.schema.table.find('.')),
                      name = one.schema.table.substr(table.size() + 1);
    if (one.active || table == "model") continue;
    const bool texts = name == kTextComponent;
    if (texts && awaits_tokenizer(config, table)) continue;
    const std::string because =
        texts ? "unless " + table + ".kind = \"text\" is read with a tokenizer"
              : "without " + table + ".plugin = \"" + name + "\"";
    tell_without_effect(config.table(one.schema.table), "*", because, diagnostics);
    // Of other plugins check_sources() has refused what a source says for itself.
    if (const auto own = config.lists.find(list_below(sources_of(table), name));
        texts && own != config.lists.end())
      for (const Options& source : own->second)
        tell_without_effect(source, "*", because, diagnostics);
  }
}

// Adds a notice for every key that somebody set to another value than its default although another
// setting takes its effect away. Keys of [distributed] and of the engine's own tables; those of a
// strategy's table are the strategy's to judge, and what depends on the model is said by the plan.
void tell_idle(const Config& config, Diagnostics& diagnostics) {
  for (const Rule& rule : kRules)
    if (!rule.works(config) && !in_doubt(rule, diagnostics))
      tell_without_effect(config.table(rule.table), rule.key, rule.because, diagnostics);
  if (with_ep(config) &&
      config.shared.moe.lm_head_precision.value_or(DType::float32) != DType::float32)
    diagnostics.notice(
        "distributed.moe.lm_head_precision = \"" +
        std::string(dtype_name(*config.shared.moe.lm_head_precision)) +
        "\" has no effect: only \"float32\" has, otherwise the head computes as all else does");
}

class CrossChecks {
 public:
  CrossChecks(Config& config, const Source::Impl& source, Diagnostics& diagnostics)
      : config_(config), source_(source), diagnostics_(diagnostics) {}

  void run() {
    const Options& model = config_.tables.at("model");
    if (model.is_set("config") && model.is_set("pretrained"))
      diagnostics_.add(option_error(model, "pretrained", ErrorCode::conflict,
                                    "model.config and model.pretrained are both set",
                                    "\"none\" for random weights")
                           .help("set model.config = \"none\" to load the folder's weights"));
    const Options& optimizer = config_.tables.at("optimizer");
    if (const auto* betas = std::get_if<std::vector<double>>(&optimizer.value("betas"));
        betas != nullptr && betas->size() != 2)
      diagnostics_.add(
          option_error(optimizer, "betas", ErrorCode::out_of_range,
                       "optimizer.betas wants two numbers, found " + std::to_string(betas->size()),
                       "[0.9, 0.95]"));
    for (const char* name : {"dataset", "validation_dataset"}) {
      check_packing(name);
      check_sources(config_, name, diagnostics_);
    }
    if (const Options& lora = config_.tables.at("lora"); lora.get_bool("dora"))
      diagnostics_.add(
          option_error(lora, "dora", ErrorCode::not_in_release,
                       "lora.dora = true: adapters with magnitudes are not in this version",
                       "false, and raise lora.r where adapters learn too little"));
    check_steps();
    check_best();
    check_report();
    const Options& schedule = config_.tables.at("lr_scheduler");
    const std::string rate = meshwright::to_toml(optimizer.value("lr"));
    if (schedule.get_number("min_lr") > optimizer.get_number("lr"))
      diagnostics_.add(
          option_error(schedule, "min_lr", ErrorCode::conflict,
                       "lr_scheduler.min_lr = " + meshwright::to_toml(schedule.value("min_lr")) +
                           " is above optimizer.lr = " + rate,
                       "0")
              .help("set lr_scheduler.min_lr = " + rate +
                    " and lr_scheduler.lr_decay_style = \"constant\""));
    read_shared();
  }

 private:
  // Whether a value was given that cannot be: then nothing follows from the default in its place.
  bool refused(const std::string& key) const {
    return std::any_of(diagnostics_.errors().begin(), diagnostics_.errors().end(),
                       [&](const Error& error) { return error.key() == key; });
  }

  // Steps or epochs. What epochs come to is known where the data is: until then max_steps is
  // "none", also in what the run keeps of its configuration.
  void check_steps() {
    Options& steps = config_.tables.at("step_scheduler");
    const bool given = steps.is_given("max_steps");
    if (!steps.is_set("epochs")) {
      if (!steps.is_set("max_steps") && !refused("step_scheduler.epochs"))
        diagnostics_.add(
            option_error(steps, "max_steps", ErrorCode::missing_key,
                         "step_scheduler.max_steps and step_scheduler.epochs are both \"none\": "
                         "how long the run is, one of them must say",
                         "200")
                .help("set step_scheduler.epochs = 1"));
      return;
    }
    if (given && steps.is_set("max_steps")) {
      diagnostics_.add(option_error(steps, "epochs", ErrorCode::conflict,
                                    "step_scheduler.max_steps and step_scheduler.epochs are both "
                                    "set: leave out one of them",
                                    "\"none\" to count steps")
                           .help("set step_scheduler.max_steps = \"none\" to count epochs"));
      return;
    }
    if (!given) steps.set("max_steps", OptionValue(), steps.origin("epochs"));
    if (never_ends())
      diagnostics_.add(Error(ErrorCode::conflict,
                             "step_scheduler.epochs counts how often a data set is read, but "
                             "dataset.kind = \"mock\" makes tokens without an end")
                           .key("step_scheduler.epochs")
                           .at(steps.origin("epochs"))
                           .help("set step_scheduler.max_steps = 200 and step_scheduler.epochs = "
                                 "\"none\"")
                           .help("or name files: dataset.kind and dataset.path"));
  }

  bool never_ends() const {
    auto mock = [](const Options& data) {
      return data.get_string("kind") == "mock" && !data.is_set("plugin");
    };
    return any_source(config_, "dataset", mock, false);
  }

  void check_best() {
    const Options& saving = config_.tables.at("checkpoint");
    const Options& data = config_.tables.at("validation_dataset");
    if (saving.get_bool("best") && data.get_string("kind") != "mock" &&
        !names_data(config_, "validation_dataset"))
      diagnostics_.add(
          Error(ErrorCode::missing_key,
                "checkpoint.best = true needs data to find the validation loss on")
              .key("validation_dataset.path")
              .at(saving.origin("best"))
              .help("set validation_dataset.path = \"my_texts/*.txt\", or what else it is")
              .help("set checkpoint.best = false"));
  }

  void check_report() {
    const Options& report = config_.tables.at("report");
    try {
      if (report.is_set("prometheus"))
        parse_listen_address(report.get_string("prometheus"), "report.prometheus");
    } catch (const Error& error) {
      diagnostics_.add(Error(error).at(report.origin("prometheus")));
    }
    for (const auto& [name, instead] :
         {std::pair("prometheus_file", "\"/var/lib/prometheus/node-exporter\", Debian's folder"),
          {"machine", "\"h100x8\""}}) {
      const std::string key = std::string("report.") + name;
      if (report.is_set(name) && report.get_string(name).empty())
        diagnostics_.add(
            option_error(report, name, ErrorCode::out_of_range, key + " is empty", "\"none\"")
                .help("set " + key + " = " + instead));
    }
  }

  void check_packing(const std::string& name) {
    if (!config_.list(sources_of(name)).empty()) return;  // each source is checked by itself
    const Options& data = config_.tables.at(name);
    const std::string end = name + ".document_end";
    if (data.get_bool("packing") && data.is_set("plugin"))
      diagnostics_.add(
          option_error(data, "packing", ErrorCode::conflict,
                       name + ".packing = true keeps documents of token streams apart, but " +
                           name + ".plugin = \"" + data.get_string("plugin") +
                           "\" says itself which documents a sample has",
                       "false")
              .help("set " + name + ".plugin = \"none\""));
    else if (data.get_bool("packing") && !data.is_set("document_end"))
      diagnostics_.add(Error(ErrorCode::missing_key,
                             name + ".packing = true needs the token that ends a document")
                           .key(end)
                           .at(data.origin("packing"))
                           .help("set " + end + " = 2, or whatever the tokenizer's end is")
                           .help("set " + name + ".packing = false"));
    if (data.is_set("document_end") && !data.get_bool("packing"))
      diagnostics_.notice(end + " has no effect without " + name + ".packing = true");
  }

  void read_shared() {
    Diagnostics found;
    try {
      config_.shared = read_shared_options(
          config_.tables.at("distributed"), config_.tables.at("distributed.mp_policy"),
          config_.tables.at("distributed.moe"), config_.tables.at("distributed.moe.mp_policy"),
          config_.tables.at("distributed.pipeline"), config_.tables.at("distributed.context"),
          found);
      check_pipeline_options(config_.shared, found);
    } catch (const Error& error) {
      found.add(error);
    }
    for (const std::string& text : found.notices()) diagnostics_.notice(text);
    for (const std::string& text : found.warnings()) diagnostics_.warning(text);
    for (const Error& error : found.errors()) diagnostics_.add(placed(error, config_));
    check_styles();
  }

  // A table of pattern = style needs no model to be judged, so each wrong style is told with its
  // own line.
  void check_styles() {
    for (const auto& [pattern, style] : config_.shared.tp_plan.patterns) {
      try {
        parse_style(style);
      } catch (const Error& error) {
        std::string key = join_key("distributed.tp_plan", pattern);
        Error refusal(error.code(), key + ": " + error.message());
        refusal.key(key);
        const Entry* distributed = source_.root.find("distributed");
        const Entry* plan = distributed == nullptr ? nullptr : distributed->value.find("tp_plan");
        if (const Entry* entry = plan == nullptr ? nullptr : find_pattern(plan->value, "", pattern))
          refusal.at(source_.origin(entry->value.place));
        for (const std::string& help : error.helps()) refusal.help(help);
        diagnostics_.add(std::move(refusal));
      }
    }
  }

  // Where a pattern was written; its dots may have become nested tables.
  static const Entry* find_pattern(const Value& table, const std::string& prefix,
                                   const std::string& pattern) {
    for (const Entry& entry : table.entries) {
      std::string name = prefix.empty() ? entry.key : prefix + "." + entry.key;
      if (!entry.value.is_table() && name == pattern) return &entry;
      if (entry.value.is_table())
        if (const Entry* found = find_pattern(entry.value, name, pattern)) return found;
    }
    return nullptr;
  }

  Config& config_;
  const Source::Impl& source_;
  Diagnostics& diagnostics_;
};

}  // namespace

void check_between_keys(Config& config, const Source::Impl& source, const PluginSchemas& plugins,
                        Diagnostics& diagnostics) {
  CrossChecks(config, source, diagnostics).run();
  tell_idle(config, diagnostics);
  tell_idle_data(config, plugins, diagnostics);
}

}  // namespace meshwright::config
