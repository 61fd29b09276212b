// A family of models that a plugin brings: `model.plugin = "mine"`, with its options in
// [model.mine].
//
//   class Mine final : public meshwright::ModelFamily {
//    public:
//     ModelOutline outline(const ModelRequest& request) const override { ... }  // on paper
//     std::unique_ptr<RunningModel> make(const ModelRequest& request) const override { ... }
//   };
//
// All but make() are pure, as a strategy's hooks are: no process group exists, the same arguments
// give the same answer on every rank. They throw meshwright::Error only.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "meshwright/outline.h"
#include "meshwright/shared_options.h"

namespace meshwright {

class RunningModel;  // meshwright/model/running_model.h

struct ModelRequest {
  Options options;     // [model.NAME]
  std::string config;  // model.config, or the folder of model.pretrained; "": neither is set
  DType storage = DType::float32;  // model.torch_dtype
  ParallelSizes sizes;             // of the job
};

// What a parameter's elements are before any training, without a folder's weights: each a function
// of run.seed, the parameter's name and its place, the same on every layout.
struct InitialValue {
  enum class Kind : uint8_t { constant, normal, uniform };
  Kind kind = Kind::normal;
  // constant: each element; normal: the standard deviation (mean 0); uniform: from -value to value.
  double value = 0.02;
  std::optional<int64_t> zero_row = std::nullopt;  // all of it: an embedding's padding
};

class MESHWRIGHT_API ModelFamily {
 public:
  ModelFamily() = default;
  ModelFamily(const ModelFamily&) = delete;
  ModelFamily& operator=(const ModelFamily&) = delete;
  virtual ~ModelFamily();

  // Rules between options that a schema cannot say, the contents of request.config included.
  // Reports all of them. Default: none.
  virtual void validate(const ModelRequest& request, Diagnostics& diagnostics) const;
  // What can be planned, but does not run, or not under these sizes. Default: nothing.
  virtual void check_runs(const ModelRequest& request, Diagnostics& diagnostics) const;
  // The model on paper: its modules, and its parameters in the order of the module that make()
  // gives; tied ones once.
  virtual ModelOutline outline(const ModelRequest& request) const = 0;
  // Default: 1 for `weight` of a module of kind norm, 0 for what is called `bias`, else
  // normal(0, 0.02).
  virtual InitialValue initial_value(const ModelRequest& request, const ModelOutline& outline,
                                     const ParameterOutline& parameter) const;
  // The module, its parameters without values. Default: the plugin's running half makes it
  // (meshwright/parallel/plugin_runtime.h).
  virtual std::unique_ptr<RunningModel> make(const ModelRequest& request) const;
  // Growth between epochs: an interface by id, or nullptr.
  virtual void* extension(uint32_t id);
};

}  // namespace meshwright
