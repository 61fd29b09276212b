// Between plans and live models: the outline of a module, and the units of an outline over the
// module.
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <map>
#include <set>

#include "meshwright/error.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/module.h"
#include "meshwright/nn/moe.h"
#include "meshwright/parallel/collectives.h"
#include "meshwright/parallel/context_parallel.h"
#include "meshwright/parallel/parallel.h"
#include "meshwright/parallel/scalar_type.h"
#include "meshwright/parallel/sharded_units.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "sdk/base/check_parts.h"
#include "sdk/base/plugin_guard.h"

namespace meshwright {

at::Tensor to_cpu(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return tensor;
  if (!tensor.device().is_cuda())
    throw Error(ErrorCode::device_unavailable,
                "to_cpu() takes tensors of a CPU or a CUDA device, and this one is on " +
                    tensor.device().str())
        .help("give it a tensor that has values on one of them");
  return tensor.cpu();
}

at::Tensor to_cpu(ParallelModel& model, const ParallelParameter& parameter) {
  return to_cpu(model.full_tensor(parameter.name));
}

ModelOutline outline_of(torch::nn::Module& model) {
  ModelOutline outline;
  HookHost* root = HookHost::of(model);
  outline.architecture = root ? root->hooked_class_name() : model.name();
  outline.inner_prefix = "";
  std::set<std::string, std::less<>> lists;
  for (auto& item : model.named_modules()) {
    torch::nn::Module& module = *item.value();
    ModuleKind kind = ModuleKind::other;
    const bool list = module.as<torch::nn::ModuleListImpl>() != nullptr ||
                      module.as<torch::nn::ModuleDictImpl>() != nullptr;
    if (list || module.as<torch::nn::SequentialImpl>()) kind = ModuleKind::list;
    if (module.as<torch::nn::LinearImpl>()) kind = ModuleKind::linear;
    if (module.as<torch::nn::EmbeddingImpl>()) kind = ModuleKind::embedding;
    HookHost* host = HookHost::of(module);
    std::string class_name = host ? host->hooked_class_name() : module.name();
    if (list) lists.insert(item.key());
    if (kind == ModuleKind::other && lists.contains(module_of(item.key())))
      kind = ModuleKind::layer;
    // RMSNorm, LayerNorm, torch::nn::BatchNorm2dImpl, MyNorm: known by their names.
    if (kind == ModuleKind::other && class_name.find("Norm") != std::string::npos)
      kind = ModuleKind::norm;
    outline.modules.push_back({item.key(), kind, class_name});
  }
  // Known where every layer has one core.
  std::set<std::string, std::less<>> attending;
  const auto layers = std::count_if(outline.modules.begin(), outline.modules.end(),
                                    [](const auto& m) { return m.kind == ModuleKind::layer; });
  const auto cores = find_attention_cores(model);
  bool windows = false;
  for (const auto& [name, core] : cores) {
    for (const ModuleOutline& module : outline.modules)
      if (module.kind == ModuleKind::layer && name.starts_with(module.name + "."))
        attending.insert(module.name);
    outline.windows.push_back(core->options().window);
    windows = windows || core->options().window > 0;
  }
  if (!windows || static_cast<std::ptrdiff_t>(cores.size()) != layers ||
      static_cast<std::ptrdiff_t>(attending.size()) != layers)
    outline.windows.clear();
  // Experts are cut apart from the rest: the plan must know them.
  std::set<std::string, std::less<>> experts;
  for (const auto& [name, block] : find_moe_blocks(model))
    experts.insert(name.empty() ? "experts" : name + ".experts");
  for (ModuleOutline& module : outline.modules)
    if (module.kind == ModuleKind::other && experts.contains(module.name))
      module.kind = ModuleKind::experts;
  std::map<const void*, std::string> seen;
  auto kind_of = [&](std::string_view parameter) {
    const ModuleOutline* owner = outline.find_module(module_of(parameter));
    return owner == nullptr ? ModuleKind::other : owner->kind;
  };
  for (auto& item : model.named_parameters()) {
    const auto [first, fresh] = seen.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (!fresh) {
      // A head with the embedding's weight.
      if (kind_of(first->second) == ModuleKind::embedding &&
          kind_of(item.key()) == ModuleKind::linear && module_of(module_of(item.key())).empty())
        outline.tied_embeddings = true;
      continue;
    }
    ParameterOutline parameter{item.key(), item.value().sizes().vec(), DType::float32};
    parameter.trainable = item.value().requires_grad();
    switch (item.value().scalar_type()) {
      case at::kBFloat16:
        parameter.dtype = DType::bfloat16;
        break;
      case at::kHalf:
        parameter.dtype = DType::float16;
        break;
      case at::kDouble:
        parameter.dtype = DType::float64;
        break;
      default:
        break;
    }
    outline.parameters.push_back(std::move(parameter));
  }
  return outline;
}

std::vector<UnitSpec> bind_units(torch::nn::Module& model, const ModelOutline& outline,
                                 const std::vector<PlannedUnit>& units) {
  std::map<std::string, at::Tensor, std::less<>> parameters;
  std::map<std::string, torch::nn::Module*, std::less<>> modules{{"", &model}};
  for (const auto& item : model.named_parameters()) parameters.emplace(item.key(), item.value());
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    modules.emplace(item.key(), item.value().get());
  auto find = [](const auto& all, const char* what, const std::string& name) {
    auto found = all.find(name);
    if (found == all.end())
      throw Error(ErrorCode::bad_module, std::string("the model has no ") + what + " " + name +
                                             ", which its outline lists")
          .help("make the outline from the model itself (outline_of), or give both the same names");
    return found->second;
  };
  std::vector<UnitSpec> out;
  for (const PlannedUnit& unit : units) {
    UnitSpec& spec = out.emplace_back();
    spec.name = unit.name;
    spec.module = find(modules, "module", unit.module);
    spec.reshard_after_forward = unit.reshard_after_forward;
    spec.module_list = unit.module_list;
    spec.mp = unit.mp;
    spec.layout = unit.layout;
    spec.first_stage = unit.stage >= 0 && !unit.last_stage;
    spec.last_stage = unit.last_stage;
    spec.once_a_step = unit.once_a_step;
    for (size_t p : unit.parameters) {
      const std::string& name = outline.parameters[p].name;
      spec.parameters.emplace_back(name, find(parameters, "parameter", name));
    }
  }
  return out;
}

namespace detail {

namespace {

class GuardedModel final : public PluginObject<ParallelModel>, public PipelineUnits {
  template <class Method, class... Given>
  decltype(auto) call(const char* method_name, Method method, Given&&... given) const {
    return PluginObject::call(method_name, [&](ParallelModel& model) -> decltype(auto) {
      try {
        return std::invoke(method, model, std::forward<Given>(given)...);
      } catch (const c10::DistError& error) {  // of a process group of the plugin's own
        throw Error(ErrorCode::collective_failed, error.what_without_backtrace())
            .note(fault_context(plugin(), method_name));
      }
    });
  }

