#include "buffers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "linear.h"
#include "sdk/base/held_memory.h"
#include "sdk/base/vectorised.h"
#include "weight_gradients.h"

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

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local std::shared_ptr<WeightGradients> queue_of_thread;

// g^T x, made for the first weight that asks for its rows.
struct StackedGradient {
  Tensor g, x, made;
  Tensor rows(int64_t begin, int64_t count, at::ScalarType type) {
    if (!made.defined()) {
      made = product(g.t(), x.t());
      g = x = Tensor();
    }
    return made.narrow(0, begin, count).to(type);
  }
  // Whether they went where the weight's unit keeps its gradient: unrounded, where that is wider.
  bool place(int64_t begin, const Tensor& weight) {
    GradientKeeper* keeper = c10::GradMode::is_enabled() ? nullptr : gradient_keeper(weight);
    const std::optional<GradientPlace> kept = keeper != nullptr ? keeper->place() : std::nullopt;
    if (!kept) return false;
    if (!made.defined()) {
      made = at::empty({g.size(1), x.size(1)}, kept->into.options());
      product_into(made, g.t(), x);
      g = x = Tensor();
    }
    Tensor into = kept->into;
    const Tensor mine = made.narrow(0, begin, weight.size(0));
    if (kept->add)
      into.add_(mine, kept->scale);
    else
      into.copy_(mine);
    if (!kept->add && kept->scale != 1) into.mul_(kept->scale);
    return true;
  }
};

}  // namespace

void WeightGradients::run() {
  c10::NoGradGuard no_grad;
  for (auto& [weight, product] : std::exchange(waiting_, {})) {
    at::Tensor gradient = product();
    product = nullptr;  // lets go of what it was made from
    // As autograd ends a backward; a gradient that nobody else has becomes the parameter's.
    (*torch::autograd::impl::grad_accumulator(weight))({std::move(gradient)});
  }
}

WeightGradientScope::WeightGradientScope(std::shared_ptr<WeightGradients> queue)
    : outer_(std::exchange(queue_of_thread, std::move(queue))) {}
WeightGradientScope::~WeightGradientScope() { queue_of_thread = std::move(outer_); }

std::shared_ptr<WeightGradients> current_weight_gradients() { return queue_of_thread; }

void keep_queue(torch::autograd::AutogradContext& context) {
  if (auto queue = current_weight_gradients())
    context.saved_data["queue"] =
        c10::IValue::make_capsule(c10::make_intrusive<QueueHolder>(std::move(queue)));
}

std::shared_ptr<WeightGradients> kept_queue(torch::autograd::AutogradContext& context) {
  auto kept = context.saved_data.find("queue");
  if (kept == context.saved_data.end()) return nullptr;
  return c10::static_intrusive_pointer_cast<QueueHolder>(kept->second.toCapsule())->queue;
}

at::Tensor now_or_later(torch::autograd::AutogradContext& context, const at::Tensor& weight,
                        std::function<at::Tensor()> product) {
  const std::shared_ptr<WeightGradients> queue = kept_queue(context);
  if (!queue) return product();
  queue->put_off(weight, std::move(product));
  return {};
}

Tensor gradient_of_weight(AutogradContext& context, const Tensor& weight, const Tensor& g,
                          const Tensor& x) {
  const Tensor rows = rows_of(x);
  if (kept_queue(context) == nullptr) {
    if (g.is_cuda() && place_product(weight, g.t(), rows)) return {};
    return product(g.t(), rows.t());
  }
  // Without their history, which would keep the graph alive.
  return now_or_later(context, weight,
                      [g = g.detach(), rows = rows.detach()] { return product(g.t(), rows.t()); });
}

variable_list gradients_of_weights(AutogradContext& context, const std::vector<Tensor>& weights,
                                   const std::vector<bool>& wanted, const Tensor& g,
                                   const Tensor& x) {
  variable_list out(weights.size());
  if (weights.size() == 1) {
    if (wanted[0]) out[0] = gradient_of_weight(context, weights[0], g, x);
    return out;
  }
  const bool later = kept_queue(context) != nullptr;
  auto all = std::make_shared<StackedGradient>();
  all->g = later ? g.detach() : g;
  all->x = rows_of(x);
  if (later) all->x = all->x.detach();
  int64_t begin = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const Tensor& weight = weights[i];
    if (wanted[i] && (later || !g.is_cuda() || !all->place(begin, weight)))
      out[i] = now_or_later(context, weight,
                            [all, begin, count = weight.size(0), type = weight.scalar_type()] {
                              return all->rows(begin, count, type);
                            });
    begin += weight.size(0);
  }
  return out;
}

}  // namespace meshwright::detail
