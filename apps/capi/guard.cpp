#include "apps/capi/guard.h"

#include <algorithm>

#include "meshwright/abi.h"
#include "meshwright/meshwright.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/used_up.h"

namespace meshwright::capi {

namespace {

struct LastError {
  int code = 0;
  std::string text, json;
};
thread_local LastError t_last;

int status_of(const Error& error) { return exit_status(error.code()); }

int keep(const std::vector<Error>& errors) {
  LastError last;
  for (const Error& error : errors)
    last.text += (last.text.empty() ? "" : "\n") + report::format_error({}, error);
  last.json = report::pretty_json(report::errors_json(errors));
  last.code = errors.empty() ? 0 : static_cast<int>(errors.front().code());
  t_last = std::move(last);
  return errors.empty() ? 0 : status_of(errors.front());
}

// Without memory for words.
int keep_code(ErrorCode code) noexcept {
  t_last.code = static_cast<int>(code);
  t_last.text.clear();
  t_last.json.clear();
  return exit_status(code);
}

std::vector<Error> errors_being_handled() {
  try {
    throw;
  } catch (const Mistakes& mistakes) {
    return detail::by_cause(mistakes.errors);
  } catch (const std::exception& error) {
    if (const std::optional<Error> limit = detail::used_up(error)) return {*limit};
    if (const auto* known = dynamic_cast<const Error*>(&error)) return {*known};
    return {Error(ErrorCode::internal, error.what())};
  } catch (...) {
    return {Error(ErrorCode::internal, "something that is no std::exception was thrown")};
  }
}

}  // namespace

int guarded(const std::function<void()>& work) noexcept {
  try {
    try {
      work();
    } catch (...) {
      return keep(errors_being_handled());
    }
    t_last.code = 0;
    return MESHWRIGHT_OK;
  } catch (...) {
    return keep_code(ErrorCode::out_of_memory);
  }
}

Error misuse(const std::string& message) { return {ErrorCode::usage, message}; }

std::vector<std::string> texts(const char* const* list, size_t count, const char* name) {
  if (count > 0) needed(list, name);
  std::vector<std::string> out;
  for (size_t i = 0; i < count; ++i) out.emplace_back(&needed(list[i], name));
  return out;
}

std::mutex& planning() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace meshwright::capi

using meshwright::capi::t_last;

const char* meshwright_version(void) { return MESHWRIGHT_VERSION; }
int meshwright_error_code(void) { return t_last.code; }
const char* meshwright_error_text(void) { return t_last.code == 0 ? "" : t_last.text.c_str(); }
const char* meshwright_error_json(void) {
  return t_last.code == 0 ? "{\"error\": null, \"errors\": []}" : t_last.json.c_str();
}