 public:
  GuardedModel(const PluginCode* plugin, std::unique_ptr<ParallelModel> model)
      : PluginObject(plugin, std::move(model), "the destructor of its model") {
    set_context_parallel(inner().context_parallel());
  }
  void begin_step() override { call("begin_step", &ParallelModel::begin_step); }
  void begin_micro_batch(GradientSync sync) override {
    call("begin_micro_batch", &ParallelModel::begin_micro_batch, sync);
  }
  void end_step() override { call("end_step", &ParallelModel::end_step); }
  void end_step_deferred() override { call("end_step", &ParallelModel::end_step_deferred); }
  const std::vector<ParallelParameter>& parameters() const override {
    return call("parameters", &ParallelModel::parameters);
  }
  const std::vector<FlatParameterGroup>& update_groups() const override {
    return call("update_groups", &ParallelModel::update_groups);
  }
  void after_optimizer_step() override {
    call("after_optimizer_step", &ParallelModel::after_optimizer_step);
  }
  bool values_written(const ValuesWritten& written) override {
    return call("values_written", &ParallelModel::values_written, written);
  }
  bool before_save(SaveReason reason, int64_t steps) override {
    return call("before_save", &ParallelModel::before_save, reason, steps);
  }
  std::vector<StateTensor> state_tensors() const override {
    return call("state_tensors", &ParallelModel::state_tensors);
  }
  std::string independent_axis() const override {
    return call("independent_axis", &ParallelModel::independent_axis);
  }
  double clip_grad_norm(double max_norm, double scale) override {
    return call("clip_grad_norm", &ParallelModel::clip_grad_norm, max_norm, scale);
  }
  double clip_grad_norm_deferred(double max_norm, double scale, double& left) override {
    return call("clip_grad_norm", &ParallelModel::clip_grad_norm_deferred, max_norm, scale, left);
  }
  at::Tensor full_tensor(std::string_view name) override {
    return call("full_tensor", &ParallelModel::full_tensor, name);
  }
  // What `body` throws is not the plugin's, whatever it is.
  void summon_full_parameters(const std::function<void()>& body) override {
    std::exception_ptr ours;
    auto watched = [&] {
      PluginCall engine(nullptr, nullptr);
      try {
        body();
      } catch (...) {
        ours = std::current_exception();
        throw;
      }
    };
    try {
      call("summon_full_parameters", &ParallelModel::summon_full_parameters, watched);
    } catch (...) {
      if (ours) std::rethrow_exception(ours);
      throw;
    }
    if (ours) std::rethrow_exception(ours);
  }
  std::shared_ptr<Group> data_group() override {
    return call("data_group", &ParallelModel::data_group);
  }
  std::shared_ptr<TensorParallel> tensor_parallel() const override {
    return call("tensor_parallel", &ParallelModel::tensor_parallel);
  }
  void* extension(uint32_t id) override { return call("extension", &ParallelModel::extension, id); }
  PipelineUnits* pipeline_units() override {
    units_ = call("pipeline_units", &ParallelModel::pipeline_units);
    return units_ != nullptr ? this : nullptr;
  }
  std::vector<std::string> unit_names() const override {
    return call("unit_names", [&](ParallelModel&) { return units_->unit_names(); });
  }
  void hold_units(const std::vector<std::string>& units, bool held) override {
    call("hold_units", [&](ParallelModel&) { units_->hold_units(units, held); });
  }
  void reduce_units(const std::vector<std::string>& units) override {
    call("reduce_units", [&](ParallelModel&) { units_->reduce_units(units); });
  }
  bool reduces_every_micro_batch() const override {
    return call("reduces_every_micro_batch",
                [&](ParallelModel&) { return units_->reduces_every_micro_batch(); });
  }

