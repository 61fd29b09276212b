// Attention over the ranks of cp against attention of one rank that has all tokens.
#include "sdk/parallel/context_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <doctest/doctest.h>

#include <limits>
#include <mutex>
#include <string>

#include "meshwright/error.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/comm/tests/sampled.h"
#include "sdk/parallel/tests/context_samples.h"

namespace context_attention_test {

using namespace meshwright;
using at::Tensor;
using namespace meshwright::context_samples;

namespace {

double distance(const Tensor& a, const Tensor& b) {
  Tensor wide = b.to(at::kDouble);
  return (a.to(at::kDouble) - wide).abs().max().item<double>() /
         (1 + wide.abs().max().item<double>());
}

// Leaves its input out of what it is asked about.
struct LeavesOut : torch::autograd::Function<LeavesOut> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    return {Tensor()};
  }
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (int64_t ranks = 1; ranks <= 4; ++ranks)
    for (ContextMethod method : {ContextMethod::all_gather, ContextMethod::ring}) {
      out.push_back({ranks, ranks, 1, method});
      if (ranks == 3) out.push_back({ranks, ranks, 1, method, ContextBalance::contiguous});
    }
  for (int64_t ranks : {2, 4}) out.push_back({ranks, 1, ranks, ContextMethod::ulysses});
  out.push_back({4, 2, 2, ContextMethod::ring});
  out.push_back({4, 2, 2, ContextMethod::all_gather});
  return out;
}

}  // namespace

TEST_CASE("context attention: outputs and gradients are those of one rank, in float64") {
  size_t number = 0;  // a quarter: of way, heads, length and window every pair
  for (const Case& c : cases()) {
    size_t of_heads = number++;
    for (Heads heads : {Heads{4, 4}, Heads{4, 2}, Heads{4, 1}}) {
      size_t of_length = of_heads++;
      for (int64_t length : {32, 29}) {
        size_t turn = of_length++;
        for (int64_t window : {0, 3, 11, 64}) {
          if (!sampled(turn++, 4)) continue;
          CAPTURE(c.text());
          CAPTURE(heads.key_value);
          CAPTURE(length);
          CAPTURE(window);
          const Whole whole(length, heads, window, at::kDouble);
          const Found found = run(whole, c);
          CHECK(distance(found.out, whole.out) < 1e-12);
          CHECK(distance(found.to_query, whole.to_query) < 1e-12);
          CHECK(distance(found.to_key, whole.to_key) < 1e-12);
          CHECK(distance(found.to_value, whole.to_value) < 1e-12);
        }
      }
    }
  }
}

TEST_CASE("context attention: what is not merged is one rank's to the bit") {
  for (const Case& c : cases()) {
    if (c.method == ContextMethod::ring) continue;
    for (int64_t length : {64, 131}) {
      CAPTURE(c.text());
      CAPTURE(length);
      const Whole whole(length, {4, 2}, 0, at::kFloat);
      CHECK(run(whole, c).out.equal(whole.out));
    }
  }
}

TEST_CASE("context attention: bfloat16 is as near as one rank is") {
  for (const Case& c : cases()) {
    CAPTURE(c.text());
    const Whole exact(40, {4, 2}, 0, at::kBFloat16);
    const Found found = run(exact, c);
    CHECK(distance(found.out, exact.out) < 1e-2);
    CHECK(distance(found.to_key, exact.to_key) < 2e-2);
    CHECK(distance(found.to_value, exact.to_value) < 2e-2);
  }
}

TEST_CASE("context attention: without a sequence it says what to do") {
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    const Case c{2, 2, 1, ContextMethod::ring};
    AttentionCore core(AttentionOptions{});
    core->set_method(meshwright::detail::context_attention(groups_of(*world, c), kCore));
    Tensor x = at::zeros({1, 4, 2, 8});
    auto refused = [&](auto&& call) {
      try {
        call();
      } catch (const Error& error) {
        return error.code() == ErrorCode::bad_module && !error.helps().empty();
      }
      return false;
    };
    if (!refused([&] { core(x, x, x); })) throw std::runtime_error("ran without a sequence");
    const auto made = meshwright::detail::make_context_parallel(world->group("cp", {0, 1}),
                                                                ContextBalance::head_tail);
    const ContextParallel& context = *made;
    auto scope = context.scope(/*length=*/12, /*batch=*/1);
    if (!refused([&] { core(x, x, x); })) throw std::runtime_error("ran with other samples");
    // Rows that are all positions are computed here.
    auto sequence = std::make_shared<Sequence>();
    sequence->length = 4;
    sequence->rows = {{0, 4}};
    SequenceScope whole(sequence);
    core(x, x, x);
  });
}

TEST_CASE("context attention: ulysses shares out keys, never queries") {
  const Case c{4, 1, 4, ContextMethod::ulysses};
  const Whole whole(16, {2, 2}, 0, at::kDouble);
  bool refused = false;
  try {
    run(whole, c);
  } catch (const Error& error) {
    refused = error.code() == ErrorCode::model_does_not_fit && !error.helps().empty();
  }
  CHECK(refused);
}

TEST_CASE("context attention: a sample of one token is no rank's own affair") {
  for (ContextBalance balance : {ContextBalance::head_tail, ContextBalance::contiguous}) {
    const Whole whole(1, {4, 2}, 0, at::kDouble);
    const Found found = run(whole, {2, 2, 1, ContextMethod::ring, balance});
    CHECK(distance(found.out, whole.out) < 1e-12);
    CHECK(distance(found.to_value, whole.to_value) < 1e-12);
  }
}

