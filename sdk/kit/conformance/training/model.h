// The small model that the kit trains, and its samples. Not for use outside the kit.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/modulelist.h>

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/model/model_family.h"
#include "meshwright/model/running_model.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/layers.h"
#include "meshwright/parallel/context_parallel.h"
#include "sdk/base/plugin_at_work.h"

namespace meshwright::conformance {

constexpr int64_t kWidth = 10, kInner = 7, kVocabulary = 13, kLayers = 3, kLength = 5, kHeads = 2;
// Samples of a step: they divide by 1, 2, 3 and 4 ranks.
constexpr int64_t kRows = 12;

// Sizes that divide by no number of ranks. Computes stage by stage where it is asked to.
struct NetImpl : torch::nn::Module {
  NetImpl();
  at::Tensor forward(const at::Tensor& x);
  // Forwards of the MLPs of all layers so far, those that a backward repeats among them.
  int64_t mlp_runs() const;
  Embedding embed{nullptr};
  torch::nn::ModuleList layers;
  Linear head{nullptr};
};
MESHWRIGHT_MODULE(Net);

// The same values in every place and at every time.
Net make_net();

// Samples [rows, kLength + 1] of a step.
at::Tensor samples(int64_t step, std::span<const int64_t> rows);

// The sum of the losses over the targets that this rank has: all of them without `context`.
at::Tensor loss_sum_of(Net& net, const at::Tensor& ids, const ContextParallel* context = nullptr);
// The same of a stage: hidden states, or of the last one the sum.
at::Tensor stage_output(Net& net, const at::Tensor& ids, const at::Tensor& hidden, bool last);

// What a plain loop makes of the kit's model: the numbers that every layout must reach. Not for use
// outside the kit.

using Tensors = std::map<std::string, at::Tensor>;

// SGD with momentum: the optimizer has a state, which is saved.
constexpr double kRate = 0.1, kMomentum = 0.5;
constexpr int64_t kSteps = 5;
// The step before which everything is saved, and the one whose traffic is counted: the order of
// units is known by then.
constexpr int64_t kSavedStep = 3, kCountedStep = 2;
// The one that is begun, left and begun again.
constexpr int64_t kCutShortStep = 1;

// What each step asks of clip_grad_norm(): one of them scales, another one clips.
struct Clipping {
  double max_norm = 0, scale = 1;
};
constexpr Clipping clipping_of(int64_t step) {
  return step == 1 ? Clipping{0, 0.5} : step == 3 ? Clipping{0.1, 1} : Clipping{};
}

struct TrainingState {
  Tensors parameters, momenta;
  Tensors states = {};  // of state_tensors(), which a plain loop has none of
  // Where gradients are approximate: the exact ones of all steps so far, and what was used of them.
  Tensors exact = {}, used = {};
};

struct Reference {
  std::vector<double> losses, norms;  // by step
  std::vector<Tensors> gradients;     // by step: after clip_grad_norm()
  std::vector<TrainingState> states;  // by step: before it; the last one at the end
};

Reference plain_loop();
// The state before the first step.
TrainingState first_state();
// What clip_grad_norm() multiplies all gradients with, where it answers `norm`.
double clipped_by(const Clipping& how, double norm);
// One step more, with these gradients, which it scales and clips.
void advance(Reference& reference, double loss, Tensors gradients);

// Of some samples of a step at these parameters: means, not clipped nor scaled.
struct LossAndGradients {
  double loss = 0;
  Tensors gradients;
};
LossAndGradients backward_at(const Tensors& parameters, int64_t step,
                             std::span<const int64_t> rows);

// A plugin's model with values and samples, and what a plain loop makes of it. Not for use outside
// the kit.

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
