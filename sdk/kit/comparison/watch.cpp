#include "sdk/kit/comparison/watch.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "meshwright/nn/module.h"

namespace meshwright::comparison {

using at::Tensor;

struct Watch::State {
  bool on = false;
  int64_t micro_batch = 0;
  std::vector<Seen> seen;
  std::map<std::pair<std::string, int64_t>, size_t> place;  // in `seen`

  void see(const std::string& module, const Tensor& output) {
    const auto [at, first] = place.try_emplace({module, micro_batch}, seen.size());
    if (first)
      seen.push_back({module, micro_batch, output.detach().clone(), {}});
    else if (torch::autograd::get_current_graph_task_id() >= 0)
      see_again(seen[at->second], output.detach());
  }
  // Which micro-batch backward is at is not known where several are under way.
  void see_again(Seen& first, const Tensor& output) {
    double least = std::numeric_limits<double>::infinity();
    for (const Seen& one : seen) {
      if (one.module != first.module || one.output.sizes() != output.sizes()) continue;
      const double scale = one.output.abs().max().item<double>();
      const double apart = (one.output - output).abs().max().item<double>();
      least = std::min(least, scale > 0 ? apart / scale : apart);
    }
    first.again = std::max(first.again, least);
  }
};

namespace {

const Tensor* floating(const TensorRefs& refs) {
  for (const Tensor* tensor : refs)
    if (tensor->defined() && tensor->is_floating_point()) return tensor;
  return nullptr;
}

}  // namespace

Watch::Watch(torch::nn::Module& model) : state_(std::make_shared<State>()) {
  for (const auto& item : model.named_modules()) {
    HookHost* host = HookHost::of(*item.value());
    if (host == nullptr || item.key().empty()) continue;
    host->after_forward.push_back([state = std::weak_ptr(state_), name = item.key()](
                                      torch::nn::Module&, TensorRefs& results) {
      const std::shared_ptr<State> here = state.lock();
      const Tensor* output = floating(results);
      if (!here || !here->on || output == nullptr) return;
      here->see(name, *output);
      if (!output->requires_grad()) return;
      output->register_hook([state, place = here->place.at({name, here->micro_batch})](Tensor g) {
        const std::shared_ptr<State> then = state.lock();
        if (!then || place >= then->seen.size()) return;
        Seen& one = then->seen[place];
        // Of a layer that is computed again, its outer module hears of the gradient once more.
        if (!one.gradient.defined()) one.gradient = g.detach().clone();
      });
    });
  }
}

Watch::~Watch() = default;

void Watch::begin(int64_t micro_batch) {
  state_->on = true;
  state_->micro_batch = micro_batch;
}

void Watch::stop() { state_->on = false; }

std::vector<Seen> Watch::take() {
  state_->place.clear();
  return std::exchange(state_->seen, {});
}

}  // namespace meshwright::comparison
