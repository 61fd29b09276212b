// The part of the kit that runs tensors: a library of its own beside the SDK's, loaded when it is
// needed, since planning needs no LibTorch. Not for use outside the kit.
#pragma once

#include "sdk/base/conformance.h"

namespace meshwright::conformance {

// A function of the library. nullptr, and why in the report, where it is not there.
void* symbol_of_training(const char* name, Report& report);

// How it says what it finds, to a Report.
using Say = void (*)(void*, const char*);
inline void say_fail(void* to, const char* text) { static_cast<Report*>(to)->fail(text); }
inline void say_note(void* to, const char* text) { static_cast<Report*>(to)->note(text, 1); }
inline void say_skip(void* to, const char* text) { static_cast<Report*>(to)->skip(text); }

}  // namespace meshwright::conformance
