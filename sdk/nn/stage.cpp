#include "stage_state.h"

#include <ATen/ops/empty.h>

#include <set>
#include <utility>

#include "meshwright/error.h"
#include "sdk/base/text.h"

namespace meshwright {

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

}  // namespace meshwright
