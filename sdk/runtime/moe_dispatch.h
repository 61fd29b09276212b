// sort_by_expert() as operators of the tensors' device, for where the host cannot loop over them.
#pragma once

#include "meshwright/moe.h"

namespace meshwright::detail {

MESHWRIGHT_API ExpertOrder sort_on_device(const at::Tensor& indices, int64_t experts);

}  // namespace meshwright::detail
