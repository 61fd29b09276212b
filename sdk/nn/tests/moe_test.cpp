// Grouped experts and whole blocks against dense loops, gradients included.
// Long because all cases share the dense loops that they are compared with.
#include "meshwright/nn/moe.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <doctest/doctest.h>

#include <map>

#include "meshwright/error.h"
#include "meshwright/parallel/activation_checkpoint.h"
#include "sdk/nn/moe_parts.h"

namespace moe_test {

namespace {

using at::Tensor;
using meshwright::ExpertActivation;
using meshwright::GroupedExperts;
using meshwright::Moe;
using meshwright::MoeConfig;
using meshwright::Routing;
using meshwright::ScoreFunction;
using Counts = std::vector<int64_t>;

MoeConfig small(ExpertActivation activation = ExpertActivation::swiglu) {
  MoeConfig c;
  c.dim = 6;
  c.moe_inter_dim = 10;
  c.n_routed_experts = 4;
  c.n_activated_experts = 2;
  c.expert_activation = activation;
  c.activation_limit = 1.5;  // so that some values are clamped
  c.initializer_range = 0.7;
  return c;
}

double distance(const Tensor& a, const Tensor& b) {
  return a.numel() == 0 ? 0 : (a.detach() - b.detach()).abs().max().item<double>();
}

// One expert on some tokens, by the definition.
Tensor activation(const MoeConfig& c, const Tensor& h, ExpertActivation kind) {
  int64_t f = h.size(1) / 2;
  bool turns = kind == ExpertActivation::quick_geglu;
  Tensor g = turns ? h.slice(1, 0, h.size(1), 2) : h.narrow(1, 0, f),
         u = turns ? h.slice(1, 1, h.size(1), 2) : h.narrow(1, f, f);
  double limit = c.activation_limit;
  switch (kind) {
    case ExpertActivation::swiglu:
      if (c.swiglu_limit > 0)
        return at::silu(g.clamp_max(c.swiglu_limit)) * u.clamp(-c.swiglu_limit, c.swiglu_limit);
      return at::silu(g) * u;
    case ExpertActivation::swigluoai:
    case ExpertActivation::quick_geglu:
      return g.clamp_max(limit) * at::sigmoid(c.activation_alpha * g.clamp_max(limit)) *
             (u.clamp(-limit, limit) + 1);
    case ExpertActivation::geglu:
      return at::gelu(g) * u;
    case ExpertActivation::relu2:
      return at::relu(h).square();
  }
  return h;
}

// Biases, where there are any, at random.
GroupedExperts experts_of(const MoeConfig& config, at::ScalarType dtype) {
  GroupedExperts experts(config, at::TensorOptions().dtype(dtype));
  c10::NoGradGuard no_grad;
  for (const Tensor& bias : {experts->gate_up_proj_bias, experts->down_proj_bias})
    if (bias.defined()) bias.normal_();
  return experts;
}

Tensor one_expert(const MoeConfig& c, GroupedExperts& experts, int64_t e, const Tensor& x,
                  const Tensor& w) {
  Tensor h = x.mm(experts->gate_and_up_projs[e]);
  if (c.expert_bias) h = h + experts->gate_up_proj_bias[e];
  Tensor y = activation(c, h, c.expert_activation).mm(experts->down_projs[e]);
  if (c.expert_bias) y = y + experts->down_proj_bias[e];
  return y * w.unsqueeze(1);
}

// A loop over experts.
Tensor dense_experts(const MoeConfig& c, GroupedExperts& experts, const Tensor& x,
                     const std::vector<int64_t>& counts, const Tensor& w) {
  std::vector<Tensor> out;
  int64_t begin = 0;
  for (size_t e = 0; e < counts.size(); begin += counts[e++])
    out.push_back(one_expert(c, experts, static_cast<int64_t>(e), x.narrow(0, begin, counts[e]),
                             w.narrow(0, begin, counts[e])));
  return at::cat(out);
}

// A loop over tokens and their experts.
Tensor dense_block(const MoeConfig& c, Moe& block, const Tensor& x, const Routing& routing) {
  std::vector<Tensor> rows;
  for (int64_t t = 0; t < x.size(0); ++t) {
    Tensor sum = at::zeros({1, x.size(1)}, x.options());
    for (int64_t j = 0; j < routing.indices.size(1); ++j) {
      int64_t e = routing.indices[t][j].item<int64_t>();
      if (e >= 0)
        sum = sum + one_expert(c, block->experts(), e, x.narrow(0, t, 1),
                               routing.weights[t][j].view({1}));
    }
    rows.push_back(sum);
  }
  return at::cat(rows);
}

std::vector<Tensor> gradients(torch::nn::Module& module) {
  std::vector<Tensor> out;
  for (Tensor& p : module.parameters()) {
    out.push_back(p.grad().defined() ? p.grad().clone() : Tensor());
    p.mutable_grad() = Tensor();
  }
  return out;
}

void check_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    REQUIRE(a[i].defined());
    REQUIRE(b[i].defined());
    CHECK(distance(a[i], b[i]) <= tolerance);
  }
}

}  // namespace

