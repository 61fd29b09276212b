// The numbers a plugin and the engine must agree on before any of the plugin's code runs.
#pragma once

// Version of the C descriptor in plugin.h. A new minor only appends fields; a new major breaks.
#define MESHWRIGHT_SDK_MAJOR 1
#define MESHWRIGHT_SDK_MINOR 0

// The C++ interface: layouts and virtual tables. Frozen at 14, version 1.0: what comes later is a
// function of the library, a `later` of a struct (export.h) or an extension(). tests/abi builds
// plugins against the headers as they were then and runs them with today's libraries.
#define MESHWRIGHT_CXX_EPOCH 14

// Release of the SDK as a whole.
#define MESHWRIGHT_VERSION "0.2.0"
