#include "device_graphs.h"

#include <atomic>

namespace meshwright {

namespace {

std::atomic<const DeviceGraphs*> graphs_of_process{nullptr};

}  // namespace

DeviceGraph::~DeviceGraph() = default;

void set_device_graphs(const DeviceGraphs* graphs) { graphs_of_process = graphs; }
const DeviceGraphs* device_graphs() { return graphs_of_process; }

namespace {

std::atomic<const DeviceKernels*> kernels_of_process{nullptr};

}  // namespace

void set_device_kernels(const DeviceKernels* kernels) { kernels_of_process = kernels; }
const DeviceKernels* device_kernels() { return kernels_of_process; }

}  // namespace meshwright