TEST_CASE("context attention: an output that is written to does not change gradients unseen") {
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    const Case c{2, 2, 1, ContextMethod::all_gather};
    AttentionCore core(AttentionOptions{});
    core->set_method(meshwright::detail::context_attention(groups_of(*world, c), kCore));
    const auto made = meshwright::detail::make_context_parallel(world->group("cp", {0, 1}),
                                                                ContextBalance::head_tail);
    const ContextParallel& context = *made;
    Tensor x = at::randn({1, 4, 2, 8}).set_requires_grad(true);
    auto scope = context.scope(/*length=*/8, /*batch=*/1);
    Tensor out = core(x, x, x);
    out.mul_(2);
    bool refused = false;
    try {
      out.sum().backward();
    } catch (const std::exception&) {
      refused = true;
    }
    if (!refused) throw std::runtime_error("gradients of an output that was overwritten");
  });
}

TEST_CASE("context attention: a rank without a gradient takes part with zeros") {
  constexpr int64_t kLength = 16;
  for (const Case& c : {Case{2, 2, 1, ContextMethod::all_gather},
                        Case{2, 2, 1, ContextMethod::ring}, Case{2, 1, 2, ContextMethod::ulysses}})
    for (int64_t window : {0, 3}) {
      CAPTURE(c.text());
      CAPTURE(window);
      const Whole whole(kLength, {4, 2}, window, at::kFloat);
      run_ranks(2, [&](const std::shared_ptr<World>& world) {
        AttentionCore core(whole.options);
        core->set_method(meshwright::detail::context_attention(groups_of(*world, c), kCore));
        const auto made =
            meshwright::detail::make_context_parallel(world->group("cp", {0, 1}), c.balance);
        const ContextParallel& context = *made;
        // Gradients of keys where rank 1's loss says nothing of attention, or says zero.
        auto keys_of = [&](bool zero) {
          auto mine = [&](const Tensor& x) { return Whole::leaf(context.shard(x, 1, 0)); };
          Tensor q = mine(whole.query), k = mine(whole.key), v = mine(whole.value);
          auto scope = context.scope(kLength, whole.query.size(0));
          Tensor out = core(q, k, v), grad = context.shard(whole.grad, 1, 0);
          if (world->rank() == 1) {
            grad = grad * 0;
            if (!zero) out = LeavesOut::apply(out);
          }
          out.backward(grad);
          return k.grad();
        };
        Tensor zeros = keys_of(true), none = keys_of(false);
        if (!none.defined() || !none.equal(zeros)) throw std::runtime_error("other gradients");
      });
    }
}

TEST_CASE("context attention: documents that do not reach over the padding are refused") {
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    const Case c{2, 2, 1, ContextMethod::all_gather};
    AttentionCore core(AttentionOptions{});
    core->set_method(meshwright::detail::context_attention(groups_of(*world, c), kCore));
    const ContextSplit split(/*length=*/13, /*ranks=*/2);
    Tensor x = at::zeros({1, split.rows(), 2, 8});
    auto refused = [&](int64_t positions) {
      auto sequence = std::make_shared<Sequence>();
      sequence->length = split.length();
      sequence->rows = split.runs_of(world->rank());
      sequence->documents = at::zeros({1, positions}, at::kInt);
      const SequenceScope scope(sequence);
      try {
        core(x, x, x);
      } catch (const Error& error) {
        return error.code() == ErrorCode::bad_module && !error.helps().empty();
      }
      return false;
    };
    // Rank 1 has the positions 4 to 11 itself, and sees keys of padding's chunk.
    if (!refused(13)) throw std::runtime_error("read documents past their end");
    if (refused(split.padded())) throw std::runtime_error("refused documents of all positions");
  });
}

TEST_CASE("context parallel: shard and gather are inverses, and check lengths") {
  for (int64_t ranks = 1; ranks <= 3; ++ranks)
    for (int64_t length : {1, 7, 12, 13})
      run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
        std::vector<int64_t> all;
        for (int64_t r = 0; r < ranks; ++r) all.push_back(r);
        for (ContextBalance balance : {ContextBalance::head_tail, ContextBalance::contiguous}) {
          const auto made =
              meshwright::detail::make_context_parallel(world->group("cp", all), balance);
          const ContextParallel& context = *made;
          Tensor x = at::arange(2 * length * 3, at::kLong).view({2, length, 3});
          for (int64_t dim : {1, -2}) {
            Tensor mine = context.shard(x, dim, -100);
            if (mine.size(1) != ContextSplit(length, ranks, balance).rows() ||
                !context.gather(mine, dim, length).equal(x))
              throw std::runtime_error("not the inverse");
          }
          if (ContextSplit(length + 40, ranks, balance).rows() ==
              ContextSplit(length, ranks, balance).rows())
            continue;
          bool refused = false;
          try {
            context.gather(context.shard(x, 1, 0), 1, length + 40);
          } catch (const Error& error) {
            refused = error.code() == ErrorCode::model_does_not_fit && !error.helps().empty();
          }
          if (!refused) throw std::runtime_error("took other lengths");
        }
      });
}

}  // namespace context_attention_test
