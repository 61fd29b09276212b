// Attention by blocks, as devices compute it, against our kernel: with LibTorch's operators for the
// CPU, and with flash attention modelled as its kernels document it.
#include "sdk/nn/attention_blocks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "attention_blocks_model.h"
#include "meshwright/nn/attention.h"
#include "sdk/base/known_documents.h"

namespace attention_blocks_test {

using namespace meshwright;
using namespace meshwright::detail;
using at::Tensor;
using attention_blocks_model::FlashModel;
using attention_blocks_model::WithOperators;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kSamples = 2, kDim = 8;

double distance(const Tensor& a, const Tensor& b) {
  Tensor wide = b.to(at::kDouble);
  return (a.to(at::kDouble) - wide).abs().max().item<double>() /
         (1 + wide.abs().max().item<double>());
}

// Ids of documents of these lengths, for each sample.
Tensor documents_of(const std::vector<std::vector<int64_t>>& lengths) {
  std::vector<Tensor> samples;
  for (const std::vector<int64_t>& sample : lengths) {
    std::vector<int64_t> ids;
    for (size_t d = 0; d < sample.size(); ++d)
      ids.insert(ids.end(), static_cast<size_t>(sample[d]), static_cast<int64_t>(d));
    samples.push_back(at::tensor(ids, at::kInt));
  }
  return at::stack(samples);
}

struct Shape {
  int64_t length, heads, kv_heads, window;
  at::ScalarType type = at::kDouble;
};

// Whole samples and what our kernel computes of them.
struct Whole {
  Tensor query, key, value, grad, documents, out, to_query, to_key, to_value;
  AttentionOptions options;

