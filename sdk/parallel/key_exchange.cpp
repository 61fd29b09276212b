#include "context_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <utility>

#include "sdk/comm/parts.h"
#include "sdk/comm/shared_memory.h"

namespace meshwright::detail {

namespace {

using at::Tensor;

Tensor wide_like(const Tensor& own) {
  return at::empty(own.sizes(), own.options().dtype(attention_compute_type(own.scalar_type())));
}

// The parts of one rank. `gradients`: of the same layout, or undefined.
void add_parts(std::vector<KeyPart>& parts, const Tensor& keys, const Tensor& gradients,
               const std::vector<std::vector<PositionRun>>& runs) {
  for (size_t p = 0; p < runs.size(); ++p) {
    auto of = [&](const Tensor& t, int64_t which) {
      return t.defined() ? t.select(0, which).select(0, static_cast<int64_t>(p)) : Tensor();
    };
    parts.push_back({.runs = runs[p],
                     .key = of(keys, 0),
                     .value = of(keys, 1),
                     .to_key = of(gradients, 0),
                     .to_value = of(gradients, 1),
                     .first = true});
  }
}

class LocalKeys final : public KeyExchange {
 public:
  explicit LocalKeys(std::vector<std::vector<PositionRun>> own) : runs_(std::move(own)) {}
  void forward(const Tensor& own, const VisitKeys& visit) override {
    std::vector<KeyPart> parts;
    add_parts(parts, own, {}, runs_);
    visit(parts);
  }
  Tensor backward(const Tensor& own, const VisitKeys& visit) override {
    Tensor gradients = wide_like(own);
    std::vector<KeyPart> parts;
    add_parts(parts, own, gradients, runs_);
    visit(parts);
    return gradients.to(own.scalar_type());
  }

 private:
  std::vector<std::vector<PositionRun>> runs_;
};

class GatheredKeys final : public KeyExchange {
 public:
  GatheredKeys(std::shared_ptr<Group> group, RunsOfRanks runs)
      : group_(std::move(group)), runs_(std::move(runs)) {}

  void forward(const Tensor& own, const VisitKeys& visit) override {
    Gathered all(own, *group_);
    std::vector<KeyPart> parts;
    for (int64_t r = 0; r < group_->size(); ++r)
      add_parts(parts, all.of(r), {}, runs_[static_cast<size_t>(r)]);
    visit(parts);
  }

  Tensor backward(const Tensor& own, const VisitKeys& visit) override {
    std::vector<int64_t> sizes = own.sizes().vec();
    sizes.insert(sizes.begin(), group_->size());
    at::ScalarType compute = attention_compute_type(own.scalar_type());
    Tensor gradients = at::empty(sizes, own.options().dtype(compute));
    {
      Gathered all(own, *group_);
      std::vector<KeyPart> parts;
      for (int64_t r = 0; r < group_->size(); ++r)
        add_parts(parts, all.of(r), gradients.select(0, r), runs_[static_cast<size_t>(r)]);
      visit(parts);
    }
    // No sum on the way, which would be rounded at every rank.
    PartsSum sum(own.sizes().vec(), own.options(), *group_);
    for (int64_t r = 0; r < group_->size(); ++r)
      if (r != group_->rank()) sum.slot(r).copy_(gradients.select(0, r));
    sum.start();
    Tensor mine = gradients.select(0, group_->rank());
    sum.add_to(mine);
    return mine.to(own.scalar_type());
  }

 private:
  // All ranks' keys; on one host where they lie.
  class Gathered {
   public:
    Gathered(const Tensor& own, Group& group) : own_(own), rank_(group.rank()) {
      auto bytes = static_cast<int64_t>(own.nbytes());
      // One exchange at a time; room for the gradients' way back is made with it.
      if (bytes > 0) reserve(group, bytes, (group.size() - 1) * bytes, /*ahead=*/0);
      if (!maps_gather(group, bytes))
        whole_ = at::empty({group.size() * own.numel()}, own.options());
      work_ = group.all_gather(own.view({-1}), whole_);
      work_.wait();
    }
    Tensor of(int64_t rank) const {
      if (rank == rank_) return own_;
      return (whole_.defined() ? whole_.narrow(0, rank * own_.numel(), own_.numel())
                               : peer(work_, rank))
          .view(own_.sizes());
    }

