// A rank's whole run, as the program has it, and what it leaves when it fails.
#include <cstdio>
#include <exception>

#include "engine/train/run/rank_run.h"
#include "engine/train/step/rank_agreement.h"

namespace meshwright::train {

int Run::go(rendezvous::Ending& together) {
  try {
    const int status = steps(together);
    on_success();
    return status;
  } catch (const std::exception&) {
    // What is no exception of the standard's ends the process where it was thrown, and whose code
    // that was is found out there.
    Error error = error_being_handled();
    on_failure(error);
    if (error.code() == ErrorCode::out_of_memory) throw error;
    throw;
  }
}

int Run::steps(rendezvous::Ending& together) {
  if (!open(together)) {
    if (leader_) {
      const std::string text =
          finished_text(from()->folder(), from()->meta().step, max_steps_, options_.command,
                        table("step_scheduler").find_int("epochs"));
      std::fputs(text.c_str(), stdout);
      std::fflush(stdout);
    }
    return 0;
  }
  comm_trace_->watch(&Preemption::signal);
  prepare();
  preemption_.emplace(/*speaks=*/leader_);
  train();
  return finish();
}

// While the connections are there: closing them is how the others hear of the end.
void Run::on_failure(Error& error) noexcept {
  if (memory_report_ && error.code() == ErrorCode::out_of_memory)
    for (std::string& note : memory_report_->tell()) error.note(std::move(note));
  if (comm_trace_ && begun_) comm_trace_->failed(error);
}

void Run::on_success() noexcept {
  if (comm_trace_) comm_trace_->on_success();
}

int run_rank(const RunOptions& options, rendezvous::Ending& together, std::filesystem::path& log) {
  const SignalThread signals;  // before LibTorch has threads
  return Run(options, log).go(together);
}

}  // namespace meshwright::train
