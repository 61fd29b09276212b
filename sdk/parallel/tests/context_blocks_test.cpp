// Attention over the ranks of cp as devices compute it, by blocks of flash attention that is
// modelled as its kernels document it, against the kernel of one rank.
#include <ATen/TensorOperators.h>
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sdk/base/shared_schemas.h"
#include "sdk/nn/tests/attention_blocks_model.h"
#include "sdk/parallel/tests/context_samples.h"

namespace context_blocks_test {

using namespace meshwright;
using namespace meshwright::context_samples;
using attention_blocks_model::FlashModel;
using attention_blocks_model::WithOperators;

namespace {

double apart(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>() / (1 + b.abs().max().item<double>());
}

}  // namespace

TEST_CASE("context attention by blocks: outputs and gradients are those of one rank, in float64") {
  const FlashModel model;
  for (const Case& c :
       {Case{2, 2, 1, ContextMethod::all_gather}, Case{3, 3, 1, ContextMethod::ring},
        Case{3, 3, 1, ContextMethod::ring, ContextBalance::contiguous},
        Case{4, 4, 1, ContextMethod::all_gather}, Case{4, 4, 1, ContextMethod::ring},
        Case{2, 1, 2, ContextMethod::ulysses}, Case{4, 2, 2, ContextMethod::ring},
        Case{4, 2, 2, ContextMethod::all_gather}})
    for (Heads heads : {Heads{4, 4}, Heads{4, 2}})
      for (int64_t length : {32, 29})
        for (int64_t window : {0, 11}) {
          CAPTURE(c.text());
          CAPTURE(heads.key_value);
          CAPTURE(length);
          CAPTURE(window);
          const Whole whole(length, heads, window, at::kDouble);
          const int before = model.backwards;
          const WithOperators with(model);
          const Found found = run(whole, c);
          CHECK(model.backwards > before);
          CHECK(apart(found.out, whole.out) < 1e-12);
          CHECK(apart(found.to_query, whole.to_query) < 1e-12);
          CHECK(apart(found.to_key, whole.to_key) < 1e-12);
          CHECK(apart(found.to_value, whole.to_value) < 1e-12);
        }
}

}  // namespace context_blocks_test
