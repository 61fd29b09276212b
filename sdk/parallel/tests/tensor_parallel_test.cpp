// The styles of tensor parallelism one by one: outputs and gradients are those of one rank,
// whatever the layouts and however unevenly the sizes divide.
// Long because all styles are tried on the same small modules.
#include "meshwright/parallel/tensor_parallel.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <torch/nn/modules/container/modulelist.h>

#include <mutex>
#include <set>

#include "meshwright/error.h"
#include "meshwright/nn/layers.h"
#include "meshwright/parallel/testing.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/comm/tests/sampled.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace tensor_parallel_test {

using namespace meshwright;
using at::Tensor;
using torch::nn::EmbeddingOptions;
using torch::nn::LinearOptions;
using enum TpStyleKind;
using enum TpLayout;

namespace {

Tensor seeded(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

// Seeded values, each parameter another stream; a tied one is filled once.
void fill(torch::nn::Module& model, uint64_t seed) {
  c10::NoGradGuard no_grad;
  std::set<void*> seen;
  for (auto& item : model.named_parameters())
    if (seen.insert(item.value().unsafeGetTensorImpl()).second)
      item.value().copy_(seeded(item.value().sizes(), seed++));
}

using Entries = std::vector<std::pair<std::string, TpStyle>>;

// What apply_tensor_parallel() needs, for `model` on all ranks of the world.
struct Applied {
  Applied(std::shared_ptr<torch::nn::Module> module, const Entries& entries,
          const std::shared_ptr<World>& world, bool pieces = false)
      : model(std::move(module)), outline(outline_of(*model)) {
    for (ModuleOutline& each : outline.modules)
      if (each.name.ends_with(".lora_A") || each.name.ends_with(".lora_B"))
        each.kind = ModuleKind::other;  // as who adds an adapter lists it
    outline.own_tp_plan = {{"layers.*.inner.head_norm", "replicated_with_grad_allreduce"}};
    config.shared().enable_async_tensor_parallel = pieces;
    mesh.device_mesh.emplace(std::vector<MeshAxis>{{"tp", world->size()}});
    for (const auto& [name, style] : entries) plan.entries.push_back({name, style, {name}});
    tp = apply_tensor_parallel({model, outline, mesh, plan, config, world});
  }
  // Gradients as they are after a step, whole.
  std::map<std::string, Tensor> gradients() const {
    std::vector<ParallelParameter> parameters;
    for (auto& item : model->named_parameters()) {
      ParallelParameter p;
      p.name = item.key();
      p.local = item.value().detach();
      p.grad = item.value().grad().defined() ? item.value().grad() : at::zeros_like(p.local);
      parameters.push_back(std::move(p));
    }
    tp->sum_partial_gradients(parameters, at::kFloat);
    std::map<std::string, Tensor> out;
    for (const ParallelParameter& p : parameters) out[p.name] = tp->whole(p.name, p.grad);
    return out;
  }
  std::shared_ptr<torch::nn::Module> model;
  ModelOutline outline;
  MeshPlan mesh;
  TpPlan plan;
  StrategyConfig config;
  std::shared_ptr<TensorParallel> tp;
};

// This rank's part of a whole activation in a layout; partial ones add up to it.
Tensor part_of(const Tensor& whole, TpLayout layout, const World& world) {
  if (layout == replicate) return whole.clone();
  if (layout == partial)
    return whole * (static_cast<double>(world.rank() + 1) /
                    static_cast<double>(world.size() * (world.size() + 1) / 2));
  int64_t dim = layout == shard_1 ? 1 : whole.dim() - 1;
  Chunk mine = ceil_chunk(whole.size(dim), world.size(), world.rank());
  return whole.narrow(dim, mine.begin, mine.end - mine.begin).clone();
}

// The difference to what the rank should have, relative to the largest element.
double off(const Tensor& found, const Tensor& expected) {
  if (found.sizes() != expected.sizes()) return HUGE_VAL;
  if (found.numel() == 0) return 0;
  return (found - expected).abs().max().item<double>() /
         std::max(1.0, expected.abs().max().item<double>());
}

std::string text_of(const TpStyle& style) {
  return std::string(style_name(style.kind)) + " " + std::string(layout_name(style.input)) +
         " -> " + std::string(layout_name(style.output));
}

struct OneImpl : torch::nn::Module {
  explicit OneImpl(Linear made) : linear(std::move(made)) { hold("m", linear); }
  explicit OneImpl(Embedding made) : embedding(std::move(made)) { hold("m", embedding); }
  explicit OneImpl(RMSNorm made) : norm(std::move(made)) { hold("m", norm); }
  // Not at the top, where nothing could have cut an input.
  template <class T>
  void hold(const std::string& name, const T& module) {
    register_module("in", std::make_shared<torch::nn::Module>())->register_module(name, module);
  }
  Tensor forward(const Tensor& x) {
    return linear ? linear(x) : embedding ? embedding(x) : norm(x);
  }
  Linear linear{nullptr};
  Embedding embedding{nullptr};
  RMSNorm norm{nullptr};
};
MESHWRIGHT_MODULE(One);

One adapted(int64_t in, int64_t out, bool bias) {
  One one(Linear(LinearOptions(in, out).bias(bias)));
  one->linear->register_module("lora_A", Linear(LinearOptions(in, 3).bias(false)));
  one->linear->register_module("lora_B", Linear(LinearOptions(3, out).bias(false)));
  return one;
}

// As adapters run: in the innermost hooks of their Linear.
void run_adapter(One& one) {
  if (!one->linear) return;
  auto children = one->linear->named_children();
  if (!children.contains("lora_A")) return;
  auto factor = [&](const char* name) {
    return Linear(std::dynamic_pointer_cast<Linear::ContainedType>(children[name]));
  };
  auto input = std::make_shared<Tensor>();
  HookHost& host = *HookHost::of(*one->linear);
  host.before_forward.emplace_back(
      [input](torch::nn::Module&, TensorRefs& inputs) { *input = *inputs.at(0); });
  host.after_forward.insert(host.after_forward.begin(),
                            [input, a = factor("lora_A"), b = factor("lora_B")](
                                torch::nn::Module&, TensorRefs& outputs) mutable {
                              Tensor& y = *outputs.at(0);
                              y = y + b(a(*input));
                            });
}

// Runs the module in.m of `make()` whole and under the style, on x: [2, 12, ...]; says how far
// outputs and gradients are from each other.
std::string compare(int64_t ranks, const std::function<One()>& make, const TpStyle& style,
                    const Tensor& x, bool pieces = false) {
  One whole = make();
  fill(*whole, 5);
  run_adapter(whole);
  bool ids = !at::isFloatingType(x.scalar_type());
  Tensor input = x.clone();
  if (!ids) input.set_requires_grad(true);
  Tensor expected = whole(input), weight = seeded(expected.sizes(), 77);
  (expected * weight).sum().backward();
  std::mutex mutex;
  std::string problems;
  run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
    One cut = make();
    fill(*cut, 5 + 100 * static_cast<uint64_t>(world->rank()));  // the first rank's are everybody's
    Applied applied(cut.ptr(), {{"in.m", style}}, world, pieces);
    run_adapter(cut);
    Tensor mine = part_of(x, ids && style.input == partial ? replicate : style.input, *world);
    if (!ids) mine.set_requires_grad(true);
    Tensor y = cut(mine);
    double output = off(
        style.output == partial ? at::zeros({}) : y.detach(),
        style.output == partial ? at::zeros({}) : part_of(expected.detach(), style.output, *world));
    if (style.output == partial) {
      Tensor sum = y.detach().clone();
      world->everyone()->all_reduce(sum).wait();
      output = off(sum, expected.detach());
    }
    (y * (style.output == partial ? weight : part_of(weight, style.output, *world)))
        .sum()
        .backward();
    double back = 0;
    if (!ids)
      back = off(mine.grad(), style.input == partial ? input.grad()
                                                     : part_of(input.grad(), style.input, *world));
    std::map<std::string, Tensor> gradients = applied.gradients();
    std::lock_guard lock(mutex);
    auto told = [&](const std::string& what, double far) {
      if (far > 1e-5)
        problems += "rank " + std::to_string(world->rank()) + ": " + what + " is off by " +
                    std::to_string(far) + "; ";
    };
    told("the output", output);
    told("the input's gradient", back);
    for (auto& item : whole->named_parameters())
      told(item.key(), off(gradients.at(item.key()), item.value().grad()));
  });
  return problems;
}

}  // namespace