TEST_CASE(
    "grouped experts equal a loop over experts, in every activation, with biases, and gradients "
    "too") {
  struct Row {
    ExpertActivation activation;
    double swiglu_limit;
  };
  const Row rows[] = {{ExpertActivation::swiglu, 0},    {ExpertActivation::swiglu, 0.8},
                      {ExpertActivation::swigluoai, 0}, {ExpertActivation::quick_geglu, 0},
                      {ExpertActivation::geglu, 0},     {ExpertActivation::relu2, 0}};
  int checked = 0;
  for (const Row& row : rows)
    for (bool bias : {false, true})
      for (bool after : {false, true})
        for (at::ScalarType dtype : {at::kFloat, at::kDouble})
          for (const std::vector<int64_t>& counts :
               {std::vector<int64_t>{3, 0, 40, 2}, {0, 0, 7, 0}, {0, 0, 0, 0}}) {
            CAPTURE(static_cast<int>(row.activation));
            CAPTURE(bias);
            CAPTURE(after);
            CAPTURE(checked);
            at::manual_seed(checked);
            MoeConfig config = small(row.activation);
            config.swiglu_limit = row.swiglu_limit;
            config.expert_bias = bias;
            config.apply_router_weight_after_down = after;
            GroupedExperts experts = experts_of(config, dtype);
            int64_t tokens = counts[0] + counts[1] + counts[2] + counts[3];
            Tensor x = at::randn({tokens, 6}, dtype).set_requires_grad(true),
                   w = at::rand({tokens}, dtype).set_requires_grad(true);
            Tensor into = at::randn({tokens, 6}, dtype);
            Tensor y = experts(x, counts, w);
            CHECK(y.requires_grad());
            (y * into).sum().backward();
            std::vector<Tensor> found = gradients(*experts),
                                inputs = {x.grad().clone(), w.grad().clone()};
            x.mutable_grad() = Tensor(), w.mutable_grad() = Tensor();
            Tensor expected = dense_experts(config, experts, x, counts, w);
            (expected * into).sum().backward();
            double tolerance = dtype == at::kDouble ? 1e-12 : 2e-4;
            CHECK(distance(y, expected) <= tolerance);
            check_equal(found, gradients(*experts), tolerance);
            check_equal(inputs, {x.grad(), w.grad()}, tolerance);
            ++checked;
          }
  CHECK(checked == 144);
}

TEST_CASE("bfloat16 experts in one call equal those one by one as nearly as rounding lets them") {
  for (bool bias : {false, true})
    for (bool after : {false, true}) {
      CAPTURE(bias);
      CAPTURE(after);
      at::manual_seed(9);
      MoeConfig config = small();
      config.dim = 16;
      config.moe_inter_dim = 24;  // rows of whole 16 bytes
      config.expert_bias = bias;
      config.apply_router_weight_after_down = after;
      config.initializer_range = 0.2;
      GroupedExperts experts(config, at::TensorOptions().dtype(at::kBFloat16));
      Counts counts = {5, 0, 17, 1};
      Tensor x = at::randn({23, 16}).to(at::kBFloat16).set_requires_grad(true),
             w = at::rand({23}).set_requires_grad(true);
      Tensor into = at::randn({23, 16}).to(at::kBFloat16);
      Tensor y = experts(x, counts, w);
      (y * into).sum().backward();
      std::vector<Tensor> found = gradients(*experts);
      found.push_back(x.grad()), found.push_back(w.grad());
      GroupedExperts wide(config);
      {
        c10::NoGradGuard no_grad;
        for (auto& item : wide->named_parameters())
          item.value().copy_(experts->named_parameters()[item.key()]);
      }
      Tensor u = x.detach().to(at::kFloat).set_requires_grad(true),
             v = w.detach().clone().set_requires_grad(true);
      Tensor expected = dense_experts(config, wide, u, counts, v);
      (expected * into.to(at::kFloat)).sum().backward();
      std::vector<Tensor> exact = gradients(*wide);
      exact.push_back(u.grad()), exact.push_back(v.grad());
      CHECK((y.scalar_type() == at::kBFloat16));
      CHECK(distance(y.to(at::kFloat), expected) < 2e-2 * expected.abs().max().item<double>());
      for (size_t i = 0; i < exact.size(); ++i) {
        CAPTURE(i);
        CHECK(distance(found[i].to(at::kFloat), exact[i]) <
              2e-2 * exact[i].abs().max().item<double>());
      }
      CHECK(found[0][1].abs().max().item<double>() == 0);  // of the expert without tokens
    }
}

