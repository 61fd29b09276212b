// calibrate: starts the ranks, or measures as one of them, and writes a machine file.
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/calibrate/request.h"
#include "engine/cli/calibrate_from.h"
#include "engine/cli/common.h"
#include "engine/cli/ranks.h"
#include "engine/forecast/forecast.h"

namespace meshwright::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kLeastSeconds = 0.1, kMostSeconds = 600;

calibrate::Widths widths_of(const std::string& given) {
  if (given == "both") return calibrate::Widths::both;
  if (given == "float32") return calibrate::Widths::full;
  if (given == "bfloat16") return calibrate::Widths::half;
  const std::vector<std::string> all = {"both", "float32", "bfloat16"};
  Error error(ErrorCode::usage, "--dtype " + given + " is not measured");
  if (std::string near = nearest_name(given, all); !near.empty())
    error.help("did you mean --dtype " + near + "?");
  throw error.help("there are --dtype both, float32, bfloat16");
}

std::string out_of(const Call& call) {
  std::string out = call.value("out", calibrate::Request().out);
  if (out.empty()) throw Error(ErrorCode::usage, "--out is empty").help("--out machine.toml");
  return out;
}

calibrate::Request read_calibrate_request(const Call& call, const Screen& screen) {
  calibrate::Request request;
  request.out = out_of(call);
  request.widths = widths_of(call.value("dtype", "both"));
  if (call.has("seconds")) {
    const std::optional<double> seconds = call.finite("seconds");
    if (!seconds || *seconds < kLeastSeconds || *seconds > kMostSeconds)
      throw Error(ErrorCode::usage, "--seconds takes a number from 0.1 to 600")
          .help("--seconds 30");
    request.seconds = *seconds;
  }
  request.sets = call.values("set");
  request.machines = forecast::machines_folder();
  request.json = call.json;
  request.live = screen.live;
  request.width = screen.width;
  request.colour = screen.colour;
  request.unicode = screen.unicode;
  return request;
}

// The file, which must not be there yet unless --force replaces it.
void check_file(const Call& call, const std::string& out) {
  std::error_code failed;
  if (fs::is_directory(out, failed))
    throw Error(ErrorCode::usage, "--out " + out + " is a folder")
        .help("--out " + (fs::path(out) / "machine.toml").string());
  if (fs::exists(fs::symlink_status(out, failed)) && !call.has("force"))
    throw Error(ErrorCode::usage, out + " is already there")
        .help("--force replaces it once the new one is complete")
        .help("--out another.toml");
  const fs::path folder = fs::path(out).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, failed))
    throw Error(ErrorCode::output_unwritable, "there is no folder " + folder.string())
        .help("mkdir -p " + folder.string());
}

// Keys that are wrong are refused before a rank starts.
void check_sets(Call& call) {
  Diagnostics diagnostics;
  config::LoadOptions options;
  options.sets = call.values("set");
  plan::load_job(config::Source::parse("schema = 1\n[distributed]\nstrategy = \"ddp\"\n", options,
                                       diagnostics),
                 diagnostics);
  diagnostics.throw_if_any();
}

int start_calibrate(Call& call, const Ranks& ranks) {
  const int64_t wanted = count_of_ranks(call, ranks);
  Screen screen = screen_of(call, started_by_us(ranks));
  if (!started_by_us(ranks)) screen.live = ::isatty(2) == 1;
  const calibrate::Request request = read_calibrate_request(call, screen);
  if (started_by_us(ranks)) {
    // The parent has checked everything; when it dies, so do its ranks.
    if (!launch::end_with_parent()) return 1;
  } else {
    // Only rank 0 writes, and tells the others when it may not.
    if (!ranks || ranks->rank == 0) check_file(call, request.out);
    check_sets(call);
  }
  if (ranks || wanted == 1) return run_rank(call, ranks, "meshwright_calibrate_rank", &request);
  launch::LocalJob local =
      local_ranks(call, "calibrate", {"out", "seconds", "dtype", "force", "json"}, wanted, screen);
  local.argv.erase(local.argv.begin() + 2);  // no FILE
  call.out.flush();
  return launch::run_local_ranks(local);
}

int run_calibrate(Call& call) {
  if (!call.has("from")) {
    if (call.has("trust-plugins"))
      throw Error(ErrorCode::usage, "--trust-plugins belongs to --from: only a run names plugins")
          .help("leave --trust-plugins out");
    if (call.has("machine"))
      throw Error(ErrorCode::usage, "--machine belongs to --from: else this machine is measured")
          .help("leave --machine out")
          .help("--from runs/first --machine " + call.value("machine"));
    return refuse_together(call, start_calibrate);
  }
  for (const char* flag : {"nproc", "seconds", "dtype", "set"})
    if (call.has(flag))
      throw Error(ErrorCode::usage,
                  "--" + std::string(flag) + " is for measuring, and --from measures nothing")
          .help("leave --" + std::string(flag) + " out");
  const std::string out = out_of(call);
  check_file(call, out);
  return calibrate_from(call, out);
}

}  // namespace

Verb calibrate_verb() {
  return declare(run_calibrate, R"(
calibrate
Measure this machine for predictions of step time, and write a machine file

Measures products by shape, memory, attention and the host's time to launch a layer on N local
ranks, or as one rank of a launcher (torchrun, RANK and WORLD_SIZE, Slurm, Open MPI), on all ranks
at once; then the collectives inside each host and between hosts.
The figures are fitted to the model that plan --machine predicts with. The slowest rank counts. What
is not measured is taken from the shipped machine that is nearest, and says so in the file.
With --from nothing is measured: the machine file of a run that has ended is corrected by what its
steps took, all that computes by one factor, and the network by another where the run says how long
ranks waited for it.

  meshwright calibrate --nproc 8 --out our_hosts.toml
  meshwright plan job.toml --world-size 64 --machine our_hosts.toml
  torchrun --nnodes 2 --nproc-per-node 8 --no-python meshwright calibrate --out our_hosts.toml
  meshwright calibrate --from runs/first --out corrected.toml

--nproc N        Measure with N local ranks, as many as a host has in training. Default: 1, in this process.
--out FILE       The machine file to write. Default: machine.toml.
--force          Replace a file that is already there.
--seconds N      How long to measure, about. Default: 30.
--dtype DTYPE=both|float32|bfloat16
                 What products are measured in. Default: both.
--from RUN       Take a run's folder in place of measuring.
--trust-plugins  With --from: load the plugins that come with the run's folder. Those that its
                 configuration names elsewhere, by absolute paths, are loaded in any case, and told.
--machine NAME   With --from: the machine file to correct, as plan --machine takes it. Default: the run's own.
--set
--json
)");
}

}  // namespace meshwright::cli
