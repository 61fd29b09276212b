// An operation of a device as something that can be done again: what it touches, and what the host
// computes there. Operators that a graph captures are kept so.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "device.h"

namespace torch {
class Library;
}

namespace fake_device {

// However the operation ends.
struct Ending {
  ~Ending() { fake_device_end(); }
};

// The costs of what a graph keeps are told, or telling them failed.
struct Told {
  ~Told() { fake_device_recorded(); }
};

// Of the device's current one.
void* stream_of(c10::Device device);

// The bytes from the first to the last element.
struct Extent {
  const char* begin = nullptr;
  size_t bytes = 0;
};
Extent extent_of(const at::Tensor& t);

// What an operation touches.
struct Touched {
  Extent extent;
  bool write = false;
};

// Something on memory that stays where it is: now, or each time a graph is launched. It keeps no
// tensor of the device, so that a graph's memory is used again within it as on a device.
struct Operation {
  std::string what;
  c10::Device device;
  std::vector<Touched> touched;
  std::function<void()> compute;  // by views of the host; empty: nothing

  // The host's view of a tensor that the operation reads or writes.
  at::Tensor touch(const at::Tensor& t, bool write);
  void run(void* stream) const;
};

// Whether a graph is captured on the device's current stream.
bool is_captured(c10::Device device, const std::string& what);
// CUDA would wait for the host here, or there is nothing that a graph could do again.
[[noreturn]] void refuse_capture(c10::Device device, const std::string& what, const char* why);

// `tell` tells what it costs.
template <class Tell>
void run_or_record(Operation operation, const Tell& tell) {
  const c10::Device device = operation.device;
  if (!is_captured(device, operation.what)) {
    operation.run(stream_of(device));
    return tell();
  }
  const Told told;
  fake_device_record(stream_of(device), device.index(),
                     [kept = std::move(operation)](void* stream) { kept.run(stream); });
  tell();
}

// The operators of CUDA that the CPU has not (written_out.cpp).
void add_written_out(torch::Library& library);

}  // namespace fake_device