TEST_CASE("gradients of grouped experts are those of small differences") {
  MoeConfig config = small();
  config.expert_bias = true;
  GroupedExperts experts(config, at::TensorOptions().dtype(at::kDouble));
  std::vector<int64_t> counts = {2, 0, 3, 1};
  at::manual_seed(1);
  Tensor x = at::randn({6, 6}, at::kDouble).set_requires_grad(true),
         w = at::rand({6}, at::kDouble).set_requires_grad(true);
  Tensor into = at::randn({6, 6}, at::kDouble);
  auto loss = [&] { return (experts(x, counts, w) * into).sum(); };
  loss().backward();
  std::vector<Tensor> all = experts->parameters();
  all.push_back(x), all.push_back(w);
  c10::NoGradGuard no_grad;
  for (Tensor& p : all)
    for (int64_t i = 0; i < std::min<int64_t>(p.numel(), 40); ++i) {
      Tensor element = p.view(-1)[i];
      double kept = element.item<double>(), step = 1e-6;
      element.fill_(kept + step);
      double up = loss().item<double>();
      element.fill_(kept - step);
      double down = loss().item<double>();
      element.fill_(kept);
      CHECK(p.grad().view(-1)[i].item<double>() ==
            doctest::Approx((up - down) / (2 * step)).epsilon(1e-5).scale(1));
    }
}

TEST_CASE("experts whose number shrinks work on what is left, as under expert parallelism") {
  MoeConfig config = small();
  GroupedExperts whole(config), part(config);
  c10::NoGradGuard no_grad;
  part->gate_and_up_projs.set_data(whole->gate_and_up_projs.narrow(0, 2, 2).clone());
  part->down_projs.set_data(whole->down_projs.narrow(0, 2, 2).clone());
  Tensor x = at::randn({5, 6}), w = at::rand({5});
  CHECK(part->experts() == 2);
  CHECK(part(x, Counts{1, 4}, w).equal(whole(x, Counts{0, 0, 1, 4}, w)));
  CHECK_THROWS_AS(part(x, Counts{0, 0, 1, 4}, w), meshwright::Error);
  CHECK_THROWS_AS(part(x, Counts{1, 3}, w), meshwright::Error);
}

TEST_CASE(
    "sorting by expert keeps the order of tokens, leaves masked ones out, and sums them up again") {
  Tensor indices = at::tensor(Counts{2, 0, -1, -1, 2, 3, 0, 2}).view({4, 2});
  meshwright::ExpertOrder order = meshwright::sort_by_expert(indices, 4);
  CHECK(order.counts == std::vector<int64_t>{2, 0, 3, 1});
  CHECK(order.slot.equal(at::tensor(Counts{1, 6, 0, 4, 7, 5})));
  CHECK(order.token.equal(at::tensor(Counts{0, 3, 0, 2, 3, 2})));
  CHECK(order.place.equal(at::tensor(Counts{2, 0, -1, -1, 3, 5, 1, 4}).view({4, 2})));
  for (const Tensor& some : {indices, at::randint(-1, 7, {200, 3}, at::kLong),
                             at::zeros({0, 2}, at::kLong), at::zeros({3, 1}, at::kLong) - 1}) {
    meshwright::ExpertOrder host = meshwright::sort_by_expert(some, 7),
                            all = meshwright::sort_without_counts(some, 7);
    CHECK(all.slot.numel() == some.numel());
    const Counts counts = meshwright::detail::counts_of(all.bounds);
    const meshwright::ExpertOrder device = meshwright::detail::with_counts(all, counts);
    CHECK(host.counts == counts);
    for (const auto& [a, b] : {std::pair(host.slot, device.slot),
                               {host.token, device.token},
                               {host.place, device.place}})
      CHECK(a.equal(b));
  }
  for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    Tensor x = at::randn({4, 5}, dtype).set_requires_grad(true), into = at::randn({4, 5}, dtype);
    Tensor back = meshwright::combine_tokens(meshwright::gather_tokens(x, order), order);
    Tensor twice = x * at::tensor(Counts{2, 0, 2, 2}).unsqueeze(1).to(dtype);
    CHECK(distance(back, twice) < 1e-6);
    (back * into).sum().backward();
    CHECK(distance(x.grad(), into * at::tensor(Counts{2, 0, 2, 2}).unsqueeze(1).to(dtype)) < 1e-6);
  }
  Tensor half = at::randn({6, 5}).to(at::kBFloat16);  // summed in float32
  CHECK(meshwright::combine_tokens(half, order)[0].equal(
      (half[2].to(at::kFloat) + half[0].to(at::kFloat)).to(at::kBFloat16)));
}

