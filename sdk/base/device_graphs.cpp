#include "device_graphs.h"

#include <atomic>
#include <chrono>

#include "device_waits.h"

namespace meshwright {

namespace {

std::atomic<const DeviceGraphs*> graphs_of_process{nullptr};
std::atomic<const DeviceKernels*> kernels_of_process{nullptr};

}  // namespace

DeviceGraph::~DeviceGraph() = default;

void set_device_graphs(const DeviceGraphs* graphs) { graphs_of_process = graphs; }
const DeviceGraphs* device_graphs() { return graphs_of_process; }
void set_device_kernels(const DeviceKernels* kernels) { kernels_of_process = kernels; }
const DeviceKernels* device_kernels() { return kernels_of_process; }

}  // namespace meshwright

namespace meshwright::detail {

namespace {

thread_local int64_t waited_of_thread = 0;

int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

int64_t waited_ns() noexcept { return waited_of_thread; }

Waiting::Waiting() noexcept : since_(now_ns()) {}
Waiting::~Waiting() { waited_of_thread += now_ns() - since_; }

}  // namespace meshwright::detail
