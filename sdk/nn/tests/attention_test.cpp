// Attention against LibTorch's, in float64 through its mathematical definition.
#include "meshwright/nn/attention.h"
#include "meshwright/error.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "sdk/base/attention_cache.h"
#include "sdk/nn/attention_kernel.h"

namespace attention_test {

using namespace meshwright;
using at::Tensor;

namespace {

struct Case {
  int64_t batch, length, heads, kv_heads, head_dim, window;
  double scale = 0;  // 0: 1 / sqrt(head_dim)
};

double usual_scale(int64_t head_dim) { return 1 / std::sqrt(static_cast<double>(head_dim)); }

Tensor reference(const Tensor& query, const Tensor& key, const Tensor& value, double scale,
                 int64_t window) {
  int64_t group = query.size(2) / key.size(2), length = query.size(1);
  Tensor q = query.transpose(1, 2), k = key.transpose(1, 2).repeat_interleave(group, 1),
         v = value.transpose(1, 2).repeat_interleave(group, 1);
  Tensor scores = q.matmul(k.transpose(2, 3)) * scale;
  Tensor seen = at::ones({length, length}, at::kBool).tril();
  if (window > 0) seen = seen.logical_and(at::ones({length, length}, at::kBool).triu(1 - window));
  return scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity())
      .softmax(-1)
      .matmul(v)
      .transpose(1, 2);
}

Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, double scale,
              int64_t window, double dropout = 0) {
  AttentionCore core(AttentionOptions{.scale = scale, .window = window, .dropout = dropout});
  return core(query, key, value);
}

}  // namespace

TEST_CASE("rows over keys that were kept are those of all rows at once, however they are cut") {
  c10::NoGradGuard no_grad;
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
    for (const int64_t window : {0, 1, 40}) {
      CAPTURE(type);
      CAPTURE(window);
      constexpr int64_t kRows = 300;  // more than the first room for keys
      const Tensor query = at::randn({2, kRows, 6, 16}).to(type),
                   key = at::randn({2, kRows, 2, 16}).to(type),
                   value = at::randn({2, kRows, 2, 16}).to(type);
      AttentionCore core(AttentionOptions{.scale = 0.25, .window = window});
      const Tensor whole = core(query, key, value);
      meshwright::detail::KeyValueCache cache;
      auto rows = [&](int64_t from, int64_t count) {
        auto sequence = std::make_shared<Sequence>();
        sequence->length = from + count;
        sequence->rows = {{from, count}};
        const SequenceScope scope(sequence);
        const meshwright::detail::KeyValueScope keeps(cache, {{0, from}, {1, from}});
        return core(query.narrow(1, from, count), key.narrow(1, from, count),
                    value.narrow(1, from, count));
      };
      // What is read again takes the place of what was kept.
      const double most = type == at::kDouble ? 1e-12 : type == at::kFloat ? 2e-6 : 2e-2;
      for (const auto& [from, count] : std::vector<std::pair<int64_t, int64_t>>{
               {0, 37}, {37, 1}, {38, 100}, {138, 1}, {100, 50}, {150, 149}, {299, 1}})
        CHECK((rows(from, count) - whole.narrow(1, from, count)).abs().max().item<double>() <=
              most);
      // Texts of unlike lengths in one forward: each has the values that it has alone.
      auto at = [](const Tensor& t) {
        return at::cat({t.narrow(0, 1, 1).narrow(1, 290, 3), t.narrow(0, 0, 1).narrow(1, 120, 3)});
      };
      const meshwright::detail::KeyValueScope unlike(cache, {{1, 290}, {0, 120}});
      CHECK((core(at(query), at(key), at(value)) - at(whole)).abs().max().item<double>() <= most);
      CHECK_THROWS_WITH_AS(core(query.narrow(0, 0, 1), key.narrow(0, 0, 1), value.narrow(0, 0, 1)),
                           doctest::Contains("kept of 2 texts, but attention got 1 samples"),
                           Error);
    }
}

