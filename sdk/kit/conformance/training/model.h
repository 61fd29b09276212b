// A plugin's model with values and samples, and what a plain loop makes of it. Not for use outside
// the kit.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/model/model_family.h"
#include "meshwright/model/running_model.h"
#include "sdk/base/plugin_at_work.h"
#include "sdk/kit/conformance/training/reference.h"

namespace meshwright::conformance {

// Samples of a step: they divide by 1, 2 and 4 ranks.
constexpr int64_t kModelRows = 8, kModelSteps = 3;
constexpr double kModelRate = 0.1, kModelNorm = 1;

struct ModelBatch {
  at::Tensor tokens, targets;  // [rows, length] int64
  int64_t count() const;       // of targets that are not -100
};

class ModelUnderTest {
 public:
  // Throws std::runtime_error where make() or module() return nothing, and what they throw.
  ModelUnderTest(const ModelFamily& family, const ModelRequest& request,
                 const detail::PluginCode* code);
  ModelUnderTest(const ModelFamily&, ModelRequest&&, const detail::PluginCode*) = delete;

  const ModelFamily& family() const { return family_; }
  const detail::PluginCode* code() const { return code_; }
  const ModelRequest& request() const { return request_; }
  const ModelOutline& outline() const { return outline_; }
  // The one that was made first; without values.
  RunningModel& first() { return *first_; }
  int64_t length() const { return length_; }
  // Another one, with values: the same in every place and at every time. What is constant by
  // initial_value() is not quite, so that norms and biases do something.
  std::unique_ptr<RunningModel> make() const;
  // Rows [begin, end) of a step, as change_batch() leaves them.
  ModelBatch batch(const RunningModel& model, int64_t step, int64_t begin, int64_t end) const;

 private:
  const ModelFamily& family_;
  const ModelRequest& request_;
  const detail::PluginCode* code_;
  ModelOutline outline_;
  std::unique_ptr<RunningModel> first_;
  int64_t length_ = 0;
};

// What leaves it, as one line; "" where nothing does.
std::string failure_of(const std::function<void()>& body);

// Values for the parameters, in float32 on the host.
void fill_values(torch::nn::Module& module, const ModelFamily& family, const ModelRequest& request,
                 const ModelOutline& outline);
// Named parameters, tied ones once.
std::vector<std::pair<std::string, at::Tensor>> parameters_of(const torch::nn::Module& module);

struct Curve {
  std::vector<double> losses, norms;  // by step
  Tensors parameters;                 // after the last one
};
// SGD on gradients clipped to kModelNorm.
Curve plain_curve(const ModelUnderTest& model);

// Each says what is wrong, and gives the note of a case that passes.
std::string check_module(ModelUnderTest& model, std::vector<std::string>& problems);
std::string check_forward(ModelUnderTest& model, std::vector<std::string>& problems);
std::string check_layouts(const ModelUnderTest& model, std::vector<std::string>& problems);

}  // namespace meshwright::conformance
