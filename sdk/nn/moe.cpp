#include "meshwright/nn/moe.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/layers.h"
#include "meshwright/parallel/activation_checkpoint.h"
#include "meshwright/parallel/collectives.h"
#include "moe_parts.h"
#include "row_route.h"
#include "sdk/base/even_tokens.h"
#include "sdk/base/read_by_host.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/comm/parts.h"
#include "weight_gradients.h"

namespace meshwright {

namespace {

using at::Tensor;

Linear linear(int64_t in, int64_t out, const MoeConfig& config, const at::TensorOptions& options) {
  Linear made = make_linear(in, out, /*bias=*/false, options);
  c10::NoGradGuard no_grad;
  if (!made->weight.is_meta()) made->weight.normal_(0, config.initializer_range);
  return made;
}

}  // namespace

void check_moe_config(const MoeConfig& c) {
  auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::bad_module, "no mixture of experts can be made of this: " + what);
  };
  auto text = [](int64_t n) { return std::to_string(n); };
  if (c.dim < 1 || c.moe_inter_dim < 1 || c.n_routed_experts < 1)
    refuse("dim = " + text(c.dim) + ", moe_inter_dim = " + text(c.moe_inter_dim) +
           " and n_routed_experts = " + text(c.n_routed_experts) + " must be positive");
  if (c.n_activated_experts < 1 || c.n_activated_experts > c.n_routed_experts)
    refuse("n_activated_experts = " + text(c.n_activated_experts) +
           " is not between 1 and n_routed_experts = " + text(c.n_routed_experts));
  if (c.n_expert_groups < 1 || c.n_routed_experts % c.n_expert_groups != 0)
    refuse("n_routed_experts = " + text(c.n_routed_experts) +
           " is not a multiple of n_expert_groups = " + text(c.n_expert_groups));
  if (c.n_limited_groups < 1 || c.n_limited_groups > c.n_expert_groups)
    refuse("n_limited_groups = " + text(c.n_limited_groups) +
           " is not between 1 and n_expert_groups = " + text(c.n_expert_groups));
  int64_t reachable = c.n_routed_experts / c.n_expert_groups * c.n_limited_groups;
  if (c.n_activated_experts > reachable)
    refuse("n_activated_experts = " + text(c.n_activated_experts) + " is more than the " +
           text(reachable) + " experts of " + text(c.n_limited_groups) + " groups");
  if (c.n_shared_experts < 0 || c.shared_expert_inter_dim < 0 || c.moe_latent_size < 0)
    refuse("a size is negative");
}

// A dense MLP under the names of Hugging Face: gate_proj, up_proj, down_proj; relu2: up_proj and
// down_proj. A child's class name is part of the outline, so it is in no unnamed namespace.
class SharedExpertsImpl : public torch::nn::Module {
 public:
  explicit SharedExpertsImpl(const MoeConfig& config, const at::TensorOptions& options = {});
  Tensor forward(const Tensor& x);

 private:
  detail::ActivationShape activation_;
  Linear gate_proj_{nullptr}, up_proj_{nullptr}, down_proj_{nullptr};
};
MESHWRIGHT_MODULE(SharedExperts);

SharedExpertsImpl::SharedExpertsImpl(const MoeConfig& config, const at::TensorOptions& options)
    : activation_{config.shared_expert_activation, config.activation_alpha, config.activation_limit,
                  config.swiglu_limit} {
  // The two parts of quick_geglu do not take turns here: they come from two projections.
  if (activation_.kind == ExpertActivation::quick_geglu)
    activation_.kind = ExpertActivation::swigluoai;
  int64_t inner = config.shared_expert_inter_dim > 0
                      ? config.shared_expert_inter_dim
                      : config.n_shared_experts * config.moe_inter_dim;
  if (activation_.gated())
    gate_proj_ = register_module("gate_proj", linear(config.dim, inner, config, options));
  up_proj_ = register_module("up_proj", linear(config.dim, inner, config, options));
  down_proj_ = register_module("down_proj", linear(inner, config.dim, config, options));
}

Tensor SharedExpertsImpl::forward(const Tensor& x) {
  Tensor both;
  if (!gate_proj_.is_empty()) both = gate_proj_(x);
  const Tensor up = up_proj_(x);
  both = both.defined() ? at::cat({both, up}, -1) : up;
  return down_proj_(detail::activate(activation_, both, {}));
}

