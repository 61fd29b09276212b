#include "engine/job/trainable.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <filesystem>
#include <string>

#include "engine/checkpoint/weights/export.h"
#include "engine/config/config.h"
#include "engine/config/sources.h"
#include "engine/job/adapters.h"
#include "engine/models/models.h"
#include "engine/models/net_config.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::plan {

void check_exports(const config::Config& config, Diagnostics& diagnostics) {
  const Options &lora = config.table("lora"), &model = config.table("model");
  const std::string asked = config.table("checkpoint").get_string("export"),
                    pretrained = model.get_string("pretrained");
  if (asked == "none" || pretrained.empty() ||
      (lora.get_int("r") > 0 && lora.get_string("export") == "none"))
    return;
  const std::filesystem::path folder = config::run_folder(config.table("run"));
  // An export takes the second one away even where it writes none: it may be of another step.
  for (const char* name : {kExportFolder, kAdapterExportFolder}) try {
      if (!weights::would_replace(folder / name, pretrained)) continue;
      diagnostics.add(Error(ErrorCode::output_unwritable,
                            "checkpoint.export = " + to_toml(asked) + " would take away " +
                                pretrained + ", the model that the run begins with: it replaces " +
                                (folder / name).string())
                          .key("model.pretrained")
                          .at(model.origin("pretrained"))
                          .help("set run.name to another name")
                          .help("set checkpoint.export = \"none\""));
      return;
    } catch (const Error&) {
      return;  // no name of a folder, which is said elsewhere
    }
}

namespace {

Error plans_only(const loader::LoadedStrategy& strategy, const Job& job) {
  return Error(ErrorCode::not_in_release, "the strategy " + strategy.info->name +
                                              " can plan a job, but not train it in this release")
      .key("distributed.strategy")
      .at(job.config.table("distributed").origin("strategy"))
      .help("meshwright plugins list shows which strategies can train");
}

// Whether the model can be run, beyond being planned.
void check_model_runs(const Job& job, Diagnostics& diagnostics) {
  const std::optional<JobModel> model = model_of(job);
  if (!model) return;
  try {
    model->family->check_runs(model->request, diagnostics);
  } catch (const Error& error) {
    diagnostics.add(model->located(error, job.config));
  }
}

// Of a model that is made here of its config.json; nullopt: of a plugin's.
std::optional<outlines::NetConfig> net_of(const Job& job) {
  const std::optional<JobModel> model = model_of(job);
  if (!model || model->plugin != nullptr) return std::nullopt;
  return outlines::read_net_config(outlines::load_config(model->request.config));
}

}  // namespace

LayerGraphsRefusal why_no_layer_graphs(const JobPlan& plan, const Job& job) {
  const config::Config& config = job.config;
  const SharedOptions& shared = plan.shared;
  const std::vector<int64_t>& windows = plan.outline->windows;
  const std::optional<outlines::NetConfig> net = net_of(job);
  struct Row {
    bool found;
    const char *what, *help;
  };
  const std::array rows{
      Row{shared.sizes.tp > 1, "layers talk to other ranks under tensor parallelism",
          "set distributed.tp_size = 1"},
      Row{shared.sizes.cp > 1, "attention talks to other ranks under context parallelism",
          "set distributed.cp_size = 1"},
      Row{shared.sizes.pp > 1, "several micro-batches are in a pipeline's stage at a time",
          "set distributed.pp_size = 1"},
      Row{!plan.parameters_move.what.empty(), plan.parameters_move.what.c_str(),
          plan.parameters_move.help.c_str()},
      Row{!net || net->family.beside, "this model has no layers whose work can be captured",
          "choose a model of the Llama kind"},
      Row{net && net->attention_dropout > 0, "dropout has other random numbers in each forward",
          "set attention_dropout to 0 in the model's config.json"},
      Row{plan.outline->moe.has_value(), "experts take another number of tokens in each forward",
          "choose a model without experts"},
      Row{std::ranges::any_of(windows, [](int64_t size) { return size > 0; }),
          "windows of attention may need masks, which are not kept for graphs",
          "choose a model without sliding windows"},
      Row{shared.activation_checkpointing != ActivationCheckpointing::none,
          "layers that are recomputed run twice between a step's ends",
          "set distributed.activation_checkpointing = \"none\""},
      Row{shared.autocast_dtype.has_value(), "casts of autocast are shared by layers",
          "set distributed.mp_policy.param_dtype in place of distributed.autocast_dtype"},
      Row{config.table("lora").get_int("r") > 0, "adapters are not captured yet", "set lora.r = 0"},
      Row{config.table("model").get_bool("float8_linear"),
          "products of 8-bit floats are not captured yet", "set model.float8_linear = false"},
      Row{config.table("dataset").get_bool("packing"),
          "documents of a sample lie elsewhere in each forward", "set dataset.packing = false"},
  };
  for (const Row& row : rows)
    if (row.found) return {row.what, row.help};
  return {};
}

namespace {

void check_graphs(const JobPlan& plan, const Job& job) {
  if (plan.layer_graphs != LayerGraphsUse::required) return;
  const LayerGraphsRefusal no = why_no_layer_graphs(plan, job);
  if (no.what.empty()) return;
  throw Error(ErrorCode::not_in_release, "dist_env.cuda_graphs = true cannot run here: " + no.what)
      .key("dist_env.cuda_graphs")
      .at(job.config.table("dist_env").origin("cuda_graphs"))
      .help(no.help)
      .help("set dist_env.cuda_graphs = false");
}

}  // namespace

