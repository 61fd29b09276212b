// The numbers a plugin and the engine must agree on before any of the plugin's code runs.
#pragma once

// Version of the C descriptor in plugin.h. A new minor only appends fields; a new major breaks.
#define MESHWRIGHT_SDK_MAJOR 1
#define MESHWRIGHT_SDK_MINOR 0

// Bumped by every change of a public C++ layout or virtual table (sdk/abi.lock holds the hash of
// the headers; a test fails until both change together).
#define MESHWRIGHT_CXX_EPOCH 12

// Release of the SDK as a whole.
#define MESHWRIGHT_VERSION "0.1.0"
