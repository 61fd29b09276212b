// What the program calls: two C functions, so that the program itself needs no LibTorch.
#include <c10/util/Logging.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "engine/report/report.h"
#include "engine/train/generate.h"
#include "engine/train/run.h"
#include "meshwright/error.h"

namespace {

// LibTorch reports a use of freed memory with words of ours in the middle of its own.
meshwright::Error from_libtorch(const std::string& what) {
  std::string first = what.substr(0, what.find('\n'));
  bool freed = what.find("was used outside its unit") != std::string::npos;
  return {freed ? meshwright::ErrorCode::parameter_freed : meshwright::ErrorCode::internal, first};
}

// LibTorch writes pages of stack frames to standard error before it throws what we then say in one line. For the program only: an
// application that uses the library keeps its own choice. TORCH_CPP_LOG_LEVEL brings them back.
void quiet_libtorch() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = 3;  // fatal
}

// Runs a rank; what it throws is said and becomes the exit status.
template <class Work>
int run_guarded(const Work& work) {
  using namespace meshwright;
  auto fail = [](const Error& error) {
    report::Style style = report::style_of(stderr);
    std::string text = report::format_error(style, error);
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(nullptr);
    return exit_status(error.code());
  };
  quiet_libtorch();
  try {
    return work();
  } catch (const Error& error) {
    return fail(error);
  } catch (const report::WriteFailed& failure) {
    // Nothing of the half-written buffer may be tried again at exit. A reader that went away ends others by its signal.
    report::Output(stdout, "standard output").give_up();
    if (failure.closed_pipe()) return 128 + SIGPIPE;
    return fail(Error(ErrorCode::output_unwritable, failure.what()));
  } catch (const std::bad_alloc&) {
    return fail(Error(ErrorCode::internal, "out of memory"));
  } catch (const std::exception& error) {
    return fail(from_libtorch(error.what()));
  }
}

}  // namespace

extern "C" MESHWRIGHT_API int meshwright_train_rank(const void* run_options) {
  return run_guarded([&] { return meshwright::train::run_rank(*static_cast<const meshwright::train::RunOptions*>(run_options)); });
}

extern "C" MESHWRIGHT_API int meshwright_generate_rank(const void* request) {
  return run_guarded([&] { return meshwright::train::generate_rank(*static_cast<const meshwright::generate::Request*>(request)); });
}
