#include "engine/trainer/adapters.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

#include "engine/modules/initialize.h"
#include "meshwright/error.h"
#include "meshwright/nn/layers.h"
#include "meshwright/parallel/scalar_type.h"
#include "sdk/base/add_low_rank.h"
#include "sdk/base/low_rank.h"

namespace meshwright::train {
namespace {

using at::Tensor;

std::string below(const std::string& module, std::string_view part) {
  return module + "." + std::string(part);
}

Error not_adaptable(const std::string& module, const std::string& why) {
  return Error(ErrorCode::bad_module, module + " can have no adapter: " + why)
      .key("lora.target_modules")
      .help("add \"" + module + "\" to lora.exclude_modules");
}

// The factor below a Linear, without values.
void attach(torch::nn::Module& linear, std::string_view part, const ParameterOutline& parameter,
            const plan::Adapters& adapters, uint64_t seed) {
  const Tensor weight = linear.named_parameters(/*recurse=*/false)["weight"];
  Linear factor =
      make_linear(parameter.shape[1], parameter.shape[0], /*bias=*/false,
                  at::TensorOptions().dtype(scalar_type(parameter.dtype)).device(weight.device()));
  linear.register_module(std::string(part), factor);
  if (weight.is_meta()) return;
  modules::initialize(parameter.name, parameter.shape,
                      std::vector<int64_t>(parameter.shape.size(), 0), parameter.shape,
                      plan::initial_adapter(parameter, adapters.gaussian), seed, factor->weight);
}

// Autocast casts by itself; else a unit of its own dtype may lie around one of the two.
Tensor as_type_of(const Tensor& x, const Tensor& like) {
  return at::autocast::is_autocast_enabled(x.device().type()) ? x : x.to(like.scalar_type());
}

// What an adapter reads of the Linear's input in training.
struct Drop {
  std::shared_ptr<const AdapterDropout> dropout;  // nullptr: all of it
  std::string module;
  int64_t columns;
  bool at_work(const torch::nn::Module& linear) const {
    return dropout != nullptr && linear.is_training() && c10::GradMode::is_enabled();
  }
};

// Whether calls of a factor are its product alone.
bool bare(const Linear& factor) {
  const HookHost& host = *factor;
  return host.before_forward.empty() && host.after_forward.empty() && !host.around;
}

// y + scale B (A x), in two hooks around the Linear. The output of one of our own is nobody else's
// yet, so that the sum may take its memory.
void run(HookHost& host, Linear in, Linear out, double scale, Drop drop) {
  auto input = std::make_shared<Tensor>();  // between the two hooks of a call
  host.before_forward.emplace_back(
      [input](torch::nn::Module&, TensorRefs& inputs) { *input = *inputs.at(0); });
  host.after_forward.insert(
      host.after_forward.begin(),
      [input, in = std::move(in), out = std::move(out), scale, drop = std::move(drop)](
          torch::nn::Module& linear, TensorRefs& outputs) mutable {
        Tensor x = std::exchange(*input, Tensor());
        Tensor& y = *outputs.at(0);
        double times = scale;
        if (drop.at_work(linear)) {
          // Where the factor gathers its input by itself, x is this rank's part of the positions.
          const HookHost& reads = *in;
          x = drop.dropout->apply(x, drop.module, drop.columns,
                                  /*part=*/static_cast<bool>(reads.around));
          times /= 1 - drop.dropout->rate();
        }
        x = as_type_of(x, in->weight);
        const bool ours = typeid(linear) == typeid(Linear::ContainedType);
        if (ours && bare(in) && bare(out) && fits_low_rank(y, x, in->weight, out->weight))
          y = add_low_rank(y, x, in->weight, out->weight, times);
        else
          y = y + as_type_of(out(in(x).mul(times)), y);
      });
}

}  // namespace

void attach_adapters(const plan::Adapters& adapters, const ModelOutline& outline,
                     torch::nn::Module& model, uint64_t seed) {
  auto modules = model.named_modules("", /*include_self=*/false);
  for (const std::string& name : adapters.modules) {
    if (!modules.contains(name))
      throw Error(ErrorCode::bad_module,
                  "the model has no module " + name + ", which its outline lists");
    torch::nn::Module& linear = *modules[name];
    if (HookHost::of(linear) == nullptr)
      throw not_adaptable(name, "it has no hooks")
          .help(
              "take Linear from meshwright/nn/layers.h, or declare the class with "
              "MESHWRIGHT_MODULE(...)");
    for (std::string_view part : {kFactorIn, kFactorOut}) {
      if (linear.named_children().contains(std::string(part)))
        throw not_adaptable(name, "it has a " + std::string(part) + " already");
      attach(linear, part, *outline.find_parameter(below(name, part) + ".weight"), adapters, seed);
    }
  }
}

void run_adapters(const plan::Adapters& adapters, const ModelOutline& outline,
                  torch::nn::Module& model, const std::shared_ptr<AdapterDropout>& dropout) {
  if (!adapters.any()) return;
  auto modules = model.named_modules("", /*include_self=*/false);
  auto factor = [&](const std::string& name, std::string_view part) {
    return Linear(std::dynamic_pointer_cast<Linear::ContainedType>(modules[below(name, part)]));
  };
  for (const std::string& name : adapters.modules)
    if (modules.contains(name))  // else it is of another stage
      run(*HookHost::of(*modules[name]), factor(name, kFactorIn), factor(name, kFactorOut),
          adapters.scale(name),
          {dropout, name, outline.find_parameter(below(name, kFactorIn) + ".weight")->shape[1]});
}

}  // namespace meshwright::train
