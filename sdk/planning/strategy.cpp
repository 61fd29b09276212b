#include "meshwright/strategy.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <string>

#include "meshwright/data/dataset_kind.h"
#include "meshwright/error.h"
#include "meshwright/model/model_family.h"
#include "meshwright/parallel/parallel.h"
#include "meshwright/parallel/plugin_runtime.h"
#include "meshwright/plugin.h"
#include "meshwright/sharded_strategy.h"
#include "plan_executor.h"
#include "sdk/base/checks.h"
#include "sdk/base/plugin_at_work.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright {

Strategy::~Strategy() = default;
ParallelModel::~ParallelModel() = default;
PipelineUnits::~PipelineUnits() = default;
void ParallelModel::end_step_deferred() { end_step(); }
double ParallelModel::clip_grad_norm_deferred(double max_norm, double scale, double& left) {
  left = 1;
  return clip_grad_norm(max_norm, scale);
}
bool ParallelModel::values_written(const ValuesWritten&) { return false; }
bool ParallelModel::before_save(SaveReason, int64_t) { return false; }
std::vector<StateTensor> ParallelModel::state_tensors() const { return {}; }
std::string ParallelModel::independent_axis() const { return {}; }
std::shared_ptr<TensorParallel> ParallelModel::tensor_parallel() const { return nullptr; }
PipelineUnits* ParallelModel::pipeline_units() { return nullptr; }
void* ParallelModel::extension(uint32_t) { return nullptr; }

void Strategy::validate(const StrategyConfig&, Diagnostics&) const {}

TpPlan Strategy::translate_tp_plan(const ModelOutline& outline,
                                   const TpPlanRequest& request) const {
  return select_tp_plan(outline, request);
}

ShardingPlan Strategy::plan_sharding(const ShardingRequest& request) const {
  return replicated_plan(request);
}

void* Strategy::extension(uint32_t) { return nullptr; }

void ShardedStrategy::validate(const StrategyConfig& config, Diagnostics& diagnostics) const {
  if (config.shared().enable_async_tensor_parallel && !config.shared().sequence_parallel)
    diagnostics.add(
        option_error(config.distributed(), "enable_async_tensor_parallel", ErrorCode::conflict,
                     "enable_async_tensor_parallel overlaps the collectives of sequence "
                     "parallelism, but sequence_parallel is false",
                     "false")
            .about("distributed.sequence_parallel")
            .help("set distributed.sequence_parallel = true"));
}

MeshPlan ShardedStrategy::plan_mesh(const MeshRequest& request) const {
  return plan_sharded_mesh(request);
}

ShardingPlan ShardedStrategy::plan_sharding(const ShardingRequest& request) const {
  return fully_sharded_plan(request, sharding_policy(request.config));
}

ShardingPolicy ShardedStrategy::sharding_policy(const StrategyConfig&) const { return {}; }

// What model families and kinds of data sets are unless they say otherwise.

ModelFamily::~ModelFamily() = default;
void ModelFamily::validate(const ModelRequest&, Diagnostics&) const {}
void ModelFamily::check_runs(const ModelRequest&, Diagnostics&) const {}
void* ModelFamily::extension(uint32_t) { return nullptr; }

SampleSource::~SampleSource() = default;
bool SampleSource::has_documents() const { return false; }
bool SampleSource::has_weights() const { return false; }
std::vector<std::string> SampleSource::files() const { return {}; }
std::vector<std::string> SampleSource::report() const { return {}; }
void* SampleSource::extension(uint32_t) { return nullptr; }

DatasetKind::~DatasetKind() = default;
void DatasetKind::validate(const DatasetRequest&, Diagnostics&) const {}
void DatasetKind::prepare(const DatasetRequest&) const {}
void* DatasetKind::extension(uint32_t) { return nullptr; }

// Strategy::parallelize() and ModelFamily::make(): by the running half of the plugin that they
// belong to; a strategy without one runs as its plan says.

