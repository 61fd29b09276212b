// What leaves a plugin's code: its own Errors as they are, whatever else as a fault of the plugin.
// For the engine and for the conformance kit.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/export.h"
#include "plugin_at_work.h"

namespace meshwright {
class ParallelModel;  // meshwright/parallel/parallel.h
class RunningModel;   // meshwright/model/running_model.h
}  // namespace meshwright

namespace meshwright::detail {

// To be called while an exception is handled that left the plugin. Throws it again when it is an
// Error, or tells of memory (E0508) or of a parameter that was freed (E0902); else
// Error(plugin_foreign_exception) with plugin, what it was doing, and rank.
[[noreturn]] MESHWRIGHT_API void rethrow_from(const PluginCode* plugin, const char* doing);
// "plugin acme 1.0.0 (...), in end_step, on rank 1"
MESHWRIGHT_API std::string fault_context(const PluginCode* plugin, const char* doing);
// std::runtime_error, say; needs an exception that is handled.
MESHWRIGHT_API std::string exception_type();

// Runs `body` as code of the plugin.
template <class Body>
decltype(auto) call_plugin(const PluginCode* plugin, const char* doing, Body&& body) {
  PluginCall call(plugin, doing);
  try {
    return body();
  } catch (...) {
    rethrow_from(plugin, doing);
  }
}

// An object that a plugin made, of a class that the engine and the SDK hand on as any other's: who
// derives from this overrides each method of Interface by a call() of the same.
template <class Interface>
class PluginObject : public Interface {
 public:
  // `destructor`: what its end is told as, "the destructor of its model".
  PluginObject(const PluginCode* plugin, std::shared_ptr<Interface> made, const char* destructor)
      : plugin_(plugin), destructor_(destructor), inner_(std::move(made)) {}
  PluginObject(const PluginObject&) = delete;
  PluginObject& operator=(const PluginObject&) = delete;
  ~PluginObject() override {
    PluginCall call(plugin_, destructor_);
    inner_.reset();
  }

 protected:
  template <class Method, class... Given>
  decltype(auto) call(const char* doing, Method method, Given&&... given) const {
    return call_plugin(plugin_, doing, [&]() -> decltype(auto) {
      return std::invoke(method, *inner_, std::forward<Given>(given)...);
    });
  }
  // The same; an Error, too, gets a note on plugin and hook.
  template <class Method, class... Given>
  decltype(auto) call_hook(const char* doing, Method method, Given&&... given) const {
    try {
      return call(doing, method, std::forward<Given>(given)...);
    } catch (Error& error) {
      if (error.code() == ErrorCode::plugin_foreign_exception) throw;
      throw error.note(fault_context(plugin_, doing));
    }
  }
  // What a method gave is not what it may give.
  Error nonconforming(const char* doing, std::string what) const {
    return Error(ErrorCode::plugin_nonconforming, std::move(what))
        .note(fault_context(plugin_, doing));
  }
  const PluginCode* plugin() const { return plugin_; }
  Interface& inner() const { return *inner_; }

 private:
  const PluginCode* plugin_;
  const char* destructor_;
  std::shared_ptr<Interface> inner_;
};

// A strategy's model as it trains: what throws something else than an Error becomes
// Error(plugin_foreign_exception) with plugin, method and rank; a connection that LibTorch lost
// becomes Error(collective_failed); Errors, and those of memory, pass as they are. nullptr stays
// nullptr.
MESHWRIGHT_API std::unique_ptr<ParallelModel> guarded_model(const PluginCode* plugin,
                                                            std::unique_ptr<ParallelModel> made);

// The same of a plugin's model as it runs. What comes out of it must be what it says, else
// Error(plugin_nonconforming) with plugin, method and rank. `vocabulary`: the outline's.
MESHWRIGHT_API std::unique_ptr<RunningModel> guarded_running(const PluginCode* plugin,
                                                             std::unique_ptr<RunningModel> made,
                                                             int64_t vocabulary);

}  // namespace meshwright::detail