// The block's other children, and its dispatcher.
struct MoeImpl::Parts {
  SharedExperts shared_experts{nullptr};
  Linear shared_expert_gate{nullptr}, fc1_latent_proj{nullptr}, fc2_latent_proj{nullptr};
  std::shared_ptr<ExpertDispatcher> dispatcher = local_dispatcher();
};

MoeImpl::MoeImpl(const MoeConfig& config, const at::TensorOptions& options)
    : config_(config), parts_(std::make_unique<Parts>()) {
  check_moe_config(config);
  if (config.experts_before_gate)
    experts_ = register_module("experts", GroupedExperts(config, options));
  gate_ = register_module("gate", Router(config, options));
  if (!config.experts_before_gate)
    experts_ = register_module("experts", GroupedExperts(config, options));
  if (config.n_shared_experts > 0) {
    parts_->shared_experts = register_module("shared_experts", SharedExperts(config, options));
    if (config.shared_expert_gate)
      parts_->shared_expert_gate =
          register_module("shared_expert_gate", linear(config.dim, 1, config, options));
  }
  if (config.moe_latent_size > 0) {
    parts_->fc1_latent_proj = register_module(
        "fc1_latent_proj", linear(config.dim, config.moe_latent_size, config, options));
    parts_->fc2_latent_proj = register_module(
        "fc2_latent_proj", linear(config.moe_latent_size, config.dim, config, options));
  }
}

MoeImpl::~MoeImpl() = default;

Tensor MoeImpl::forward(const Tensor& x, const std::optional<Tensor>& given) {
  std::optional<Tensor> mask = given;
  if (std::shared_ptr<const Sequence> sequence = current_sequence();
      !mask && sequence && sequence->counts.defined() &&
      sequence->counts.numel() * x.size(-1) == x.numel())
    mask = sequence->counts.to(x.device());
  Tensor tokens = x.reshape({-1, x.size(-1)}), shared;
  Routing routing = gate_(tokens, mask ? std::optional<Tensor>(mask->reshape(-1)) : std::nullopt);
  auto meanwhile = [&] {
    if (parts_->shared_experts.is_empty()) return;
    shared = parts_->shared_experts(tokens);
    if (!parts_->shared_expert_gate.is_empty())
      shared = shared * at::sigmoid(parts_->shared_expert_gate(tokens));
  };
  Tensor in = parts_->fc1_latent_proj.is_empty() ? tokens : parts_->fc1_latent_proj(tokens);
  Tensor out = parts_->dispatcher->forward(in, routing, experts_, meanwhile);
  if (!parts_->fc2_latent_proj.is_empty()) out = parts_->fc2_latent_proj(out);
  if (shared.defined()) out = out + shared;
  return out.view(x.sizes());
}

ExpertDispatcher& MoeImpl::dispatcher() { return *parts_->dispatcher; }
void MoeImpl::set_dispatcher(std::shared_ptr<ExpertDispatcher> dispatcher) {
  parts_->dispatcher = std::move(dispatcher);
}

std::vector<std::pair<std::string, MoeImpl*>> find_moe_blocks(torch::nn::Module& model) {
  std::vector<std::pair<std::string, MoeImpl*>> out;
  if (auto* block = dynamic_cast<MoeImpl*>(&model)) out.emplace_back("", block);
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    if (auto* block = dynamic_cast<MoeImpl*>(item.value().get()))
      out.emplace_back(item.key(), block);
  return out;
}

EvenTokens::~EvenTokens() = default;

