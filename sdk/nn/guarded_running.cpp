#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "meshwright/data/dataset_kind.h"
#include "meshwright/model/running_model.h"
#include "sdk/base/plugin_guard.h"

namespace meshwright::detail {

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

}  // namespace meshwright::detail