TEST_CASE(
    "a Linear cut by columns or rows, with every input and output layout, even where the sizes do "
    "not divide") {
  size_t turn = 0;
  for (int64_t ranks : {2, 3, 4})
    for (int64_t in : {8, 5})
      for (int64_t out : {12, 5, 3})
        for (bool bias : {true, false})
          for (TpStyleKind kind : {column, row})
            for (TpLayout from : {replicate, shard_1, shard_last, partial})
              for (TpLayout to : {replicate, shard_1, shard_last, partial}) {
                // Columns give no sums, rows take none and leave nothing cut along their width.
                if (kind == column ? to == partial : from == partial || to == shard_last) continue;
                if (kind == row && to == partial && bias)
                  continue;  // a bias is added to the sum, which is not made here
                if (ranks == 3 && (in != 5 || out != 5)) continue;
                if (kind == column && (out != 5 || !bias) && from != replicate) continue;
                if (!sampled(turn++, 2)) continue;
                TpStyle style{kind, from, to};
                INFO(ranks << " ranks, " << in << " to " << out << (bias ? " with bias, " : ", ")
                           << text_of(style));
                CHECK(compare(
                          ranks, [&] { return One(Linear(LinearOptions(in, out).bias(bias))); },
                          style, seeded({2, 12, in}, 3)) == "");
              }
}

