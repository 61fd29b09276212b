// What the program calls on ranks: C functions of libmeshwright_engine.so, so that the program
// itself needs no LibTorch. Apps add theirs.
#pragma once

#include <filesystem>
#include <functional>

#include "engine/launch/rendezvous/error_exchange.h"

namespace meshwright::train {

// LibTorch writes pages of stack frames to standard error before it throws what we then say in one
// line. For the program and libmeshwright_c.so: a C++ application that uses the library keeps its
// own choice. TORCH_CPP_LOG_LEVEL brings them back.
void quiet_libtorch();

// Runs a rank; what it throws is said, told to the other ranks, and becomes the exit status of all.
// `log`: of the run, once it has one; read after `work` has ended.
int run_guarded(const std::function<int(rendezvous::Ending&)>& work,
                const std::filesystem::path& log = {});

}  // namespace meshwright::train
