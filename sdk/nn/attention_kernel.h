// Attention on the CPU without a matrix of scores: keys stream through a block that fits the
// caches, and a softmax that is rescaled as larger scores come up (flash attention). One call is
// one key-value head of one sample; callers share heads out among threads, and may split a forward
// into calls of fewer query rows.
//
// Bits: a row's output depends on its own query, the keys it sees and their global positions, and
// on nothing else. Key blocks are aligned to global positions and are put together from as many
// runs as hold them. So a forward is the same to the bit however query rows are split into runs,
// calls or ranks, wherever borders of key runs lie, and whether keys that a row does not see are
// given. Another target or a merge of parts gives other bits.
// A backward has the same bits each time that it is given the same runs, on any thread.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "meshwright/export.h"

namespace meshwright {

// What attention over storage type T computes in: double for double, else float.
template <class T>
using AttentionCompute = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Rows of one head lie `row` elements apart, the heads of one group `head`. The elements of a row
// are dense.
template <class T>
struct HeadView {
  T* data = nullptr;
  int64_t row = 0, head = 0;
};
// One number a row; those of a head are dense.
template <class T>
struct RowView {
  T* data = nullptr;
  int64_t head = 0;
};

// Instruction sets that the kernel is compiled for.
// kAvx512Bf16 has dot products of bfloat16 pairs; for other types it is kAvx512.
enum class AttentionTarget { kBest, kBaseline, kAvx2, kAvx512, kAvx512Bf16 };
// Those that this processor runs, the best one last.
MESHWRIGHT_API std::vector<AttentionTarget> attention_targets();

struct AttentionShape {
  int64_t head_dim = 0;
  int64_t group = 1;  // query heads of this key-value head
  double scale = 1;
  int64_t window = 0;  // keys that a query sees up to and with its own position; 0: all
  bool causal = true;
  AttentionTarget target = AttentionTarget::kBest;
};

// Key position j is seen by query position i iff (not causal or j <= i) and (no window or
// j > i - window) and document[i] == document[j]. Documents ascend along the sequence; nullptr is
// document 0 for all rows.

// Queries of a contiguous run of positions, in any order of runs. Of `out` and `partial` a forward
// writes those that are given.
template <class T>
struct QueryRun {
  using Compute = AttentionCompute<T>;
  int64_t position = 0, count = 0;
  const int32_t* documents = nullptr;
  HeadView<const T> q;
  HeadView<T> out;            // rounded once
  HeadView<Compute> partial;  // as computed, for attention_merge
  RowView<Compute> lse;       // log sum exp(scale q.k); forward writes it, backward reads it
  // Of backward: the gradient of the final output, attention_delta of both, and the gradient of q,
  // which is added to, or written if `first`.
  HeadView<const T> grad;
  RowView<const Compute> delta;
  HeadView<Compute> dq;
  bool first = false;
};

// Rows [begin, begin + count) of a run: what one thread of several computes in a forward.
template <class T>
QueryRun<T> rows_of(QueryRun<T> run, int64_t begin, int64_t count) {
  auto skip = [&](auto& view) {
    if (view.data != nullptr) view.data += begin * view.row;
  };
  skip(run.q), skip(run.out), skip(run.partial), skip(run.grad), skip(run.dq);
  if (run.documents != nullptr) run.documents += begin;
  if (run.lse.data != nullptr) run.lse.data += begin;
  if (run.delta.data != nullptr) run.delta.data += begin;
  run.position += begin;
  run.count = count;
  return run;
}

// Keys and values of a contiguous run of positions; `head` of their views is not read. Runs ascend
// and do not overlap; gaps between them are keys that nobody sees.
template <class T>
struct KeyRun {
  using Compute = AttentionCompute<T>;
  int64_t position = 0, count = 0;
  const int32_t* documents = nullptr;
  HeadView<const T> k, v;
  HeadView<Compute> dk, dv;  // of backward: added to, or written if `first`
  bool first = false;
};

// Rows that see no key: out 0, lse -inf.
template <class T>
MESHWRIGHT_API void attention_forward(const AttentionShape& shape,
                                      std::span<const QueryRun<T>> queries,
                                      std::span<const KeyRun<T>> keys);

// Gradients of the part of the output that comes from these keys, given lse and delta over all
// keys; parts add up. Rows whose lse is -inf contribute 0.
template <class T>
MESHWRIGHT_API void attention_backward(const AttentionShape& shape,
                                       std::span<const QueryRun<T>> queries,
                                       std::span<const KeyRun<T>> keys);

// delta[h][i] = sum(grad * out), of the final output.
template <class T>
MESHWRIGHT_API void attention_delta(int64_t head_dim, int64_t heads, int64_t count,
                                    HeadView<const T> out, HeadView<const T> grad,
                                    RowView<AttentionCompute<T>> delta);

// Merges into (out, lse) the same rows' attention over other keys. C is float or double.
template <class C>
MESHWRIGHT_API void attention_merge(int64_t head_dim, int64_t heads, int64_t count, HeadView<C> out,
                                    RowView<C> lse, HeadView<const C> other,
                                    RowView<const C> other_lse);

}  // namespace meshwright
