// Symbol visibility of the SDK library. Everything else in it is hidden.
#pragma once

#include <memory>

#define MESHWRIGHT_API __attribute__((visibility("default")))

namespace meshwright {

// What later versions add to a struct of the interface, whose own layout stays: functions of the
// SDK library write and read it. Structs that plugins make have a `later` for it.
struct Later;

}  // namespace meshwright
