#include "engine/train/step/optimizer.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <utility>

#include "engine/job/plan.h"
#include "engine/train/step/local_state.h"
#include "meshwright/error.h"
#include "meshwright/parallel/scalar_type.h"
#include "meshwright/trainer.h"
#include "sdk/base/check_parts.h"

namespace meshwright::train {

Schedule::Schedule(const Options& optimizer, const Options& scheduler, int64_t max_steps)
    : style_(Style::constant),
      lr_(optimizer.get_number("lr")),
      min_lr_(scheduler.get_number("min_lr")),  // never above lr: the configuration refuses that
      warmup_(scheduler.get_int("lr_warmup_steps")),
      max_steps_(max_steps) {
  std::string style = scheduler.get_string("lr_decay_style");
  if (style == "linear") style_ = Style::linear;
  if (style == "cosine") style_ = Style::cosine;
  if (style == "wsd") style_ = Style::wsd;
}

double Schedule::at(int64_t step) const {
  if (step < warmup_) return lr_ * static_cast<double>(step + 1) / static_cast<double>(warmup_);
  int64_t begin = warmup_, last = max_steps_ - 1;
  if (style_ == Style::wsd)
    begin = std::max(begin, max_steps_ - std::max<int64_t>(max_steps_ / 10, 1) - 1);
  if (style_ == Style::constant || step <= begin || last <= begin)
    // A warm-up that ends right before the last step leaves it min_lr; a step alone has lr.
    return style_ != Style::constant && step >= last && (last > begin || warmup_ > 0) ? min_lr_
                                                                                      : lr_;
  double progress =
      std::min(1.0, static_cast<double>(step - begin) / static_cast<double>(last - begin));
  double share =
      style_ == Style::cosine ? 0.5 * (1 + std::cos(std::numbers::pi * progress)) : 1 - progress;
  return min_lr_ + (lr_ - min_lr_) * share;
}

namespace {

using at::Tensor;

// Of a group at a time, so that a piece is still in the cache when its weights are rounded. On a
// device only a cast of the gradients needs memory, and every piece costs launches.
constexpr int64_t kPiece = 1 << 20, kDevicePiece = 1 << 24;

// LibTorch's kernels for CPUs update the last elements of a tensor, those behind its last whole
// vector, by another code path, which rounds otherwise. A tensor of a multiple of this many has
// none: the widest vector is one cache line, which is also what they share out among threads.
int64_t vector_of(const Tensor& t) {
  constexpr int64_t kBytes = 64;
  return t.is_cpu() ? kBytes / t.element_size() : 1;
}

std::optional<at::ScalarType> main_type_of(const Options& table) {
  std::optional<DType> main = table.find_dtype("main_dtype");
  return main ? std::optional(scalar_type(*main)) : std::nullopt;
}

}  // namespace

at::ScalarType Optimizer::weight_type(at::ScalarType values) const {
  return main_type_ ? c10::promoteTypes(*main_type_, values) : values;
}

Tensor Optimizer::weights(const std::vector<FlatParameterGroup>& groups, size_t group) {
  const Tensor& values = groups[group].values;
  if (!has_main(groups[group])) return values;
  if (main_.size() < groups.size()) main_.resize(groups.size());
  if (!main_[group].defined()) main_[group] = values.detach().to(weight_type(values.scalar_type()));
  return main_[group];
}

void Optimizer::round_weights(const std::vector<FlatParameterGroup>& groups) {
  c10::NoGradGuard no_grad;
  for (size_t i = 0; i < groups.size(); ++i)
    if (has_main(groups[i])) groups[i].values.detach().copy_(weights(groups, i));
}

void Optimizer::take_over(const std::vector<FlatParameterGroup>& groups) {
  c10::NoGradGuard no_grad;
  for (size_t i = 0; i < std::min(groups.size(), main_.size()); ++i)
    if (main_[i].defined()) main_[i].copy_(groups[i].values);
}

void Optimizer::catch_up(const std::vector<FlatParameterGroup>& groups) {
  for (size_t i = 0; i < std::min(groups.size(), main_.size()); ++i)
    if (const Tensor& values = groups[i].values;
        main_[i].defined() && !main_[i].to(values.scalar_type()).equal(values))
      main_[i].copy_(values);
}

const Tensor& Optimizer::piece_memory(at::ScalarType type, at::Device device, int64_t count) {
  auto found = std::find_if(pieces_.begin(), pieces_.end(), [&](const Tensor& t) {
    return t.scalar_type() == type && t.device() == device;
  });
  if (found == pieces_.end()) found = pieces_.insert(found, Tensor());
  if (!found->defined() || found->numel() < count)
    *found = at::empty({count}, at::TensorOptions().dtype(type).device(device));
  return *found;
}

void Optimizer::step(const std::vector<FlatParameterGroup>& groups, double lr, double factor) {
  // Kernels write back what they multiply: of a copy that would be a second rounding. Not so in
  // float16, where the factor takes back what keeps small gradients above zero.
  const bool copies = std::any_of(groups.begin(), groups.end(), [&](const FlatParameterGroup& g) {
    return weight_type(g.values.scalar_type()) != g.grads.scalar_type() &&
           g.grads.scalar_type() != at::kHalf;
  });
  if (copies) multiply_gradients(groups, std::exchange(factor, 1));
  factor_ = factor;
  divisor_.reset();
  c10::NoGradGuard no_grad;
  if (steps == 0) catch_up(groups);
  allocate(groups);
  ++steps;
  update_all(groups, lr);
}

const std::optional<Tensor>& Optimizer::divisor(at::Device device) {
  if (factor_ != 1 && !divisor_)
    divisor_ = at::full({}, 1 / factor_, at::TensorOptions().dtype(at::kFloat).device(device));
  return divisor_;
}

void Optimizer::for_each_call(const std::vector<FlatParameterGroup>& groups,
                              const std::vector<std::vector<Tensor>*>& states,
                              const Kernel& kernel) {
  if (classes_.empty()) {
    UpdateClass all{1, weight_decay_, {}};
    for (size_t i = 0; i < groups.size(); ++i)
      all.ranges.push_back({i, 0, groups[i].values.numel()});
    update(all, groups, states, kernel);
  }
  for (const UpdateClass& alike : classes_) update(alike, groups, states, kernel);
}

void Optimizer::update(const UpdateClass& alike, const std::vector<FlatParameterGroup>& groups,
                       const std::vector<std::vector<Tensor>*>& states, const Kernel& kernel) {
  Call together{alike, {}, {}, std::vector<std::vector<Tensor>>(states.size()), {}};
  std::vector<Elements> tails;
  for (const UpdateRange& range : alike.ranges) {
    const size_t i = range.group;
    auto part = [&](const Tensor& t) {
      return range.count == t.numel() ? t : t.narrow(0, range.begin, range.count);
    };
    Elements all{part(this->weights(groups, i)), part(groups[i].grads), {}, {}};
    if (has_main(groups[i])) all.values = part(groups[i].values);
    for (const auto* list : states) all.states.push_back(part(list->at(i)));
    const int64_t vector = vector_of(all.weights), left = all.weights.numel() % vector,
                  whole = all.weights.numel() - left;
    if (left > 0) tails.push_back(all.part(whole, left));
    if (whole == 0) continue;
    const bool casts = all.gradients.scalar_type() != all.weights.scalar_type();
    if (!all.values.defined() && !casts) {
      const Elements body = left == 0 ? all : all.part(0, whole);
      together.weights.push_back(body.weights);
      together.gradients.push_back(body.gradients);
      for (size_t s = 0; s < states.size(); ++s) together.states[s].push_back(body.states[s]);
      continue;
    }
    const int64_t piece = all.weights.is_cpu() ? std::min(kPiece, whole)
                          : casts              ? std::min(kDevicePiece, whole)
                                               : whole;
    for (int64_t at = 0; at < whole; at += piece) {
      const Elements of = all.part(at, std::min(piece, whole - at));
      Tensor gradient = of.gradients;
      if (casts)
        gradient = piece_memory(of.weights.scalar_type(), of.weights.device(), piece)
                       .narrow(0, 0, of.weights.numel())
                       .copy_(gradient);
      Call call{alike, {of.weights}, {gradient}, {}, divisor(of.weights.device())};
      for (const Tensor& one : of.states) call.states.push_back({one});
      kernel(call);
      if (casts && call.divisor) of.gradients.copy_(gradient);
      if (of.values.defined()) of.values.copy_(of.weights);
    }
  }
  if (!together.weights.empty()) {
    together.divisor = divisor(together.weights[0].device());
    kernel(together);
  }
  update_tails(alike, tails, kernel);
}

Optimizer::Elements Optimizer::Elements::part(int64_t begin, int64_t count) const {
  Elements out{weights.narrow(0, begin, count), gradients.narrow(0, begin, count), {}, {}};
  for (const Tensor& state : states) out.states.push_back(state.narrow(0, begin, count));
  if (values.defined()) out.values = values.narrow(0, begin, count);
  return out;
}

// Those of one dtype lie one after the other in memory of whole vectors, and are brought back.
void Optimizer::update_tails(const UpdateClass& alike, std::vector<Elements> tails,
                             const Kernel& kernel) {
  while (!tails.empty()) {
    const at::TensorOptions options = tails[0].weights.options();
    const auto others = std::stable_partition(
        tails.begin(), tails.end(),
        [type = options.dtype()](const Elements& tail) { return tail.weights.dtype() == type; });
    const int64_t vector = vector_of(tails[0].weights);
    int64_t count = 0;
    for (auto tail = tails.begin(); tail != others; ++tail) count += tail->weights.numel();
    const int64_t padded = (count + vector - 1) / vector * vector;
    auto room = [&] { return at::zeros({padded}, options); };
    Elements packed{room(), room(), {}, {}};
    for (size_t s = 0; s < tails[0].states.size(); ++s) packed.states.push_back(room());
    auto each = [&](auto visit) {
      int64_t at = 0;
      for (auto tail = tails.begin(); tail != others; at += tail++->weights.numel())
        visit(*tail, packed.part(at, tail->weights.numel()));
    };
    each([](const Elements& tail, const Elements& slot) {
      slot.weights.copy_(tail.weights);
      slot.gradients.copy_(tail.gradients);
      for (size_t s = 0; s < tail.states.size(); ++s) slot.states[s].copy_(tail.states[s]);
    });
    Call call{alike, {packed.weights}, {packed.gradients}, {}, divisor(options.device())};
    for (const Tensor& state : packed.states) call.states.push_back({state});
    kernel(call);
    each([&](const Elements& tail, const Elements& slot) {
      tail.weights.copy_(slot.weights);
      if (call.divisor) tail.gradients.copy_(slot.gradients);
      for (size_t s = 0; s < tail.states.size(); ++s) tail.states[s].copy_(slot.states[s]);
      if (tail.values.defined()) tail.values.copy_(slot.weights);
    });
    tails.erase(tails.begin(), others);
  }
}

void Optimizer::extend(std::vector<Tensor>& state, const std::vector<FlatParameterGroup>& groups) {
  for (size_t i = state.size(); i < groups.size(); ++i)
    state.push_back(at::zeros_like(weights(groups, i)));
}

namespace {

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const Options& table)
      : Optimizer(main_type_of(table), table.get_number("weight_decay")),
        eps_(table.get_number("eps")) {
    const auto& betas = std::get<std::vector<double>>(table.value("betas"));
    if (betas.size() != 2)
      throw Error(ErrorCode::out_of_range,
                  "AdamW has two betas, found " + std::to_string(betas.size()))
          .key("optimizer.betas")
          .at(table.origin("betas"))
          .help("set optimizer.betas = [0.9, 0.95]");
    beta1_ = betas[0];
    beta2_ = betas[1];
  }