TEST_CASE("rows of runs go where a loop puts them, and back, with other rows among them") {
  for (int64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    at::manual_seed(static_cast<uint64_t>(seed));
    // From `ranks` to `experts`, many pairs without rows; by rank first, then by expert, with rows
    // of zeros behind each expert's.
    const int64_t ranks = 1 + seed % 4, experts = 1 + seed % 7, zeros = seed % 3;
    const Tensor random = at::randint(-3, 5, {ranks * experts}, at::kLong).clamp_min(0);
    const int64_t* counts = random.const_data_ptr<int64_t>();
    Counts runs(counts, counts + ranks * experts), begins(runs.size());
    int64_t all = 0;
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t r = 0; r < ranks; ++r) {
        begins[static_cast<size_t>(r * experts + e)] = all;
        all += runs[static_cast<size_t>(r * experts + e)];
      }
      all += zeros;
    }
    Counts place, row(static_cast<size_t>(all), -1);
    for (size_t run = 0; run < runs.size(); ++run)
      for (int64_t i = 0; i < runs[run]; ++i) {
        row[static_cast<size_t>(begins[run] + i)] = static_cast<int64_t>(place.size());
        place.push_back(begins[run] + i);
      }
    const meshwright::detail::RowPlaces found =
        meshwright::detail::places_of_runs(runs, begins, all, at::kCPU);
    CHECK(found.place.equal(at::tensor(place, at::kLong)));
    CHECK(found.row.equal(at::tensor(row, at::kLong)));

    // Some of the rows in another tensor, in another order.
    const auto total = static_cast<int64_t>(place.size());
    if (total == 0) continue;
    const int64_t first = total / 3, inserted = total / 2;
    for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const Tensor whole = at::randn({total, 5}).to(dtype), named = at::randperm(inserted),
                   others = at::empty({inserted, 5}, whole.options());
      others.index_copy_(0, named, whole.narrow(0, first, inserted));
      const meshwright::detail::RowsAmong among{
          at::cat({whole.narrow(0, 0, first),
                   whole.narrow(0, first + inserted, total - first - inserted)}),
          others, named, first};
      Tensor taken = at::empty({all, 5}, whole.options());
      meshwright::detail::take_among_into(taken, among, found.row);
      meshwright::ExpertOrder order;  // a token for each place, then sums of two rows
      order.token = found.row;
      order.place = found.row.unsqueeze(1);
      CHECK(taken.equal(meshwright::combine_tokens(whole, order)));
      order.place = at::randint(-1, total, {6, 2}, at::kLong);
      CHECK(meshwright::detail::sum_among(among, order.place)
                .equal(meshwright::combine_tokens(whole, order)));
    }
  }
}

