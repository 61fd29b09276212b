// Attention of one key-value head against plain loops in double precision: every mask, head size
// and target, and the ways in which context parallelism cuts queries and keys.
#include "sdk/nn/attention_kernel.h"

#include <c10/util/BFloat16.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <thread>
#include <vector>

#include "sdk/nn/tests/attention_kernel_parts.h"

namespace attention_kernel_test {

using namespace meshwright;

namespace {

template <class T>
void check_whole(const Problem& p) {
  Inputs x = inputs_of<T>(p, 7);
  Answer want = reference(p, x);
  for (AttentionTarget target : attention_targets()) {
    INFO(describe(p, target));
    Part<T> part(p, x, {{0, p.length}}, {{0, p.length}});
    part.forward(p, target);
    Answer got = nothing(p);
    Values partial(got.out.size());
    part.add_outputs(p, got, &partial);
    check_outputs<T>(got, want);
    CHECK(difference(partial, want.out) < kOff<T>);
    part.backward(p, target);
    part.add_gradients(p, got);
    check_gradients<T>(got, want);
  }
}
void check_types(const Problem& p) {
  check_whole<float>(p);
  check_whole<double>(p);
  check_whole<c10::BFloat16>(p);
}

// Documents of lengths 1, 2, ... up to a few blocks.
std::vector<int32_t> some_documents(int64_t length) {
  std::vector<int32_t> ids;
  int64_t size = 1;
  for (int32_t id = 3; static_cast<int64_t>(ids.size()) < length; ++id, size = size * 2 + 1)
    ids.insert(ids.end(), static_cast<size_t>(size), id);
  ids.resize(static_cast<size_t>(length));
  return ids;
}

Ranges head_tail(int64_t rank, int64_t ranks, int64_t n) {
  int64_t tail = 2 * ranks - 1 - rank;
  return {{rank * n, rank * n + n}, {tail * n, tail * n + n}};
}

}  // namespace

TEST_CASE("masks, groups and lengths that divide nothing") {
  for (int64_t length : {1, 47, 64, 131, 200})
    for (int64_t group : {1, 3})
      for (int64_t window : {0, 1, 5, 64, 100, 500})
        for (bool documents : {false, true})
          for (bool causal : {true, false})
            check_types({length, 20, group, window,
                         documents ? some_documents(length) : std::vector<int32_t>{}, causal});
}

TEST_CASE("head sizes") {
  for (int64_t head_dim : {1, 8, 16, 20, 32, 64, 80, 96, 128, 200, 256})
    for (int64_t group : {1, 4}) check_types({150, head_dim, group, 0, {}, true, 0.1});
}

TEST_CASE("a negative scale, and scores far apart") {
  check_types({100, 16, 2, 0, {}, true, -0.3});
  check_types({100, 16, 2, 0, {}, true, 4.0});
  check_types({100, 16, 2, 0, {}, true, 0.0});
}

// All-gather: each rank has the key chunks up to that of its last query, each in memory of its own.
TEST_CASE("a forward has the same bits on every split, and its backward adds up") {
  for (int64_t window : {0, 9, 100})
    for (bool documents : {false, true})
      for (AttentionTarget target : attention_targets())
        for (int64_t ranks : {1, 2, 3, 4}) {
          constexpr int64_t kLength = 312;  // chunks of 156, 78, 52 and 39
          Problem p{kLength, 24, 2, window,
                    documents ? some_documents(kLength) : std::vector<int32_t>{}};
          INFO(describe(p, target), ", ranks ", ranks);
          Inputs x = inputs_of<float>(p, 11);
          Answer whole = nothing(p), got = nothing(p);
          Part<float> one(p, x, {{0, kLength}}, {{0, kLength}});
          one.forward(p, target);
          one.add_outputs(p, whole);
          int64_t n = kLength / (2 * ranks);
          for (int64_t r = 0; r < ranks; ++r) {
            Ranges keys;
            for (int64_t i = 0; i < 2 * ranks - r; ++i) keys.push_back({i * n, i * n + n});
            Part<float> part(p, x, head_tail(r, ranks, n), keys);
            part.forward(p, target);
            part.add_outputs(p, got);
            part.backward(p, target);
            part.add_gradients(p, got);
          }
          CHECK(same_bits(got.out, whole.out));
          CHECK(same_bits(got.lse, whole.lse));
          check_gradients<float>(got, reference(p, x));
        }
}

TEST_CASE("a forward has the same bits wherever borders lie") {
  for (bool causal : {true, false})
    for (AttentionTarget target : attention_targets()) {
      Problem p{260, 40, 3, 0, {}, causal};
      INFO(describe(p, target));
      Inputs x = inputs_of<float>(p, 12);
      Answer whole = nothing(p);
      Part<float> one(p, x, {{0, 260}}, {{0, 260}});
      one.forward(p, target);
      one.add_outputs(p, whole);
      Part<float> sliced(p, x, {{0, 260}}, {{0, 260}});
      for (int64_t step : {1, 7, 13, 48, 64, 100}) {
        Ranges pieces;
        for (int64_t i = 0; i < 260; i += step)
          pieces.push_back({i, std::min<int64_t>(i + step, 260)});
        Answer rows = nothing(p), keys = nothing(p);
        for (Range r : pieces) {
          Part<float> part(p, x, {r}, {{0, 260}});
          part.forward(p, target);
          part.add_outputs(p, rows);
        }
        Part<float> part(p, x, {{0, 260}}, pieces);
        part.forward(p, target);
        part.add_outputs(p, keys);
        sliced.call(p, true, [&](std::span<const QueryRun<float>> q, auto k) {
          for (Range r : pieces) {
            QueryRun<float> slice = rows_of(q[0], r.begin, r.end - r.begin);
            attention_forward<float>(p.shape(target), std::span<const QueryRun<float>>(&slice, 1),
                                     k);
          }
        });
        CHECK(sliced.queries[0].out.memory == one.queries[0].out.memory);
        CHECK(sliced.queries[0].lse == one.queries[0].lse);
        CHECK(same_bits(rows.out, whole.out));
        CHECK(same_bits(keys.out, whole.out));
        CHECK(same_bits(rows.lse, whole.lse));
        CHECK(same_bits(keys.lse, whole.lse));
      }
    }
}

namespace {

// A ring: step by step each rank meets the keys of one other, and merges. Gradients come from the
// final output.
template <class T>
void check_ring(const Problem& p, int64_t ranks, AttentionTarget target) {
  using C = AttentionCompute<T>;
  INFO(describe(p, target), ", ranks ", ranks);
  Inputs x = inputs_of<T>(p, 13);
  Answer want = reference(p, x), got = nothing(p);
  int64_t n = p.length / (2 * ranks);
  for (int64_t r = 0; r < ranks; ++r) {
    Part<T> all(p, x, head_tail(r, ranks, n), {}, false);  // no key yet: lse -inf
    all.forward(p, target);
    for (int64_t s = 0; s < ranks; ++s) {
      Part<T> part(p, x, head_tail(r, ranks, n), head_tail((r + ranks - s) % ranks, ranks, n));
      part.forward(p, target);
      for (size_t q = 0; q < 2; ++q) {
        QueryHeld<T>&to = all.queries[q], &from = part.queries[q];
        attention_merge<C>(p.head_dim, p.group, n, to.partial.view(), {to.lse.data(), n},
                           from.partial.constant(), {from.lse.data(), n});
      }
    }
    for (QueryHeld<T>& q : all.queries)
      for (size_t i = 0; i < q.out.memory.size(); ++i)
        q.out.memory[i] = static_cast<T>(q.partial.memory[i]);
    all.add_outputs(p, got);
    for (int64_t s = 0; s < ranks; ++s) {
      Part<T> part(p, x, head_tail(r, ranks, n), head_tail(s, ranks, n), s % 2 == 0);
      for (size_t q = 0; q < 2; ++q)
        part.queries[q].out = all.queries[q].out, part.queries[q].lse = all.queries[q].lse;
      part.backward(p, target, s % 2 == 0);
      part.add_gradients(p, got);
    }
  }
  check_outputs<T>(got, want);
  check_gradients<T>(got, want);
}

}  // namespace

TEST_CASE("merged blocks and their backward are whole attention") {
  for (int64_t window : {0, 9, 100})
    for (bool documents : {false, true})
      for (int64_t ranks : {1, 2, 3, 4})
        for (AttentionTarget target : attention_targets()) {
          Problem p{168, 16, 2, window, documents ? some_documents(168) : std::vector<int32_t>{}};
          check_ring<float>(p, ranks, target);
          check_ring<double>(p, ranks, target);
          check_ring<c10::BFloat16>(p, ranks, target);
        }
}

TEST_CASE("rows that see no key") {
  for (AttentionTarget target : attention_targets()) {
    Problem p{100, 16, 2, 5, {}};
    Inputs x = inputs_of<float>(p, 14);
    Part<float> part(p, x, {{0, 30}, {60, 100}}, {{10, 12}, {20, 50}});
    part.forward(p, target);
    Answer got = nothing(p);
    part.add_outputs(p, got);
    part.backward(p, target);
    part.add_gradients(p, got);
    for (int64_t i = 0; i < 100; ++i) {
      bool sees = (i >= 10 && i < 16) || (i >= 20 && i < 30);
      bool queried = i < 30 || i >= 60;
      for (int64_t h = 0; h < 2 && queried; ++h) {
        size_t row = static_cast<size_t>(h * 100 + i), first = row * 16;
        INFO("row ", i);
        CHECK((got.lse[row] == -kInfinity) == !sees);
        CHECK((got.out[first] == 0 && got.dq[first] == 0) == !sees);
      }
    }
    for (const Values* values : {&got.out, &got.dq, &got.dk, &got.dv})
      for (double value : *values) CHECK(std::abs(value) < 70);  // no NaN, nothing left from before
  }
}

TEST_CASE("merging with nothing keeps the other") {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  std::vector<float> out = {1, 2, 3, 4, 0, 0, 1, 2}, lse = {0.5F, kNothing, kNothing, 1000};
  std::vector<float> other = {0, 0, 5, 6, 0, 0, 3, 4},
                     other_lse = {kNothing, -0.5F, kNothing, 1000};
  attention_merge<float>(2, 1, 4, {out.data(), 2, 0}, {lse.data(), 0}, {other.data(), 2, 0},
                         {other_lse.data(), 0});
  CHECK(out == std::vector<float>{1, 2, 5, 6, 0, 0, 2, 3});
  CHECK(lse == std::vector<float>{0.5F, -0.5F, kNothing, 1000 + std::log(2.0F)});
}

// Reading the unseen keys here would read through a null pointer.
TEST_CASE("blocks that no row sees are not read") {
  std::vector<int32_t> documents(512, 1);
  std::fill(documents.begin() + 256, documents.end(), 2);
  for (int by : {0, 1, 2}) {
    Problem p{512, 16, 1, by == 1 ? 64 : 0, by == 2 ? documents : std::vector<int32_t>{}};
    Inputs x = inputs_of<float>(p, 15);
    Range seen = by == 0 ? Range{0, 256} : Range{256, 512};
    Range asked = by == 0 ? Range{128, 256} : Range{320, 512};
    Part<float> alone(p, x, {asked}, {seen}), part(p, x, {asked}, {{0, 256}, {256, 512}});
    part.keys[by == 0 ? 1 : 0].k.memory.clear();
    part.keys[by == 0 ? 1 : 0].v.memory.clear();
    for (Part<float>* each : {&alone, &part}) {
      each->forward(p, AttentionTarget::kBest);
    }
    CHECK(part.queries[0].out.memory == alone.queries[0].out.memory);
    CHECK(part.queries[0].lse == alone.queries[0].lse);
  }
}

TEST_CASE("a backward has the same bits on any thread, and first only overwrites") {
  for (AttentionTarget target : attention_targets()) {
    Problem p{300, 48, 2, 150, some_documents(300)};
    Inputs x = inputs_of<float>(p, 16);
    Ranges ranges = {{0, 110}, {110, 300}};
    Part<float> a(p, x, ranges, ranges), b(p, x, ranges, ranges), c(p, x, ranges, ranges, false);
    auto both = [&](Part<float>& part, bool first) {
      part.forward(p, target);
      part.backward(p, target, first);
    };
    both(a, true);
    std::thread([&] { both(b, true); }).join();
    both(c, false);
    for (size_t i = 0; i < 2; ++i) {
      CHECK(a.queries[i].dq.memory == b.queries[i].dq.memory);
      CHECK(a.keys[i].dk.memory == b.keys[i].dk.memory);
      CHECK(a.keys[i].dv.memory == b.keys[i].dv.memory);
      Values first(p.group * 300 * 48), added(first.size());
      a.queries[i].dq.add_to(first, 300, ranges[i].begin);
      c.queries[i].dq.add_to(added, 300, ranges[i].begin);
      CHECK(difference(added, first) < 1e-6);
    }
  }
}

}  // namespace attention_kernel_test
