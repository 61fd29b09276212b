// The inner loops of causal attention in float32, one key-value head at a time.
#pragma once

#include <cstdint>

namespace meshwright::modules {

// Rows of one head lie `row` floats apart, the heads of one group `head` floats.
struct HeadView {
  const float* data = nullptr;
  int64_t row = 0, head = 0;
};
struct MutableHeadView {
  float* data = nullptr;
  int64_t row = 0, head = 0;
};

struct AttentionSizes {
  int64_t length = 0, head_dim = 0, group = 1;  // group: query heads of this key-value head
  int64_t window = 0;                           // 0: none
  float scale = 1;
};

// Whether this processor can run them, for heads of this size.
bool attention_kernel_available(int64_t head_dim);

// log_sum: [group, length], the logarithm of each row's sum of exponentials.
void attention_forward(const AttentionSizes& sizes, HeadView query, HeadView key, HeadView value,
                       MutableHeadView out, float* log_sum);
// Writes all of to_query, to_key and to_value.
void attention_backward(const AttentionSizes& sizes, HeadView query, HeadView key, HeadView value,
                        HeadView out, const float* log_sum, HeadView grad, MutableHeadView to_query,
                        MutableHeadView to_key, MutableHeadView to_value);

}  // namespace meshwright::modules
