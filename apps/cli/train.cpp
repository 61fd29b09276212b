// train: checks everything that can be checked without starting a rank, then starts the ranks, or
// runs as one of them.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/cli/common.h"
#include "apps/observe/flight_recorder/verdict.h"
#include "apps/prove/shrink.h"
#include "engine/checkpoint/folder.h"
#include "engine/config/config.h"
#include "engine/config/reading.h"
#include "engine/job/trainable.h"
#include "engine/launch/rank_file.h"
#include "engine/launch/spawn.h"
#include "engine/plugins/registry.h"
#include "engine/train/preflight/before.h"
#include "engine/train/run/run.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/host_facts.h"
#include "sdk/base/shell_word.h"

namespace meshwright::cli {
namespace {

namespace fs = std::filesystem;

void read_sample_flags(const Call& call, train::RunOptions& options) {
  options.sample_bytes = call.number("sample", 1).value_or(0);
  for (const char* flag : {"prompt", "temperature"})
    if (call.has(flag) && options.sample_bytes == 0)
      throw Error(ErrorCode::usage, std::string("--") + flag +
                                        " says how the sample is written, but there is no --sample")
          .help("add --sample 400")
          .help(std::string("leave out --") + flag);
  options.sample_prompt = call.value("prompt", options.sample_prompt);
  if (options.sample_prompt.empty())
    throw Error(ErrorCode::usage, "--prompt is empty: a sample continues at least one byte")
        .help("leave out --prompt to begin a line");
  if (!call.has("temperature")) return;
  std::optional<double> temperature = call.finite("temperature");
  if (!temperature || *temperature < 0)
    throw Error(ErrorCode::usage, "--temperature wants a number of at least 0, found \"" +
                                      call.value("temperature") + "\"")
        .help("--temperature 0 for the most likely bytes")
        .help("--temperature 0.8");
  options.sample_temperature = *temperature;
}

int64_t restarts_of(const Call& call, const Ranks& ranks) {
  int64_t restarts = call.number("max-restarts", 0).value_or(0);
  if (ranks && restarts > 0)
    throw Error(
        ErrorCode::usage,
        std::string("--max-restarts starts local ranks again, but this process is a rank that ") +
            launch::source_name(ranks->source) + " started: only its launcher can do so")
        .help("leave out --max-restarts, and let the launcher restart: torchrun --max-restarts " +
              std::to_string(restarts))
        .help("a run that is started again goes on from its newest complete checkpoint");
  return restarts;
}

train::RunOptions read_options(const Call& call, const Ranks& ranks, const Screen& screen) {
  train::RunOptions options;
  options.given = call.reading;
  options.trace = call.has("trace");
  options.command = command_again(call, ranks);
  read_sample_flags(call, options);
  options.width = screen.width;
  options.colour = screen.colour;
  options.unicode = screen.unicode;
  options.live = screen.live;
  return options;
}

// Everything that can be refused before a rank starts; the exit status. `wanted` local ranks are
// about to start where this process is none.
int check(Call& call, plan::Job& job, const train::RunOptions& options, const Ranks& ranks,
          int64_t wanted) {
  Diagnostics missing;
  plan::check_trainable(job, missing);
  plan::check_exports(job.config, missing);
  if (!missing.ok()) return call.fail(missing.errors());
  before::count_samples(job);  // what is wrong with the data is said below
  const plan::JobPlan plan = before::plan_to_start(reload_of(call), job, ranks, wanted);
  plan::check_runs(plan, job);
  if (plan.outline) train::check_sample(options, plan.outline->vocab_size);
  // What depends on the host is asked by one rank of each.
  if (ranks && ranks->local_rank != 0) return 0;
  Diagnostics before = before::check_before_start(reload_of(call), job, plan,
                                                  ranks ? ranks->local_world_size : wanted);
  call.say(before);
  return before.ok() ? 0 : call.fail(before.errors());
}

// With this process's streams; its exit status, 128+n where signal n has ended it.
int status_of(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, argv[0], nullptr, nullptr, argv.data(), environ);
  if (failed != 0) throw Error(ErrorCode::rank_failed, command[0] + ": " + std::strerror(failed));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR)
      throw Error(ErrorCode::rank_failed,
                  "what --prove started is gone: " + std::string(std::strerror(errno)));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// What is asked for with --prove, before anything of the run is there; the exit status of `prove`.
// It is a process of its own: what it reads and what it leaves behind is no part of the run.
int prove_first(Call& call, int64_t wanted) {
  std::vector<std::string> command = {program_path().string(), "prove", call.positional(0)};
  // More are no threads of one process: the fewest that have every axis, then.
  if (wanted <= prove::kMostRanks)
    command.insert(command.end(), {"--world-size", std::to_string(wanted)});
  for (const std::string& set : call.values("set")) command.insert(command.end(), {"--set", set});
  if (call.has("color")) command.push_back("--color=" + call.value("color"));
  call.out.flush();
  const int status = status_of(command);
  if (status != 0) {
    call.err.write(report::format_notice(call.err_style,
                                         "nothing was trained: --prove found what is said above"));
    call.err.flush();
  }
  return status;
}

// Starts the ranks and waits for them. The run's folder is theirs until the last restart has ended.
int run_locally(Call& call, const plan::Job& job, launch::LocalJob local) {
  local.done_status = launch::kDone;
  // Who may have ended a rank from within: what its authors bring comes before what we do.
  std::set<const loader::LoadedPlugin*> named;
  for (const loader::LoadedPlugin* plugin :
       {job.model ? job.model->plugin : nullptr, job.dataset ? job.dataset->plugin : nullptr,
        job.strategy.plugin})
    if (plugin != nullptr && named.insert(plugin).second)
      local.foreign +=
          (local.foreign.empty() ? "the plugin " : ", the plugin ") + loader::text_of(*plugin);
  const fs::path folder = config::run_folder(job.config.table("run"));
  // Before anything in the folder is touched.
  std::unique_ptr<base::RunLock> lock =
      launch::own_run_folder(folder, launch::process_environment(), [&](const std::string& text) {
        call.err.write(report::format_notice(call.err_style, text));
        call.err.flush();
      });
  // What the ranks train is decided here, and read by none of them again.
  config::Reading given = *call.reading;
  std::error_code unknown;
  if (const fs::path file = config::model_config_file(job.config.table("model"));
      fs::is_regular_file(file, unknown))
    given.keep(file.string(), base::read_file(file));
  const launch::Descriptor configuration = launch::sealed_memory(given.bytes()),
                           attempts = launch::shared_memory();
  local.descriptors = {{launch::kRunLock, lock->descriptor()},
                       {launch::kConfiguration, configuration.get()}};
  if (local.max_restarts > 0) local.descriptors.emplace_back(launch::kAttempts, attempts.get());
  local.log_folder = folder / "rank_logs";
  // A run that is there goes on once a rank writes of it.
  const auto size_of_log = [log = folder / "run.log"] {
    std::error_code failed;
    const uintmax_t size = fs::file_size(log, failed);
    return failed ? 0 : size;
  };
  local.begun = [size_of_log, before = size_of_log(), begun = false]() mutable {
    return begun = begun || before == 0 || size_of_log() != before;
  };
  local.record = [log = folder / "run.log"](const std::string& lines) {
    base::append_line(log, lines);
  };
  // Called before ranks start again, which then ask newest() themselves and say what is wrong with
  // a damaged one.
  local.continues = [checkpoints = folder / "checkpoints"] {
    return "from " + checkpoint::next_start(checkpoints);
  };
  local.begins = [folder, begun = local.begun]() mutable {
    if (begun()) base::remove_tree(folder / postmortem::kFolder);
  };
  local.verdict = [folder, begun = local.begun](const std::vector<int64_t>& stopped) mutable {
    return begun() ? postmortem::write_verdict(folder, stopped).told() : std::string();
  };
  std::error_code failed;
  fs::create_directories(local.log_folder, failed);
  if (failed)
    throw Error(ErrorCode::output_unwritable,
                "cannot make " + local.log_folder.string() + ": " + failed.message())
        .key("run.dir")
        .help("set run.dir to a folder that may be written to");
  call.out.flush();
  return launch::run_local_ranks(local);
}

// A launcher starts as many processes as there are ranks, perhaps on many hosts: none of them may
// spend minutes on a proof that all others wait for.
void refuse_proof(const Call& call, const Ranks& ranks) {
  if (!call.has("prove") || !ranks || started_by_us(ranks)) return;
  throw Error(ErrorCode::usage,
              std::string("--prove starts ranks of its own, but this process is a rank that ") +
                  launch::source_name(ranks->source) + " started")
      .help("before the launcher starts, once: meshwright prove " +
            text::shell_word(call.positional(0)))
      .help("leave out --prove");
}

int start_train(Call& call, const Ranks& ranks) {
  refuse_proof(call, ranks);
  const int64_t wanted = count_of_ranks(call, ranks), restarts = restarts_of(call, ranks);
  const Screen screen = screen_of(call, started_by_us(ranks));
  const std::optional<std::string> handed =
      started_by_us(ranks) ? launch::handed_to_rank(launch::kConfiguration) : std::nullopt;
  call.reading = std::make_shared<config::Reading>(handed ? config::Reading::of(*handed)
                                                          : config::Reading(load_options(call)));
  train::RunOptions options = read_options(call, ranks, screen);
  if (const char* attempts = std::getenv(launch::kAttempts);
      attempts != nullptr && started_by_us(ranks))
    options.attempts = std::atoi(attempts);
  auto run_here = [&] { return run_rank(call, ranks, "meshwright_train_rank", &options); };
  if (started_by_us(ranks)) {
    // The parent has checked the job; when it dies, so do its ranks.
    if (!launch::end_with_parent()) return 1;
    int status = run_here();
    return status == 0 ? launch::kDone : status;
  }
  // Every rank asks, so that all of them refuse alike and at once.
  int status = 0;
  std::optional<plan::Job> job = load_job(call, status);
  if (job) status = check(call, *job, options, ranks, wanted);
  if (!job || status != 0) return status;
  if (call.has("prove")) status = prove_first(call, wanted);
  if (status != 0) return status;
  if (ranks || (wanted == 1 && restarts == 0)) return run_here();
  launch::LocalJob local =
      local_ranks(call, "train", {"trace", "sample", "prompt", "temperature"}, wanted, screen);
  local.max_restarts = restarts;
  return run_locally(call, *job, std::move(local));
}

int run_train(Call& call) { return refuse_together(call, start_train); }

}  // namespace

