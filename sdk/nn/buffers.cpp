#include "buffers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "sdk/base/held_memory.h"
#include "sdk/base/vectorised.h"

extern "C" __attribute__((weak, visibility("default"))) void fake_device_name(const void* memory,
                                                                              size_t bytes,
                                                                              const char* name);

namespace meshwright::detail {

namespace {

// A name per kind and unit, so that it stays as small as the model; memory that went is found by
// its storage, which is not held.
class Names {
 public:
  void put(const at::Tensor& tensor, const char* what, const std::string& unit) {
    std::lock_guard lock(mutex_);
    auto place = names_.find(std::tie(what, unit));
    if (place == names_.end()) place = names_.emplace(std::pair(what, unit), Named()).first;
    Named& named = place->second;
    const void* begin = tensor.const_data_ptr();
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    if (named.begin == begin && named.bytes == bytes &&
        named.storage._unsafe_get_target() == storage)
      return;
    named = {tensor.storage().getWeakStorageImpl(), begin, bytes, tensor.is_cpu()};
  }
  std::vector<HeldMemory> there() {
    std::lock_guard lock(mutex_);
    std::vector<HeldMemory> out;
    for (const auto& [key, named] : names_)
      if (is_there(named))
        out.push_back({key.first, key.second, named.begin, named.bytes, named.on_host});
    return out;
  }

 private:
  struct Named {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{
        c10::intrusive_ptr<c10::StorageImpl>()};  // none
    const void* begin = nullptr;
    int64_t bytes = 0;
    bool on_host = true;
  };
  // Tensors whose memory is given back for a while stay, and throw when they are asked for it.
  static bool is_there(const Named& named) {
    const c10::intrusive_ptr<c10::StorageImpl> storage = named.storage.lock();
    if (!storage) return false;
    const auto* memory = static_cast<const char*>(storage->_mutable_data_ptr_no_checks().get());
    return memory != nullptr && memory <= named.begin &&
           static_cast<const char*>(named.begin) + named.bytes <= memory + storage->nbytes();
  }
  struct Before {
    using is_transparent = void;
    template <class A, class B>
    bool operator()(const A& a, const B& b) const {
      return std::less<const char*>()(std::get<0>(a), std::get<0>(b)) ||
             (std::get<0>(a) == std::get<0>(b) && std::get<1>(a) < std::get<1>(b));
    }
  };
  std::mutex mutex_;
  std::map<std::pair<const char*, std::string>, Named, Before> names_;
};

Names& names() {
  static auto* all = new Names;  // tensors outlive main
  return *all;
}

}  // namespace

void name_memory(const at::Tensor& tensor, const char* what, const std::string& unit) {
  if (!tensor.defined() || tensor.numel() == 0) return;
  names().put(tensor, what, unit);
  name_for_checks(tensor, what, unit);
}

void name_for_checks(const at::Tensor& tensor, const char* what, const std::string& unit) {
  if (!tensor.defined() || tensor.numel() == 0) return;
  if (fake_device_name != nullptr)
    fake_device_name(tensor.const_data_ptr(), tensor.nbytes(),
                     (what + (unit.empty() ? "the root" : unit)).c_str());
}

std::vector<HeldMemory> held_memory() { return names().there(); }

namespace {

// So that slow copies do not pile up what they read.
constexpr size_t kAtOnce = 2;

}  // namespace

void HostCopies::add(const at::Tensor& to, const at::Tensor& from) {
  const at::Device device = from.device();
  c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream computing = guard.getStream(device);
  if (!stream_) stream_ = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  if (under_way_.size() == kAtOnce) let_go(computing);
  c10::Event written(device.type()), done(device.type());
  written.record(computing);
  written.block(*stream_);
  {
    c10::StreamGuard beside(*stream_);
    to.copy_(from, /*non_blocking=*/true);
  }
  done.record(*stream_);
  under_way_.push_back({from, std::move(done)});
}

void HostCopies::let_go(const c10::Stream& computing) {
  under_way_.front().done.block(computing);  // whose memory it may be next
  under_way_.pop_front();
}

void HostCopies::order() {
  if (under_way_.empty()) return;
  const at::Device device = stream_->device();
  // The last one comes after all others.
  under_way_.back().done.block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  for (Copy& copy : under_way_) copy.from = at::Tensor();
}

void HostCopies::wait() {
  if (!under_way_.empty()) under_way_.back().done.synchronize();
  under_way_.clear();
}

using at::Tensor;

Tensor BufferPool::take(int64_t count, at::ScalarType type, Use use) {
  at::TensorOptions options = at::TensorOptions().dtype(type).device(device_);
  size_t bytes = static_cast<size_t>(count) * c10::elementSize(type);
  if (use != Use::any && count > 0)
    for (const Tensor& turn : turns_[static_cast<size_t>(use)])
      if (turn.storage().use_count() == 1 && turn.numel() >= static_cast<int64_t>(bytes))
        return turn.narrow(0, 0, static_cast<int64_t>(bytes)).view(type);
  if (!device_.is_cpu() || count == 0) return at::empty({count}, options);
  at::DataPtr memory;
  {
    std::lock_guard lock(mutex_);
    auto& same = free_[bytes];
    if (same.empty()) {
      ++allocations_;
    } else {
      memory = std::move(same.back());
      same.pop_back();
    }
    live_ += static_cast<int64_t>(bytes);
    peak_ = std::max(peak_, live_);
  }
  if (!memory) memory = c10::GetCPUAllocator()->allocate(bytes);
  auto* kept = new at::DataPtr(std::move(memory));
  return at::from_blob(
      kept->get(), {count},
      [pool = shared_from_this(), kept, bytes](void*) {
        std::lock_guard lock(pool->mutex_);
        pool->free_[bytes].push_back(std::move(*kept));
        pool->live_ -= static_cast<int64_t>(bytes);
        delete kept;
      },
      options);
}

namespace {

// StorageImpl can be told to throw, with words of our own, when its memory is used; there is no
// call to take that back. Naming a private member in an explicit instantiation is the language's
// way to reach it.
template <class Tag, typename Tag::type Member>
struct Reach {
  friend typename Tag::type reach(Tag) { return Member; }
};
struct ThrowFlag {
  using type = bool c10::StorageImpl::*;
  friend type reach(ThrowFlag);
};
template struct Reach<ThrowFlag, &c10::StorageImpl::throw_on_immutable_data_ptr_>;
struct RefreshCheck {
  using type = void (c10::StorageImpl::*)();
  friend type reach(RefreshCheck);
};
template struct Reach<RefreshCheck, &c10::StorageImpl::refresh_has_data_ptr_check>;

void set_throwing(c10::StorageImpl& storage, bool value) {
  storage.*reach(ThrowFlag()) = value;
  (storage.*reach(RefreshCheck()))();
}

}  // namespace

LentStorage::LentStorage(const Tensor& parameter, at::ScalarType type, at::Device device,
                         std::string message) {
  size_t bytes = static_cast<size_t>(parameter.numel()) * c10::elementSize(type);
  storage_ = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                   at::DataPtr(nullptr, device), nullptr,
                                                   /*resizable=*/false);
  storage_->release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
  at::DispatchKeySet keys(device.is_cpu() ? at::DispatchKey::CPU : at::DispatchKey::CUDA);
  Tensor lent = at::detail::make_tensor<at::TensorImpl>(c10::Storage(storage_), keys,
                                                        c10::scalarTypeToTypeMeta(type));
  lent.unsafeGetTensorImpl()->set_sizes_contiguous(parameter.sizes());
  if (parameter.is_meta())
    parameter.unsafeGetTensorImpl()->shallow_copy_from(
        lent.getIntrusivePtr());  // set_data refuses to leave the meta device
  else
    parameter.set_data(lent);
}