namespace detail {

namespace {

using torch::autograd::variable_list;

// What forward and backward of one exchange share.
struct Trip {
  RowRoute route;
  int64_t tokens, width;
  at::TensorOptions options;  // of the rows
  at::ScalarType weights;
  mutable at::TensorOptions returned =
      {};  // of the results, which under autocast have another dtype
  // Gradients on their way back before the autograd engine comes to it.
  mutable std::optional<RowRoute::Flight> early = {};
};

// Backward of the way there: the gradients of rows and weights come back, and the gradients of a
// token's rows are summed.
struct SentNode : torch::autograd::Node {
  std::shared_ptr<const Trip> trip;
  std::string name() const override { return "MeshwrightDispatch"; }
  variable_list apply(variable_list&& grads) override {
    c10::NoGradGuard no_grad;
    if (trip->early) return arrived(std::move(*std::exchange(trip->early, std::nullopt)));
    Rows back;
    // A part without gradient takes part all the same: the other ranks wait for it.
    back.rows = grads[0].defined()
                    ? grads[0].contiguous()
                    : at::zeros({trip->route.received(), trip->width}, trip->options);
    back.weights = grads[1].defined()
                       ? grads[1].contiguous()
                       : at::zeros({trip->route.received()}, trip->options.dtype(trip->weights));
    return arrived(trip->route.start_back(back));
  }
  variable_list arrived(RowRoute::Flight flight) const {
    Rows here = trip->route.finish_back(std::move(flight));
    return {here.rows, here.weights};
  }
};

// Backward of the way back: the gradient of a token's sum goes to each of its rows.
struct ReturnedNode : torch::autograd::Node {
  std::shared_ptr<const Trip> trip;
  std::string name() const override { return "MeshwrightCombine"; }
  variable_list apply(variable_list&& grads) override {
    c10::NoGradGuard no_grad;
    Tensor gradient = grads[0].defined() ? grads[0].contiguous()
                                         : at::zeros({trip->tokens, trip->width}, trip->returned);
    return {trip->route.finish(trip->route.start(gradient, {})).rows};
  }
};

template <class NodeType, class... Inputs>
void record(std::shared_ptr<const Trip> trip, const std::vector<Tensor>& outputs,
            const Inputs&... inputs) {
  if (!c10::GradMode::is_enabled() || !(inputs.requires_grad() || ...)) return;
  auto node = std::shared_ptr<NodeType>(new NodeType(), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs...));
  node->trip = std::move(trip);
  for (const Tensor& output : outputs) torch::autograd::set_history(output, node);
}

// Each row goes to the rank of its expert and comes back.
class AllToAll final : public ExpertDispatcher {
 public:
  explicit AllToAll(std::shared_ptr<Group> ep) : ep_(std::move(ep)) {}

  Tensor forward(const Tensor& x, const Routing& routing, GroupedExperts& experts,
                 const std::function<void()>& meanwhile) override {
    const int64_t all = experts->experts() * ep_->size();
    ExpertOrder order = x.is_cpu() ? sort_by_expert(routing.indices, all)
                                   : sort_without_counts(routing.indices, all);
    const RowRoute::Counts counts = ask(order, routing.indices);
    auto trip = std::make_shared<const Trip>(
        Trip{RowRoute(std::move(order), counts, pads_rows(x), ep_), x.size(0), x.size(1),
             x.options().requires_grad(false), routing.weights.scalar_type()});
    RowRoute::Flight flight =
        trip->route.start(x.detach().contiguous(), routing.weights.detach().contiguous());
    meanwhile();
    Rows rows = trip->route.finish(std::move(flight));
    record<SentNode>(trip, {rows.rows, rows.weights}, x, routing.weights);
    Tensor y;
    {
      // The rows' only use is here, so their gradients are what the experts say they are; unless a
      // cast stands between.
      detail::TellInputGradients tell([trip](const Tensor& of_rows, const Tensor& of_weights) {
        if (of_rows.scalar_type() == c10::typeMetaToScalarType(trip->options.dtype()) &&
            of_weights.scalar_type() == trip->weights)
          trip->early = trip->route.start_back({of_rows.contiguous(), of_weights.contiguous()});
      });
      const RowRoute& route = trip->route;
      y = route.local_bounds().defined() && !route.padded() && experts->fits_bounds(rows.rows)
              ? experts->forward(rows.rows, route.local_bounds(), rows.weights)
              : experts->forward(rows.rows, route.local_counts(), rows.weights, route.padded());
    }
    trip->returned = y.options().requires_grad(false);
    Tensor out =
        trip->route.finish_back(trip->route.start_back({y.detach().contiguous(), {}})).rows;
    record<ReturnedNode>(trip, {out}, y);
    return out;
  }

 private:
  // Once under recompute: rows that go where they went need no second question. All ranks see
  // alike whether the router has given the first run's choice again.
  RowRoute::Counts ask(const ExpertOrder& order, const Tensor& indices) {
    auto gather = [&]() -> std::vector<Tensor> {
      const RowRoute::Counts counts = RowRoute::gather_counts(order, *ep_);
      return {indices, counts.all, counts.local_bounds};
    };
    std::vector<Tensor> known = once_under_recompute(gather);
    if (!known[0].is_alias_of(indices)) known = gather();
    return {known[1], known[2]};
  }

