// Mixture-of-experts blocks (Shazeer et al. 2017): a router sends each token to a few experts,
// whose weights lie in one tensor.
//
//   // As any other MLP, [batch, length, dim] both ways:
//   struct LayerImpl : torch::nn::Module { meshwright::Moe mlp{nullptr}; ... };
//   // In any model, how tokens reach experts of other ranks:
//   for (auto& [name, block] : meshwright::find_moe_blocks(model))
//     block->set_dispatcher(std::make_shared<MyDispatcher>(...));
//
// All of it is local unless a dispatcher says otherwise; not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/nn/layers.h"
#include "meshwright/nn/module.h"

namespace meshwright {

// How logits become the scores that select experts, and the weights of the selected. "bias":
// e_score_correction_bias, which takes part in the selection alone (Wang et al. 2024).
enum class ScoreFunction : uint8_t {
  softmax,
  softmax_with_bias,
  sigmoid,
  sigmoid_with_bias,
  sqrtsoftplus
};
// g and u: the gate's and the up projection's part. swiglu silu(g) u; swigluoai g sigmoid(alpha g)
// (u + 1) of clamped parts; quick_geglu the same with g and u in turns; geglu gelu(g) u; relu2
// relu(x)^2, without a gate.
enum class ExpertActivation : uint8_t { swiglu, swigluoai, quick_geglu, geglu, relu2 };

struct MoeConfig {
  int64_t dim = 0, moe_inter_dim = 0;
  int64_t n_routed_experts = 0, n_activated_experts = 1;
  // A token's experts come from the best n_limited_groups of n_expert_groups.
  int64_t n_expert_groups = 1, n_limited_groups = 1;
  // Above 0: experts work on this width, between two projections of the block.
  int64_t moe_latent_size = 0;
  // Router.
  ScoreFunction score_func = ScoreFunction::softmax;
  bool softmax_before_topk = false;  // softmax over all experts; else over the selected
  bool norm_topk_prob = false;       // weights of a token sum up to 1
  double route_scale = 1;
  bool router_bias = false;
  bool router_weights_fp32 = false;  // weights stay float32; else they get the tokens' dtype
  bool router_weight_uses_score_correction_bias = false;  // sigmoid only
  std::optional<at::ScalarType> gate_precision = {};  // of the logits; absent: the tokens' dtype
  double aux_loss_coeff = 0,
         gate_bias_update_factor = 0;          // see LoadBalance and Router::update_bias
  bool force_e_score_correction_bias = false;  // also when the factor is 0
  // Experts.
  bool expert_bias = false;
  ExpertActivation expert_activation = ExpertActivation::swiglu;
  double activation_alpha = 1.702, activation_limit = 7;  // swigluoai, quick_geglu
  double swiglu_limit = 0;                                // > 0: swiglu of g <= limit, |u| <= limit
  bool apply_router_weight_after_down = false;            // else between the two projections
  // Experts that see every token, as one dense MLP.
  int64_t n_shared_experts = 0;
  int64_t shared_expert_inter_dim = 0;  // 0: n_shared_experts * moe_inter_dim
  ExpertActivation shared_expert_activation = ExpertActivation::swiglu;
  bool shared_expert_gate = false;   // their sum is multiplied by sigmoid(x w)
  bool experts_before_gate = false;  // order of registration: Qwen3-MoE's
  double initializer_range = 0.02;
  std::shared_ptr<const Later> later = {};

  int64_t expert_width() const { return moe_latent_size > 0 ? moe_latent_size : dim; }
  bool has_score_correction_bias() const {
    return gate_bias_update_factor > 0 || force_e_score_correction_bias;
  }
};
// Throws Error(bad_module) for sizes that do not go together.
MESHWRIGHT_API void check_moe_config(const MoeConfig& config);

// Where the tokens of one pass go. A masked token (padding) goes nowhere: its indices are -1, its
// weights 0.
struct Routing {
  at::Tensor weights;  // [T, k], differentiable
  at::Tensor indices;  // [T, k] int64, of all experts of the model
  std::shared_ptr<const Later> later = {};
};
MESHWRIGHT_API TensorRefs tensors_of(Routing& routing);
template <class F>
void visit_tensors(Routing& routing, F&& f) {
  for (at::Tensor* tensor : tensors_of(routing)) f(*tensor);
}

// The auxiliary loss that keeps experts evenly loaded (Shazeer et al. 2017, Fedus et al. 2021),
// over the tokens of one pass: L = sum_i load_i E / (k C) * sum_t s_ti / C, 1 where routing is
// even. It reaches the router through a node on its weights, whose backward adds coefficient *
// scale * dL. There is one per router, or one for all routers of a model, whose tokens are then
// taken together and counted as transformers' load_balancing_loss_func does (without the k).
class MESHWRIGHT_API LoadBalance {
 public:
  enum class Form : uint8_t { each_layer, whole_model };
  LoadBalance(double coefficient, Form form) : coefficient_(coefficient), form_(form) {}
  Form form() const { return form_; }
  // What the loss of a step is multiplied with before backward, for each micro-batch: set by the
  // training loop in between.
  void set_scale(double scale) { scale_ = scale; }
  // whole_model: called by the model before its first layer.
  void begin_pass();
  // coefficient * L of the last pass, without gradient; 0-dim float32, undefined when no token was
  // counted.
  at::Tensor value() const;