  void update_all(const std::vector<FlatParameterGroup>& groups, double lr) override {
    for_each_call(groups, {&average_, &square_}, [&](Call& c) {
      // The kernels read the count from a float tensor of the same device.
      std::vector<Tensor> counts;
      for (const Tensor& weight : c.weights)
        counts.push_back(!counts.empty() && counts[0].device() == weight.device()
                             ? counts[0]
                             : at::full({}, static_cast<double>(steps - c.alike.began),
                                        weight.options().dtype(at::kFloat)));
      at::_fused_adamw_(c.weights, c.gradients, c.states[0], c.states[1], {}, counts,
                        lr * c.alike.lr_factor, beta1_, beta2_, c.alike.weight_decay, eps_,
                        /*amsgrad=*/false, /*maximize=*/false, c.divisor);
    });
  }
  std::vector<State> state() override { return {{"exp_avg", average_}, {"exp_avg_sq", square_}}; }
  void allocate(const std::vector<FlatParameterGroup>& groups) override {
    extend(average_, groups);
    extend(square_, groups);
  }
  const char* name() const override { return "adamw"; }

 private:
  double eps_, beta1_ = 0.9, beta2_ = 0.95;
  std::vector<Tensor> average_, square_;
};

// LibTorch's kernel for CPUs does nothing to weights of 16 bits. Computed in float32 and rounded
// once; products and sums are made one after the other, so that no element's bits depend on where
// it lies. `buffer`: of the momentum, undefined without one; `first`: it holds nothing yet.
void step_sgd(const Tensor& weights, const Tensor& gradients, const Tensor& buffer,
              const std::optional<Tensor>& divisor, double weight_decay, double momentum, double lr,
              bool first) {
  for (int64_t at = 0; at < weights.numel(); at += kPiece) {
    const int64_t count = std::min(kPiece, weights.numel() - at);
    auto part = [&](const Tensor& t) { return t.narrow(0, at, count); };
    Tensor values = part(weights).to(at::kFloat), change = part(gradients).to(at::kFloat);
    if (divisor) part(gradients).copy_(change.div_(*divisor));
    if (weight_decay != 0) change.add_(values.mul(weight_decay));
    if (buffer.defined()) {
      if (!first) change.add_(part(buffer).to(at::kFloat).mul_(momentum));
      part(buffer).copy_(change);
    }
    part(weights).copy_(values.sub_(change.mul_(lr)));
  }
}

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const Options& table)
      : Optimizer(main_type_of(table), table.get_number("weight_decay")),
        momentum_(table.get_number("momentum")) {}

  void update_all(const std::vector<FlatParameterGroup>& groups, double lr) override {
    const bool first = steps == 1;
    std::vector<std::vector<Tensor>*> lists;
    if (momentum_ > 0) lists.push_back(&momentum_buffers_);
    for_each_call(groups, lists, [&](Call& c) {
      const double weight_decay = c.alike.weight_decay, rate = lr * c.alike.lr_factor;
      std::vector<Tensor> buffers;
      if (!c.states.empty()) buffers = c.states[0];
      if (!c.weights[0].is_cpu() || c.weights[0].element_size() >= 4)
        return at::_fused_sgd_(c.weights, c.gradients, buffers, weight_decay, momentum_, rate,
                               /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false, first,
                               c.divisor);
      for (size_t i = 0; i < c.weights.size(); ++i)
        step_sgd(c.weights[i], c.gradients[i], buffers.empty() ? Tensor() : buffers[i], c.divisor,
                 weight_decay, momentum_, rate, first);
    });
  }
  std::vector<State> state() override {
    return momentum_ > 0 ? std::vector<State>{{"momentum", momentum_buffers_}}
                         : std::vector<State>();
  }
  void allocate(const std::vector<FlatParameterGroup>& groups) override {
    if (momentum_ > 0) extend(momentum_buffers_, groups);
  }
  const char* name() const override { return "sgd"; }

 private:
  double momentum_;
  std::vector<Tensor> momentum_buffers_;
};

}  // namespace