  explicit Whole(const Shape& shape, const Tensor& ids = {}) : documents(ids) {
    at::manual_seed(static_cast<uint64_t>(shape.length * 31 + shape.kv_heads));
    auto random = [&](int64_t heads) {
      return at::randn({kSamples, shape.length, heads, kDim}, at::kDouble).to(shape.type);
    };
    query = random(shape.heads), key = random(shape.kv_heads), value = random(shape.kv_heads);
    grad = random(shape.heads);
    options = {.scale = 0.4, .window = shape.window};
    compute(out, to_query, to_key, to_value);
  }
  // Through the module, as a model does.
  void compute(Tensor& o, Tensor& dq, Tensor& dk, Tensor& dv) const {
    auto leaf = [](const Tensor& x) { return x.clone().set_requires_grad(true); };
    Tensor q = leaf(query), k = leaf(key), v = leaf(value);
    auto sequence = std::make_shared<Sequence>();
    sequence->documents = documents;
    SequenceScope scope(documents.defined() ? sequence : nullptr);
    o = AttentionCore(options)(q, k, v);
    o.backward(grad);
    dq = q.grad(), dk = k.grad(), dv = v.grad(), o = o.detach();
  }
};

// One rank's rows of all samples, in memory of their own.
Tensor rows_of(const Tensor& x, const std::vector<PositionRun>& runs) {
  std::vector<Tensor> parts;
  for (const PositionRun& run : runs) parts.push_back(x.narrow(1, run.position, run.count));
  return at::cat(parts, 1);
}
void put_rows(const Tensor& into, const Tensor& rows, const std::vector<PositionRun>& runs) {
  int64_t row = 0;
  for (const PositionRun& run : runs) {
    into.narrow(1, run.position, run.count).copy_(rows.narrow(1, row, run.count));
    row += run.count;
  }
}

struct Ranks {
  std::vector<std::vector<PositionRun>> runs = {};
  bool one_by_one = false;  // keys of one rank after the other, as in a ring
};
std::vector<Ranks> splits_of(int64_t length) {
  std::vector<Ranks> out;
  for (int64_t ranks = 1; ranks <= 4; ++ranks)
    for (bool one_by_one : {false, true}) {
      Ranks some{.one_by_one = one_by_one};
      const ContextSplit split(length, ranks);
      if (split.padded() != length) continue;
      for (int64_t r = 0; r < ranks; ++r) some.runs.push_back(split.runs_of(r));
      out.push_back(some);
    }
  // Chunks of unlike lengths, one of which has no rows.
  out.push_back({{{{0, 1}, {9, length - 9}}, {{1, 5}, {6, 0}, {6, 3}}}, true});
  return out;
}

// What the ranks of cp do, one rank after the other.
struct Found {
  Tensor out, to_query, to_key, to_value;
};
Found by_ranks(const AttentionOperators& operators, const Whole& whole, const Ranks& ranks) {
  const at::ScalarType type = whole.query.scalar_type(),
                       compute = type == at::kDouble ? at::kDouble : at::kFloat;
  auto odd = [&](const Tensor& x, at::ScalarType of) {
    return at::full(x.sizes(), std::nan(""), x.options().dtype(of));
  };
  Found found{odd(whole.out, type), odd(whole.query, compute),
              at::zeros(whole.key.sizes(), whole.key.options().dtype(compute)),
              at::zeros(whole.key.sizes(), whole.key.options().dtype(compute))};
  std::vector<std::vector<KeyPart>> steps(1);
  for (const auto& runs : ranks.runs) {
    if (ranks.one_by_one) steps.emplace_back();
    Tensor key = rows_of(whole.key, runs);
    steps.back().push_back({.runs = runs,
                            .key = key,
                            .value = rows_of(whole.value, runs),
                            .to_key = odd(key, compute),
                            .to_value = odd(key, compute),
                            .first = true});
  }
  for (const auto& runs : ranks.runs) {
    Tensor query = rows_of(whole.query, runs);
    Tensor partial, lse, out = odd(query, type);
    for (const std::vector<KeyPart>& keys : steps) {
      if (keys.empty()) continue;
      Tensor some = odd(query, compute);
      Tensor some_lse = odd(some.select(3, 0).transpose(1, 2), compute);
      attend_by_blocks(
          operators, whole.options, whole.documents,
          {{.runs = runs, .query = query, .out = out, .partial = some, .lse = some_lse}}, keys);
      if (partial.defined())
        merge_blocks(partial, lse, some, some_lse);
      else
        partial = some, lse = some_lse;
    }
    if (ranks.one_by_one) out = partial.to(type);
    put_rows(found.out, out, runs);
    QueryPart part{.runs = runs,
                   .query = query,
                   .out = out,
                   .lse = lse,
                   .grad = rows_of(whole.grad, runs),
                   .to_query = odd(query, compute),
                   .first = true};
    for (std::vector<KeyPart>& keys : steps) {
      if (keys.empty()) continue;
      attend_backward_by_blocks(operators, whole.options, whole.documents, {part}, keys);
      part.first = false;
      for (KeyPart& key : keys) key.first = false;
    }
    put_rows(found.to_query, part.to_query, runs);
  }
  for (const std::vector<KeyPart>& keys : steps)
    for (const KeyPart& key : keys) {
      put_rows(found.to_key, key.to_key, key.runs);
      put_rows(found.to_value, key.to_value, key.runs);
    }
  return found;
}

const FlashModel& flash_model() {
  static const FlashModel model;
  return model;
}
std::vector<std::pair<std::string, const AttentionOperators*>> all_operators() {
  return {{"LibTorch's for the CPU", &cpu_attention_operators()}, {"flash", &flash_model()}};
}

void check_all(const Whole& whole, double bound) {
  for (const auto& [name, operators] : all_operators())
    for (const Ranks& ranks : splits_of(whole.query.size(1))) {
      CAPTURE(name);
      CAPTURE(ranks.runs.size());
      CAPTURE(ranks.one_by_one);
      const Found found = by_ranks(*operators, whole, ranks);
      CHECK(distance(found.out, whole.out) < bound);
      CHECK(distance(found.to_query, whole.to_query) < bound);
      CHECK(distance(found.to_key, whole.to_key) < bound);
      CHECK(distance(found.to_value, whole.to_value) < bound);
    }
}

// Every pair that a query sees, once, and no other; by flash attention's own rules.
void check_cut(const RowRun& rows, const RowRun& keys, int64_t window) {
  CAPTURE(rows.position);
  CAPTURE(rows.count);
  CAPTURE(keys.position);
  CAPTURE(keys.count);
  CAPTURE(window);
  std::vector<int> seen(static_cast<size_t>(rows.count * keys.count));
  bool full = true;
  for (const AttentionBlock& b : cut_attention(rows, keys, 3, window, nullptr)) {
    CHECK(b.samples == 3);
    const AttentionBand band = attention_blocks_model::as_flash_reads(b.band, b.keys);
    for (int64_t i = 0; i < b.rows; ++i) {
      bool any = false;
      for (int64_t j = 0; j < b.keys; ++j) {
        const int64_t ahead = j - i - (b.keys - b.rows);
        if ((band.right != AttentionBand::kOpen && ahead > band.right) ||
            (band.left != AttentionBand::kOpen && ahead < -band.left))
          continue;
        any = true;
        ++seen[static_cast<size_t>((b.row - rows.row + i) * keys.count + b.key - keys.row + j)];
      }
      full = full && any;
    }
  }
  bool right = true;
  for (int64_t i = 0; i < rows.count; ++i)
    for (int64_t j = 0; j < keys.count; ++j) {
      const int64_t back = rows.position + i - keys.position - j;
      const int expected = back >= 0 && (window == 0 || back < window) ? 1 : 0;
      right = right && seen[static_cast<size_t>(i * keys.count + j)] == expected;
    }
  CHECK(full);
  CHECK(right);
}

}  // namespace

