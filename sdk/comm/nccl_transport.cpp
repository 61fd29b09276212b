// NCCL: every operation is its own, on the device's streams.
#include <ATen/core/Tensor.h>

#include <exception>
#include <utility>

#include "c10d_flight.h"
#include "joint_collectives.h"
#include "meshwright/error.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

class NcclTransport final : public Transport, public RunsByItself, public JointCollectives {
 public:
  NcclTransport(c10::intrusive_ptr<c10d::Backend> backend, at::Device device)
      : backend_(std::move(backend)), device_(device) {}
  bool has_native_reduce_scatter() const override { return true; }
  bool runs_on_device() const override { return true; }
  void abort() override { backend_->abort(); }
  void shut_down() override { backend_->shutdown(); }
  std::optional<std::string> failure() override {
    try {
      switch (backend_->getError()) {
        case c10d::ErrorType::SUCCESS:
          return std::nullopt;
        case c10d::ErrorType::TIMEOUT:
          return "NCCL timed out";
        case c10d::ErrorType::COMM_ERROR:
          return "NCCL's communicator failed";
        case c10d::ErrorType::REMOTE_ERROR:
          return "NCCL found that another rank has failed";
      }
    } catch (const c10::Error&) {  // a back end that cannot say it
    }
    return std::nullopt;
  }

  FlightPtr all_gather(const Tensor& shard, const Tensor& whole) override {
    Tensor in = shard, out = whole;
    return flight(backend_->_allgather_base(out, in));
  }
  FlightPtr reduce_scatter(const Tensor& packed, const Tensor& shard) override {
    Tensor in = packed, out = shard;
    return flight(backend_->_reduce_scatter_base(out, in));
  }
  FlightPtr all_gather_each(std::vector<Tensor> shards, std::vector<Tensor> wholes) override {
    if (shards.size() == 1) return all_gather(shards[0], wholes[0]);
    return flight(backend_->allgather_into_tensor_coalesced(wholes, shards));
  }
  FlightPtr reduce_scatter_each(std::vector<Tensor> wholes, std::vector<Tensor> shards,
                                double scale) override {
    c10d::ReduceScatterOptions options;
    if (scale != 1) options.reduceOp = c10d::makeNCCLPreMulSum(scale);
    if (shards.size() == 1)
      return flight(backend_->_reduce_scatter_base(shards[0], wholes[0], options));
    return flight(backend_->reduce_scatter_tensor_coalesced(shards, wholes, options));
  }
  FlightPtr pairwise_exchange(const Tensor& packed, const Tensor& received) override {
    int64_t n = backend_->getSize(), me = backend_->getRank(),
            slots = packed.numel() == received.numel() ? n - 1 : n;
    std::vector<Tensor> out = packed.chunk(slots), in = received.chunk(n - 1);
    std::vector<PeerMessage> messages;
    for (int64_t peer = 0, place = 0; peer < n; ++peer) {
      if (peer == me) continue;
      messages.push_back(
          {PeerMessage::Way::send, peer, out[static_cast<size_t>(slots == n ? peer : place)]});
      messages.push_back({PeerMessage::Way::receive, peer, in[static_cast<size_t>(place++)]});
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
    std::vector<int64_t> a(in_splits.begin(), in_splits.end()),
        b(out_splits.begin(), out_splits.end());
    return flight(backend_->alltoall_base(into, from, b, a));
  }
  // One group call, also of one message: NCCL starts all of them together, so that none waits for
  // another one's turn, and all travel by the group's own communicator (a message alone would make
  // one of its pair, where the other rank may not be).
  FlightPtr send_receive(std::span<const PeerMessage> messages) override {
    for (const PeerMessage& message : messages)
      if (message.tensor.device() != device_ || !message.tensor.is_contiguous())
        throw Error(ErrorCode::internal,
                    "a message for NCCL is not contiguous on " + device_.str());
    auto out = std::make_unique<C10dFlight>();
    out->name_peer_of(messages);
    // Ends the call also when a message fails, or everything after it would wait for that.
    struct Together {
      c10d::Backend* backend;
      ~Together() {
        if (backend == nullptr) return;
        try {
          backend->endCoalescing();
        } catch (const std::exception&) {
        }
      }
    };
    Together together{backend_->supportsCoalescing() ? backend_.get() : nullptr};
    if (together.backend != nullptr) backend_->startCoalescing();
    for (const PeerMessage& message : messages) {
      std::vector<Tensor> tensors = one(message.tensor);
      auto peer = static_cast<int>(message.peer);
      auto handle = message.way == PeerMessage::Way::send ? backend_->send(tensors, peer, 0)
                                                          : backend_->recv(tensors, peer, 0);
      if (together.backend == nullptr) out->start(std::move(handle));
    }
    if (together.backend != nullptr)
      out->start(std::exchange(together.backend, nullptr)->endCoalescing());
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

std::shared_ptr<Transport> nccl_transport(c10::intrusive_ptr<c10d::Backend> backend,
                                          at::Device device) {
  return std::make_shared<NcclTransport>(std::move(backend), device);
}

}  // namespace meshwright::detail
