// NCCL: every operation is its own, on the device's streams.
#include <ATen/core/Tensor.h>

#include "c10d_flight.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

class NcclTransport final : public Transport {
 public:
  NcclTransport(c10::intrusive_ptr<c10d::Backend> backend, at::Device device) : backend_(std::move(backend)), device_(device) {}
  bool has_native_reduce_scatter() const override { return true; }
  bool runs_on_device() const override { return true; }
  void abort() override { backend_->abort(); }

  FlightPtr all_gather(const Tensor& shard, const Tensor& whole) override {
    Tensor in = shard, out = whole;
    return flight(backend_->_allgather_base(out, in));
  }
  FlightPtr reduce_scatter(const Tensor& packed, const Tensor& shard) override {
    Tensor in = packed, out = shard;
    return flight(backend_->_reduce_scatter_base(out, in));
  }
  FlightPtr pairwise_exchange(const Tensor& packed, const Tensor& received) override {
    int64_t n = backend_->getSize(), me = backend_->getRank(), slots = packed.numel() == received.numel() ? n - 1 : n;
    std::vector<PeerMessage> messages;
    for (int64_t peer = 0, place = 0; peer < n; ++peer) {
      if (peer == me) continue;
      int64_t from = slots == n ? peer : place;
      messages.push_back({PeerMessage::Way::send, peer, packed.chunk(slots)[static_cast<size_t>(from)]});
      messages.push_back({PeerMessage::Way::receive, peer, received.chunk(n - 1)[static_cast<size_t>(place++)]});
    }
    return send_receive(messages);
  }
  FlightPtr all_reduce(const Tensor& tensor, ReduceOp op, bool /*control*/) override {
    std::vector<Tensor> tensors = one(tensor);
    return flight(backend_->allreduce(tensors, reduced_by(op)));
  }
  FlightPtr broadcast(const Tensor& tensor, int64_t root) override {
    std::vector<Tensor> tensors = one(tensor);
    return flight(backend_->broadcast(tensors, from_root(root)));
  }
  FlightPtr all_to_all(const Tensor& in, std::span<const int64_t> in_splits, const Tensor& out,
                       std::span<const int64_t> out_splits) override {
    Tensor from = in, into = out;
    std::vector<int64_t> a(in_splits.begin(), in_splits.end()), b(out_splits.begin(), out_splits.end());
    return flight(backend_->alltoall_base(into, from, b, a));
  }
  // One group call: NCCL starts all of them together, so that none waits for another one's turn.
  FlightPtr send_receive(std::span<const PeerMessage> messages) override {
    auto out = std::make_unique<C10dFlight>();
    out->name_peer_of(messages);
    bool together = messages.size() > 1 && backend_->supportsCoalescing();
    if (together) backend_->startCoalescing();
    for (const PeerMessage& message : messages) {
      std::vector<Tensor> tensors = one(message.tensor);
      auto peer = static_cast<int>(message.peer);
      auto handle = message.way == PeerMessage::Way::send ? backend_->send(tensors, peer, 0) : backend_->recv(tensors, peer, 0);
      if (!together) out->start(std::move(handle));
    }
    if (together) out->start(backend_->endCoalescing());
    return out;
  }
  FlightPtr barrier() override {
    c10d::BarrierOptions options;
    options.device = device_;
    return flight(backend_->barrier(options));
  }
  Tensor registered_memory(int64_t bytes) override {
    if (!backend_->supportsTensorAlloc(device_.index())) return {};
    return backend_->allocateTensor(bytes, at::TensorOptions().dtype(at::kByte).device(device_));
  }

 private:
  static FlightPtr flight(C10dFlight::Handle handle) {
    auto out = std::make_unique<C10dFlight>();
    out->start(std::move(handle));
    return out;
  }
  c10::intrusive_ptr<c10d::Backend> backend_;
  at::Device device_;
};

}  // namespace

std::shared_ptr<Transport> nccl_transport(c10::intrusive_ptr<c10d::Backend> backend, at::Device device) {
  return std::make_shared<NcclTransport>(std::move(backend), device);
}

}  // namespace meshwright::detail
