#include "engine/loader/running/guarded_running.h"

#include <torch/nn/module.h>

#include "engine/loader/guard.h"

namespace meshwright::loader {

namespace {

class GuardedRunning final : public RunningModel {
  template <class Body>
  decltype(auto) run(const char* method, Body&& body) const {
    return guarded(plugin_, method, body);
  }

 public:
  GuardedRunning(const detail::PluginCode* plugin, std::unique_ptr<RunningModel> inner)
      : plugin_(plugin), inner_(std::move(inner)) {}
  GuardedRunning(const GuardedRunning&) = delete;
  GuardedRunning& operator=(const GuardedRunning&) = delete;
  ~GuardedRunning() override {
    detail::PluginCall call(plugin_, "the destructor of its model");
    inner_.reset();
  }
  std::shared_ptr<torch::nn::Module> module() override {
    return run("module", [&] { return inner_->module(); });
  }
  at::Tensor forward(const at::Tensor& input) override {
    return run("forward", [&] { return inner_->forward(input); });
  }
  at::Tensor loss_sum(const at::Tensor& output, const at::Tensor& targets,
                      const at::Tensor& weights, const VocabularyShard* shard) override {
    return run("loss_sum", [&] { return inner_->loss_sum(output, targets, weights, shard); });
  }
  bool changes_batches() const override {
    return run("changes_batches", [&] { return inner_->changes_batches(); });
  }
  void change_batch(HostBatch& batch) const override {
    run("change_batch", [&] { inner_->change_batch(batch); });
  }
  int64_t max_positions() const override {
    return run("max_positions", [&] { return inner_->max_positions(); });
  }
  bool generates() const override {
    return run("generates", [&] { return inner_->generates(); });
  }
  void* extension(uint32_t id) override {
    return run("extension", [&] { return inner_->extension(id); });
  }

 private:
  const detail::PluginCode* plugin_;
  std::unique_ptr<RunningModel> inner_;
};

}  // namespace

std::unique_ptr<RunningModel> guarded_running(const detail::PluginCode* plugin,
                                              std::unique_ptr<RunningModel> inner) {
  return std::make_unique<GuardedRunning>(plugin, std::move(inner));
}

}  // namespace meshwright::loader
