// Room for one sample, and what of a sample pads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "meshwright/data/dataset_kind.h"

namespace meshwright::data {

class SampleBuffer {
 public:
  SampleBuffer(const SampleSource& source, int64_t seq_len)
      : tokens_(static_cast<size_t>(seq_len)),
        targets_(tokens_.size()),
        documents_(source.has_documents() ? tokens_.size() : 0),
        weights_(source.has_weights() ? tokens_.size() : 0) {}
  SampleView view() { return {tokens_, targets_, documents_, weights_}; }

 private:
  std::vector<int64_t> tokens_, targets_;
  std::vector<int32_t> documents_;
  std::vector<float> weights_;
};

// Where what pads a sample begins: a last document without targets, or without documents what
// stands behind the last target; targets.size() where nothing does. `documents`: empty, or as many.
inline size_t padding_begin(std::span<const int64_t> targets, std::span<const int32_t> documents) {
  const size_t length = targets.size();
  size_t learnt = length;  // up to the last target
  while (learnt > 0 && targets[learnt - 1] == kNoTarget) --learnt;
  if (documents.empty() || length == 0) return learnt;
  size_t last = length - 1;  // where the last document begins
  while (last > 0 && documents[last - 1] == documents[last]) --last;
  return last >= learnt ? last : length;
}

}  // namespace meshwright::data
