// Accelerators of this machine, without loading anything of theirs.
#pragma once

namespace meshwright::launch {

// Whether the driver of this machine lists an NVIDIA device.
bool driver_lists_devices();

}  // namespace meshwright::launch