   private:
    Tensor own_, whole_;
    int64_t rank_;
    Work work_;
  };
  std::shared_ptr<Group> group_;
  RunsOfRanks runs_;
};

class RingKeys final : public KeyExchange {
 public:
  RingKeys(std::shared_ptr<Group> group, RunsOfRanks runs)
      : group_(std::move(group)), runs_(std::move(runs)) {}

  void forward(const Tensor& own, const VisitKeys& visit) override {
    Passing keys(own, *this);
    for (int64_t i = 0; i < group_->size(); ++i) {
      keys.start();
      std::vector<KeyPart> parts;
      add_parts(parts, keys.here(), {}, runs_at(i));
      visit(parts);
      keys.finish();
    }
  }

  Tensor backward(const Tensor& own, const VisitKeys& visit) override {
    const int64_t ranks = group_->size();
    Passing keys(own, *this);
    Tensor share = wide_like(own);  // of this rank's queries for its own keys
    std::array<Tensor, 3> buffers;  // computed into, on its way, coming
    Tensor coming;
    Work under_way;
    for (int64_t i = 0; i < ranks; ++i) {
      keys.start();
      Tensor& made = i == 0 ? share : buffers[static_cast<size_t>(i % 3)];
      if (!made.defined()) made = wide_like(own);
      std::vector<KeyPart> parts;
      add_parts(parts, keys.here(), made, runs_at(i));
      visit(parts);
      keys.finish();
      if (i == 0) continue;
      under_way.wait();
      // What the ranks before this one have for the same keys.
      if (coming.defined()) made.add_(coming);
      Tensor& next = buffers[static_cast<size_t>((i + 2) % 3)];
      if (!next.defined()) next = wide_like(own);
      under_way = pass(made, next);
      coming = next;
    }
    under_way.wait();
    if (!coming.defined()) return share.to(own.scalar_type());
    return coming.add_(share).to(own.scalar_type());
  }

 private:
  int64_t rank_at(int64_t step) const {
    return (group_->rank() - step + group_->size()) % group_->size();
  }
  const std::vector<std::vector<PositionRun>>& runs_at(int64_t step) const {
    return runs_[static_cast<size_t>(rank_at(step))];
  }
  Work pass(const Tensor& from, const Tensor& to) {
    const int64_t ranks = group_->size(), rank = group_->rank();
    const std::array<PeerMessage, 2> messages{
        PeerMessage{PeerMessage::Way::send, (rank + 1) % ranks, from},
        PeerMessage{PeerMessage::Way::receive, (rank + ranks - 1) % ranks, to}};
    return group_->send_receive(messages);
  }

  // The keys that are here now, and the next ones on their way.
  class Passing {
   public:
    Passing(const Tensor& own, RingKeys& ring) : ring_(ring), here_(own) {}
    const Tensor& here() const { return here_; }
    void start() {
      if (++passed_ == ring_.group_->size()) return;
      Tensor& next = buffers_[static_cast<size_t>(passed_ % 2)];
      if (!next.defined()) next = at::empty_like(here_);
      work_ = ring_.pass(here_, next);
      coming_ = next;
    }
    void finish() {
      work_.wait();
      work_ = Work();
      if (passed_ < ring_.group_->size()) here_ = coming_;
    }

   private:
    RingKeys& ring_;
    Tensor here_, coming_;
    std::array<Tensor, 2> buffers_;
    int64_t passed_ = 0;
    Work work_;
  };
  std::shared_ptr<Group> group_;
  RunsOfRanks runs_;
};

class WindowKeys final : public KeyExchange {
 public:
  WindowKeys(std::shared_ptr<Group> group, const ContextSplit& split, int64_t window)
      : group_(std::move(group)), split_(split) {
    const int64_t me = group_->rank();
    for (int64_t chunk : split_.chunks_of(me))
      for (int64_t peer = 0; peer < group_->size(); ++peer)
        if (peer != me && split_.sees(peer, chunk, window)) sent_.push_back({peer, chunk});
    for (int64_t peer = 0; peer < group_->size(); ++peer)
      for (int64_t chunk : split_.chunks_of(peer))
        if (peer != me && split_.sees(me, chunk, window)) received_.push_back({peer, chunk});
  }

