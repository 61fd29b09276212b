#include "engine/launch/devices.h"

#include <filesystem>

namespace meshwright::launch {

bool driver_lists_devices() {
  std::error_code failed;
  std::filesystem::directory_iterator gpus("/proc/driver/nvidia/gpus", failed);
  return (!failed && gpus != std::filesystem::directory_iterator()) ||
         std::filesystem::exists("/dev/nvidia0", failed);
}

}  // namespace meshwright::launch