namespace {

// The file that holds the class of `object`, by its table of virtual functions.
std::string file_of(const void* object) {
  const void* table = nullptr;
  std::memcpy(&table, object, sizeof table);
  Dl_info info{};
  return ::dladdr(table, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

template <class T>
const T* symbol(void* library, const char* name) {
  return library == nullptr ? nullptr : static_cast<const T*>(::dlsym(library, name));
}

const PluginRuntime* runtime_of(const void* object) {
  std::string file = file_of(object);
  // Loaded already; the program itself, whose tests link both halves, has no name that dlopen()
  // takes.
  void* plugin = ::dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (plugin == nullptr) plugin = ::dlopen(nullptr, RTLD_LAZY);
  if (const auto* own = symbol<PluginRuntime>(plugin, "meshwright_runtime_v1")) return own;
  const auto* descriptor = symbol<meshwright_plugin>(plugin, "meshwright_plugin_v1");
  const meshwright_extension* block = descriptor == nullptr ? nullptr : descriptor->extensions;
  while (block != nullptr && block->id != MESHWRIGHT_RUNTIME_HALF) block = block->next;
  if (block == nullptr || block->struct_size < kFirstSize<meshwright_runtime_half>) return nullptr;
  std::string half = (std::filesystem::path(file).parent_path() /
                      reinterpret_cast<const meshwright_runtime_half*>(block)->file)
                         .string();
  void* library = ::dlopen(half.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    throw Error(ErrorCode::plugin_unresolved,
                "cannot load " + half + ", which runs what " + file +
                    " plans: " + (reason != nullptr ? reason : "no reason given"))
        .help("install both libraries of the plugin into one folder");
  }
  const auto* found = symbol<PluginRuntime>(library, "meshwright_runtime_v1");
  if (found == nullptr || found->struct_size < 4 * sizeof(void*) /* of version 1.0 */)
    throw Error(ErrorCode::plugin_no_descriptor, half + " does not export meshwright_runtime_v1")
        .help(
            "end one of its sources with MESHWRIGHT_PLUGIN_RUNS_WITH(...), or for model families "
            "MESHWRIGHT_MODELS_RUN_WITH(...)");
  if (std::strcmp(found->facts, descriptor->facts) != 0)
    throw Error(ErrorCode::plugin_facts, half + " and " + file + " come from different builds")
        .help("rebuild the plugin from a clean build folder");
  if (const detail::PluginCode* whose = detail::plugin_at_work())
    detail::library_is_of(whose, found);
  return found;
}

std::atomic<detail::PlanExecutor> executor{nullptr};

}  // namespace

void detail::set_plan_executor(PlanExecutor given) { executor = given; }

std::unique_ptr<ParallelModel> Strategy::parallelize(ParallelizeRequest& request) {
  if (const PluginRuntime* runtime = runtime_of(this);
      runtime != nullptr && runtime->parallelize != nullptr)
    return runtime->parallelize(*this, request);
  const detail::PlanExecutor execute = executor;
  if (execute == nullptr)
    throw Error(
        ErrorCode::not_in_release,
        "this strategy can plan a job but not run it: parallelize is not available in this version")
        .help("use `meshwright plan` to look at the layout");
  if (request.model == nullptr || request.world == nullptr)
    throw Error(ErrorCode::not_in_release,
                std::string("parallelize runs a plan, and the request has no ") +
                    (request.model == nullptr ? "model" : "world"))
        .help("use Strategy::plan_sharding() to look at the layout without running it");
  return execute(*this, request);
}

std::unique_ptr<RunningModel> ModelFamily::make(const ModelRequest& request) const {
  const PluginRuntime* runtime = runtime_of(this);
  if (runtime == nullptr || runtime->make == nullptr)
    throw Error(ErrorCode::not_in_release,
                "this model family can be planned, but not run: it has no make()")
        .key("model.plugin")
        .help(
            "override ModelFamily::make(), or give the plugin a running half with "
            "MESHWRIGHT_MODELS_RUN_WITH(...)");
  return runtime->make(*this, request);
}

}  // namespace meshwright