TEST_CASE("rows of zeros between experts change nothing, whichever library multiplies") {
  for (auto [n, taken] : std::map<int64_t, int64_t>{{0, 0},
                                                    {1, 8},
                                                    {8, 8},
                                                    {9, 16},
                                                    {128, 128},
                                                    {129, 136},
                                                    {255, 256},
                                                    {257, 272},
                                                    {1000, 1024},
                                                    {5000, 5120}})
    CHECK(meshwright::padded_rows(n) == taken);
  for (bool bias : {false, true})
    for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      CAPTURE(bias);
      CAPTURE(static_cast<int>(dtype));
      at::manual_seed(4);
      MoeConfig config = small();
      config.dim = 16, config.moe_inter_dim = 24;  // of whole 16 bytes in bfloat16
      config.expert_bias = bias;
      GroupedExperts experts = experts_of(config, dtype);
      Tensor indices =
          at::randint(-1, 3, {31, 2}, at::kLong);  // none goes to the last one, some nowhere
      Tensor x = at::randn({31, 16}).to(dtype).set_requires_grad(true),
             w = at::rand({31, 2}).to(dtype).set_requires_grad(true);
      Tensor into = at::randn({31, 16}).to(dtype);
      auto run = [&](const meshwright::ExpertOrder& order, auto experts_of_rows) {
        Tensor y = meshwright::combine_tokens(experts_of_rows(meshwright::gather_tokens(x, order),
                                                              meshwright::gather_weights(w, order)),
                                              order);
        (y * into).sum().backward();
        // What goes nowhere has no gradient of its own; without counts it may be anything.
        std::vector<Tensor> out = gradients(*experts);
        out.insert(out.end(), {x.grad(), w.grad(), y.detach()});
        x.mutable_grad() = Tensor(), w.mutable_grad() = Tensor();
        return out;
      };
      auto pass = [&](bool padded) {
        meshwright::ExpertOrder order = meshwright::sort_by_expert(indices, 4, padded);
        CHECK(order.padded == padded);
        return run(order, [&](const Tensor& tokens, const Tensor& weights) {
          return experts(tokens, order.counts, weights, padded);
        });
      };
      // The sums are the same; libraries may add them up in another order.
      double tolerance = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 2e-4 : 0.1;
      check_equal(pass(true), pass(false), tolerance);
      // The host knows no counts. In bfloat16 without biases it asks for none.
      const meshwright::ExpertOrder order = meshwright::sort_without_counts(indices, 4);
      CHECK(experts->fits_bounds(x) == (dtype == at::kBFloat16 && !bias));
      check_equal(
          run(order, [&](const Tensor& tokens,
                         const Tensor& weights) { return experts(tokens, order.bounds, weights); }),
          pass(false), tolerance);
      CHECK_THROWS_AS(experts(x, Counts{31, 0, 0, 0}, at::ones({31}), true),
                      meshwright::Error);  // not as many rows as padded
    }
}

TEST_CASE("experts that began in inference mode train afterwards") {
  at::manual_seed(3);
  GroupedExperts experts(small());
  Counts counts = {40, 0, 50, 30};
  Tensor x = at::randn({120, 6}), w = at::rand({120}), expected;
  {
    c10::InferenceMode inference;
    expected = experts(x, counts, w);
  }
  Tensor y = experts(x, counts, w);
  CHECK(distance(y.detach(), expected) == 0);
  y.square().sum().backward();
  CHECK(gradients(*experts)[0].abs().sum().item<double>() > 0);
}

TEST_CASE("blocks equal a loop over tokens and experts") {
  struct Row {
    const char* name;
    void (*change)(MoeConfig&);
    bool masked;
  };
  const Row rows[] = {
      {"softmax", [](MoeConfig&) {}, false},
      {"masked", [](MoeConfig&) {}, true},
      {"sigmoid with groups and a scale",
       [](MoeConfig& c) {
         c.score_func = ScoreFunction::sigmoid_with_bias, c.n_expert_groups = 2,
         c.n_limited_groups = 1, c.route_scale = 2.5;
         c.norm_topk_prob = true, c.gate_bias_update_factor = 0.1;
       },
       false},
      {"one expert a token",
       [](MoeConfig& c) { c.n_activated_experts = 1, c.softmax_before_topk = true; }, false},
      {"all experts", [](MoeConfig& c) { c.n_activated_experts = 4; }, false},
      {"biases everywhere", [](MoeConfig& c) { c.expert_bias = c.router_bias = true; }, false}};
  for (const Row& row : rows) {
    INFO(row.name);
    at::manual_seed(11);
    MoeConfig config = small();
    row.change(config);
    Moe block(config);
    Tensor x = at::randn({2, 9, 6}).set_requires_grad(true), into = at::randn({2, 9, 6});
    std::optional<Tensor> mask;
    if (row.masked) mask = at::rand({2, 9}).gt(0.5);
    Tensor y = block(x, mask);
    CHECK(y.sizes() == x.sizes());
    (y * into).sum().backward();
    std::vector<Tensor> found = gradients(*block);
    Tensor to_x = x.grad().clone();
    x.mutable_grad() = Tensor();
    Tensor flat = x.view({18, 6});
    Routing routing =
        block->gate()(flat, mask ? std::optional<Tensor>(mask->view(-1)) : std::nullopt);
    Tensor expected = dense_block(config, block, flat, routing).view(x.sizes());
    (expected * into).sum().backward();
    CHECK(distance(y, expected) < 1e-5);
    CHECK(distance(to_x, x.grad()) < 1e-4);
    check_equal(found, gradients(*block), 1e-4);
  }
}

