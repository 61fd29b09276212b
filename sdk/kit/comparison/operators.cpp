#include "sdk/kit/comparison/operators.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "meshwright/nn/module.h"

namespace meshwright::comparison {

using at::Tensor;
using torch::autograd::Node;

struct Operators::State {
  std::string module, outer;
  bool on = false, busy = false;
  int64_t micro_batch = 0, depth = 0;
  std::vector<std::string> within;  // modules that are under way, the innermost last
  std::vector<SeenOperator> seen;
  std::map<std::pair<std::string, int64_t>, int64_t> count;  // of an operator and micro-batch
  std::map<const Node*, size_t> made_by;                     // in `seen`, of this call

  void see(const at::RecordFunction& call, const std::shared_ptr<State>& self) {
    const std::string& here = within.back();
    for (const c10::IValue& value : call.outputs()) {
      if (!value.isTensor()) continue;
      const Tensor& output = value.toTensor();
      if (!output.defined() || !output.is_floating_point() || output.is_meta()) continue;
      const std::string of = here + ": " + call.name();
      const int64_t number = ++count[{of, micro_batch}];
      // Masks hold infinities, which differ from themselves.
      if (output.isinf().any().item<bool>()) return;
      const size_t place = seen.size();
      seen.push_back(
          {{of + " (" + ordinal(number) + ")", micro_batch, output.detach().clone(), {}}, ""});
      if (!output.requires_grad()) return;
      made_by[output.grad_fn().get()] = place;
      output.register_hook([state = std::weak_ptr(self), place](const Tensor& g) {
        const std::shared_ptr<State> then = state.lock();
        if (!then || place >= then->seen.size()) return;
        then->busy = true;
        then->seen[place].seen.gradient = g.detach().clone();
        then->busy = false;
      });
      return;
    }
  }

  // From the module's end, as far back as the nodes of its own operators may be.
  void follow(const Tensor& end) {
    constexpr size_t kMost = 2000;
    std::vector<Node*> next = {end.grad_fn().get()};
    std::set<const Node*> known(next.begin(), next.end());
    for (size_t i = 0; i < next.size() && i < kMost; ++i) {
      if (next[i] == nullptr) continue;
      for (const torch::autograd::Edge& edge : next[i]->next_edges()) {
        if (const auto at = made_by.find(edge.function.get()); at != made_by.end()) {
          std::string& into = seen[at->second].into;
          const std::string name = next[i]->name();
          if (into.find(name) == std::string::npos) into += (into.empty() ? "" : ", ") + name;
        }
        if (edge.function && known.insert(edge.function.get()).second)
          next.push_back(edge.function.get());
      }
    }
  }

  static std::string ordinal(int64_t number) {
    const int64_t ten = number % 100, one = number % 10;
    const bool teen = ten > 10 && ten < 14;
    return std::to_string(number) + (teen || one == 0 || one > 3 ? "th"
                                     : one == 1                  ? "st"
                                     : one == 2                  ? "nd"
                                                                 : "rd");
  }
};

namespace {

// Of this thread, which is one rank.
thread_local std::shared_ptr<Operators::State> watching;

std::unique_ptr<at::ObserverContext> begins(const at::RecordFunction&) {
  if (watching && !watching->busy) ++watching->depth;
  return nullptr;
}

void ends(const at::RecordFunction& call, at::ObserverContext*) {
  if (!watching || watching->busy) return;
  // An operator that another one calls is a part of it.
  if (--watching->depth > 0) return;
  watching->depth = 0;
  if (!watching->on || watching->within.empty()) return;
  const std::string& here = watching->within.back();
  if (here != watching->module && here != watching->outer) return;
  if (torch::autograd::get_current_graph_task_id() >= 0) return;
  watching->busy = true;
  watching->see(call, watching);
  watching->busy = false;
}

}  // namespace

Operators::Operators(torch::nn::Module& model, const std::string& name)
    : state_(std::make_shared<State>()) {
  state_->module = name;
  for (const auto& item : model.named_modules()) {
    HookHost* host = HookHost::of(*item.value());
    if (host == nullptr || item.key().empty()) continue;
    if (name.starts_with(item.key() + ".") && item.key().size() > state_->outer.size())
      state_->outer = item.key();
    // Hooks around the two are neither's: they are in a frame of their own, as other modules are.
    const bool watched = item.key() == name || name.starts_with(item.key() + ".");
    const std::string around = watched ? item.key() + " and its hooks" : item.key();
    auto enter = [this](const std::string& frame) -> HookHost::Hook {
      return [state = std::weak_ptr(state_), frame](torch::nn::Module&, TensorRefs&) {
        const std::shared_ptr<State> here = state.lock();
        if (!here || !here->on || torch::autograd::get_current_graph_task_id() >= 0) return;
        here->within.push_back(frame);
      };
    };
    auto leave = [this](const std::string& frame) -> HookHost::Hook {
      return [state = std::weak_ptr(state_), frame](torch::nn::Module&, TensorRefs& results) {
        const std::shared_ptr<State> here = state.lock();
        if (!here || here->within.empty() || here->within.back() != frame) return;
        if (torch::autograd::get_current_graph_task_id() >= 0) return;
        here->within.pop_back();
        if (frame != here->module && frame != here->outer) return;
        for (const Tensor* result : results)
          if (result->defined() && result->requires_grad()) here->follow(*result);
      };
    };
    auto& before = host->before_forward;
    auto& after = host->after_forward;
    before.insert(before.begin(), enter(around));
    if (watched) before.push_back(enter(item.key()));
    if (watched) after.insert(after.begin(), leave(item.key()));
    after.push_back(leave(around));
  }
  watching = state_;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(begins, ends)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

Operators::~Operators() {
  at::removeCallback(callback_);
  watching.reset();
}

void Operators::begin(int64_t micro_batch) {
  state_->on = true;
  state_->micro_batch = micro_batch;
  state_->within.clear();
  state_->made_by.clear();
}

void Operators::stop() { state_->on = false; }

std::vector<SeenOperator> Operators::take() { return std::exchange(state_->seen, {}); }

}  // namespace meshwright::comparison
