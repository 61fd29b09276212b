#include <c10/util/Logging.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "engine/train/run/attached.h"
#include "engine/train/run/run.h"
#include "engine/train/step/rank_agreement.h"
#include "meshwright/error.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/plugin_at_work.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::train {

void quiet_libtorch() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = 3;  // fatal
}

int run_guarded(const std::function<int(rendezvous::Ending&)>& work,
                const std::filesystem::path& log) {
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
    // No launcher of ours judges: who leads does.
    if (attached().verdict == nullptr) return status;
    if (std::string told = attached().verdict(log.parent_path()); !told.empty()) {
      std::fputs(told.c_str(), stderr);
      base::append_line(log, told);
    }
    return status;
  };
  quiet_libtorch();
  detail::library_is_of(nullptr, reinterpret_cast<const void*>(&quiet_libtorch));
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
  } catch (...) {
    return fail(error_being_handled());
  }
}

}  // namespace meshwright::train

extern "C" MESHWRIGHT_API int meshwright_train_rank(const void* run_options) {
  std::filesystem::path log;
  return meshwright::train::run_guarded(
      [&](auto& ending) {
        return meshwright::train::run_rank(
            *static_cast<const meshwright::train::RunOptions*>(run_options), ending, log);
      },
      log);
}

// For libmeshwright_c.so, whose caller's process is not ours: these throw Error and print nothing.
extern "C" MESHWRIGHT_API void* meshwright_open_session(const void* run_options) {
  meshwright::train::quiet_libtorch();
  return meshwright::train::open_session(
             *static_cast<const meshwright::train::RunOptions*>(run_options))
      .release();
}

// For a rank that ends before it runs: the others, which may not know why it does, end with the
// same error.
extern "C" MESHWRIGHT_API int meshwright_refuse(const void* error) {
  meshwright::train::quiet_libtorch();
  meshwright::rendezvous::Ending().tell(*static_cast<const meshwright::Error*>(error));
  return 0;
}