void multiply_gradients(const std::vector<FlatParameterGroup>& groups, double factor) {
  c10::NoGradGuard no_grad;
  if (factor == 1) return;
  std::vector<Tensor> gradients;
  for (const FlatParameterGroup& group : groups) gradients.push_back(group.grads);
  if (!gradients.empty()) at::_foreach_mul_(gradients, factor);
}

namespace {

class Handed final : public Optimizer {
 public:
  Handed(OwnOptimizer own, const Optimizer& before)
      : Optimizer(As{before}), own_(std::move(own)), states_(own_.states.size()) {}

  void update_all(const std::vector<FlatParameterGroup>& groups, double lr) override {
    std::vector<std::vector<Tensor>*> lists;
    for (std::vector<Tensor>& list : states_) lists.push_back(&list);
    for_each_call(groups, lists, [&](Call& c) {
      for (size_t i = 0; i < c.weights.size(); ++i) {
        if (c.divisor) c.gradients[i].div_(*c.divisor);
        ParamGroup group{c.weights[i],           c.gradients[i],       {},
                         lr * c.alike.lr_factor, c.alike.weight_decay, steps - c.alike.began};
        for (const std::vector<Tensor>& list : c.states) group.states.push_back(list[i]);
        own_.step(group);
      }
    });
  }
  std::vector<State> state() override {
    std::vector<State> out;
    for (size_t i = 0; i < states_.size(); ++i) out.push_back({own_.states[i], states_[i]});
    return out;
  }
  void allocate(const std::vector<FlatParameterGroup>& groups) override {
    for (std::vector<Tensor>& list : states_) extend(list, groups);
  }
  const char* name() const override { return own_.name.c_str(); }

