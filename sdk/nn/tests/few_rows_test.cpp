// The product of few rows against float64, and the bits of its elements whatever is beside them.
#include "sdk/nn/few_rows.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <string>

#include "meshwright/nn/layers.h"
#include "sdk/base/attention_cache.h"

namespace few_rows_test {

using namespace meshwright;
namespace detail = meshwright::detail;
using at::Tensor;

namespace {

// Whether each element lies within what rounding explains: at least four sums of k / 4 products
// each, which are put together in two steps, and the bias, each a rounding of at most what all
// magnitudes add up to; then one to the type.
void check_near(const Tensor& got, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Tensor want = at::linear(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble));
  const Tensor most =
      at::linear(x.to(at::kDouble).abs(), weight.to(at::kDouble).abs(), bias.to(at::kDouble).abs());
  const double one = got.scalar_type() == at::kBFloat16 ? 1.0 / 256 : 0;
  const Tensor allowed =
      most * ((static_cast<double>(x.size(1)) / 4 + 6) / (int64_t{1} << 24)) + want.abs() * one;
  CHECK(((got.to(at::kDouble) - want).abs() <= allowed).all().item<bool>());
}

}  // namespace

TEST_CASE("the product of few rows is that of float64, whatever is beside an element") {
  at::manual_seed(3);
  for (AttentionTarget target : attention_targets())
    for (at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (int64_t k : {1, 7, 16, 37, 576})
        for (int64_t n : {1, 3, 9, 70, 301}) {
          const Tensor weight = at::randn({n, k}, type), bias = at::randn({n}, type);
          const Tensor x = at::randn({16, k}, type);
          const Tensor all = detail::few_rows_product(x, weight, bias, target);
          CAPTURE(static_cast<int>(target));
          CAPTURE(std::string(c10::toString(type)));
          CAPTURE(k);
          CAPTURE(n);
          check_near(all, x, weight, bias);
          for (int64_t m : {1, 2, 3, 5, 8}) {
            const Tensor some = x.narrow(0, 16 - m, m);
            CHECK(at::equal(detail::few_rows_product(some, weight, bias, target),
                            all.narrow(0, 16 - m, m)));
          }
          const int64_t cut = n / 3;
          if (cut > 0)
            CHECK(at::equal(detail::few_rows_product(x, weight.narrow(0, cut, n - cut),
                                                     bias.narrow(0, cut, n - cut), target),
                            all.narrow(1, cut, n - cut)));
        }
}

TEST_CASE("few rows are taken where keys and values are kept, and there alone") {
  c10::NoGradGuard no_grad;
  Linear linear(40, 24);
  const Tensor x = at::randn({2, 8, 40}), more = at::randn({17, 40});
  const Tensor want = at::linear(x, linear->weight, linear->bias);
  CHECK(!detail::takes_few_rows(x, linear->weight));
  detail::KeyValueCache cache;
  detail::KeyValueScope scope(cache, {{0, 0}});
  CHECK(detail::takes_few_rows(x, linear->weight));
  CHECK(!detail::takes_few_rows(more, linear->weight));
  CHECK(!detail::takes_few_rows(x.to(at::kBFloat16), linear->weight));
  CHECK(!detail::takes_few_rows(x.to(at::kDouble), linear->weight.to(at::kDouble)));
  CHECK(!detail::takes_few_rows(x, at::randn({40, 24}).t()));
  const Tensor got = linear->forward(x);
  CHECK(got.sizes() == want.sizes());
  CHECK(at::allclose(got, want, 1e-5, 1e-6));
  CHECK(at::equal(got.select(0, 1),
                  detail::few_rows_product(x.select(0, 1), linear->weight, linear->bias)));
  c10::AutoGradMode grad(true);
  CHECK(!detail::takes_few_rows(x, linear->weight));
}

}  // namespace few_rows_test
