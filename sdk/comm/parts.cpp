#include "parts.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "group_impl.h"
#include "shared_memory.h"

namespace meshwright::detail {

using at::Tensor;

void make_room(Group& group, int64_t bytes) {
  if (bytes > 0 && !maps_gather(group, bytes)) reserve(group, bytes, bytes, /*ahead=*/2);
}

Tensor where_sent(const Tensor& tensor, const Group& group) {
  return tensor.to(GroupAccess::of(group).device);
}

PartsGather::PartsGather(const Tensor& own, int64_t dim, Group& group)
    : group_(group), dim_(dim), own_(own.contiguous()) {
  auto bytes = static_cast<int64_t>(own_.nbytes());
  make_room(group_, bytes);
  if (!maps_gather(group_, bytes))
    flat_ = at::empty({group_.size() * own_.numel()}, own_.options());
  under_way_ = group_.all_gather(own_.view({-1}), flat_);
}

Tensor PartsGather::whole() {
  int64_t each = own_.size(dim_), count = own_.numel();
  std::vector<int64_t> sizes = own_.sizes().vec();
  sizes[static_cast<size_t>(dim_)] *= group_.size();
  Tensor out = at::empty(sizes, own_.options());
  out.narrow(dim_, group_.rank() * each, each).copy_(own_);
  under_way_.wait();
  for (int64_t r = 0; r < group_.size(); ++r)
    if (r != group_.rank())
      out.narrow(dim_, r * each, each)
          .copy_((flat_.defined() ? flat_.narrow(0, r * count, count) : peer(under_way_, r))
                     .view(own_.sizes()));
  under_way_ = Work();
  own_ = flat_ = Tensor();
  return out;
}

PartsSum::PartsSum(std::vector<int64_t> part_shape, const at::TensorOptions& options, Group& group)
    : group_(group), shape_(std::move(part_shape)) {
  for (int64_t size : shape_) each_ *= size;
  at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  int64_t count = (group_.size() - 1) * each_,
          bytes = count * static_cast<int64_t>(c10::elementSize(type));
  if (!maps_exchange(group_, bytes)) make_room(group_, bytes);
  mapped_ = maps_exchange(group_, bytes);
  packed_ = mapped_ ? stage(group_, count, type) : at::empty({count}, options);
  if (!mapped_) received_ = at::empty({count}, options);
}

int64_t PartsSum::place(int64_t rank) const { return rank < group_.rank() ? rank : rank - 1; }

Tensor PartsSum::slot(int64_t rank) const {
  return packed_.narrow(0, place(rank) * each_, each_).view(shape_);
}

void PartsSum::start() { under_way_ = group_.pairwise_exchange(packed_, received_); }

Tensor PartsSum::part(int64_t rank) const {
  return (mapped_ ? peer(under_way_, rank) : received_.narrow(0, place(rank) * each_, each_))
      .view(shape_);
}

Tensor PartsSum::add_up(const Tensor& own) {
  under_way_.wait();
  auto any = [&](int64_t rank) { return rank == group_.rank() ? own : part(rank); };
  Tensor sum = at::add(any(0), any(1));
  for (int64_t r = 2; r < group_.size(); ++r) sum.add_(any(r));
  return sum;
}

void PartsSum::add_to(Tensor& own) {
  under_way_.wait();
  // In slices: what is of another dtype is copied to be added.
  for (int64_t r = 0; r < group_.size(); ++r)
    for (int64_t i = 0; r != group_.rank() && i < own.size(0); ++i)
      own.select(0, i).add_(part(r).select(0, i));
}

bool wants_shared_memory() {
  const char* setting = std::getenv("MESHWRIGHT_SHARED_MEMORY");
  return setting == nullptr || std::string_view(setting) != "0";
}

std::unique_ptr<SharedMemoryRing> make_ring(int64_t rank, int64_t ranks,
                                            const SharedMemoryRing::Sizes& sizes,
                                            const std::function<void(const at::Tensor&)>& sum) {
  const bool wanted = ranks <= 64 && wants_shared_memory();
  // The same sums on every rank, whatever becomes of its part.
  at::Tensor name = at::zeros({64}, at::kByte), came = at::zeros({1}, at::kDouble),
             all = at::zeros({1}, at::kDouble);
  std::unique_ptr<SharedMemoryRing> ring;
  std::optional<FileHandle> file;
  std::optional<FileListener> listener;
  if (rank == 0 && wanted) {
    file.emplace(unnamed_memory(SharedMemoryRing::bytes_of(ranks, sizes)));
    if (*file) ring = SharedMemoryRing::over(*file, ranks, sizes);
    if (ring) listener.emplace();
    if (listener)
      std::memcpy(name.mutable_data_ptr(), listener->name().data(), listener->name().size());
  }
  sum(name);  // the others add zeros
  std::optional<FileClient> client;
  const auto* text = static_cast<const char*>(name.const_data_ptr());
  if (text[0] != 0 && wanted && rank != 0) client.emplace(text);
  came.fill_(client && *client ? 1.0 : 0.0);
  sum(came);  // whoever can come stands at the listener
  if (listener) listener->hand_out(*file);
  if (client && *client)
    if (const FileHandle taken = client->take(); taken)
      ring = SharedMemoryRing::over(taken, ranks, sizes);
  if (ring) ring->enter(rank);
  all.fill_(ring ? 1.0 : 0.0);
  sum(all);
  return all.item<double>() == static_cast<double>(ranks) ? std::move(ring) : nullptr;
}

}  // namespace meshwright::detail
