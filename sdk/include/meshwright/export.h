// Symbol visibility of the SDK library. Everything else in it is hidden.
#pragma once

#define MESHWRIGHT_API __attribute__((visibility("default")))