TEST_CASE(
    "an adapter beside a Linear that is cut is one beside the whole, and learns as that does") {
  auto held = [](int64_t ranks, int64_t in, int64_t out, const TpStyle& style, bool pieces) {
    INFO(ranks << " ranks, " << in << " to " << out << ", " << text_of(style)
               << (pieces ? ", in pieces" : ""));
    CHECK(compare(
              ranks, [&] { return adapted(in, out, /*bias=*/style.output != partial); }, style,
              seeded({2, 12, in}, 3), pieces) == "");
  };
  for (TpStyleKind kind : {column, row})
    for (TpLayout from : {replicate, shard_1, shard_last, partial})
      for (TpLayout to : {replicate, shard_1, shard_last, partial}) {
        if (kind == column ? to == partial : from == partial || to == shard_last) continue;
        held(2, 8, 12, {kind, from, to}, false);
        held(4, 5, 3, {kind, from, to}, false);  // ranks with no row or column
      }
  for (const TpStyle& style :
       {TpStyle{column, shard_1, shard_last}, TpStyle{row, shard_last, shard_1}})
    for (int64_t ranks : {2, 4}) held(ranks, 8, 12, style, true);
}

TEST_CASE(
    "an Embedding cut by rows or columns, with uneven and empty parts, and a padding row wherever "
    "it lies") {
  struct Row {
    int64_t ranks, rows;
    std::optional<int64_t> padding;
  };
  for (const Row& row :
       {Row{2, 8, {}}, Row{4, 5, {}}, Row{4, 5, 3}, Row{4, 5, -5}, Row{2, 257, 256}, Row{3, 2, 1}})
    for (TpStyleKind kind : {column, TpStyleKind::row})
      for (TpLayout from : {replicate, shard_1})
        for (TpLayout to : {replicate, shard_1, partial}) {
          if (kind == column && to == partial) continue;
          TpStyle style{kind, from, to};
          INFO(row.ranks << " ranks, " << row.rows << " rows, padding "
                         << row.padding.value_or(-100) << ", " << text_of(style));
          auto make = [&] {
            return One(Embedding(EmbeddingOptions(row.rows, 7).padding_idx(row.padding)));
          };
          CHECK(compare(row.ranks, make, style,
                        at::randint(0, row.rows, {2, 12}, at::detail::createCPUGenerator(9),
                                    at::kLong)) == "");
        }
}

TEST_CASE("norms of a part of the sequence, with outputs cut, put together or gathered") {
  for (int64_t ranks : {2, 4})
    for (TpStyleKind kind : {sequence, sequence_all_gather})
      for (TpLayout from : {shard_1, replicate})
        for (TpLayout to : {shard_1, replicate}) {
          if (kind == sequence_all_gather && to == shard_1) continue;
          TpStyle style{kind, from, to};
          INFO(ranks << " ranks, " << text_of(style));
          CHECK(compare(
                    ranks, [] { return One(RMSNorm(6, 1e-6)); }, style, seeded({2, 12, 6}, 3)) ==
                "");
        }
}

namespace {

// A gated block behind a norm, with a norm of its own between the projections, as attention has: as
// wide as the stream.
struct InnerImpl : torch::nn::Module {
  InnerImpl() {
    a = register_module("a", Linear(LinearOptions(6, 24)));
    b = register_module("b", Linear(LinearOptions(6, 24).bias(false)));
    c = register_module("c", Linear(LinearOptions(24, 6)));
    head_norm = register_module("head_norm", RMSNorm(6, 1e-6));
  }
  Tensor forward(const Tensor& x) {
    Tensor heads = a(x);
    heads = head_norm(heads.view({heads.size(0), heads.size(1), -1, 6})).flatten(2);
    return c(at::silu(heads) * b(x));
  }
  Linear a{nullptr}, b{nullptr}, c{nullptr};
  RMSNorm head_norm{nullptr};
};
MESHWRIGHT_MODULE(Inner);

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    before = register_module("before", RMSNorm(6, 1e-6));
    inner = register_module("inner", Inner());
  }
  Tensor forward(const Tensor& x) { return x + inner(before(x)); }
  RMSNorm before{nullptr};
  Inner inner{nullptr};
};
MESHWRIGHT_MODULE(Layer);

