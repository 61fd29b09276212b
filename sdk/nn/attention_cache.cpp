#include "sdk/base/attention_cache.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "attention_parts.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

thread_local KeyValueCache* cache_of_thread = nullptr;

// `kept` with room for `end` positions, of which the first `position` have been kept. The room
// doubles, so that a long text is copied a few times in all.
void make_room(Tensor& kept, const Tensor& like, int64_t position, int64_t end) {
  if (kept.defined() && kept.size(1) >= end && kept.size(0) == like.size(0)) return;
  constexpr int64_t kStep = 256;
  const int64_t room = std::max((end + kStep - 1) / kStep * kStep, 2 * position);
  Tensor larger = at::empty({like.size(0), room, like.size(2), like.size(3)}, like.options());
  if (position > 0) larger.narrow(1, 0, position).copy_(kept.narrow(1, 0, position));
  kept = std::move(larger);
}

}  // namespace

void KeyValueCache::keep(const AttentionCoreImpl& core, const Tensor& key, const Tensor& value,
                         int64_t position) {
  const Tensor new_key = as_autocast(key), new_value = as_autocast(value);
  Kept& kept = kept_[&core];
  const int64_t rows = key.size(1), end = position + rows;
  make_room(kept.key, new_key, position, end);
  make_room(kept.value, new_value, position, end);
  kept.key.narrow(1, position, rows).copy_(new_key);
  kept.value.narrow(1, position, rows).copy_(new_value);
}

Tensor KeyValueCache::attend(const AttentionCoreImpl& core, const Tensor& given,
                             int64_t position) const {
  const Kept& kept = kept_.at(&core);
  const Tensor query = as_autocast(given).contiguous();
  const int64_t rows = query.size(1), window = core.options().window;
  // What no query's window reaches need not be looked at.
  const int64_t first = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
  const int64_t count = position + rows - first;
  const Tensor key = kept.key.narrow(1, first, count), value = kept.value.narrow(1, first, count);
  if (attends(query)) {
    AttentionOptions options{.scale = core.options().scale, .window = window};
    Tensor out = at::empty_like(query);
    Tensor lse = at::empty({query.size(0), query.size(2), rows},
                           query.options().dtype(attention_compute_type(query.scalar_type())));
    detail::attend(options, {},
                   {{.runs = {{position, rows}}, .query = query, .out = out, .lse = lse}},
                   {{.runs = {{first, count}}, .key = key, .value = value}});
    return out;
  }
  std::optional<Tensor> mask;
  if (rows > 1) {
    Tensor hidden = at::zeros({rows, count}, query.options());
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = position + row - first;  // its own key
      const int64_t from = window > 0 ? std::max<int64_t>(0, at - window + 1) : 0;
      hidden.select(0, row).narrow(0, 0, from).fill_(-std::numeric_limits<double>::infinity());
      hidden.select(0, row)
          .narrow(0, at + 1, count - at - 1)
          .fill_(-std::numeric_limits<double>::infinity());
    }
    mask = hidden;
  }
  return at::scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2),
                                          value.transpose(1, 2), mask, 0, /*is_causal=*/false,
                                          core.options().scale, query.size(2) != key.size(2))
      .transpose(1, 2);
}

KeyValueScope::KeyValueScope(KeyValueCache& cache)
    : outer_(std::exchange(cache_of_thread, &cache)) {}
KeyValueScope::~KeyValueScope() { cache_of_thread = outer_; }

KeyValueCache* current_key_values() { return cache_of_thread; }

}  // namespace meshwright::detail
