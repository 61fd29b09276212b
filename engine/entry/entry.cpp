// What the program calls: C functions, so that the program itself needs no LibTorch.
#include <c10/util/Logging.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>

#include "engine/base/out_of_memory.h"
#include "engine/calibrate/running/calibrate_rank.h"
#include "engine/doctor/running/doctor_rank.h"
#include "engine/evaluate/running/evaluate_rank.h"
#include "engine/generate/generate_here.h"
#include "engine/generate/running/generate_rank.h"
#include "engine/postmortem/verdict.h"
#include "engine/rendezvous/ending.h"
#include "engine/report/report.h"
#include "engine/report/torchrun.h"
#include "engine/train/run.h"
#include "engine/train/session.h"
#include "engine/trainer/rank_agreement.h"
#include "meshwright/error.h"
#include "sdk/base/plugin_at_work.h"
#include "sdk/files/durable.h"

namespace {

// LibTorch writes pages of stack frames to standard error before it throws what we then say in one
// line. For the program and libmeshwright_c.so: a C++ application that uses the library keeps its
// own choice.
// TORCH_CPP_LOG_LEVEL brings them back.
void quiet_libtorch() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = 3;  // fatal
}

// Runs a rank; what it throws is said, told to the other ranks, and becomes the exit status of all.
template <class Work>
int run_guarded(const Work& work, const std::filesystem::path& log) {
  using namespace meshwright;
  rendezvous::Ending ending;
  auto fail = [&](const Error& error) {
    report::Style style = report::style_of(stderr);
    std::string text = report::format_error(style, error);
    if (std::string retries = report::last_words_for_torchrun(error); !retries.empty())
      text += report::format_notice(style, retries);
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(nullptr);
    ending.tell(error);
    int status = exit_status(error.code());
    if (log.empty()) return status;
    base::append_line(log, report::format_error({}, error) + "rank 0 failed with exit status " +
                               std::to_string(status));
    // No launcher of ours judges: who leads does, after a moment for the others' records.
    postmortem::wait_for_all(log.parent_path(), std::chrono::seconds(1));
    if (std::string told = postmortem::write_verdict(log.parent_path()).told(); !told.empty()) {
      std::fputs(told.c_str(), stderr);
      base::append_line(log, told);
    }
    return status;
  };
  quiet_libtorch();
  detail::engine_has_code_at(reinterpret_cast<const void*>(&quiet_libtorch));
  detail::PluginWatch watch;
  try {
    int status = work(ending);
    ending.finish();
    return status;
  } catch (const report::WriteFailed& failure) {
    // Nothing of the half-written buffer may be tried again at exit. A reader that went away ends
    // others by its signal.
    report::Output(stdout, "standard output").give_up();
    Error error(ErrorCode::output_unwritable, failure.what());
    if (!failure.closed_pipe()) return fail(error);
    ending.tell(error);
    return 128 + SIGPIPE;
  } catch (const std::exception&) {
    return fail(train::error_being_handled());
  }
}

}  // namespace

extern "C" MESHWRIGHT_API int meshwright_train_rank(const void* run_options) {
  std::filesystem::path log;
  return run_guarded(
      [&](auto& ending) {
        return meshwright::train::run_rank(
            *static_cast<const meshwright::train::RunOptions*>(run_options), ending, log);
      },
      log);
}

extern "C" MESHWRIGHT_API int meshwright_generate_rank(const void* request) {
  return run_guarded(
      [&](auto& ending) {
        return meshwright::generate::generate_rank(
            *static_cast<const meshwright::generate::Request*>(request), ending);
      },
      {});
}

extern "C" MESHWRIGHT_API int meshwright_evaluate_rank(const void* request) {
  return run_guarded(
      [&](auto& ending) {
        return meshwright::evaluate::evaluate_rank(
            *static_cast<const meshwright::evaluate::Request*>(request), ending);
      },
      {});
}

extern "C" MESHWRIGHT_API int meshwright_doctor_rank(const void* request) {
  return run_guarded(
      [&](auto& ending) {
        return meshwright::doctor::doctor_rank(
            *static_cast<const meshwright::doctor::Request*>(request), ending);
      },
      {});
}

extern "C" MESHWRIGHT_API int meshwright_calibrate_rank(const void* request) {
  return run_guarded(
      [&](auto& ending) {
        return meshwright::calibrate::calibrate_rank(
            *static_cast<const meshwright::calibrate::Request*>(request), ending);
      },
      {});
}

// For libmeshwright_c.so, whose caller's process is not ours: these throw Error and print nothing.
extern "C" MESHWRIGHT_API void* meshwright_open_session(const void* run_options) {
  quiet_libtorch();
  return meshwright::train::open_session(
             *static_cast<const meshwright::train::RunOptions*>(run_options))
      .release();
}

extern "C" MESHWRIGHT_API void meshwright_generate_here(const void* here) {
  quiet_libtorch();
  meshwright::generate::generate_here(
      *static_cast<const meshwright::generate::GenerateHere*>(here));
}

// For a rank that ends before it runs: the others, which may not know why it does, end with the
// same error.
extern "C" MESHWRIGHT_API int meshwright_refuse(const void* error) {
  quiet_libtorch();
  meshwright::rendezvous::Ending().tell(*static_cast<const meshwright::Error*>(error));
  return 0;
}