TEST_CASE("attention blocks: each query sees its keys once, and no block has a row without") {
  for (int64_t rows = 1; rows <= 9; ++rows)
    for (int64_t keys = 1; keys <= 9; ++keys)
      for (int64_t position = 0; position <= 20; ++position)
        for (int64_t window = 0; window <= 24; ++window)
          check_cut({2, position, rows}, {5, 7, keys}, window);
}

TEST_CASE("attention blocks: equal runs and chunks behind are one call") {
  auto one = [](const RowRun& rows, const RowRun& keys, int64_t window) {
    std::vector<AttentionBlock> blocks = cut_attention(rows, keys, 1, window, nullptr);
    REQUIRE(blocks.size() == 1);
    return blocks[0];
  };
  constexpr int64_t kOpen = AttentionBand::kOpen;
  CHECK(one({0, 64, 16}, {0, 64, 16}, 0).band == AttentionBand{kOpen, 0});
  CHECK(one({0, 64, 16}, {0, 64, 16}, 16).band == AttentionBand{kOpen, 0});
  CHECK(one({0, 64, 16}, {0, 64, 16}, 5).band == AttentionBand{4, 0});
  CHECK(one({0, 64, 16}, {0, 16, 16}, 0).band == AttentionBand{});
  const AttentionBlock reached = one({0, 64, 16}, {0, 48, 16}, 5);
  CHECK(reached.rows == 4);
  CHECK(reached.key == 12);
  CHECK(reached.keys == 4);
  CHECK(cut_attention({0, 0, 16}, {0, 16, 16}, 1, 0, nullptr).empty());
  CHECK(cut_attention({0, 64, 16}, {0, 0, 16}, 1, 8, nullptr).empty());
}

TEST_CASE("attention blocks: a document that begins shortly before a chunk is two calls") {
  constexpr int64_t kChunk = 4096;
  const DocumentStarts starts{{0, 2 * kChunk - 2}};
  const RowRun rows{0, 2 * kChunk, kChunk}, keys{0, kChunk, kChunk};
  const std::vector<AttentionBlock> blocks = cut_attention(rows, keys, 1, kChunk, &starts);
  REQUIRE(blocks.size() == 2);
  CHECK(blocks[0].rows == kChunk - 2);
  CHECK(blocks[0].keys == 2);
  CHECK(blocks[1].rows == 1);
  CHECK(blocks[1].keys == 1);
  for (const AttentionBlock& block : blocks) CHECK(block.band == AttentionBand{});
  // A long window over short chunks; and pairs once each.
  for (int64_t count : {1, 2, 3, 40, 1000}) {
    check_cut(rows, {0, 2 * kChunk - count, count}, kChunk);
    CHECK(cut_attention(rows, {0, 2 * kChunk - count, count}, 1, kChunk, nullptr).size() <= 3);
  }
}

TEST_CASE("attention blocks: outputs and gradients are the kernel's, in float64") {
  for (int64_t kv_heads : {4, 2, 1})
    for (int64_t window : {0, 3, 11, 64}) {
      CAPTURE(kv_heads);
      CAPTURE(window);
      check_all(Whole({.length = 24, .heads = 4, .kv_heads = kv_heads, .window = window}), 1e-12);
    }
}

TEST_CASE("attention blocks: documents see themselves alone") {
  for (const auto& lengths : std::vector<std::vector<std::vector<int64_t>>>{
           {{24}, {24}}, {{7, 9, 8}, {1, 1, 22}}, {{3, 1, 20}, {24}}, {{12, 12}, {6, 6, 6, 6}}})
    for (int64_t window : {0, 3, 11}) {
      CAPTURE(lengths[0].size());
      CAPTURE(window);
      const Tensor documents = documents_of(lengths);
      check_all(Whole({.length = 24, .heads = 4, .kv_heads = 2, .window = window}, documents),
                1e-12);
    }
}

TEST_CASE("attention blocks: float32 and bfloat16 are as near as the kernel is") {
  for (int64_t window : {0, 11}) {
    check_all(Whole({24, 4, 2, window, at::kFloat}), 1e-5);
    check_all(Whole({24, 4, 2, window, at::kBFloat16}), 3e-2);
  }
}

