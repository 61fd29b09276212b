// An operation under way in a back end of LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "sdk/base/transport.h"

namespace meshwright::detail {

class C10dFlight : public Flight {
 public:
  using Handle = c10::intrusive_ptr<c10d::Work>;
  void start(Handle handle) {
    if (handle) handles_.push_back(std::move(handle));
  }
  void wait() override {
    for (Handle& handle : handles_) handle->wait();
  }
  std::span<const Handle> handles() const override { return handles_; }
  int64_t awaited() const override { return awaited_; }
  // The one rank that all these messages go to or come from.
  void name_peer_of(std::span<const PeerMessage> messages) {
    for (const PeerMessage& message : messages)
      if (message.peer != messages[0].peer) return;
    awaited_ = messages[0].peer;
  }

 private:
  std::vector<Handle> handles_;
  int64_t awaited_ = -1;
};

// A transport whose back end goes on after the host.
class RunsByItself {
 public:
  virtual ~RunsByItself() = default;
  // What it has found out.
  virtual std::optional<std::string> failure() = 0;
  // Collective. All that it runs ends first, so it may never return.
  virtual void shut_down() = 0;
};

// The back end takes lists of tensors, each of one.
inline std::vector<at::Tensor> one(const at::Tensor& tensor) { return {tensor}; }

inline c10d::BroadcastOptions from_root(int64_t root) {
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return options;
}

inline c10d::AllreduceOptions reduced_by(ReduceOp op) {
  c10d::AllreduceOptions options;
  options.reduceOp = op == ReduceOp::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
  return options;
}

std::shared_ptr<Transport> gloo_transport(std::vector<c10::intrusive_ptr<c10d::Backend>> backends);
std::shared_ptr<Transport> nccl_transport(c10::intrusive_ptr<c10d::Backend> backend,
                                          at::Device device);

}  // namespace meshwright::detail
