// Differentiable collectives: values, and gradients against the same computation on one rank.

#include "meshwright/parallel/collectives.h"
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <doctest/doctest.h>
#include "meshwright/error.h"
#include "meshwright/parallel/testing.h"
#include "sdk/comm/shared_memory.h"

namespace collectives_test {

using namespace meshwright;
using at::Tensor;

namespace {
// Rank r's x: [2, 6] with values that tell rank and place.
Tensor input(int64_t rank) {
  return (at::arange(12, at::kFloat).view({2, 6}) + 100 * rank).set_requires_grad(true);
}
Tensor weight(int64_t rank, const Tensor& like) {
  return at::ones_like(like) * static_cast<double>(rank + 1);
}
}  // namespace

TEST_CASE("sums, gathers, scatters and splits with their gradients") {
  for (int64_t n : {1, 2, 3})
    run_ranks(n, [n](const std::shared_ptr<World>& world) {
      GroupPtr group = world->everyone();
      int64_t r = world->rank();
      double ranks_sum = static_cast<double>(n * (n + 1)) / 2;  // of the weights r + 1
      std::vector<Tensor> all;
      Tensor total;
      for (int64_t k = 0; k < n; ++k) {
        all.push_back(input(k).detach());
        total = total.defined() ? total + all.back() : all.back();
      }
      Tensor x = input(r), y = all_reduce(x, group);
      CHECK(y.equal(total));
      (y * weight(0, y)).sum().backward();
      CHECK(x.grad().equal(at::ones_like(x)));

      x = input(r), y = copy_to(x, group);
      CHECK(y.equal(x));
      (y * weight(r, y)).sum().backward();
      CHECK(x.grad().equal(at::full({2, 6}, ranks_sum)));

      for (int64_t dim : {0, 1, -1}) {
        x = input(r), y = all_gather(x, dim, group);
        CHECK(y.equal(at::cat(all, dim)));
        (y * weight(r, y)).sum().backward();
        CHECK(x.grad().equal(at::full({2, 6}, ranks_sum)));
      }

      x = input(r), y = all_gather_replicated(x, 1, group);
      CHECK(y.equal(at::cat(all, 1)));
      Tensor weights = at::arange(y.numel(), at::kFloat).view(y.sizes());
      (y * weights).sum().backward();
      CHECK(x.grad().equal(weights.chunk(n, 1)[static_cast<size_t>(r)]));

      x = input(r), y = reduce_scatter(x, 1, group);
      CHECK(y.equal(total.chunk(n, 1)[static_cast<size_t>(r)]));
      (y * weight(r, y)).sum().backward();
      for (int64_t k = 0; k < n; ++k)
        CHECK(x.grad()
                  .chunk(n, 1)[static_cast<size_t>(k)]
                  .eq(static_cast<double>(k + 1))
                  .all()
                  .item<bool>());

      x = input(0), y = split_along(x, 1, group);
      CHECK(y.equal(all[0].chunk(n, 1)[static_cast<size_t>(r)]));
      (y * weight(r, y)).sum().backward();
      for (int64_t k = 0; k < n; ++k)
        CHECK(x.grad()
                  .chunk(n, 1)[static_cast<size_t>(k)]
                  .eq(static_cast<double>(k + 1))
                  .all()
                  .item<bool>());
    });
}

TEST_CASE("rows go to their ranks and gradients come back, also when a rank has none") {
  run_ranks(3, [](const std::shared_ptr<World>& world) {
    // Rank r sends r rows to every rank; rank 0 sends nothing.
    int64_t r = world->rank();
    Tensor x =
        (at::arange(3 * r * 2, at::kFloat).view({3 * r, 2}) + 100 * r).set_requires_grad(true);
    Tensor y = all_to_all(x, {r, r, r}, {0, 1, 2}, world->everyone());
    REQUIRE(y.size(0) == 3);
    CHECK(y[0][0].item<double>() == 100 + 2 * static_cast<double>(r));
    CHECK(y[1][0].item<double>() == 200 + 4 * static_cast<double>(r));
    (y * weight(r, y)).sum().backward();
    if (r > 0)
      for (int64_t k = 0; k < 3; ++k)
        CHECK(x.grad().narrow(0, k * r, r).eq(static_cast<double>(k + 1)).all().item<bool>());
  });
}

TEST_CASE("a dimension that does not divide is refused") {
  run_ranks(4, [](const std::shared_ptr<World>& world) {
    Tensor x = input(0);
    CHECK_THROWS_AS(reduce_scatter(x, 1, world->everyone()), Error);
    CHECK_THROWS_AS(split_along(x, 0, world->everyone()), Error);
  });
}

TEST_CASE("gathers over shared memory may be read in any order") {
  run_ranks(3, [](const std::shared_ptr<World>& world) {
    auto group = world->everyone();
    meshwright::detail::reserve(*group, 64, 64, 3);
    for (int turn = 0; turn < 20; ++turn) {
      Tensor mine = at::full({4}, static_cast<double>(10 * turn + world->rank()));
      bool mapped = meshwright::detail::maps_gather(*group, 16);
      Tensor whole[3];
      Work under_way[3];
      for (int i = 0; i < 3; ++i) {
        if (!mapped) whole[i] = at::empty({12});
        under_way[i] = group->all_gather(mine + 1000 * i, whole[i]);
      }
      for (int i : {1, 2, 0}) {
        under_way[i].wait();
        for (int64_t r = 0; r < 3; ++r) {
          if (r == world->rank()) continue;
          Tensor from =
              mapped ? meshwright::detail::peer(under_way[i], r) : whole[i].narrow(0, 4 * r, 4);
          CHECK(from.eq(static_cast<double>(1000 * i + 10 * turn + r)).all().item<bool>());
        }
        under_way[i] = Work();
      }
    }
  });
}

}  // namespace collectives_test