 private:
  OwnOptimizer own_;
  std::vector<std::vector<Tensor>> states_;  // by name
};

}  // namespace

std::unique_ptr<Optimizer> make_own_optimizer(OwnOptimizer own, const Optimizer& before) {
  auto refuse = [](const std::string& what, const std::string& help) {
    return Error(ErrorCode::conflict, "Trainer::set_optimizer() got " + what).help(help);
  };
  if (before.in_use)
    throw refuse("an optimizer after the run had begun",
                 "call it right after the Trainer is made, before step() and load()");
  if (!own.step) throw refuse("an optimizer without a step", "set OwnOptimizer::step");
  if (!detail::is_state_name(own.name))
    throw refuse("an optimizer with the name \"" + own.name + "\"",
                 "set OwnOptimizer::name to one of a-z, 0-9 and _, like \"lion\"");
  std::set<std::string> seen{"buffer", "rng"};
  for (const std::string& state : own.states)
    if (!detail::is_state_name(state) || !seen.insert(state).second)
      throw refuse("the state \"" + state + "\" of the optimizer " + own.name,
                   "give OwnOptimizer::states different names of a-z, 0-9 and _, other than buffer "
                   "and rng");
  return std::make_unique<Handed>(std::move(own), before);
}

std::unique_ptr<Optimizer> make_optimizer(const Options& table) {
  if (table.get_string("name") == "sgd") return std::make_unique<Sgd>(table);
  return std::make_unique<AdamW>(table);
}

