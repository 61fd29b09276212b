#include "engine/config/cross_checks.h"

#include <algorithm>
#include <optional>

#include "engine/config/listen_address.h"
#include "engine/config/toml_value.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::config {
namespace {

class CrossChecks {
 public:
  CrossChecks(Config& config, const Source::Impl& source, Diagnostics& diagnostics)
      : config_(config), source_(source), diagnostics_(diagnostics) {}

  void run() {
    check_engine_tables();
    read_shared();
  }

 private:
  void check_engine_tables() {
    const Options& model = config_.tables.at("model");
    if (model.is_set("config") && model.is_set("pretrained"))
      diagnostics_.add(Error(ErrorCode::conflict, "model.config and model.pretrained are both set")
                           .key("model.pretrained")
                           .at(model.origin("pretrained"))
                           .help("set model.pretrained = \"none\" for random weights")
                           .help("set model.config = \"none\" to load the folder's weights"));
    const Options& optimizer = config_.tables.at("optimizer");
    if (const auto* betas = std::get_if<std::vector<double>>(&optimizer.value("betas"));
        betas != nullptr && betas->size() != 2)
      diagnostics_.add(Error(ErrorCode::out_of_range, "optimizer.betas wants two numbers, found " +
                                                          std::to_string(betas->size()))
                           .key("optimizer.betas")
                           .at(optimizer.origin("betas"))
                           .help("set optimizer.betas = [0.9, 0.95]"));
    for (const char* name : {"dataset", "validation_dataset"}) check_packing(name);
    check_adapters();
    check_steps();
    check_best();
    check_report();
    const Options& schedule = config_.tables.at("lr_scheduler");
    if (schedule.get_number("min_lr") > optimizer.get_number("lr"))
      diagnostics_.add(
          Error(ErrorCode::conflict,
                "lr_scheduler.min_lr = " + meshwright::to_toml(schedule.value("min_lr")) +
                    " is above optimizer.lr = " + meshwright::to_toml(optimizer.value("lr")))
              .key("lr_scheduler.min_lr")
              .at(schedule.origin("min_lr"))
              .help("set lr_scheduler.min_lr = 0")
              .help("set lr_scheduler.min_lr = " + meshwright::to_toml(optimizer.value("lr")) +
                    " and lr_scheduler.lr_decay_style = \"constant\""));
  }

  void check_adapters() {
    const Options& lora = config_.tables.at("lora");
    if (!lora.get_bool("dora")) return;
    diagnostics_.add(Error(ErrorCode::not_in_release,
                           "lora.dora = true: adapters with magnitudes are not in this version")
                         .key("lora.dora")
                         .at(lora.origin("dora"))
                         .help("set lora.dora = false, and raise lora.r where adapters learn too "
                               "little"));
  }

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
      diagnostics_.add(Error(ErrorCode::conflict,
                             "step_scheduler.max_steps and step_scheduler.epochs are both set: "
                             "leave out one of them")
                           .key("step_scheduler.epochs")
                           .at(steps.origin("epochs"))
                           .help("set step_scheduler.epochs = \"none\" to count steps")
                           .help("set step_scheduler.max_steps = \"none\" to count epochs"));
      return;
    }
    if (!given) steps.set("max_steps", OptionValue(), steps.origin("epochs"));
    const Options& data = config_.tables.at("dataset");
    if (data.get_string("kind") == "mock" && !data.is_set("plugin"))
      diagnostics_.add(Error(ErrorCode::conflict,
                             "step_scheduler.epochs counts how often a data set is read, but "
                             "dataset.kind = \"mock\" makes tokens without an end")
                           .key("step_scheduler.epochs")
                           .at(steps.origin("epochs"))
                           .help("set step_scheduler.max_steps = 200 and step_scheduler.epochs = "
                                 "\"none\"")
                           .help("or name files: dataset.kind and dataset.path"));
  }

  void check_best() {
    const Options& saving = config_.tables.at("checkpoint");
    const Options& data = config_.tables.at("validation_dataset");
    if (saving.get_bool("best") && data.get_string("kind") != "mock" && !data.is_set("path") &&
        !data.is_set("plugin"))
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
    if (report.is_set("prometheus_file") && report.get_string("prometheus_file").empty())
      diagnostics_.add(Error(ErrorCode::out_of_range, "report.prometheus_file is empty")
                           .key("report.prometheus_file")
                           .at(report.origin("prometheus_file"))
                           .help("set report.prometheus_file = \"none\"")
                           .help("set report.prometheus_file = "
                                 "\"/var/lib/prometheus/node-exporter\", Debian's folder"));
    if (report.is_set("machine") && report.get_string("machine").empty())
      diagnostics_.add(Error(ErrorCode::out_of_range, "report.machine is empty")
                           .key("report.machine")
                           .at(report.origin("machine"))
                           .help("set report.machine = \"none\"")
                           .help("set report.machine = \"h100x8\""));
  }

  void check_packing(const std::string& name) {
    const Options& data = config_.tables.at(name);
    const std::string end = name + ".document_end";
    if (data.get_bool("packing") && data.is_set("plugin"))
      diagnostics_.add(Error(ErrorCode::conflict,
                             name + ".packing = true keeps documents of token streams apart, but " +
                                 name + ".plugin = \"" + data.get_string("plugin") +
                                 "\" says itself which documents a sample has")
                           .key(name + ".packing")
                           .at(data.origin("packing"))
                           .help("set " + name + ".packing = false")
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

void check_between_keys(Config& config, const Source::Impl& source, Diagnostics& diagnostics) {
  CrossChecks(config, source, diagnostics).run();
}

}  // namespace meshwright::config
