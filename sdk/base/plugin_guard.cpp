#include "plugin_guard.h"

#include <cxxabi.h>

#include <cstdlib>
#include <new>
#include <typeinfo>

#include "used_up.h"

namespace meshwright::detail {

std::string exception_type() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (type == nullptr) return "unknown";
  int status = 0;
  char* text = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
  std::string out = status == 0 && text != nullptr ? text : type->name();
  std::free(text);
  return out;
}

std::string fault_context(const PluginCode* plugin, const char* doing) {
  return std::string("plugin ") + told(plugin) + ", in " + doing + on_this_rank();
}

namespace {

Error fault(const PluginCode* plugin, const char* doing, const std::string& what) {
  return Error(ErrorCode::plugin_foreign_exception, what)
      .note(fault_context(plugin, doing))
      .help("this is a defect of the plugin, which may throw meshwright::Error only");
}

// Of memory, of a device or of a parameter that was freed, whoever met it.
bool has_its_own_words(const std::exception& error) {
  const std::string what = error.what();
  // A device tells of its faults late, in whatever is called next.
  const bool of_device = what.find("CUDA error") != what.npos ||
                         exception_type().find("AcceleratorError") != std::string::npos;
  return of_device || used_up(error) || what.find("was used outside its unit") != what.npos;
}

}  // namespace

void rethrow_from(const PluginCode* plugin, const char* doing) {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    if (has_its_own_words(error)) throw;
    const std::string what = error.what();
    throw fault(plugin, doing,
                "an exception of type " + exception_type() +
                    " left the plugin: " + what.substr(0, what.find('\n')));
  } catch (...) {
    throw fault(
        plugin, doing,
        "something that is no exception, of type " + exception_type() + ", left the plugin");
  }
}

}  // namespace meshwright::detail
