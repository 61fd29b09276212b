// What the weights of the families built in are before any training, as transformers'
// _init_weights has it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/models/net_config.h"
#include "meshwright/model/model_family.h"

namespace meshwright::outlines {

struct InitialValues {
  double range = 0.02;                 // weights of Linear and Embedding: normal(0, range)
  std::optional<int64_t> padding_row;  // of the embedding: zeros (pad_token_id)
  bool zero_norms = false;             // norms that scale by 1 + weight; else ones
};

InitialValues initial_values(const NetConfig& config);
// Zeros for biases, ones or zeros for norms, else normal(0, range).
InitialValue initial_value(std::string_view parameter, const InitialValues& values = {});

}  // namespace meshwright::outlines
