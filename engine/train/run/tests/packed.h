// Documents within samples, as a data set gives them.
#pragma once

#include <ATen/ops/zeros.h>

#include <memory>

#include "engine/train/step/logits.h"

namespace meshwright {

// `end` is the last token of a document, and has no target. ids: [rows, length + 1].
inline train::MicroBatch packed(const at::Tensor& ids, int64_t end) {
  const int64_t length = ids.size(1) - 1;
  auto targets = std::make_shared<at::Tensor>(ids.narrow(1, 1, length).contiguous().clone());
  train::MicroBatch out{.tokens = ids.narrow(1, 0, length).contiguous(), .targets = *targets};
  out.documents = at::zeros(out.tokens.sizes(), at::kInt);
  out.positions = at::zeros(out.tokens.sizes(), at::kLong);
  const auto* token = out.tokens.const_data_ptr<int64_t>();
  auto* target = targets->mutable_data_ptr<int64_t>();
  auto* document = out.documents.mutable_data_ptr<int32_t>();
  auto* position = out.positions.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < out.tokens.numel(); ++i) {
    const bool first = i % length == 0, begins = first || token[i - 1] == end;
    document[i] = first ? 0 : document[i - 1] + (begins ? 1 : 0);
    position[i] = begins ? 0 : position[i - 1] + 1;
    if (token[i] == end) target[i] = -100;
  }
  out.host_targets = target;
  out.host = targets;
  return out;
}

}  // namespace meshwright