Verb train_verb() {
  return declare(run_train, R"(
train FILE
Train a model under the strategy that the file names

Starts N local ranks, or runs as one rank of a launcher (torchrun, RANK and WORLD_SIZE, Slurm, Open
MPI).
Results go to <run.dir>/<run.name>/: metrics.jsonl, run.log, rank_logs, the configuration and the
plan.
Exit status: 0 done, 2 a mistake in the file, 3 the sizes do not fit, 4 ranks or devices, 5
numerics, 6 a collective failed, 7 data or weights, 75 told to end and saved, 128+n by signal.

Ctrl-C, a terminal that goes away (SIGHUP), SIGTERM or SIGUSR1: all ranks end after the same step,
and save; run the same command to continue. A second one ends at once. Before the first step the
first one does: nothing is lost then.

  meshwright train configs/first_fsdp2_cpu.toml --nproc 2
  meshwright train job.toml --nproc 2 --set distributed.strategy=ddp --set run.name=second
  meshwright train configs/quickstart.toml --nproc 2 --sample 600 --prompt '#include <'

--nproc N         Start N local ranks. Default: 1, in this process.
--max-restarts N  Start local ranks again, up to N times, when one is killed, loses its peers or
                  fails inside. Default: 0.
--sample N        After the last step let the model write N bytes (vocab_size = 256 only).
--prompt TEXT     What the sample continues. Default: a line break.
--temperature T   How freely the sample is drawn; 0: most likely bytes. Default: 0.7.
--trace           Write a Chrome trace of every rank to <run.dir>/<run.name>/trace/.
--prove           First show that these ranks compute what one process computes (as `prove` does,
                  on as many ranks, at most 64); train only when nothing else is found. Not under a
                  launcher.
--set
)");
}

}  // namespace meshwright::cli