void check_trainable(const Job& job, Diagnostics& diagnostics) {
  const config::Config& config = job.config;
  std::string run_name = config.table("run").get_string("name");
  if (run_name.empty() || run_name == "." || run_name == ".." ||
      run_name.find('/') != std::string::npos)
    diagnostics.add(Error(ErrorCode::bad_choice,
                          "run.name = \"" + run_name +
                              "\" is not the name of a folder: results go to <run.dir>/<run.name>/")
                        .key("run.name")
                        .at(config.table("run").origin("name"))
                        .help("set run.name = \"first\"")
                        .help("set run.dir to the folder that holds the runs"));
  const Options& model = config.table("model");
  if (!model.is_set("config") && !model.is_set("pretrained") && !model.is_set("plugin"))
    diagnostics.add(Error(ErrorCode::missing_key, "train needs a model")
                        .key("model.config")
                        .help("set model.config = \"configs/models/llama-tiny.json\" for random "
                              "weights of that shape")
                        .help("set model.pretrained = \"models/Llama-3.2-1B\", a Hugging Face "
                              "folder, to start from its weights"));
  if (model.is_set("config") && model.is_set("pretrained"))
    diagnostics.add(
        Error(ErrorCode::conflict,
              "model.config asks for random weights, model.pretrained for a folder's: one of them")
            .key("model.pretrained")
            .at(model.origin("pretrained"))
            .help("leave out model.config"));
  const Options& data = config.table("dataset");
  if (!config::names_data(config, "dataset") && data.get_string("kind") != "mock")
    diagnostics.add(Error(ErrorCode::missing_key, "train needs data: dataset.path is not set")
                        .key("dataset.path")
                        .help("set dataset.path = \"data/*.txt\"")
                        .help("set dataset.kind = \"mock\" to train on synthetic tokens"));
  // A table that was written means a validation; path = "none" takes it back.
  const Options& validation = config.table("validation_dataset");
  const meshwright_option* written = nullptr;
  for (const meshwright_option* option : validation.schema().options)
    if (written == nullptr && validation.is_given(option->name)) written = option;
  if (written != nullptr && !validation.is_given("path") &&
      !config::names_data(config, "validation_dataset") && validation.get_string("kind") != "mock")
    diagnostics.add(
        Error(ErrorCode::missing_key,
              std::string("validation_dataset.") + written->name +
                  " is set, but validation_dataset.path is not: nothing would be validated")
            .key(std::string("validation_dataset.") + written->name)
            .at(validation.origin(written->name))
            .help("set validation_dataset.path = \"data/held_out.txt\"")
            .help("leave out the table [validation_dataset] to train without a validation"));
  const ParallelSizes& sizes = config.shared.sizes;
  // With ep_size above 1 another strategy may take the job; check_runs() asks that one.
  if (job.strategy.info != nullptr &&
      (job.strategy.info->capabilities & MESHWRIGHT_CAN_PARALLELIZE) == 0 && sizes.ep <= 1)
    diagnostics.add(plans_only(job.strategy, job));
  if (model.get_bool("float8_linear") && sizes.tp > 1 && config.shared.enable_async_tensor_parallel)
    diagnostics.add(
        Error(ErrorCode::conflict,
              "the products that enable_async_tensor_parallel cuts into pieces are not made in "
              "8-bit floats, as model.float8_linear asks")
            .key("model.float8_linear")
            .at(model.origin("float8_linear"))
            .help("set distributed.enable_async_tensor_parallel = false")
            .help("set model.float8_linear = false"));
  if (begins_afresh(config)) check_adapter_files(job, diagnostics);
  check_model_runs(job, diagnostics);
}

bool written_for_training(const Job& job) {
  auto given = [&](const char* name, std::initializer_list<const char*> keys) {
    const Options& table = job.config.table(name);
    return std::ranges::any_of(keys, [&](const char* key) { return table.is_given(key); });
  };
  for (const char* name : {"run", "lora", "lr_scheduler", "checkpoint", "validation_dataset"})
    for (const meshwright_option* option : job.config.table(name).schema().options)
      if (given(name, {option->name})) return true;
  for (const char* list : {config::kMixTable, config::kSetTable})
    if (!job.config.list(list).empty()) return true;
  return given("dataset", {"kind", "path", "plugin"}) || given("optimizer", {"lr"}) ||
         given("step_scheduler", {"max_steps", "epochs"});
}

void check_runs(const JobPlan& plan, const Job& job) {
  if ((plan.strategy.info->capabilities & MESHWRIGHT_CAN_PARALLELIZE) == 0)
    throw plans_only(plan.strategy, job);
  if (!plan.outline) return;
  check_graphs(plan, job);
  try {
    check_tp_blocks(plan.tp, *plan.outline);
  } catch (const Error& error) {
    throw config::placed(error, job.config);
  }
}

std::vector<Error> errors_of_training(const Job& job, const JobPlan* plan) {
  Diagnostics found;
  check_trainable(job, found);
  check_exports(job.config, found);
  std::vector<Error> out(found.errors().begin(), found.errors().end());
  if (plan != nullptr) try {
      check_runs(*plan, job);
    } catch (const Error& error) {
      auto same = [&](const Error& other) {
        return other.code() == error.code() && other.message() == error.message();
      };
      if (std::ranges::none_of(out, same)) out.push_back(error);
    }
  return out;
}

void add_training(boost::json::object& plan, const std::vector<Error>& errors) {
  boost::json::array why;
  for (const Error& error : errors) why.emplace_back(error.message());
  plan["trains"] = errors.empty();
  plan["why"] = why;
}

}  // namespace meshwright::plan
