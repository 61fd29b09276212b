// Dropout of adapters: what is dropped follows from where an element lies, not from who holds it.
// Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/step/adapters.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <doctest/doctest.h>

#include <cmath>

#include "meshwright/nn/attention.h"

namespace adapter_dropout_test {

using namespace meshwright;
using at::Tensor;
using train::AdapterDropout;

namespace {

constexpr int64_t kRows = 4, kLength = 6, kColumns = 1030;

// Ones, without what is dropped of them.
Tensor rest_of(const AdapterDropout& dropout, at::IntArrayRef sizes, const char* module,
               bool part = false) {
  const Tensor x = at::ones(sizes);
  return x.masked_fill(dropout.dropped(x, module, kColumns, part), 0);
}

Tensor drawn(int64_t step, int64_t first_row, int64_t rows, double rate = 0.25, uint64_t seed = 7,
             const char* module = "layers.0.up") {
  AdapterDropout dropout(rate, seed);
  dropout.begin({step, first_row, rows});
  return rest_of(dropout, {rows, kLength, kColumns}, module);
}

}  // namespace

TEST_CASE("about as much is dropped as is asked for, anew for each step, seed and module") {
  const Tensor all = drawn(3, 0, kRows);
  for (double rate : {0.05, 0.25, 0.9}) {
    const double kept = drawn(3, 0, kRows, rate).mean().item<double>();
    CHECK(std::abs(kept - (1 - rate)) < 0.015);
  }
  CHECK(all.equal(drawn(3, 0, kRows)));
  // Two masks of independent elements agree in 1 - 2 p (1 - p) of them.
  for (const Tensor& other : {drawn(4, 0, kRows), drawn(3, 0, kRows, 0.25, 8),
                              drawn(3, 0, kRows, 0.25, 7, "layers.1.up"), drawn(3, kRows, kRows)})
    CHECK(std::abs(all.eq(other).to(at::kDouble).mean().item<double>() - 0.625) < 0.02);
  const Tensor rows = all.view({kRows * kLength, kColumns});
  CHECK_FALSE(rows[0].equal(rows[1]));
}

TEST_CASE("micro-batches, columns and positions of other ranks drop what the whole drops") {
  const Tensor all = drawn(3, 0, kRows);
  CHECK(at::cat({drawn(3, 0, 1), drawn(3, 1, 3)}).equal(all));
  // Flattened samples, as some layers take them.
  AdapterDropout flat(0.25, 7);
  flat.begin({3, 0, kRows});
  CHECK(rest_of(flat, {kRows * kLength, kColumns}, "layers.0.up")
            .equal(all.view({kRows * kLength, kColumns})));
  for (int64_t rank : {0, 1}) {
    AdapterDropout part(0.25, 7, rank, 2);
    part.begin({3, 0, kRows});
    CHECK(rest_of(part, {kRows, kLength, kColumns / 2}, "layers.0.up")
              .equal(all.narrow(2, rank * kColumns / 2, kColumns / 2)));
    CHECK(rest_of(part, {kRows, kLength / 2, kColumns}, "layers.0.up", /*part=*/true)
              .equal(all.narrow(1, rank * kLength / 2, kLength / 2)));
  }
  AdapterDropout last(0.25, 7, 2, 3);  // of 1,030 columns the first two have 344
  last.begin({3, 0, kRows});
  CHECK(rest_of(last, {kRows, kLength, 342}, "layers.0.up").equal(all.narrow(2, 688, 342)));
  auto sequence = std::make_shared<Sequence>();
  sequence->length = kLength;
  sequence->rows = {{1, 2}, {5, 1}};
  SequenceScope scope(sequence);
  AdapterDropout some(0.25, 7);
  some.begin({3, 0, kRows});
  CHECK(rest_of(some, {kRows, 3, kColumns}, "layers.0.up")
            .equal(at::cat({all.narrow(1, 1, 2), all.narrow(1, 5, 1)}, 1)));
}

}  // namespace adapter_dropout_test