  std::shared_ptr<Group> ep_;
};

// Every rank sees the tokens of all, computes what its experts do with them, and the sums are
// shared out. On a device the host waits for nothing where all bring equally many tokens: rows
// then have memory for as many as may come.
class AllGather final : public ExpertDispatcher, public EvenTokens {
 public:
  explicit AllGather(std::shared_ptr<Group> ep) : ep_(std::move(ep)) {}

  Tensor forward(const Tensor& x, const Routing& routing, GroupedExperts& experts,
                 const std::function<void()>& meanwhile) override {
    const int64_t tokens = x.size(0), here = experts->experts(), first = ep_->rank() * here;
    const bool by_bounds = !x.is_cpu() && even_tokens_;
    const Known known = by_bounds    ? Known{tokens, {}}
                        : x.is_cpu() ? Known{most_tokens(tokens), {}}
                                     : ask(tokens, routing, here);
    const int64_t missing = known.longest - tokens;
    auto padded = [&](const Tensor& t, double value) {
      return missing == 0 ? t : at::constant_pad_nd(t, {0, 0, 0, missing}, value);
    };
    Tensor all = all_gather(padded(x, 0), 0, ep_);
    Tensor weights = all_gather(padded(meshwright::detail::wide(routing.weights), 0), 0, ep_);
    Tensor indices = all_gather(padded(routing.indices, -1), 0, ep_);
    meanwhile();
    Tensor mine = indices - first;
    mine.masked_fill_((mine < 0).logical_or(mine >= here), -1);
    ExpertOrder order = x.is_cpu()  ? sort_by_expert(mine, here, pads_rows(all))
                        : by_bounds ? with_most_rows(sort_without_counts(mine, here), here)
                                    : with_counts(sort_without_counts(mine, here), known.counts);
    Tensor rows = gather_tokens(all, order), of_rows = gather_weights(weights, order);
    // Without counts the experts ask for them where they need some.
    Tensor y = by_bounds || (order.bounds.defined() && experts->fits_bounds(rows))
                   ? experts->forward(rows, order.bounds, of_rows)
                   : experts->forward(rows, order.counts, of_rows, order.padded);
    Tensor sums = combine_wide(y, order);
    return reduce_scatter(sums, 0, ep_).narrow(0, 0, tokens).to(y.scalar_type());
  }
  void promise_even_tokens() override { even_tokens_ = true; }

 private:
  // A token goes to each of a rank's experts once at most, and masked rows lie behind all others.
  static ExpertOrder with_most_rows(ExpertOrder order, int64_t here) {
    const int64_t rows = order.place.size(0) * std::min(order.place.size(1), here);
    for (Tensor* of_rows : {&order.slot, &order.token}) *of_rows = of_rows->narrow(0, 0, rows);
    return order;
  }
  struct Known {
    int64_t longest;              // the most tokens of a rank
    std::vector<int64_t> counts;  // what all ranks have for each of this rank's experts
  };
  int64_t most_tokens(int64_t mine) {
    if (ep_->size() == 1) return mine;
    Tensor box = at::full({1}, mine, at::TensorOptions().dtype(at::kLong));
    return PartsGather(box, 0, *ep_).whole().max().item<int64_t>();
  }
  // Both with one wait for the device.
  Known ask(int64_t tokens, const Routing& routing, int64_t here) {
    Tensor place = routing.indices.reshape(-1) + 1;  // masked ones go to 0
    Tensor mine = at::zeros({1, here * ep_->size() + 1}, place.options());
    mine.view(-1).scatter_add_(0, place, at::ones(place.sizes(), place.options()));
    mine.select(1, 0).fill_(tokens);
    Tensor all = read_by_host(*ep_, ep_->size() == 1 ? mine : PartsGather(mine, 0, *ep_).whole());
    Tensor counts = all.narrow(1, 1 + ep_->rank() * here, here).sum(0);
    const int64_t* count = counts.const_data_ptr<int64_t>();
    return {all.select(1, 0).max().item<int64_t>(), {count, count + here}};
  }

  std::shared_ptr<Group> ep_;
  bool even_tokens_ = false;
};

}  // namespace

std::shared_ptr<ExpertDispatcher> make_dispatcher(TokenDispatcher kind, std::shared_ptr<Group> ep) {
  if (kind == TokenDispatcher::all_gather) return std::make_shared<AllGather>(std::move(ep));
  return std::make_shared<AllToAll>(std::move(ep));
}

}  // namespace detail

}  // namespace meshwright
