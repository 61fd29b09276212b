// Symbol visibility of the SDK library. Everything else in it is hidden.
#pragma once

#include <cstdint>
#include <memory>

#define MESHWRIGHT_API __attribute__((visibility("default")))
// Private functions of exported classes: plugins cannot call them, so that they may change.
#define MESHWRIGHT_LOCAL __attribute__((visibility("hidden")))

namespace meshwright {

// What later versions add to a struct of the interface, whose own layout stays: functions of the
// SDK library write and read it. Structs that plugins make have a `later` for it.
struct Later;

// Virtual classes grow by extension(id): an interface by id, or nullptr for every id that the
// object does not know. Ids are one list for all classes; those from kOwnExtensions on are free for
// a plugin and its own programs.
inline constexpr uint32_t kOwnExtensions = 0x8000'0000;

}  // namespace meshwright
