#include "meshwright/model/running_model.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "meshwright/data/dataset_kind.h"
#include "meshwright/error.h"
#include "sdk/base/files/hash.h"
#include "sdk/base/plugin_guard.h"
#include "sdk/base/text.h"
#include "stage_state.h"

namespace meshwright {

RunningModel::~RunningModel() = default;

at::Tensor RunningModel::loss_sum(const at::Tensor& output, const at::Tensor& targets,
                                  const at::Tensor& weights, const VocabularyShard* shard) {
  return cross_entropy_sum(output, targets, shard, -100, weights);
}

bool RunningModel::changes_batches() const { return false; }
void RunningModel::change_batch(HostBatch& /*batch*/) const {}
int64_t RunningModel::max_positions() const { return std::numeric_limits<int64_t>::max(); }
bool RunningModel::generates() const { return true; }
void* RunningModel::extension(uint32_t /*id*/) { return nullptr; }

namespace {

// LibTorch has no way to put one Parameter under a second, existing name.
struct RegisteredParameters : torch::nn::Module {
  static constexpr auto member = &RegisteredParameters::parameters_;
};

}  // namespace

void tie_weight(torch::nn::Module& module, const at::Tensor& weight) {
  if (auto* linear = module.as<torch::nn::LinearImpl>()) linear->weight = weight;
  if (auto* embedding = module.as<torch::nn::EmbeddingImpl>()) embedding->weight = weight;
  (module.*RegisteredParameters::member)["weight"] = weight;
}

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  return base::mix64(base::mix64(base::mix64(seed + kStep) + stream * kStep) +
                     (counter + 1) * kStep);
}

namespace {

thread_local StagePart stage_now;
thread_local bool asked_of_thread = false;

}  // namespace

StagePart current_stage() {
  asked_of_thread = true;
  return stage_now;
}
StageScope::StageScope(const StagePart& part)
    : outer_(stage_now), asked_(std::exchange(asked_of_thread, false)) {
  stage_now = part;
}
StageScope::~StageScope() {
  stage_now = outer_;
  asked_of_thread = asked_;
}
bool StageScope::asked() const { return asked_of_thread; }

const StagePart& detail::stage_of_thread() { return stage_now; }

void keep_modules(torch::nn::Module& model, const std::vector<std::string>& kept) {
  std::set<std::string> missing(kept.begin(), kept.end());
  struct Child {
    torch::nn::Module* parent;
    std::string name;
    std::shared_ptr<torch::nn::Module> module;
  };
  std::vector<Child> gone;
  auto look = [&](auto& self, torch::nn::Module& parent, const std::string& prefix) -> void {
    for (const auto& child : parent.named_children()) {
      const std::string name = prefix + child.key();
      missing.erase(name);
      bool inside = false, around = false;
      for (const std::string& one : kept) {
        inside = inside || text::lies_in(name, one);
        around = around || text::lies_in(one, name);
      }
      if (inside) continue;
      if (around)
        self(self, *child.value(), name + ".");
      else if (!child.value()->parameters().empty())
        gone.push_back({&parent, child.key(), child.value()});
    }
  };
  look(look, model, "");
  // What lies inside of one that is kept was not looked at.
  for (const auto& item : model.named_modules()) missing.erase(item.key());
  if (!missing.empty())
    throw Error(ErrorCode::bad_module,
                "the model has no module " + *missing.begin() + ", which a stage is to keep")
        .help("name modules of the model, such as model.layers.0");
  for (const Child& child : gone) child.parent->unregister_module(child.name);
  std::set<const void*> used;  // tied weights stay where another module has them
  for (const at::Tensor& parameter : model.parameters())
    used.insert(parameter.unsafeGetTensorImpl());
  for (const Child& child : gone)
    for (at::Tensor& parameter : child.module->parameters())
      if (!used.contains(parameter.unsafeGetTensorImpl()) && !parameter.is_meta())
        parameter.set_data(at::empty({0}, parameter.options()));
}