// LibTorch has no way to put one Parameter under a second, existing name.
struct Registered : torch::nn::Module {
  static constexpr auto member = &Registered::parameters_;
};

struct StackImpl : torch::nn::Module {
  explicit StackImpl(bool tied) {
    embed = register_module("embed", Embedding(11, 6));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) layers->push_back(Layer());
    head = register_module("head", Linear(LinearOptions(6, 11).bias(false)));
    if (!tied) return;
    head->weight = embed->weight;
    (head.get()->*Registered::member)["weight"] = embed->weight;
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = embed(ids);
    for (auto& layer : *layers) x = layer->as<Layer>()->forward(x);
    return head(x);
  }
  Embedding embed{nullptr};
  torch::nn::ModuleList layers;
  Linear head{nullptr};
};
MESHWRIGHT_MODULE(Stack);

Entries stack_entries(TpStyleKind norm, bool with_sequence) {
  TpLayout stream = with_sequence ? shard_1 : replicate;
  Entries out{{"embed", {row, replicate, stream}}};
  for (const char* layer : {"layers.0", "layers.1"}) {
    std::string name = layer;
    if (with_sequence)
      out.push_back({name + ".before", {norm, shard_1, norm == sequence ? shard_1 : replicate}});
    for (const char* child : {".inner.a", ".inner.b"})
      out.push_back({name + child, {column, replicate, shard_last}});
    out.push_back({name + ".inner.c", {row, shard_last, stream}});
  }
  out.push_back({"head", {column, stream, replicate}});
  return out;
}

}  // namespace

TEST_CASE("whole layers, with the norms of their heads, give one rank's gradients on every rank") {
  Tensor ids = at::randint(0, 11, {2, 12}, at::detail::createCPUGenerator(9), at::kLong);
  struct Row {
    bool tied, with_sequence;
    TpStyleKind norm;
    bool head_first;  // in the plan
  };
  for (const Row& r : {Row{false, false, sequence, false},
                       {false, true, sequence, false},
                       {false, true, sequence_all_gather, false},
                       {true, false, sequence, false},
                       {true, true, sequence, true},
                       {true, true, sequence_all_gather, true}})
    for (int64_t ranks : {2, 4}) {
      INFO(ranks << " ranks, " << (r.tied ? "tied, " : "")
                 << (r.with_sequence ? std::string(style_name(r.norm)) : "whole sequences"));
      Stack whole(r.tied);
      fill(*whole, 5);
      Tensor expected = whole(ids), weight = seeded(expected.sizes(), 77);
      (expected * weight).sum().backward();
      Entries entries = stack_entries(r.norm, r.with_sequence);
      if (r.head_first) std::rotate(entries.begin(), entries.end() - 1, entries.end());
      std::mutex mutex;
      std::string problems;
      run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
        Stack cut(r.tied);
        fill(*cut, 5 + 100 * static_cast<uint64_t>(world->rank()));
        Applied applied(cut.ptr(), entries, world);
        Tensor y = cut(ids);
        (y * weight).sum().backward();
        std::map<std::string, Tensor> gradients = applied.gradients();
        std::lock_guard lock(mutex);
        if (off(y.detach(), expected.detach()) > 1e-5) problems += "output; ";
        for (auto& item : whole->named_parameters())
          if (off(gradients.at(item.key()), item.value().grad()) > 1e-5)
            problems += item.key() + "; ";
        for (const char* name : {"embed.weight", "head.weight"})
          if (applied.tp->find(name) == nullptr || applied.tp->find(name)->whole[0] != 11)
            problems += std::string(name) + " is not cut; ";
      });
      CHECK(problems == "");
    }
}

namespace {

struct Unhooked : torch::nn::Module {
  Unhooked() { register_module("m", linear); }
  torch::nn::Linear linear{2, 2};
};

// A Linear of another kind: a weight that is no matrix, or a parameter beside it.
struct OddImpl : meshwright::LinearImpl {
  explicit OddImpl(bool flat) : LinearImpl(LinearOptions(6, 6)) {
    if (flat)
      weight.set_data(at::zeros({6}));
    else
      register_parameter("scale", at::zeros({6}));
  }
};
MESHWRIGHT_MODULE(Odd);

std::string refused(const std::function<void(const std::shared_ptr<World>&)>& body) {
  std::mutex mutex;
  std::set<std::string> messages;
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    std::string message = "nothing";
    try {
      body(world);
    } catch (const Error& error) {
      message = code_string(error.code()) + " " + error.message();
    }
    std::lock_guard lock(mutex);
    messages.insert(message);
  });
  return messages.size() == 1 ? *messages.begin() : "the ranks disagree";
}

}  // namespace

