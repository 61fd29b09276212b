// Keys and values of the positions that a model has read, so that a forward of the positions that
// follow computes those alone.
//
//   KeyValueCache cache;
//   {
//     KeyValueScope scope(cache, {{0, 0}});
//     net.forward(prompt);                     // positions 0, 1, ... of text 0, which are kept
//   }
//   SequenceScope next(rows {{length, 1}});    // then each further token, at its position
//   KeyValueScope scope(cache, {{0, length}});
//   net.forward(token);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "meshwright/export.h"
#include "meshwright/nn/attention.h"

namespace meshwright::detail {

// Where the rows of a sample stand: behind what is kept of the first `position` positions of a
// text.
struct KeyValuePlace {
  int64_t text = 0, position = 0;
};

// Of the attention cores of one model, for texts of one document each. Local; not thread-safe.
class MESHWRIGHT_API KeyValueCache {
 public:
  // key, value [samples, rows, kv_heads, head_dim], rotated as attention takes them: those of
  // positions `position`, `position` + 1, ... of each sample's text, in place of what was kept from
  // there on.
  void keep(const AttentionCoreImpl& core, const at::Tensor& key, const at::Tensor& value,
            const std::vector<KeyValuePlace>& places);
  // What AttentionCoreImpl::forward() gives for queries at those positions over all that are kept
  // before and among them. Without gradients and dropout. A sample's values do not depend on what
  // is beside it.
  at::Tensor attend(const AttentionCoreImpl& core, const at::Tensor& query,
                    const std::vector<KeyValuePlace>& places) const;
  // Gives back the memory of a text that has ended.
  void drop(int64_t text);

 private:
  struct Kept {
    at::Tensor key, value;  // [1, room for positions, kv_heads, head_dim]
  };
  std::map<const AttentionCoreImpl*, std::map<int64_t, Kept>> kept_;  // by text
};

// What the forwards run by this thread keep, and where their samples stand, while it lives.
class MESHWRIGHT_API KeyValueScope {
 public:
  KeyValueScope(KeyValueCache& cache, std::vector<KeyValuePlace> places);
  ~KeyValueScope();
  KeyValueScope(const KeyValueScope&) = delete;
  KeyValueScope& operator=(const KeyValueScope&) = delete;

  // Whether this thread's forwards keep keys and values.
  static bool keeps();
  // Of the innermost scope of this thread, for a core's whole forward; an undefined tensor where
  // nothing is kept before these rows. Throws Error(bad_module) where the samples are not those of
  // the scope.
  static at::Tensor attend(const AttentionCoreImpl& core, const at::Tensor& query,
                           const at::Tensor& key, const at::Tensor& value);

 private:
  KeyValueCache& cache_;
  std::vector<KeyValuePlace> places_;
  KeyValueScope* outer_;
};

}  // namespace meshwright::detail
