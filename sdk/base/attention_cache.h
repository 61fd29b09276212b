// Keys and values of the positions that a model has read, so that a forward of the positions that
// follow computes those alone.
//
//   KeyValueCache cache;
//   KeyValueScope scope(cache);
//   net.forward(prompt);                       // positions 0, 1, ..., which are kept
//   SequenceScope next(rows {{length, 1}});    // then each further token, at its position
//   net.forward(token);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

#include "meshwright/export.h"
#include "meshwright/nn/attention.h"

namespace meshwright::detail {

// Of the attention cores of one model, of samples of one document each. Local; not thread-safe.
class MESHWRIGHT_API KeyValueCache {
 public:
  // key, value [batch, rows, kv_heads, head_dim], rotated as attention takes them: those of
  // positions `position`, `position` + 1, ..., in place of what was kept from there on.
  void keep(const AttentionCoreImpl& core, const at::Tensor& key, const at::Tensor& value,
            int64_t position);
  // What AttentionCoreImpl::forward() gives for queries at those positions over all that are kept
  // before and among them. Without gradients and dropout.
  at::Tensor attend(const AttentionCoreImpl& core, const at::Tensor& query, int64_t position) const;

 private:
  struct Kept {
    at::Tensor key, value;  // [batch, room for positions, kv_heads, head_dim]
  };
  std::map<const AttentionCoreImpl*, Kept> kept_;
};

// Makes `cache` that of the forwards run by this thread while it lives.
class MESHWRIGHT_API KeyValueScope {
 public:
  explicit KeyValueScope(KeyValueCache& cache);
  ~KeyValueScope();
  KeyValueScope(const KeyValueScope&) = delete;
  KeyValueScope& operator=(const KeyValueScope&) = delete;

 private:
  KeyValueCache* outer_;
};
// nullptr: nothing is kept.
KeyValueCache* current_key_values();

}  // namespace meshwright::detail
