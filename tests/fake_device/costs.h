// What an operator costs a device, for the counters: kernels that LibTorch launches for it, and
// bytes that it moves.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

namespace fake_device {

// An operator has run: what it was given, and what its returns are.
void count_costs(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& given,
                 const c10::IValue* returns, c10::Device device);
// The same of one that is not called by its schema.
void count_costs(const char* name, long kernels, const std::vector<at::Tensor>& read,
                 const std::vector<at::Tensor>& written, c10::Device device);
// From now on a step of the program begins with the first row selection or matrix product after
// the optimizer's operator, on whatever device these run.
void watch_steps();

}  // namespace fake_device
