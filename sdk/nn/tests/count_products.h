// How many matrix products LibTorch is asked for. Of sizes for which Linear takes no other library.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <memory>
#include <string_view>

namespace meshwright {

// While it lives: those of this thread, backwards on the CPU included.
class CountProducts {
 public:
  CountProducts()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(look).scopes({at::RecordScope::FUNCTION}))) {
    made_here() = 0;
  }
  ~CountProducts() { at::removeCallback(handle_); }
  CountProducts(const CountProducts&) = delete;
  CountProducts& operator=(const CountProducts&) = delete;
  int64_t made() const { return made_here(); }

 private:
  static int64_t& made_here() {
    thread_local int64_t made = 0;
    return made;
  }
  static std::unique_ptr<at::ObserverContext> look(const at::RecordFunction& called) {
    const std::string_view name = called.name();
    if (name == "aten::mm" || name == "aten::addmm") ++made_here();
    return nullptr;
  }
  at::CallbackHandle handle_;
};

}  // namespace meshwright
