// libmeshwright_engine.so, which is loaded only where something runs: it brings LibTorch.
#pragma once

namespace meshwright::launch {

// Throws Error(file_unreadable) where the current folder is gone: oneMKL in LibTorch looks for
// itself from there, and ends the process.
void check_current_folder();

// One of its C functions (engine/train). It lies beside the SDK library and stays loaded. Throws
// Error(file_unreadable) where LibTorch is not found, Error(internal) where the installation is
// damaged.
void* engine_function(const char* name);

template <class Function>
Function* engine_function(const char* name) {
  return reinterpret_cast<Function*>(engine_function(name));
}

}  // namespace meshwright::launch