TEST_CASE(
    "gradients that are partial sums are summed and sent in the dtype that is asked for, and keep "
    "their own") {
  for (at::ScalarType reduce : {at::kFloat, at::kBFloat16}) {
    std::mutex mutex;
    run_ranks(4, [&](const std::shared_ptr<World>& world) {
      Applied applied(One(RMSNorm(8, 1e-6)).ptr(),
                      {{"in.m", {TpStyleKind::sequence, shard_1, shard_1}}}, world);
      ParallelParameter p;
      p.name = "in.m.weight";
      // 256 + 1 + 1 + 2: in bfloat16, added one after the other, the ones are lost.
      double mine = std::vector<double>{256, 1, 1, 2}[static_cast<size_t>(world->rank())];
      p.local = p.grad = at::full({8}, mine, at::kBFloat16);
      world->traffic().clear();
      applied.tp->sum_partial_gradients({p}, reduce);
      std::lock_guard lock(mutex);
      CHECK((p.grad.scalar_type() == at::kBFloat16));
      if (reduce == at::kFloat) CHECK(p.grad[0].item<double>() == 260);
      CHECK(world->traffic().bytes() ==
            2 * 8 * static_cast<int64_t>(c10::elementSize(reduce)) * 3 / 4);
    });
  }
}

TEST_CASE("what cannot be cut is refused on every rank") {
  TpStyle colwise{column, replicate, shard_last}, rowwise{row, replicate, replicate};
  CHECK(refused([&](const auto& world) {
          Applied(std::make_shared<Unhooked>(), {{"m", colwise}}, world);
        }) == code_string(ErrorCode::bad_module) +
                  " the tensor-parallel plan styles m, a torch::nn::LinearImpl without hooks");
  CHECK(refused([&](const auto& world) {
          Applied(One(RMSNorm(6, 1e-6)).ptr(), {{"in.m", colwise}}, world);
        }) ==
        code_string(ErrorCode::bad_module) +
            " the tensor-parallel plan cuts in.m, a RMSNorm; only Linear and Embedding can be cut");
  for (const TpStyle& style : {colwise, rowwise})
    for (bool flat : {false, true}) {
      CHECK(refused([&](const auto& world) {
              auto holder = std::make_shared<torch::nn::Module>();
              holder->register_module("m", Odd(flat).ptr());
              Applied(holder, {{"m", style}}, world);
            }) == code_string(ErrorCode::tp_plan_does_not_fit) +
                      " the tensor-parallel plan cuts m (pattern \"m\"), but " +
                      (flat ? "its weight has 1 dimensions, not 2"
                            : "beside weight and bias it has scale, which nothing cuts"));
    }
  // Tied.
  CHECK(refused([&](const auto& world) {
          Applied(Stack(true).ptr(),
                  {{"embed", rowwise}, {"head", TpStyle{row, replicate, replicate}}}, world);
        }) == code_string(ErrorCode::tp_plan_does_not_fit) +
                  " the head head and the embedding embed share one weight, but the plan would cut "
                  "the head "
                  "by width and the embedding by vocabulary");
  // An activation of which every rank holds a summand cannot be cut into columns.
  CHECK(refused([&](const auto& world) {
          One one(Linear(4, 4));
          Applied applied(one.ptr(), {{"in.m", TpStyle{row, partial, replicate}}}, world);
          one(at::ones({2, 4, 4}));
        }) == code_string(ErrorCode::tp_plan_does_not_fit) +
                  " an activation cannot go from partial to shard(-1)");
}

TEST_CASE("without a plan or on one rank nothing is cut") {
  run_ranks(1, [](const std::shared_ptr<World>& world) {
    One one(Linear(4, 4));
    CHECK(Applied(one.ptr(), {{"in.m", TpStyle{column, replicate, shard_last}}}, world).tp ==
          nullptr);
    CHECK(one->linear->weight.size(0) == 4);
  });
  std::mutex mutex;
  int nothing = 0;
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    One one(Linear(4, 4));
    bool none = Applied(one.ptr(), {}, world).tp == nullptr && one->linear->weight.size(0) == 4;
    std::lock_guard lock(mutex);
    nothing += none;
  });
  CHECK(nothing == 2);
}

}  // namespace tensor_parallel_test
