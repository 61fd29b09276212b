// What the program calls: one C function, so that the program itself needs no LibTorch.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "engine/report/report.h"
#include "engine/train/run.h"
#include "meshwright/error.h"

namespace {

// LibTorch reports a use of freed memory with words of ours in the middle of its own.
meshwright::Error from_libtorch(const std::string& what) {
  std::string first = what.substr(0, what.find('\n'));
  bool freed = what.find("was used outside its unit") != std::string::npos;
  return {freed ? meshwright::ErrorCode::parameter_freed : meshwright::ErrorCode::internal, first};
}

}  // namespace

extern "C" MESHWRIGHT_API int meshwright_train_rank(const void* run_options) {
  using namespace meshwright;
  const auto& options = *static_cast<const train::RunOptions*>(run_options);
  auto fail = [](const Error& error) {
    report::Style style = report::style_of(stderr);
    std::string text = report::format_error(style, error);
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(nullptr);
    return exit_status(error.code());
  };
  try {
    return train::run_rank(options);
  } catch (const Error& error) {
    return fail(error);
  } catch (const report::WriteFailed& error) {
    return error.closed_pipe() ? 0 : fail(Error(ErrorCode::output_unwritable, error.what()));
  } catch (const std::bad_alloc&) {
    return fail(Error(ErrorCode::internal, "out of memory"));
  } catch (const std::exception& error) {
    return fail(from_libtorch(error.what()));
  }
}
