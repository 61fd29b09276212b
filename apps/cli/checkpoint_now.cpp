// checkpoint now: asks a run that trains to save.
#include <boost/json/object.hpp>
#include <chrono>

#include "apps/cli/verb.h"
#include "engine/checkpoint/folder.h"
#include "engine/launch/save_request_file.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/read_file.h"
#include "sdk/base/host/run_lock.h"
#include "sdk/base/wait.h"

namespace meshwright::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Throws Error(usage) unless a run has the folder, as far as this host can know.
void check_alive(const fs::path& run) {
  std::error_code failed;
  if (!fs::is_directory(run, failed))
    throw Error(ErrorCode::file_unreadable, run.string() + " is not the folder of a run")
        .help("the folder of a run is <run.dir>/<run.name>: runs/first, for example");
  if (base::owner_of(run)) return;
  const std::optional<base::LockOwner> dead = base::parse_lock(base::read_file(run / "lock"));
  throw Error(ErrorCode::usage, "no run trains in " + run.string() +
                                    " at the moment, so none would save" +
                                    (dead ? ": process " + std::to_string(dead->pid) +
                                                ", which had it, is dead, or has another folder"
                                          : ""))
      .help("meshwright checkpoint ls " + run.string() + " shows what it has saved");
}

// What tells one checkpoint from the next, also where a step is saved twice.
struct Newest {
  std::optional<fs::path> path;
  fs::file_time_type time{};
  bool operator==(const Newest&) const = default;
};

Newest newest_of(const fs::path& run) {
  Newest out;
  out.path = checkpoint::latest_of(run / "checkpoints");
  std::error_code failed;
  if (out.path) out.time = fs::last_write_time(*out.path / "meta.json", failed);
  return out;
}

std::optional<fs::path> wait_for_checkpoint(const fs::path& run, const fs::path& request,
                                            const Newest& before, int64_t seconds) {
  std::error_code failed;
  Newest now;
  auto written = [&] {
    now = newest_of(run);
    return !fs::exists(request, failed) && now.path && now != before;
  };
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  return base::wait_until(end, std::chrono::milliseconds(50), written) ? now.path : std::nullopt;
}

int run_now(Call& call) {
  const fs::path run = call.positional(0), request = run / base::kSaveRequestFile;
  const std::optional<int64_t> seconds = call.number("wait", 1);
  check_alive(run);
  const Newest before = newest_of(run);
  base::write_durably(request, "");
  std::optional<fs::path> saved;
  if (seconds) {
    saved = wait_for_checkpoint(run, request, before, *seconds);
    if (!saved)
      throw Error(ErrorCode::no_checkpoint, "no checkpoint of " + run.string() +
                                                " appeared within " +
                                                report::counted(*seconds, "second", "seconds"))
          .help("its step may take longer: --wait " + std::to_string(*seconds * 10))
          .help(run.string() + "/run.log says what the run does");
  }
  if (call.json)
    call.print_json(boost::json::object{
        {"asked", request.string()},
        {"checkpoint", saved ? boost::json::value(saved->string()) : boost::json::value(nullptr)}});
  else
    call.out.write(saved ? "saved " + report::printable(saved->string()) + "\n"
                         : "asked: " + report::printable(run.string()) +
                               " saves after the step that it is at\n");
  return 0;
}

}  // namespace

Verb checkpoint_now_verb() {
  return declare(run_now, R"(
checkpoint now RUN
Ask a run that trains to save a checkpoint after its step

RUN is the folder of a run: runs/first. It may train on another host that shares the folder.
The same without this program: touch runs/first/checkpoint_now. The file is gone once the run saves.

  meshwright checkpoint now runs/first
  meshwright checkpoint now runs/first --wait 60

--wait SECONDS  Until the checkpoint is there, and print its path; exit status 7 if it is not then.
--json
)");
}

}  // namespace meshwright::cli
