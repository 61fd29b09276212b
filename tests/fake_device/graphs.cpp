#include "graphs.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "runtime.h"

namespace fake_device {

// One thing of a graph, on one of its lanes: an operation, a mark (an event that is recorded), or a
// wait for a mark.
struct Node {
  enum class Kind { operation, mark, wait };
  Kind kind = Kind::operation;
  size_t lane = 0, mark = 0;
  std::function<void(void* stream)> run;
};

struct Graph {
  int device = 0;
  size_t lanes = 1, marks = 0;
  std::vector<Node> nodes;
  Costs costs;
  size_t operations() const {
    return static_cast<size_t>(std::count_if(nodes.begin(), nodes.end(), [](const Node& node) {
      return node.kind == Node::Kind::operation;
    }));
  }
};

struct Capture {
  unsigned long long id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool invalid = false;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  std::vector<Stream*> lanes;  // the first is the one that it began on
  // Of each lane and mark: how much of each lane is before it.
  std::vector<Clock> reached, marks;
};

namespace {

struct Executable {
  std::shared_ptr<const Graph> graph;
  std::vector<Stream*> lanes;  // but the first, which is that of the launch
  std::shared_ptr<Clock> over = std::make_shared<Clock>();  // its launch before, if any
};
struct Handle {
  std::shared_ptr<const Graph> graph;
};

std::vector<std::unique_ptr<Capture>>& captures() {
  static auto* all = new std::vector<std::unique_ptr<Capture>>;  // under way
  return *all;
}
thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;
thread_local Costs* costs = nullptr;

cudaError_t invalidate(Capture& capture, cudaError_t error) {
  capture.invalid = true;
  return fail(error);
}

Capture* capture_with(unsigned long long id) {
  for (const auto& capture : captures())
    if (capture->id == id) return capture.get();
  return nullptr;
}

void push(Capture& capture, size_t lane, Node node) {
  Clock& reached = capture.reached[lane];
  if (reached.size() <= lane) reached.resize(lane + 1);
  ++reached[lane];
  node.lane = lane;
  capture.graph->nodes.push_back(std::move(node));
}

// The stream becomes a part of the capture.
void take_in(Capture& capture, Stream& stream) {
  stream.capture = &capture;
  stream.lane = capture.lanes.size();
  capture.lanes.push_back(&stream);
  capture.reached.emplace_back();
  capture.graph->lanes = capture.lanes.size();
}

// Whether all lanes come before the end of the first one.
bool is_joined(const Capture& capture) {
  for (size_t lane = 1; lane < capture.lanes.size(); ++lane)
    if (at(capture.reached[0], lane) < at(capture.reached[lane], lane)) return false;
  return true;
}

// Uses of a device's own stream would wait for a captured stream that blocks it.
Capture* blocked_by(const Stream& stream) {
  if (!stream.legacy) return nullptr;
  for (const auto& capture : captures())
    for (const Stream* lane : capture->lanes)
      if (lane->blocks && lane->device == stream.device) return capture.get();
  return nullptr;
}

struct CostsGoTo {
  explicit CostsGoTo(Costs* to) : before(std::exchange(costs, to)) {}
  ~CostsGoTo() { costs = before; }
  CostsGoTo(const CostsGoTo&) = delete;
  CostsGoTo& operator=(const CostsGoTo&) = delete;
  Costs* before;
};

// Launches of one executable graph come one after the other, whatever their streams.
void launch(const Executable& made, Stream& stream) {
  const Graph& graph = *made.graph;
  Costs all = graph.costs;
  {
    Lock lock;
    join(stream.clock, *made.over);
  }
  {
    const CostsGoTo told(&all);
    std::vector<Clock> marks(graph.marks);
    for (const Node& node : graph.nodes) {
      Stream& lane = node.lane == 0 ? stream : *made.lanes[node.lane - 1];
      if (node.kind == Node::Kind::operation) {
        node.run(&lane);
        continue;
      }
      Lock lock;
      if (node.kind == Node::Kind::wait) {
        join(lane.clock, marks[node.mark]);
      } else {
        start(lane);
        marks[node.mark] = lane.clock;
      }
    }
  }
  {
    Lock lock;
    *made.over = stream.clock;
  }
  fake_device_launched("cudaGraphLaunch", 1, all.read, all.written);
}

std::vector<Stream*> make_lanes(const Graph& graph) {
  std::vector<Stream*> out;
  for (size_t lane = 1; lane < graph.lanes; ++lane) out.push_back(make_stream(graph.device));
  return out;
}

}  // namespace

Costs* costs_of_graph() { return costs; }

int capture_state(Stream& stream) {
  if (Capture* blocked = blocked_by(stream))
    return invalidate(*blocked, cudaErrorStreamCaptureImplicit);
  if (stream.capture == nullptr) return 0;
  return stream.capture->invalid ? static_cast<int>(fail(cudaErrorStreamCaptureInvalidated))
                                 : kRecords;
}

void record(Stream& stream, std::function<void(void*)> run) {
  Node node;
  node.run = std::move(run);
  push(*stream.capture, stream.lane, std::move(node));
}

cudaError_t refuse_on(Stream& stream) {
  if (Capture* blocked = blocked_by(stream))
    return invalidate(*blocked, cudaErrorStreamCaptureImplicit);
  return stream.capture == nullptr ? cudaSuccess
                                   : invalidate(*stream.capture, cudaErrorStreamCaptureUnsupported);
}

cudaError_t refuse_unsafe() {
  if (mode_of_thread == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  for (const auto& capture : captures()) {
    const bool mine = capture->thread == std::this_thread::get_id();
    const bool forbids = mine ? capture->mode != cudaStreamCaptureModeRelaxed
                              : capture->mode == cudaStreamCaptureModeGlobal &&
                                    mode_of_thread == cudaStreamCaptureModeGlobal;
    if (forbids) return invalidate(*capture, cudaErrorStreamCaptureUnsupported);
  }
  return cudaSuccess;
}

cudaError_t refuse_device(int device) {
  for (const auto& capture : captures())
    for (const Stream* lane : capture->lanes)
      if (lane->device == device) return invalidate(*capture, cudaErrorStreamCaptureUnsupported);
  return cudaSuccess;
}

cudaError_t refuse_event(const Event& event) {
  if (event.capture == 0) return cudaSuccess;
  Capture* capture = capture_with(event.capture);
  return capture != nullptr ? invalidate(*capture, cudaErrorCapturedEvent)
                            : fail(cudaErrorCapturedEvent);
}

bool record_event(Stream& stream, Event& event) {
  event.capture = 0;
  if (stream.capture == nullptr) return false;
  Capture& capture = *stream.capture;
  Node node;
  node.kind = Node::Kind::mark;
  node.mark = capture.graph->marks++;
  event.capture = capture.id;
  event.mark = node.mark;
  push(capture, stream.lane, std::move(node));
  capture.marks.push_back(capture.reached[stream.lane]);
  return true;
}

bool wait_in_capture(Stream& stream, const Event& event, cudaError_t& result) {
  result = cudaSuccess;
  if (event.capture == 0) {
    if (stream.capture == nullptr) return false;
    if (event.recorded) result = invalidate(*stream.capture, cudaErrorStreamCaptureIsolation);
    return true;
  }
  Capture* capture = capture_with(event.capture);
  if (capture == nullptr) {
    result = fail(cudaErrorCapturedEvent);
  } else if (stream.capture != nullptr && stream.capture != capture) {
    invalidate(*stream.capture, cudaErrorStreamCaptureMerge);
    result = invalidate(*capture, cudaErrorStreamCaptureMerge);
  } else if (stream.legacy) {
    result = invalidate(*capture, cudaErrorStreamCaptureImplicit);
  } else {
    if (stream.capture == nullptr) take_in(*capture, stream);
    Node node;
    node.kind = Node::Kind::wait;
    node.mark = event.mark;
    join(capture->reached[stream.lane], capture->marks[event.mark]);
    push(*capture, stream.lane, std::move(node));
  }
  return true;
}

void spoil(Stream& stream, const char* what) {
  if (stream.capture->invalid) return;
  fprintf(log_file(), "fake device: [%s] cannot be captured here\n",
          what != nullptr ? what : "an operation");
  invalidate(*stream.capture, cudaErrorStreamCaptureUnsupported);
}

}  // namespace fake_device

using namespace fake_device;

extern "C" {

int fake_device_capture(void* stream, int device) {
  Lock lock;
  return capture_state(*stream_of(static_cast<cudaStream_t>(stream), device));
}
void fake_device_record(void* stream, int device, std::function<void(void*)> run) {
  Lock lock;
  Stream& on = *stream_of(static_cast<cudaStream_t>(stream), device);
  record(on, std::move(run));
  costs = &on.capture->graph->costs;
}
void fake_device_recorded() { costs = nullptr; }

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Lock lock;
  Stream& stream = *stream_of(handle);
  if (stream.legacy) return fail(cudaErrorStreamCaptureUnsupported);
  if (stream.capture != nullptr) return fail(cudaErrorIllegalState);
  static unsigned long long last = 0;
  auto made = std::make_unique<Capture>();
  made->id = ++last;
  made->mode = mode;
  made->thread = std::this_thread::get_id();
  made->graph->device = stream.device;
  take_in(*made, stream);
  captures().push_back(std::move(made));
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* out) {
  Lock lock;
  *out = nullptr;
  Capture* capture = stream_of(handle)->capture;
  if (capture == nullptr) return fail(cudaErrorIllegalState);
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id())
    return fail(cudaErrorStreamCaptureWrongThread);
  if (capture->lanes[0] != stream_of(handle))
    return invalidate(*capture, cudaErrorStreamCaptureUnmatched);
  for (Stream* lane : capture->lanes) lane->capture = nullptr;
  cudaError_t result = cudaSuccess;
  if (capture->invalid)
    result = fail(cudaErrorStreamCaptureInvalidated);
  else if (!is_joined(*capture))
    result = fail(cudaErrorStreamCaptureUnjoined);
  else
    *out = reinterpret_cast<cudaGraph_t>(new Handle{std::move(capture->graph)});
  std::erase_if(captures(), [&](const auto& other) { return other.get() == capture; });
  return result;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  Lock lock;
  const Capture* capture = stream_of(stream)->capture;
  *status = capture == nullptr ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  if (id != nullptr) *id = capture != nullptr ? capture->id : 0;
  if (graph != nullptr) *graph = nullptr;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, mode_of_thread);
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes != nullptr) return fail(cudaErrorNotSupported);
  *count = reinterpret_cast<const Handle*>(graph)->graph->operations();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t graph,
                                          unsigned long long) {
  Lock lock;
  auto* made = new Executable;
  made->graph = reinterpret_cast<const Handle*>(graph)->graph;
  made->lanes = make_lanes(*made->graph);
  *out = reinterpret_cast<cudaGraphExec_t>(made);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph,
                                 unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(out, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t handle) {
  const Executable made = *reinterpret_cast<const Executable*>(graph);
  Stream* stream = nullptr;
  {
    Lock lock;
    stream = stream_of(handle);
    const int state = capture_state(*stream);
    if (state > 0) return static_cast<cudaError_t>(state);
    if (state == kRecords) {  // a graph within a graph
      record(*stream, [made](void* on) { launch(made, *static_cast<Stream*>(on)); });
      return cudaSuccess;
    }
  }
  launch(made, *stream);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Handle*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<Executable*>(graph);
  return cudaSuccess;
}
}