 private:
  PipelineUnits* units_ = nullptr;  // the inner model's
};

}  // namespace

std::unique_ptr<ParallelModel> guarded_model(const PluginCode* plugin,
                                             std::unique_ptr<ParallelModel> inner) {
  if (inner == nullptr) return nullptr;
  return std::make_unique<GuardedModel>(plugin, std::move(inner));
}

namespace {

std::string shape_text(at::IntArrayRef shape) { return c10::str(shape); }
std::string shape_text(const at::Tensor& local) {
  return local.defined() ? shape_text(local.sizes()) : "of nothing";
}

// Checkpoints and weights are read into `local` by what the region says.
void check_regions(const ParallelModel& model, const std::string& strategy) {
  for (const ParallelParameter& p : model.parameters())
    if (!fits(p.region, p.global_shape) || !p.local.defined() ||
        p.local.sizes() != at::IntArrayRef(p.region.stored_shape()))
      throw Error(ErrorCode::plugin_nonconforming,
                  "the strategy " + strategy + " says that " + p.name + " is " + to_text(p.region) +
                      " of " + shape_text(p.global_shape) + " here, but its part has the shape " +
                      shape_text(p.local))
          .help(
              "give ParallelParameter::region the part of the whole that `local` is, and `local` "
              "the shape in which regions are stored");
}

// Else the optimizer updates something, and the model stays as it is.
void check_views(const ParallelModel& model, const torch::nn::Module& module,
                 const std::string& strategy) {
  const std::vector<UpdatePlace> places = update_places(model);
  const auto trained = module.named_parameters();
  for (size_t i = 0; i < places.size(); ++i) {
    const ParallelParameter& p = model.parameters()[i];
    if (p.local.numel() == 0 || places[i].group != SIZE_MAX) continue;
    const at::Tensor* whole = trained.find(p.name);
    if (whole == nullptr || !whole->requires_grad()) continue;
    throw Error(ErrorCode::plugin_nonconforming,
                "the strategy " + strategy + " trains " + p.name +
                    ", but its part is no view of any of update_groups(): the optimizer would "
                    "never change it")
        .help(
            "give ParallelParameter::local a view (narrow, view) of FlatParameterGroup::values, of "
            "the same dtype");
  }
}

// Names that files have for other things than a strategy's own state.
bool is_taken(const std::string& state) {
  return state == "buffer" || state == "rng" || state == "exp_avg" || state == "exp_avg_sq" ||
         state == "momentum";
}

void check_states(const ParallelModel& model, const std::string& strategy) {
  std::set<std::pair<std::string, std::string>> names;
  for (const StateTensor& t : model.state_tensors()) {
    auto bad = [&](const std::string& what) {
      return Error(ErrorCode::plugin_nonconforming, "the strategy " + strategy +
                                                        " keeps the state " + t.state + " of " +
                                                        t.name + ", " + what);
    };
    if (!is_state_name(t.state) || is_taken(t.state))
      throw bad("but a state's name is of a-z, 0-9 and _, and not one that the engine uses itself")
          .help("give StateTensor::state a name like " + strategy + "_momentum");
    if (t.name.empty() || !names.emplace(t.state, t.name).second)
      throw bad(t.name.empty() ? "which has no name" : "twice");
    if (!fits(t.region, t.global_shape))
      throw bad("but " + to_text(t.region) + " is no part of the shape " +
                shape_text(t.global_shape));
    if (t.replica && (t.replica->index < 0 || t.replica->index >= t.replica->count))
      throw bad("but it has no replica " + std::to_string(t.replica->index) + " of " +
                std::to_string(t.replica->count))
          .help(
              "set StateTensor::replica to {group->rank(), group->size()} of the replicas' group");
    if (!t.local.defined() && t.region.count() == 0) continue;
    if (!t.local.defined() || t.local.sizes() != at::IntArrayRef(t.region.stored_shape()) ||
        !t.local.is_contiguous() || dtype_of(t.local.scalar_type()) != t.dtype)
      throw bad("but its part is not a contiguous tensor of " + std::string(dtype_name(t.dtype)) +
                " in the shape of " + to_text(t.region));
  }
}

// Ranks that were to have parts of the model, or of the samples, and were given all of it would
// compute the same thing several times, or lose a part of each gradient.
void check_axes(const ParallelModel& model, const ParallelSizes& sizes, const TpPlan& tp,
                const std::string& strategy) {
  auto refuse = [&](const char* key, int64_t size, const std::string& what,
                    const std::string& maker) {
    return Error(ErrorCode::plugin_nonconforming, "the strategy " + strategy + " planned " + key +
                                                      " = " + std::to_string(size) +
                                                      ", but its parallelize() " + what)
        .key(std::string("distributed.") + key)
        .help("call " + maker + " in parallelize(), or refuse the size in plan_mesh()")
        .help(std::string("set distributed.") + key + " = 1");
  };
  auto over_tp = [](const ParallelParameter& p) {
    return std::ranges::any_of(p.placement, [](const auto& each) { return each.first == "tp"; });
  };
  if (sizes.tp > 1 && !tp.entries.empty() && !model.tensor_parallel() &&
      std::ranges::none_of(model.parameters(), over_tp))
    throw refuse("tp_size", sizes.tp, "cut nothing over tp", "apply_tensor_parallel()");
  if (sizes.cp > 1 && !model.context_parallel())
    throw refuse("cp_size", sizes.cp, "gave the model no context_parallel()",
                 "apply_context_parallel()");
}

}  // namespace

void check_parts(const ParallelModel& model, const torch::nn::Module& module,
                 const ParallelSizes& sizes, const TpPlan& tp, const std::string& strategy) {
  check_axes(model, sizes, tp, strategy);
  check_regions(model, strategy);
  check_views(model, module, strategy);
  check_states(model, strategy);
}

}  // namespace detail

}  // namespace meshwright
