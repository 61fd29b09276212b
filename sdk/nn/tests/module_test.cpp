// Hooks around forward: they run however the module is called, may replace tensors, and leave
// everything else as it was.
#include "meshwright/nn/module.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/container/sequential.h>

#include "meshwright/nn/layers.h"

namespace module_test {

using at::Tensor;

namespace {

struct Pair {
  Tensor a, b;
};
template <class F>
void visit_tensors(Pair& p, F&& f) {
  f(p.a), f(p.b);
}

struct PlainImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x + 1; }
};
MESHWRIGHT_MODULE(Plain);
struct DefaultsImpl : torch::nn::Module {
  Tensor forward(Tensor x, double by = 2) { return x * by; }
};
MESHWRIGHT_MODULE(Defaults);
struct ShapesImpl : torch::nn::Module {
  std::tuple<Tensor, int> forward(const Pair& p, const std::optional<Tensor>& more,
                                  std::vector<Tensor>& list, std::unique_ptr<int>& own) {
    *own += 1;
    list.push_back(p.a);
    return {p.a + p.b + (more ? *more : at::zeros_like(p.a)), *own};
  }
};
MESHWRIGHT_MODULE(Shapes);
struct VoidImpl : torch::nn::Module {
  int calls = 0;
  void forward() { ++calls; }
};
MESHWRIGHT_MODULE(Void);

double value(const Tensor& t) { return t.item<double>(); }

}  // namespace

TEST_CASE("hooks run for every way of calling a module") {
  Plain plain;
  int before = 0, after = 0;
  plain->before_forward.push_back([&](torch::nn::Module& m, meshwright::TensorRefs& refs) {
    CHECK(&m == static_cast<torch::nn::Module*>(plain.get()));
    ++before;
    *refs.at(0) = *refs.at(0) * 10;
  });
  plain->after_forward.push_back([&](torch::nn::Module&, meshwright::TensorRefs& refs) {
    ++after;
    *refs.at(0) = *refs.at(0) * 2;
  });
  Tensor one = at::ones({});
  CHECK(value(plain(one)) == 22);
  CHECK(value(plain->forward(one)) == 22);
  torch::nn::Sequential list(plain, meshwright::Linear(torch::nn::LinearOptions(1, 1)));
  CHECK(value(list[0]->as<Plain>()->forward(one)) == 22);
  list->forward(at::ones({1}));
  CHECK(before == 4);
  CHECK(after == 4);
  CHECK(value(one) == 1);
  CHECK(meshwright::HookHost::of(*list[0]) != nullptr);
  CHECK(plain->hooked_class_name() == "Plain");
  CHECK(meshwright::Linear(1, 1)->hooked_class_name() == "Linear");
}

TEST_CASE("default arguments, references, user structs and results without tensors pass through") {
  Defaults defaults;
  int seen = 0;
  defaults->before_forward.push_back([&](torch::nn::Module&, meshwright::TensorRefs& refs) {
    seen += static_cast<int>(refs.size());
  });
  CHECK(value(defaults(at::ones({}))) == 2);
  CHECK(value(defaults(at::ones({}), 5)) == 5);
  CHECK(seen == 2);

  Shapes shapes;
  size_t arguments = 0, results = 0;
  shapes->before_forward.push_back(
      [&](torch::nn::Module&, meshwright::TensorRefs& refs) { arguments = refs.size(); });
  shapes->after_forward.push_back(
      [&](torch::nn::Module&, meshwright::TensorRefs& refs) { results = refs.size(); });
  std::vector<Tensor> list{at::ones({})};
  auto own = std::make_unique<int>(1);
  auto [sum, count] = shapes(Pair{at::ones({}), at::full({}, 3)}, at::ones({}), list, own);
  CHECK(value(sum) == 5);
  CHECK(count == 2);
  CHECK(*own == 2);
  CHECK(arguments == 4);
  CHECK(results == 1);

  Void none;
  none->after_forward.push_back(
      [&](torch::nn::Module&, meshwright::TensorRefs& refs) { CHECK(refs.empty()); });
  none();
  CHECK(none->calls == 1);
}

TEST_CASE("a call under `around` can be run again with other tensors") {
  Plain plain;
  meshwright::ForwardCall kept;
  plain->around = [&](meshwright::ForwardCall call) {
    kept = call;
    return call.run(call.inputs);
  };
  CHECK(value(plain(at::ones({}))) == 2);
  CHECK(value(kept.run({at::full({}, 7)}).at(0)) == 8);
}

}  // namespace module_test