plan::ParameterGroups freeze_parameters(const config::Config& config, ModelOutline& outline,
                                        torch::nn::Module& module, plan::JobPlan& plan) {
  // What a program of one's own has frozen may not be in its outline.
  ModelOutline live = outline;
  auto parameters = module.named_parameters();
  for (ParameterOutline& p : live.parameters)
    if (const at::Tensor* held = parameters.find(p.name); held != nullptr && !held->requires_grad())
      p.trainable = false;
  std::vector<std::string> warnings;
  plan::ParameterGroups groups = plan::group_parameters(config, live, warnings);
  if (!plan.outline) plan.warnings.insert(plan.warnings.end(), warnings.begin(), warnings.end());
  const std::set<std::string_view> frozen(groups.frozen.begin(), groups.frozen.end());
  c10::NoGradGuard no_grad;
  for (size_t i = 0; i < outline.parameters.size(); ++i) {
    ParameterOutline& p = outline.parameters[i];
    const DType stored = live.parameters[i].dtype;
    const bool other = stored != std::exchange(p.dtype, stored);
    at::Tensor* held = parameters.find(p.name);
    if (frozen.contains(p.name)) {
      p.trainable = false;
      if (held != nullptr) held->set_requires_grad(false);
    }
    if (other && held != nullptr) held->set_data(held->to(scalar_type(stored)));
  }
  return groups;
}