TEST_CASE("shared experts see every token, and their gate weighs them") {
  for (ExpertActivation kind :
       {ExpertActivation::swiglu, ExpertActivation::relu2, ExpertActivation::geglu})
    for (bool gate : {false, true}) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(gate);
      at::manual_seed(2);
      MoeConfig config = small();
      config.n_shared_experts = 2;
      config.shared_expert_gate = gate;
      config.shared_expert_activation = kind;
      Moe block(config);
      auto p = block->named_parameters();
      CHECK(p["shared_experts.up_proj.weight"].size(0) == 20);
      CHECK(p.contains("shared_experts.gate_proj.weight") == (kind != ExpertActivation::relu2));
      Tensor x = at::randn({1, 7, 6}), flat = x.view({7, 6});
      Tensor up = flat.mm(p["shared_experts.up_proj.weight"].t());
      Tensor h = kind == ExpertActivation::relu2
                     ? up
                     : at::cat({flat.mm(p["shared_experts.gate_proj.weight"].t()), up}, 1);
      Tensor shared = activation(config, h, kind).mm(p["shared_experts.down_proj.weight"].t());
      if (gate) shared = shared * at::sigmoid(flat.mm(p["shared_expert_gate.weight"].t()));
      Tensor expected = dense_block(config, block, flat, block->gate()(flat)) + shared;
      CHECK(distance(block(x).view({7, 6}), expected) < 1e-5);
      block(x).sum().backward();
      for (const auto& item : p) CHECK_MESSAGE(item.value().grad().defined(), item.key());
    }
}

TEST_CASE("experts of a latent width stand between two projections") {
  MoeConfig config = small();
  config.moe_latent_size = 3;
  Moe block(config);
  auto p = block->named_parameters();
  CHECK(p["experts.gate_and_up_projs"].sizes() == at::IntArrayRef({4, 3, 20}));
  CHECK(p["gate.weight"].sizes() == at::IntArrayRef({4, 6}));
  Tensor x = at::randn({1, 5, 6}), flat = x.view({5, 6});
  Tensor latent = flat.mm(p["fc1_latent_proj.weight"].t());
  Tensor expected =
      dense_block(config, block, latent, block->gate()(flat)).mm(p["fc2_latent_proj.weight"].t());
  CHECK(distance(block(x).view({5, 6}), expected) < 1e-5);
}

TEST_CASE("adversarial routing: all tokens to one expert, and experts that none goes to") {
  MoeConfig config = small();
  config.n_activated_experts = 1;
  config.softmax_before_topk = true;
  Moe block(config);
  {
    c10::NoGradGuard no_grad;
    block->gate()->weight.zero_();
    block->gate()->weight[2].fill_(1);
  }
  Tensor x = at::rand({1, 50, 6}) + 0.1;
  Tensor y = block(x);
  y.square().sum().backward();
  CHECK(block->gate()->load().equal(at::tensor(Counts{0, 0, 50, 0})));
  Tensor to = block->experts()->gate_and_up_projs.grad();
  for (int64_t e : {0, 1, 3}) CHECK(to[e].abs().max().item<double>() == 0);
  CHECK(to[2].abs().max().item<double>() > 0);
  // No token at all.
  Tensor none = block(at::zeros({0, 3, 6}));
  CHECK(none.sizes() == at::IntArrayRef({0, 3, 6}));
  CHECK(none.requires_grad());
  block->zero_grad();
  none.sum().backward();
  for (const Tensor& p : block->parameters()) {
    REQUIRE(p.grad().defined());
    CHECK(p.grad().abs().max().item<double>() == 0);
  }
}