  // Sums of one pass: assignments and scores per expert [E], tokens [], all float32. Shared by
  // handle: they may grow until backward.
  struct Pass {
    at::Tensor load, scores, tokens;
  };
  // Adds a router's pass and gives the sums it belongs to.
  Pass add(const at::Tensor& load, const at::Tensor& scores, const at::Tensor& tokens,
           int64_t active);
  // What backward adds to every counted token's scores, [E] float32.
  at::Tensor gradient(const Pass& pass) const;
  // Adds up, in place, the sums of all ranks that share the samples; nullptr: one rank has them
  // whole. Called once a pass on every such rank, in the same order.
  std::function<void(std::vector<at::Tensor> sums)> add_ranks;

 private:
  MESHWRIGHT_LOCAL void add_once() const;
  mutable bool added_ = false;  // whole_model: of this pass
  double coefficient_, scale_ = 1;
  Form form_;
  int64_t active_ = 1;  // k; 1 for a whole model
  Pass pass_;
  std::shared_ptr<const Later> later_;  // room for what later versions add
};

// weight [E, dim], bias [E]; buffer e_score_correction_bias [E] float32.
class MESHWRIGHT_API RouterImpl : public torch::nn::Module {
 public:
  RouterImpl(const MoeConfig& config, const at::TensorOptions& options = {});
  ~RouterImpl() override;
  // x [T, dim]; mask [T] bool, true: a token that counts. Under activation checkpointing the second
  // run takes the selection of the first.
  Routing forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = std::nullopt);

  // Assignments per expert, [E] int64, of all training passes since reset_load(). Recomputed passes
  // do not count.
  const at::Tensor& load() const { return load_; }
  void reset_load();
  // After the optimizer's step, from the load of all ranks [E]: bias += factor * sign(mean(load) -
  // load). Throws Error(bad_module) without a bias, with factor 0, outside of training or, where
  // the load lies on the host, for a load of nothing.
  void update_bias(const at::Tensor& load);
  bool updates_bias() const {
    return e_score_correction_bias.defined() && config_.gate_bias_update_factor > 0;
  }

  std::shared_ptr<LoadBalance> load_balance;  // nullptr: no auxiliary loss
  bool route_again = false;  // under activation checkpointing the second run selects anew
  // For measuring speed: assignments go to experts 0, 1, 2, ..., weights are 1 / k.
  bool in_turns = false;

  at::Tensor weight, bias, e_score_correction_bias;

 private:
  MESHWRIGHT_LOCAL at::Tensor project(const at::Tensor& x, const at::Tensor& kept);
  MESHWRIGHT_LOCAL Routing scored(const at::Tensor& x, const std::optional<at::Tensor>& mask);
  MESHWRIGHT_LOCAL Routing evenly(const at::Tensor& x, const std::optional<at::Tensor>& mask);
  MESHWRIGHT_LOCAL void add_load(const at::Tensor& load);
  MESHWRIGHT_LOCAL at::Tensor select(const at::Tensor& logits, const at::Tensor& given) const;
  MESHWRIGHT_LOCAL LoadBalance::Pass count(const at::Tensor& logits, const at::Tensor& given,
                                           const at::Tensor& indices,
                                           const std::optional<at::Tensor>& mask);
  MoeConfig config_;
  at::Tensor load_;
  std::shared_ptr<const Later> later_;  // room for what later versions add
};
MESHWRIGHT_MODULE(Router);

// gate_and_up_projs [E, d, 2f] (relu2: [E, d, f]), down_projs [E, f, d], with biases
// gate_up_proj_bias [E, 2f] and down_proj_bias [E, d]; E: the experts that this rank holds, read
// from the parameters at every call.
class MESHWRIGHT_API GroupedExpertsImpl : public torch::nn::Module {
 public:
  GroupedExpertsImpl(const MoeConfig& config, const at::TensorOptions& options = {});
  ~GroupedExpertsImpl() override;
  // tokens [N, d] sorted by expert, counts[e] of them for expert e, weights [N]: the experts'
  // weighted outputs [N, d]. One autograd node; parameters of experts without tokens get zero
  // gradients, also when N is 0. padded: as in ExpertOrder, rows of zeros in gradients too; their
  // weights are any numbers.
  at::Tensor forward(const at::Tensor& tokens, const std::vector<int64_t>& counts,
                     const at::Tensor& weights, bool padded = false);
  // The same with ExpertOrder::bounds in place of counts, which the host waits for only where
  // fits_bounds() says no. Of rows that no expert has, results and gradients have any values.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& bounds, const at::Tensor& weights);
  // bfloat16 in whole 16 bytes, or small float32 experts on a device; some tokens, no biases.
  bool fits_bounds(const at::Tensor& tokens) const;
  int64_t experts() const { return gate_and_up_projs.size(0); }