namespace {

// Where a parameter's elements begin in a flat group. `name`: as in checkpoints.
struct Start {
  int64_t begin;
  std::string name;
};

// By group, ascending.
std::vector<std::vector<Start>> starts_of(const ParallelModel& model, const ModelOutline* stages) {
  std::vector<std::vector<Start>> out(model.update_groups().size());
  const std::vector<UpdatePlace> places = update_places(model);
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].group == SIZE_MAX) continue;
    const std::string& own = model.parameters()[i].name;
    out[places[i].group].push_back(
        {places[i].begin, stages != nullptr ? stored_name(*stages, own) : own});
  }
  for (std::vector<Start>& of_group : out)
    std::sort(of_group.begin(), of_group.end(),
              [](const Start& a, const Start& b) { return a.begin < b.begin; });
  return out;
}

// Adds a range to the class of `like`, whose own ranges do not matter.
void add_range(std::vector<UpdateClass>& classes, const UpdateClass& like,
               const UpdateRange& range) {
  if (range.count == 0) return;
  auto at = std::find_if(classes.begin(), classes.end(), [&](const UpdateClass& alike) {
    return alike.lr_factor == like.lr_factor && alike.weight_decay == like.weight_decay &&
           alike.began == like.began;
  });
  if (at == classes.end())
    at = classes.insert(at, {like.lr_factor, like.weight_decay, {}, like.began});
  at->ranges.push_back(range);
}

}  // namespace

std::vector<UpdateClass> update_classes(const ParallelModel& model, const ModelOutline* stages,
                                        const plan::ParameterGroups& groups) {
  auto rule_of = [&](const std::string& name) {
    const auto found = groups.rule_of.find(name);
    return found == groups.rule_of.end() ? groups.other : groups.rules[found->second];
  };
  std::vector<UpdateClass> out;
  const std::vector<std::vector<Start>> starts = starts_of(model, stages);
  for (size_t g = 0; g < starts.size(); ++g) {
    int64_t begin = 0;
    plan::UpdateRule rule = starts[g].empty() ? groups.other : rule_of(starts[g].front().name);
    auto end_at = [&](int64_t end) {
      add_range(out, {rule.lr_factor, rule.weight_decay, {}}, {g, begin, end - begin});
      begin = end;
    };
    for (const Start& start : starts[g]) {
      const plan::UpdateRule next = rule_of(start.name);
      if (next == rule) continue;
      end_at(start.begin);
      rule = next;
    }
    end_at(model.update_groups()[g].values.numel());
  }
  return out;
}

std::vector<UpdateClass> classes_begun(const ParallelModel& model, const ModelOutline* stages,
                                       const std::vector<UpdateClass>& classes,
                                       const std::map<std::string, int64_t>& began) {
  std::vector<UpdateClass> out;
  const std::vector<std::vector<Start>> starts = starts_of(model, stages);
  for (const UpdateClass& one : classes)
    for (const UpdateRange& range : one.ranges) {
      UpdateClass like{one.lr_factor, one.weight_decay, {}};
      int64_t begin = range.begin;
      auto end_at = [&](int64_t end) {
        add_range(out, like, {range.group, begin, end - begin});
        begin = end;
      };
      for (const Start& start : starts[range.group]) {
        if (start.begin >= range.begin + range.count) break;
        const auto found = began.find(start.name);
        const int64_t next = found == began.end() ? 0 : found->second;
        if (next == like.began) continue;
        end_at(std::max(start.begin, begin));
        like.began = next;
      }
      end_at(range.begin + range.count);
    }
  return out;
}

}  // namespace meshwright::train
