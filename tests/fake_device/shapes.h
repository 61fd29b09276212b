// Without arithmetic (FAKE_DEVICE_ARITHMETIC=0): what operators return, known by what they are
// given. For arguments that look like this for the first time the CPU's operator runs on zeros.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <vector>

namespace fake_device {

// Given empty, and the operator gives it its size.
bool is_sized(const c10::Argument& argument, const c10::IValue& given);
// The argument that an operator writes and returns as this value, or nullptr: it returns a new one.
const c10::IValue* given_back(const c10::Argument& value, const c10::FunctionSchema& schema,
                              const std::vector<c10::IValue>& given);

// Memory of the device for a result, small ones zeroed.
at::Tensor make_result(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type,
                       c10::Device device);

// Whether the operator is computed all the same: its tensors are
// few and have few elements.
bool is_small(const std::vector<c10::IValue>& given);
// Puts results on the stack in place of the arguments `given`, which are its last.
void give_results(const c10::OperatorHandle& op, const std::vector<c10::IValue>& given,
                  torch::jit::Stack& stack, c10::Device device);

}  // namespace fake_device
