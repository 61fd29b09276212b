#include "sdk/base/check_parts.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <set>

#include "meshwright/parallel/scalar_type.h"

namespace meshwright::detail {

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
    const bool named =
        !t.state.empty() &&
        t.state.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
    if (!named || is_taken(t.state))
      throw bad("but a state's name is of a-z, 0-9 and _, and not one that the engine uses itself")
          .help("give StateTensor::state a name like " + strategy + "_momentum");
    if (t.name.empty() || !names.emplace(t.state, t.name).second)
      throw bad(t.name.empty() ? "which has no name" : "twice");
    if (!fits(t.region, t.global_shape))
      throw bad("but " + to_text(t.region) + " is no part of the shape " +
                shape_text(t.global_shape));
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

}  // namespace meshwright::detail