TEST_CASE("attention blocks: a model's rows are one call forward and one back, without a copy") {
  const Tensor documents = documents_of({{7, 9, 8}, {1, 22, 1}});
  for (const Tensor& ids : {Tensor(), documents})
    for (int64_t window : {0, 3, 64}) {
      CAPTURE(window);
      const Whole whole({.length = 24, .heads = 4, .kv_heads = 2, .window = window}, ids);
      const FlashModel model;
      const WithOperators with(model);
      Tensor out, to_query, to_key, to_value;
      whole.compute(out, to_query, to_key, to_value);
      CHECK(model.forwards == 1);
      CHECK(model.backwards == 1);
      CHECK(out.data_ptr() == model.last_out);
      CHECK(distance(out, whole.out) < 1e-12);
      CHECK(distance(to_query, whole.to_query) < 1e-12);
      CHECK(distance(to_key, whole.to_key) < 1e-12);
      CHECK(distance(to_value, whole.to_value) < 1e-12);
    }
}

TEST_CASE("attention blocks: documents that are overwritten are read again") {
  Tensor documents = documents_of({{12, 12}, {12, 12}});
  const Shape shape{.length = 24, .heads = 2, .kv_heads = 2, .window = 0};
  const WithOperators with(flash_model());
  const Whole before(shape, documents);
  documents.fill_(3);
  const Whole after(shape, documents), without(shape);
  CHECK(distance(before.out, without.out) > 1e-3);
  CHECK(distance(after.out, without.out) < 1e-12);
}

TEST_CASE("attention blocks: documents that the host knows are not read, until they are written") {
  const Shape shape{.length = 24, .heads = 2, .kv_heads = 2, .window = 0};
  const WithOperators with(flash_model());
  const Tensor halves = documents_of({{12, 12}, {12, 12}});
  Tensor documents = documents_of({{24}, {24}});
  const Whole without(shape);
  know_documents(documents, halves.const_data_ptr<int32_t>());
  CHECK(distance(Whole(shape, documents).out, Whole(shape, halves).out) < 1e-12);
  documents.fill_(0);
  CHECK(distance(Whole(shape, documents).out, without.out) < 1e-12);
  know_documents(documents, halves.const_data_ptr<int32_t>());
  CHECK(distance(Whole(shape, documents.clone()).out, without.out) < 1e-12);
}

TEST_CASE("attention blocks: rows without a key are 0, at minus infinity") {
  const Whole whole({.length = 24, .heads = 2, .kv_heads = 2, .window = 0});
  for (const auto& [name, operators] : all_operators()) {
    CAPTURE(name);
    auto odd = [](const Tensor& x) { return at::full_like(x, std::nan("")); };
    Tensor query = whole.query.narrow(1, 0, 8), key = whole.key.narrow(1, 4, 8);
    QueryPart part{.runs = {{0, 8}}, .query = query, .out = odd(query), .grad = query};
    part.lse = at::full({kSamples, 2, 8}, std::nan(""), query.options());
    part.to_query = odd(query);
    part.first = true;
    KeyPart keys{.runs = {{4, 8}}, .key = key, .value = key, .first = true};
    keys.to_key = odd(key), keys.to_value = odd(key);
    attend_by_blocks(*operators, whole.options, {}, {part}, {keys});
    attend_backward_by_blocks(*operators, whole.options, {}, {part}, {keys});
    CHECK(part.lse.narrow(2, 0, 4).eq(-kInfinity).all().item<bool>());
    CHECK(part.lse.narrow(2, 4, 4).isfinite().all().item<bool>());
    CHECK(part.out.narrow(1, 0, 4).eq(0).all().item<bool>());
    CHECK(part.to_query.narrow(1, 0, 4).eq(0).all().item<bool>());
    CHECK(keys.to_value.narrow(1, 4, 4).eq(0).all().item<bool>());
    for (const Tensor& x : {part.out, part.to_query, keys.to_key, keys.to_value})
      CHECK(x.isfinite().all().item<bool>());
  }
}

TEST_CASE("attention blocks: merging knows rows that have no keys") {
  auto rows = [](const std::vector<double>& x) { return at::tensor(x).view({1, 4, 1, 1}); };
  auto lses = [](const std::vector<double>& x) { return at::tensor(x).view({1, 1, 4}); };
  Tensor into = rows({1, 2, 0, 0}), lse = lses({0.5, 0.25, -kInfinity, -kInfinity});
  merge_blocks(into, lse, rows({3, 0, 5, 0}), lses({0.5, -kInfinity, 2, -kInfinity}));
  CHECK(distance(into, rows({2, 2, 5, 0})) < 1e-15);
  CHECK(lse.equal(lses({0.5 + std::log(2), 0.25, 2, -kInfinity})));
}

}  // namespace attention_blocks_test