namespace detail {

namespace {

class GuardedRunning final : public PluginObject<RunningModel> {
 public:
  GuardedRunning(const PluginCode* plugin, std::unique_ptr<RunningModel> inner, int64_t vocabulary)
      : PluginObject(plugin, std::move(inner), "the destructor of its model"),
        vocabulary_(vocabulary) {
    generates_ = call("generates", &RunningModel::generates);
    GuardedRunning::max_positions();  // told before it trains
    trains_ = call("module", [](RunningModel& model) {
      const auto module = model.module();
      return module != nullptr && std::ranges::any_of(module->parameters(), [](const auto& p) {
               return p.requires_grad();
             });
    });
  }
  std::shared_ptr<torch::nn::Module> module() override {
    return call("module", &RunningModel::module);
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor out = call("forward", &RunningModel::forward, input);
    if (!out.defined() || !out.is_floating_point() || out.dim() < 1 || out.size(0) != input.size(0))
      throw nonconforming("forward", "forward() of " + text_of(input) + " gave " + text_of(out) +
                                         ", but floats of the same number of samples are wanted");
    return out;
  }
  at::Tensor loss_sum(const at::Tensor& output, const at::Tensor& targets,
                      const at::Tensor& weights, const VocabularyShard* shard) override {
    const int64_t columns = shard != nullptr ? shard->end - shard->begin : vocabulary_;
    if (generates_ && (output.dim() != 3 || output.size(2) != columns))
      throw nonconforming("forward", "forward() gave " + text_of(output) +
                                         ", whose last size is not that of the vocabulary, " +
                                         std::to_string(columns))
          .help("let generates() say no where the output does not predict the next token");
    at::Tensor out = call("loss_sum", &RunningModel::loss_sum, output, targets, weights, shard);
    if (!out.defined() || out.dim() != 0 || !out.is_floating_point())
      throw nonconforming("loss_sum", "loss_sum() gave " + text_of(out) +
                                          ", but one float of 0 dimensions is wanted");
    if (c10::GradMode::is_enabled() && trains_ && !out.requires_grad())
      throw nonconforming("loss_sum",
                          "loss_sum() gave a loss without gradients, so that nothing would train")
          .help("keep forward() and loss_sum() free of detach(), item() and NoGradGuard");
    return out;
  }
  bool changes_batches() const override {
    return call("changes_batches", &RunningModel::changes_batches);
  }
  void change_batch(HostBatch& batch) const override {
    call("change_batch", &RunningModel::change_batch, batch);
    check_ids(batch.tokens, "tokens", false);
    check_ids(batch.targets, "targets", true);
  }
  int64_t max_positions() const override {
    const int64_t out = call("max_positions", &RunningModel::max_positions);
    if (out < 1) throw nonconforming("max_positions", "max_positions() is " + std::to_string(out));
    return out;
  }
  bool generates() const override { return call("generates", &RunningModel::generates); }
  void* extension(uint32_t id) override { return call("extension", &RunningModel::extension, id); }

 private:
  static std::string text_of(const at::Tensor& x) {
    if (!x.defined()) return "an undefined tensor";
    return c10::str(x.sizes()) + " of " + at::toString(x.scalar_type());
  }
  // Of the batch on the host; other shapes and types are told where it was made.
  void check_ids(const at::Tensor& ids, const char* what, bool none) const {
    if (!ids.defined() || ids.scalar_type() != at::kLong || !ids.is_cpu() || !ids.is_contiguous())
      return;
    const int64_t* at = ids.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < ids.numel(); ++i)
      if ((at[i] < 0 || at[i] >= vocabulary_) && !(none && at[i] == kNoTarget))
        throw nonconforming("change_batch",
                            "change_batch() made " + std::to_string(at[i]) + " one of the " + what +
                                ", outside of the vocabulary of " + std::to_string(vocabulary_));
  }

  int64_t vocabulary_;
  bool generates_ = true, trains_ = true;
};

}  // namespace

std::unique_ptr<RunningModel> guarded_running(const PluginCode* plugin,
                                              std::unique_ptr<RunningModel> inner,
                                              int64_t vocabulary) {
  return std::make_unique<GuardedRunning>(plugin, std::move(inner), vocabulary);
}

}  // namespace detail

}  // namespace meshwright