  at::Tensor gate_and_up_projs, down_projs, gate_up_proj_bias, down_proj_bias;

 private:
  MoeConfig config_;
  std::shared_ptr<const Later> later_;  // room for what later versions add
};
MESHWRIGHT_MODULE(GroupedExperts);

// Assignments in the order of their experts; the assignments of one expert are in the order of the
// tokens.
struct ExpertOrder {
  at::Tensor slot;              // [N] int64: which of the T * k assignments; 0 for a row of zeros
  at::Tensor token;             // [N] int64: the row of x, slot / k; -1 for a row of zeros
  at::Tensor place;             // [T, k] int64: where the assignment went, -1: nowhere
  std::vector<int64_t> counts;  // of each expert, without rows of zeros
  at::Tensor bounds;  // [E + 1] int32, on devices: each expert's first row, and the row behind the
                      // last one's
  bool padded = false;  // an expert takes padded_rows(its count): behind its rows lie rows of zeros
  std::shared_ptr<const Later> later = {};
};
// Some libraries make code for each new number of rows, which takes longer than the product: n
// rounded up to one of sixteen sizes between two powers of two, at least by steps of 8, and whether
// that should be done for tokens like x.
MESHWRIGHT_API int64_t padded_rows(int64_t n);
MESHWRIGHT_API bool pads_rows(const at::Tensor& x);
// indices [T, k] int64 in [-1, experts). Waits for the device.
MESHWRIGHT_API ExpertOrder sort_by_expert(const at::Tensor& indices, int64_t experts,
                                          bool padded = false);
// The same without waiting: `counts` are empty, and N is T * k: masked assignments lie behind all
// others, in rows that no expert has.
MESHWRIGHT_API ExpertOrder sort_without_counts(const at::Tensor& indices, int64_t experts);
// x [T, d] to [N, d], weights [T, k] to [N], y [N, d] to the sums of each token's rows [T, d]
// (added in float32). All differentiable.
MESHWRIGHT_API at::Tensor gather_tokens(const at::Tensor& x, const ExpertOrder& order);
MESHWRIGHT_API at::Tensor gather_weights(const at::Tensor& weights, const ExpertOrder& order);
MESHWRIGHT_API at::Tensor combine_tokens(const at::Tensor& y, const ExpertOrder& order);

// Brings tokens to their experts and the results back. Dropless.
class MESHWRIGHT_API ExpertDispatcher {
 public:
  virtual ~ExpertDispatcher();
  // x [T, d] to [T, d]; calls `experts` once, through its hooks, also without tokens, and
  // `meanwhile` once: the block's other work, to be done while tokens travel.
  virtual at::Tensor forward(const at::Tensor& x, const Routing& routing, GroupedExperts& experts,
                             const std::function<void()>& meanwhile) = 0;
  // Growth: an interface by id, or nullptr.
  virtual void* extension(uint32_t id);
};
// All experts on this rank.
MESHWRIGHT_API std::shared_ptr<ExpertDispatcher> local_dispatcher();

// Children: gate, experts; then shared_experts, shared_expert_gate, fc1_latent_proj and
// fc2_latent_proj where the configuration asks for them.
class MESHWRIGHT_API MoeImpl : public torch::nn::Module {
 public:
  explicit MoeImpl(const MoeConfig& config, const at::TensorOptions& options = {});
  ~MoeImpl() override;
  // x [batch, length, dim]; mask [batch, length] bool, true: a token that counts. Without one it is
  // that of current_sequence().
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = std::nullopt);

  const MoeConfig& config() const { return config_; }
  Router& gate() { return gate_; }
  GroupedExperts& experts() { return experts_; }
  ExpertDispatcher& dispatcher();
  void set_dispatcher(std::shared_ptr<ExpertDispatcher> dispatcher);

 private:
  MoeConfig config_;
  Router gate_{nullptr};
  GroupedExperts experts_{nullptr};
  struct Parts;
  std::unique_ptr<Parts> parts_;
};
MESHWRIGHT_MODULE(Moe);

// Dotted names and blocks, in the order of the modules.
MESHWRIGHT_API std::vector<std::pair<std::string, MoeImpl*>> find_moe_blocks(
    torch::nn::Module& model);

}  // namespace meshwright
