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
#include <string>
#include <vector>

#include "meshwright/outline.h"
#include "meshwright/shared_options.h"

namespace meshwright {

class RunningModel;  // meshwright/model/running_model.h

struct ModelRequest {
  Options options;     // [model.NAME]
  std::string config;  // model.config, or the folder of model.pretrained; "": neither is set
  DType storage = DType::float32;  // model.torch_dtype
  ParallelSizes sizes;             // of the job
  std::shared_ptr<const Later> later = {};
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
  // gives, with what they begin as; tied ones once.
  virtual ModelOutline outline(const ModelRequest& request) const = 0;
  // The module, its parameters without values. Default: the plugin's running half makes it
  // (meshwright/parallel/plugin_runtime.h).
  virtual std::unique_ptr<RunningModel> make(const ModelRequest& request) const;
  // Growth: an interface by id, or nullptr.
  virtual void* extension(uint32_t id);
};

// Lists modules and parameters in the order in which the model registers them; what else there is
// to say of them is said in `outline`. A returned parameter is valid until the next one is added.
class MESHWRIGHT_API OutlineBuilder {
 public:
  explicit OutlineBuilder(DType storage) : storage_(storage) {}
  void module(const std::string& name, ModuleKind kind, const std::string& class_name);
  ParameterOutline& parameter(const std::string& name, std::vector<int64_t> shape);
  // `weight` [out, in] and, with a bias, `bias` [out]. Several projections in one: all their rows.
  void linear(const std::string& name, int64_t in, int64_t out, bool bias = false);
  void fused_linear(const std::string& name, int64_t in, const FusedRows& rows, bool bias = false);
  // `weight` [rows, width].
  void embedding(const std::string& name, int64_t rows, int64_t width,
                 const std::string& class_name = "Embedding");
  // `weight` [width] and, with a bias, `bias` [width].
  void norm(const std::string& name, int64_t width, const std::string& class_name,
            bool bias = false);

  ModelOutline outline;

 private:
  DType storage_;
  std::shared_ptr<const Later> later_;  // room for what later versions add
};

}  // namespace meshwright