  // In one visit: the output is then rounded once.
  void forward(const Tensor& own, const VisitKeys& visit) override {
    Fetched fetched = fetch(own);
    const std::vector<Tensor>& chunks = fetched.wait();
    std::vector<KeyPart> parts;
    add_parts(parts, own, {}, {split_.runs_of(group_->rank())});
    for (size_t i = 0; i < chunks.size(); ++i)
      add_parts(parts, chunks[i], {}, {{run_of(received_[i].chunk)}});
    visit(parts);
  }

  Tensor backward(const Tensor& own, const VisitKeys& visit) override {
    Fetched fetched = fetch(own);
    Tensor mine = wide_like(own);
    std::vector<KeyPart> parts;
    add_parts(parts, own, mine, {split_.runs_of(group_->rank())});
    visit(parts);  // while others' chunks travel
    const std::vector<Tensor>& chunks = fetched.wait();
    std::vector<Tensor> gradients;
    parts.clear();
    for (size_t i = 0; i < chunks.size(); ++i) {
      gradients.push_back(wide_like(chunks[i]));
      add_parts(parts, chunks[i], gradients[i], {{run_of(received_[i].chunk)}});
    }
    if (!parts.empty()) visit(parts);
    std::vector<PeerMessage> messages;
    for (size_t i = 0; i < chunks.size(); ++i)
      messages.push_back(
          {PeerMessage::Way::send, received_[i].peer, gradients[i].to(own.scalar_type())});
    std::vector<Tensor> back;
    for (const Moved& moved : sent_) {
      back.push_back(at::empty_like(chunk_of(own, moved.chunk), at::MemoryFormat::Contiguous));
      messages.push_back({PeerMessage::Way::receive, moved.peer, back.back()});
    }
    group_->send_receive(messages).wait();
    for (size_t i = 0; i < sent_.size(); ++i) chunk_of(mine, sent_[i].chunk).add_(back[i]);
    return mine.to(own.scalar_type());
  }

 private:
  struct Moved {
    int64_t peer, chunk;
  };
  PositionRun run_of(int64_t chunk) const { return {chunk * split_.chunk(), split_.chunk()}; }
  Tensor chunk_of(const Tensor& own, int64_t chunk) const {
    return own.narrow(3, split_.row_of(chunk), split_.chunk());
  }
  // Others' chunks on their way, in the order of `received_`.
  struct Fetched {
    std::vector<Tensor> chunks;
    std::vector<PeerMessage> messages;
    Work under_way;
    const std::vector<Tensor>& wait() {
      under_way.wait();
      under_way = Work();
      messages.clear();
      return chunks;
    }
  };
  Fetched fetch(const Tensor& own) {
    Fetched out;
    for (const Moved& moved : sent_)
      out.messages.push_back(
          {PeerMessage::Way::send, moved.peer, chunk_of(own, moved.chunk).contiguous()});
    std::vector<int64_t> sizes = own.sizes().vec();
    sizes[3] = split_.chunk();
    for (const Moved& moved : received_) {
      out.chunks.push_back(at::empty(sizes, own.options()));
      out.messages.push_back({PeerMessage::Way::receive, moved.peer, out.chunks.back()});
    }
    out.under_way = group_->send_receive(out.messages);
    return out;
  }
  std::shared_ptr<Group> group_;
  ContextSplit split_;
  std::vector<Moved> sent_, received_;
};

}  // namespace

std::unique_ptr<KeyExchange> local_keys(std::vector<std::vector<PositionRun>> own) {
  return std::make_unique<LocalKeys>(std::move(own));
}
std::unique_ptr<KeyExchange> gathered_keys(std::shared_ptr<Group> group, RunsOfRanks runs) {
  return std::make_unique<GatheredKeys>(std::move(group), std::move(runs));
}
std::unique_ptr<KeyExchange> ring_keys(std::shared_ptr<Group> group, RunsOfRanks runs) {
  return std::make_unique<RingKeys>(std::move(group), std::move(runs));
}
std::unique_ptr<KeyExchange> window_keys(std::shared_ptr<Group> group, const ContextSplit& split,
                                         int64_t window) {
  return std::make_unique<WindowKeys>(std::move(group), split, window);
}

}  // namespace meshwright::detail