TEST_CASE(
    "recomputed blocks count their load once, take the first run's experts, and have the same "
    "gradients to the last bit") {
  for (bool again : {false, true})
    for (bool nested : {false, true}) {
      CAPTURE(again);
      CAPTURE(nested);
      MoeConfig config = small();
      config.aux_loss_coeff = 0.3;
      config.router_bias = true;
      at::manual_seed(4);
      Moe block(config);
      Tensor x = at::randn({2, 12, 6}), into = at::randn({2, 12, 6});
      auto run = [&] {
        Tensor in = x.clone().set_requires_grad(true);
        block->gate()->reset_load();
        (block(in) * into).sum().backward();
        std::vector<Tensor> out = gradients(*block);
        out.push_back(in.grad());
        out.push_back(block->gate()->load().clone());
        return out;
      };
      std::vector<Tensor> plain = run();
      block->gate()->route_again = again;
      meshwright::checkpoint_activations(*block);
      if (nested) meshwright::checkpoint_activations(*block->gate().ptr());
      std::vector<Tensor> recomputed = run();
      check_equal(plain, recomputed, 0);
      CHECK(recomputed.back().sum().item<int64_t>() == 48);
    }
}

TEST_CASE(
    "a router whose weights change before recompute still takes the experts of the first run") {
  MoeConfig config = small();
  Moe block(config);
  meshwright::checkpoint_activations(*block);
  Tensor x = at::randn({1, 30, 6}).set_requires_grad(true);
  Tensor y = block(x);
  std::vector<int64_t> used;
  struct Recording : meshwright::ExpertDispatcher {
    std::vector<Tensor> seen;
    std::shared_ptr<meshwright::ExpertDispatcher> inner = meshwright::local_dispatcher();
    Tensor forward(const Tensor& tokens, const Routing& routing, GroupedExperts& experts,
                   const std::function<void()>& meanwhile) override {
      seen.push_back(routing.indices.clone());
      return inner->forward(tokens, routing, experts, meanwhile);
    }
  };
  auto recording = std::make_shared<Recording>();
  block->set_dispatcher(recording);
  Tensor first = block(x);
  {
    c10::NoGradGuard no_grad;
    block->gate()->weight.normal_(0, 3);
  }
  first.sum().backward();
  REQUIRE(recording->seen.size() == 2);
  CHECK(recording->seen[0].equal(recording->seen[1]));
  Tensor other = block->gate()(x.view({30, 6})).indices;
  CHECK(!other.equal(recording->seen[0]));
}

TEST_CASE("blocks are found in any model, under their names") {
  torch::nn::Module model;
  CHECK(meshwright::find_moe_blocks(model).empty());
  auto layer = std::make_shared<torch::nn::Module>();
  layer->register_module("mlp", Moe(small()));
  model.register_module("first", layer);
  model.register_module("second", Moe(small()));
  auto blocks = meshwright::find_moe_blocks(model);
  REQUIRE(blocks.size() == 2);
  CHECK(blocks[0].first == "first.mlp");
  CHECK(blocks[1].first == "second");
  std::vector<std::string> names;
  for (const auto& item : model.named_parameters()) names.push_back(item.key());
  CHECK(names ==
        std::vector<std::string>{"first.mlp.gate.weight", "first.mlp.experts.gate_and_up_projs",
                                 "first.mlp.experts.down_projs", "second.gate.weight",
                                 "second.experts.gate_and_up_projs", "second.experts.down_projs"});
}

TEST_CASE("configurations that cannot be are refused") {
  void (*changes[])(MoeConfig&) = {[](MoeConfig& c) { c.n_activated_experts = 5; },
                                   [](MoeConfig& c) { c.n_activated_experts = 0; },
                                   [](MoeConfig& c) { c.n_expert_groups = 3; },
                                   [](MoeConfig& c) { c.n_limited_groups = 2; },
                                   [](MoeConfig& c) { c.moe_inter_dim = 0; },
                                   [](MoeConfig& c) { c.n_routed_experts = 0; },
                                   [](MoeConfig& c) { c.n_expert_groups = 4; },
                                   [](MoeConfig& c) { c.moe_latent_size = -1; }};
  for (auto change : changes) {
    MoeConfig config = small();
    change(config);
    CHECK_THROWS_AS(meshwright::check_moe_config(config), meshwright::Error);
  }
  meshwright::check_moe_config(small());
}

}  // namespace moe_test
