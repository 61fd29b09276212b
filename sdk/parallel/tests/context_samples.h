// Attention over the ranks of cp on random samples, and what one rank computes of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>

#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "meshwright/parallel/context_parallel.h"
#include "meshwright/parallel/testing.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/parallel/context_attention.h"

namespace meshwright::context_samples {

struct Heads {
  int64_t query, key_value;
};
struct Case {
  int64_t ranks, ring, ulysses;
  ContextMethod method;
  ContextBalance balance = ContextBalance::head_tail;
  std::string text() const {
    return std::to_string(ring) + " x " + std::to_string(ulysses) +
           (method == ContextMethod::ring ? " ring" : " gather") +
           (balance == ContextBalance::head_tail ? "" : " contiguous");
  }
};

inline constexpr int64_t kBatch = 2, kDim = 8;
inline const std::string kCore = "model.layers.3.self_attn.core";

// Whole samples, and what one rank computes of them.
struct Whole {
  at::Tensor query, key, value, grad, out, to_query, to_key, to_value;
  AttentionOptions options;

  Whole(int64_t length, Heads heads, int64_t window, at::ScalarType type) {
    at::manual_seed(static_cast<uint64_t>(length * 31 + heads.key_value));
    auto random = [&](int64_t count) {
      return at::randn({kBatch, length, count, kDim}, at::kDouble).to(type);
    };
    query = random(heads.query), key = random(heads.key_value), value = random(heads.key_value);
    grad = random(heads.query);
    options = {.scale = 1 / std::sqrt(static_cast<double>(kDim)), .window = window};
    at::Tensor q = leaf(query), k = leaf(key), v = leaf(value);
    out = AttentionCore(options)(q, k, v);
    out.backward(grad);
    to_query = q.grad(), to_key = k.grad(), to_value = v.grad();
    out = out.detach();
  }
  static at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().set_requires_grad(true); }
};

inline detail::ContextGroups groups_of(World& world, const Case& c) {
  detail::ContextGroups out;
  std::vector<int64_t> all, ring, ulysses;
  const int64_t inner = world.rank() % c.ulysses, first = world.rank() - inner;
  for (int64_t r = 0; r < c.ranks; ++r) all.push_back(r);
  for (int64_t r = 0; r < c.ring; ++r) ring.push_back(inner + r * c.ulysses);
  for (int64_t r = 0; r < c.ulysses; ++r) ulysses.push_back(first + r);
  out.context = world.group("cp", all);
  out.ring = world.group("cp", ring);
  out.ulysses = world.group("cp", ulysses);
  out.method = c.method;
  out.balance = c.balance;
  return out;
}

struct Found {
  at::Tensor out, to_query, to_key, to_value;
};

// This rank's part of the samples through attention and back.
// `between`: what happens on this rank between forward and backward.
inline Found run_on(World& world, const Whole& whole, const Case& c,
                    const std::function<void()>& between = {}) {
  const detail::ContextGroups groups = groups_of(world, c);
  const auto made = meshwright::detail::make_context_parallel(groups.context, c.balance);
  const ContextParallel& context = *made;
  AttentionCore core(whole.options);
  core->set_method(detail::context_attention(groups, kCore));
  const int64_t length = whole.query.size(1);
  auto mine = [&](const at::Tensor& x) { return context.shard(x, 1, 0); };
  at::Tensor q = Whole::leaf(mine(whole.query)), k = Whole::leaf(mine(whole.key)),
             v = Whole::leaf(mine(whole.value));
  at::Tensor out;
  {
    auto scope = context.scope(length, kBatch);
    out = core(q, k, v);
  }
  if (between) between();
  out.backward(mine(whole.grad));
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}

// Of the whole samples.
inline Found run(const Whole& whole, const Case& c) {
  Found found;
  std::mutex mutex;
  run_ranks(c.ranks, [&](const std::shared_ptr<World>& world) {
    const Found mine = run_on(*world, whole, c);
    const auto made =
        meshwright::detail::make_context_parallel(groups_of(*world, c).context, c.balance);
    const ContextParallel& context = *made;
    auto all_of = [&](const at::Tensor& x) { return context.gather(x, 1, whole.query.size(1)); };
    Found all{all_of(mine.out), all_of(mine.to_query), all_of(mine.to_key), all_of(mine.to_value)};
    std::lock_guard lock(mutex);
    if (world->rank() == 0) found = all;
  });
  return found;
}

}  // namespace meshwright::context_samples
