// Room for one sample.
#pragma once

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

}  // namespace meshwright::data
