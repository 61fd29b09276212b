#include "sdk/base/attention_cache.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "attention_parts.h"
#include "meshwright/error.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

thread_local KeyValueScope* scope_of_thread = nullptr;

// `kept` with room for `end` positions, of which the first `position` have been kept. The room
// doubles, so that a long text is copied a few times in all.
void make_room(Tensor& kept, const Tensor& like, int64_t position, int64_t end) {
  if (kept.defined() && kept.size(1) >= end) return;
  constexpr int64_t kStep = 256;
  const int64_t room = std::max((end + kStep - 1) / kStep * kStep, 2 * position);
  Tensor larger = at::empty({1, room, like.size(2), like.size(3)}, like.options());
  if (position > 0) larger.narrow(1, 0, position).copy_(kept.narrow(1, 0, position));
  kept = std::move(larger);
}

// Into `out`: what queries of one sample, [1, rows, heads, head_dim], see of its keys.
void attend_one(const AttentionCoreImpl& core, const Tensor& out, const Tensor& query,
                const Tensor& keys, const Tensor& values, int64_t position) {
  const int64_t rows = query.size(1), window = core.options().window;
  // What no query's window reaches need not be looked at.
  const int64_t first = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
  const int64_t count = position + rows - first;
  const Tensor key = keys.narrow(1, first, count), value = values.narrow(1, first, count);
  if (attends(query)) {
    AttentionOptions options{.scale = core.options().scale, .window = window};
    Tensor lse = at::empty({1, query.size(2), rows},
                           query.options().dtype(attention_compute_type(query.scalar_type())));
    detail::attend(options, {},
                   {{.runs = {{position, rows}}, .query = query, .out = out, .lse = lse}},
                   {{.runs = {{first, count}}, .key = key, .value = value}});
    return;
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
  out.copy_(at::scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2),
                                             value.transpose(1, 2), mask, 0, /*is_causal=*/false,
                                             core.options().scale, query.size(2) != key.size(2))
                .transpose(1, 2));
}

}  // namespace

void KeyValueCache::keep(const AttentionCoreImpl& core, const Tensor& key, const Tensor& value,
                         const std::vector<KeyValuePlace>& places) {
  const Tensor new_key = as_autocast(key), new_value = as_autocast(value);
  const int64_t rows = key.size(1);
  std::map<int64_t, Kept>& texts = kept_[&core];
  for (size_t i = 0; i < places.size(); ++i) {
    const auto& [text, position] = places[i];
    const auto sample = static_cast<int64_t>(i);
    Kept& kept = texts[text];
    for (const auto& [room, given] : {std::pair<Tensor&, const Tensor&>{kept.key, new_key},
                                      std::pair<Tensor&, const Tensor&>{kept.value, new_value}}) {
      make_room(room, given, position, position + rows);
      room.narrow(1, position, rows).copy_(given.narrow(0, sample, 1));
    }
  }
}

Tensor KeyValueCache::attend(const AttentionCoreImpl& core, const Tensor& given,
                             const std::vector<KeyValuePlace>& places) const {
  const std::map<int64_t, Kept>& texts = kept_.at(&core);
  const Tensor query = as_autocast(given).contiguous();
  Tensor out = at::empty_like(query);
  auto attend_some = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const KeyValuePlace& place = places[static_cast<size_t>(i)];
      const Kept& kept = texts.at(place.text);
      attend_one(core, out.narrow(0, i, 1), query.narrow(0, i, 1), kept.key, kept.value,
                 place.position);
    }
  };
  // A text's attention for one row is short work: texts are shared out among threads rather than
  // the heads of each.
  const auto samples = static_cast<int64_t>(places.size());
  if (query.is_cpu() && samples >= at::get_num_threads())
    at::parallel_for(0, samples, 1, attend_some);
  else
    attend_some(0, samples);
  return out;
}

void KeyValueCache::drop(int64_t text) {
  for (auto& [core, texts] : kept_) texts.erase(text);
}

KeyValueScope::KeyValueScope(KeyValueCache& cache, std::vector<KeyValuePlace> places)
    : cache_(cache), places_(std::move(places)), outer_(std::exchange(scope_of_thread, this)) {}
KeyValueScope::~KeyValueScope() { scope_of_thread = outer_; }
bool KeyValueScope::keeps() { return scope_of_thread != nullptr; }

Tensor KeyValueScope::attend(const AttentionCoreImpl& core, const Tensor& query, const Tensor& key,
                             const Tensor& value) {
  if (scope_of_thread == nullptr) return {};
  const auto& places = scope_of_thread->places_;
  KeyValueCache& cache = scope_of_thread->cache_;
  if (static_cast<int64_t>(places.size()) != query.size(0))
    throw Error(ErrorCode::bad_module,
                "keys and values are kept of " + std::to_string(places.size()) +
                    " texts, but attention got " + std::to_string(query.size(0)) + " samples")
        .help("make the KeyValueScope for the samples that the model is called with");
  const std::shared_ptr<const Sequence> sequence = current_sequence();
  if (sequence && (sequence->documents.defined() || sequence->rows.size() > 1))
    throw Error(ErrorCode::bad_module,
                "keys and values are kept for rows of one document that follow each other")
        .help("make the SequenceScope of one run of rows, without documents");
  cache.keep(core, key, value, places);
  if (std::ranges::all_of(places, [](const KeyValuePlace& place) { return place.position == 0; }))
    return {};
  return cache.attend(core, query, places);
}

}  // namespace meshwright::detail
