// Memory of activations on paper, for strategies that recompute layers in another way than the
// footprints take for granted.
#pragma once

#include "meshwright/footprint.h"

namespace meshwright {

// Bytes that the passes in flight on a rank keep for backward; 0 when seq_len is not known.
// `whole_layers`: as the strategy tells apply_activation_checkpointing(). The footprints have it
// with true.
MESHWRIGHT_API int64_t activation_bytes(const ShardingRequest& request, bool whole_layers);

}  // namespace meshwright