TEST_CASE("attention and its gradients are the definition's, at any length, grouping and window") {
  for (const Case& c :
       {Case{1, 1, 1, 1, 16, 0}, Case{2, 31, 2, 1, 16, 0}, Case{1, 32, 4, 2, 32, 0},
        Case{2, 33, 6, 2, 48, 0}, Case{1, 100, 3, 3, 64, 0}, Case{1, 128, 8, 4, 32, 5},
        Case{1, 97, 4, 1, 16, 40}, Case{2, 70, 2, 2, 128, 1}, Case{1, 130, 2, 1, 16, 129},
        Case{1, 64, 2, 1, 16, 64}, Case{1, 20, 4, 2, 6, 0}, Case{1, 20, 4, 2, 6, 7},
        Case{1, 40, 4, 2, 16, 9, 0.7}, Case{1, 20, 4, 2, 6, 7, 0.1}}) {
    CAPTURE(c.length);
    CAPTURE(c.head_dim);
    CAPTURE(c.window);
    double scale = c.scale > 0 ? c.scale : usual_scale(c.head_dim);
    Tensor query =
        (at::randn({c.batch, c.length, c.heads, c.head_dim}) * 2).set_requires_grad(true);
    // As a slice of a wider tensor: rows need not follow each other.
    Tensor wide =
        at::randn({c.batch, c.length, 2 * c.kv_heads, c.head_dim}).set_requires_grad(true);
    Tensor out = attend(query, wide.narrow(2, 0, c.kv_heads),
                        wide.narrow(2, c.kv_heads, c.kv_heads), scale, c.window);
    Tensor q = query.detach().to(at::kDouble).set_requires_grad(true),
           w = wide.detach().to(at::kDouble).set_requires_grad(true);
    Tensor expected = reference(q, w.narrow(2, 0, c.kv_heads), w.narrow(2, c.kv_heads, c.kv_heads),
                                scale, c.window);
    REQUIRE(out.sizes().vec() == expected.sizes().vec());
    CHECK(at::allclose(out.to(at::kDouble), expected, 1e-5, 1e-5));
    Tensor grad = at::randn_like(expected);
    out.backward(grad.to(at::kFloat));
    expected.backward(grad);
    CHECK(at::allclose(query.grad().to(at::kDouble), q.grad(), 1e-5, 1e-5));
    CHECK(at::allclose(wide.grad().to(at::kDouble), w.grad(), 1e-5, 2e-5));
  }
}

TEST_CASE("attention survives scores far apart, and does not hide what is not a number") {
  at::manual_seed(1);  // scores around 1e5 that lie closer than 0.1 are beyond float32
  for (int64_t head_dim : {16, 6}) {
    Tensor query = at::randn({1, 40, 2, head_dim}) * 300,
           key = at::randn({1, 40, 2, head_dim}) * 300, value = at::randn({1, 40, 2, head_dim});
    Tensor out = attend(query, key, value, usual_scale(query.size(3)), 0);
    CHECK(at::allclose(out.to(at::kDouble),
                       reference(query.to(at::kDouble), key.to(at::kDouble), value.to(at::kDouble),
                                 usual_scale(head_dim), 0),
                       1e-3, 1e-3));
    query[0][7][0][0] = std::nanf("");
    Tensor odd = attend(query, key, value, usual_scale(query.size(3)), 0);
    CHECK(odd[0][7][0].isnan().all().item<bool>());
    CHECK(odd[0][6].equal(out[0][6]));
    CHECK(odd[0][8].equal(out[0][8]));
  }
}

TEST_CASE("attention refuses what its kernel would read wrongly") {
  AttentionCore core(AttentionOptions{});
  Tensor query = at::randn({2, 6, 4, 8}), key = at::randn({2, 6, 2, 8});
  auto refused = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
    try {
      core(q, k, v);
    } catch (const Error& error) {
      return error.code() == ErrorCode::bad_module && !error.helps().empty();
    }
    return false;
  };
  CHECK_FALSE(refused(query, key, key));
  CHECK(refused(query, key, key.to(at::kBFloat16)));
  CHECK(refused(query, key.narrow(1, 0, 5), key.narrow(1, 0, 5)));
  CHECK(refused(query, key, key.narrow(3, 0, 4)));
  CHECK(refused(query.narrow(2, 0, 3), key, key));
  CHECK(refused(query[0], key[0], key[0]));
  auto sequence = std::make_shared<Sequence>();
  sequence->length = 6;
  sequence->rows = {{0, 6}};
  sequence->documents = at::ones({2, 5}, at::kInt);
  SequenceScope scope(sequence);
  CHECK(refused(query, key, key));
}

TEST_CASE("dropout while training leaves the mean") {
  Tensor query = at::randn({1, 20, 2, 16}), key = at::randn({1, 20, 2, 16}),
         value = at::ones({1, 20, 2, 16});
  Tensor out = attend(query, key, value, usual_scale(16), 0, 0.5);
  CHECK_FALSE(at::allclose(out, value));
  CHECK(attend(query, key, value, usual_scale(query.size(3)), 0).allclose(value));
}

}  // namespace attention_test
