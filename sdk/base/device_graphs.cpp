#include "device_graphs.h"

#include <atomic>

namespace meshwright {

namespace {

std::atomic<const DeviceGraphs*> graphs_of_process{nullptr};

}  // namespace

DeviceGraph::~DeviceGraph() = default;

void set_device_graphs(const DeviceGraphs* graphs) { graphs_of_process = graphs; }
const DeviceGraphs* device_graphs() { return graphs_of_process; }

}  // namespace meshwright