void LentStorage::attach(void* memory) {
  set_throwing(*storage_, false);
  storage_->set_data_ptr_noswap(at::DataPtr(memory, storage_->device()));
}

void LentStorage::detach() {
  storage_->set_data_ptr_noswap(at::DataPtr(nullptr, storage_->device()));
  set_throwing(*storage_, true);
}

ReturnableMemory::ReturnableMemory(const Tensor& tensor, const std::string& message)
    : storage_(tensor.storage().getWeakStorageImpl().lock()) {
  storage_->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  set_throwing(*storage_, false);
}

void ReturnableMemory::give_back() {
  if (!storage_ || std::exchange(away_, true)) return;
  storage_->set_data_ptr_noswap(at::DataPtr(nullptr, storage_->device()));
  set_throwing(*storage_, true);
}

void ReturnableMemory::take() {
  if (!std::exchange(away_, false)) return;
  set_throwing(*storage_, false);
  storage_->set_data_ptr_noswap(storage_->allocator()->allocate(storage_->nbytes()));
}

MESHWRIGHT_VECTORISED void scaled_add(float* __restrict out, const float* __restrict in, float k,
                                      int64_t count, bool first) {
  if (first)
    for (int64_t i = 0; i < count; ++i) out[i] = k * in[i];
  else
    for (int64_t i = 0; i < count; ++i) out[i] += k * in[i];
}

void scaled_add(const Tensor& out, const Tensor& in, double k, bool first) {
  if (out.is_cpu() && in.is_cpu() && out.scalar_type() == at::kFloat &&
      in.scalar_type() == at::kFloat && out.is_contiguous() && in.is_contiguous()) {
    scaled_add(out.mutable_data_ptr<float>(), in.const_data_ptr<float>(), static_cast<float>(k),
               out.numel(), first);
    return;
  }
  const bool async = !out.is_cpu();  // what comes to the host is read at once
  if (first) {
    // Computed where `in` lies: only the result crosses, and straight into its place.
    if (k == 1) {
      out.copy_(in, async);
    } else if (out.device() == in.device() && !wider(out.scalar_type(), in.scalar_type())) {
      Tensor into = out;
      at::mul_out(into, in, at::scalar_tensor(k, at::kDouble));
    } else {
      out.copy_(in.to(c10::promoteTypes(in.scalar_type(), out.scalar_type())).mul(k), async);
    }
    return;
  }
  out.add_(in.to(out.device(), async), k);  // promotes
}

bool wider(at::ScalarType type, at::ScalarType other) {
  return c10::promoteTypes(type, other) != other;
}

namespace {

MESHWRIGHT_VECTORISED double float_squares(const float* in, int64_t count) {
  double lanes[16] = {};  // so that how a model is divided into tensors and ranks does not show
  int64_t i = 0;
  for (; i + 16 <= count; i += 16)
    for (int j = 0; j < 16; ++j) {
      const auto x = static_cast<double>(in[i + j]);
      lanes[j] += x * x;
    }
  for (; i < count; ++i) lanes[0] += static_cast<double>(in[i]) * static_cast<double>(in[i]);
  double total = 0;
  for (double lane : lanes) total += lane;
  return total;
}

}  // namespace

double sum_of_squares(const Tensor& flat) {
  if (flat.numel() == 0) return 0;
  if (flat.is_cpu() && flat.scalar_type() == at::kFloat && flat.is_contiguous())
    return float_squares(flat.const_data_ptr<float>(), flat.numel());
  double norm = at::linalg_vector_norm(flat, 2, std::nullopt, false, at::kDouble).item<double>();
  return norm * norm;
}

}  // namespace meshwright::detail
