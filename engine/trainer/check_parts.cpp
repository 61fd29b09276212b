#include "engine/trainer/check_parts.h"

#include <torch/nn/module.h>

#include "engine/report/report.h"
#include "engine/trainer/local_state.h"

namespace meshwright::train {

namespace {

// Checkpoints and weights are read into `local` by what the region says.
void check_regions(const ParallelModel& model, const std::string& strategy) {
  for (const ParallelParameter& p : model.parameters())
    if (!fits(p.region, p.global_shape) ||
        p.local.sizes() != at::IntArrayRef(p.region.stored_shape()))
      throw Error(ErrorCode::plugin_nonconforming, "the strategy " + strategy + " says that " +
                                                       p.name + " is " + to_text(p.region) +
                                                       " of " + report::shape_text(p.global_shape) +
                                                       " here, but its part has the shape " +
                                                       report::shape_text(p.local.sizes().vec()))
          .help(
              "give ParallelParameter::region the part of the whole that `local` is, and `local` "
              "the shape in which regions are stored");
}

// Else the optimizer updates something, and the model stays as it is.
void check_views(const ParallelModel& model, const torch::nn::Module& module,
                 const std::string& strategy) {
  const std::vector<OptimizerPlace> places = optimizer_places(model);
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

}  // namespace

void check_parts(const ParallelModel& model, const torch::nn::Module& module,
                 const std::string& strategy) {
  check_regions(model, strategy);
  check_views(model, module, strategy);
}

}  // namespace meshwright::train
