#include "engine/train/batches.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "meshwright/error.h"
#include "sdk/files/clock.h"

namespace meshwright::train {

using at::Tensor;

// On the host, pinned where a device copies from it; the copy goes on while the host reads the next
// rows, and the allocator of pinned memory keeps these until then.
struct Batches::Memory {
  Tensor ids;  // tokens, targets and positions one behind the other, for one copy
  Tensor tokens, targets, documents, positions, weights;
};

namespace {

// From 0 in each document.
void fill_positions(const Tensor& documents, const Tensor& positions) {
  const auto* document = documents.const_data_ptr<int32_t>();
  auto* out = positions.mutable_data_ptr<int64_t>();
  const int64_t length = documents.size(1);
  for (int64_t i = 0; i < documents.numel(); ++i)
    out[i] = i % length == 0 || document[i] != document[i - 1] ? 0 : out[i - 1] + 1;
}

}  // namespace

Batches::Batches(std::shared_ptr<const SampleSource> source, data::Sampler sampler,
                 BatchOrder order, Settings settings)
    : source_(source),
      order_(order),
      settings_(std::move(settings)),
      // Every thread has a row to read while the rows of a micro-batch are used.
      ahead_(settings_.workers == 0
                 ? 0
                 : 1 + (settings_.workers + settings_.rows - 1) / settings_.rows),
      reader_(
          std::move(source), sampler,
          {.seq_len = settings_.seq_len, .rows = settings_.rows, .workers = settings_.workers}) {
  for (int64_t i = 0; i < ahead_ && (order_.again || i < order_.count); ++i)
    slots_.push_back(begin(i));
}

Batches::Slot Batches::begin(int64_t number) {
  Slot slot;
  slot.memory = std::make_shared<Memory>();
  auto room = [&](at::ScalarType type, int64_t many) {
    return at::empty({many, settings_.rows, settings_.seq_len},
                     at::TensorOptions(type).pinned_memory(!settings_.device.is_cpu()));
  };
  Memory& memory = *slot.memory;
  data::BatchMemory raw;
  memory.ids = room(at::kLong, source_->has_documents() ? 3 : 2);
  memory.tokens = memory.ids.select(0, 0);
  memory.targets = memory.ids.select(0, 1);
  raw.tokens = memory.tokens.mutable_data_ptr<int64_t>();
  raw.targets = memory.targets.mutable_data_ptr<int64_t>();
  if (source_->has_documents()) {
    memory.documents = room(at::kInt, 1).select(0, 0);
    memory.positions = memory.ids.select(0, 2);
    raw.documents = memory.documents.mutable_data_ptr<int32_t>();
  }
  if (source_->has_weights()) {
    memory.weights = room(at::kFloat, 1).select(0, 0);
    raw.weights = memory.weights.mutable_data_ptr<float>();
  }
  raw.owner = slot.memory;
  const int64_t place = order_.again ? number % order_.count : number;
  slot.task = reader_.begin(order_.first + place * order_.stride, std::move(raw));
  return slot;
}

void Batches::change(int64_t number, Memory& memory) const {
  if (!settings_.change) return;
  const int64_t place = order_.again ? number % order_.count : number;
  HostBatch batch;
  batch.tokens = memory.tokens;
  batch.targets = memory.targets;
  batch.sample = order_.first + place * order_.stride;
  settings_.change(batch);
  for (auto [changed, mine] :
       {std::pair(&batch.tokens, &memory.tokens), std::pair(&batch.targets, &memory.targets)}) {
    if (changed->is_same(*mine)) continue;
    if (changed->sizes() != mine->sizes() || changed->scalar_type() != at::kLong)
      throw Error(ErrorCode::plugin_nonconforming,
                  "change_batch() of the model changed the shape or the type of tokens or targets")
          .help("leave them int64 [rows, length]");
    mine->copy_(*changed);
  }
}

MicroBatch Batches::move_to_device(const std::shared_ptr<Memory>& memory) const {
  auto moved = [&](const Tensor& host) {
    return host.defined() && !settings_.device.is_cpu()
               ? host.to(settings_.device, /*non_blocking=*/true)
               : host;
  };
  if (memory->documents.defined()) fill_positions(memory->documents, memory->positions);
  const Tensor ids = moved(memory->ids);
  MicroBatch out{.tokens = ids.select(0, 0),
                 .targets = ids.select(0, 1),
                 .documents = moved(memory->documents),
                 .positions = memory->positions.defined() ? ids.select(0, 2) : Tensor(),
                 .weights = moved(memory->weights),
                 .host_targets = memory->targets.const_data_ptr<int64_t>(),
                 .host = memory};
  if (memory->weights.defined()) out.host_weights = memory->weights.const_data_ptr<float>();
  if (memory->documents.defined()) out.host_documents = memory->documents.const_data_ptr<int32_t>();
  return out;
}

const MicroBatch& Batches::at(int64_t number) {
  const int64_t end = order_.again ? number + 1 + ahead_ : order_.count;
  while (begin_ + static_cast<int64_t>(slots_.size()) < std::min(number + 1 + ahead_, end))
    slots_.push_back(begin(begin_ + static_cast<int64_t>(slots_.size())));
  Slot& slot = slots_.at(static_cast<size_t>(number - begin_));
  if (slot.batch.tokens.defined()) return slot.batch;
  const auto since = std::chrono::steady_clock::now();
  reader_.wait(slot.task, settings_.while_waiting);
  waited_ms_ += base::ms_since(since);
  change(number, *slot.memory);
  slot.batch = move_to_device(slot.memory);
  slot.memory.reset();
  slot.task.reset();
  return slot.batch;
}

void Batches::forget_before(int64_t number) {
  for (; begin_ < number && !slots_.empty(); ++begin_) slots_.pop_front();
  if (slots_.empty()) begin_ = std::max(begin_, number);
}

double Batches::take_waited_ms() { return std::exchange(waited_ms_, 0); }

}  // namespace meshwright::train
