#include "named_memory.h"

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "sdk/base/held_memory.h"

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

}  // namespace meshwright::detail
