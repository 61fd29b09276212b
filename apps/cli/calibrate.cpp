// calibrate: starts the ranks, or measures as one of them, and writes a machine file.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/cli/common.h"
#include "apps/cli/verb.h"
#include "apps/observe/report/run_record.h"
#include "apps/performance/calibrate/measured.h"
#include "apps/performance/calibrate/report.h"
#include "apps/performance/forecast/forecast.h"
#include "apps/performance/steptime/machine.h"
#include "engine/config/config.h"
#include "engine/job/job.h"
#include "engine/job/plan.h"
#include "meshwright/abi.h"
#include "sdk/base/files/durable.h"

namespace meshwright::cli {

// calibrate --from: the part that starts no ranks.
namespace {

namespace json = boost::json;

// Steps without the first three; of fewer a median says little.
constexpr int64_t kLeastSteps = 5;

const json::value* entry(const std::optional<json::object>& file, const char* table,
                         const char* key) {
  const json::value* in = file ? file->if_contains(table) : nullptr;
  return in != nullptr && in->is_object() ? in->as_object().if_contains(key) : nullptr;
}
std::optional<double> number_at(const json::value* value) {
  if (value == nullptr || !value->is_number()) return std::nullopt;
  const double out = value->to_number<double>();
  return out > 0 && std::isfinite(out) ? std::optional(out) : std::nullopt;
}

Error no_figure(ErrorCode code, const runs::RunRecord& run, const std::string& what) {
  return Error(code, run.name + " " + what).key("--from");
}

calibrate::RunReport measured_of(const runs::RunRecord& run) {
  calibrate::RunReport out;
  out.run.run = run.name;
  const std::optional<double> seconds = number_at(entry(run.plan, "measured", "seconds"));
  if (!seconds)
    throw no_figure(ErrorCode::missing_key, run,
                    "does not say what a step took: plan.json has no measured.seconds, which a run "
                    "writes at its end")
        .help("name a run that has ended, of " + std::to_string(3 + kLeastSteps) +
              " steps or more, without --trace");
  out.run.seconds = *seconds;
  out.steps = std::llround(number_at(entry(run.plan, "measured", "steps")).value_or(0));
  if (out.steps < kLeastSteps)
    throw no_figure(ErrorCode::out_of_range, run,
                    "has " + report::counted(out.steps, "step", "steps") +
                        " that count (not the first three, nor those beside a save or an "
                        "evaluation); a median wants " +
                        std::to_string(kLeastSteps))
        .help("train longer: --set step_scheduler.max_steps=20");
  out.run.exposed = number_at(entry(run.plan, "measured", "exposed_comm_seconds"));
  return out;
}

plan::Job job_of(Call& call, const runs::RunRecord& run) {
  config::LoadOptions options;
  options.file = run.folder / config::kResolvedFile;
  Diagnostics problems;
  const config::Source source = config::Source::load(options, problems);
  plan::foreign_plugins(source, run.folder, call.has("trust-plugins"),
                        [&](const std::string& text) { call.notice(text); });
  std::optional<plan::Job> job = plan::load_job(source, problems);
  problems.throw_if_any();
  if (!job)
    throw Error(ErrorCode::file_unreadable, options.file.string() + " cannot be read")
        .help("name a run whose folder has its config.resolved.toml");
  return std::move(*job);
}

// The machine that the run was predicted on, unless --machine names another one. Its name goes to
// `named`.
steptime::Machine machine_of(const Call& call, const plan::Job& job, const runs::RunRecord& run,
                             std::string& named) {
  const std::string folder = forecast::machines_folder();
  named = call.value("machine", job.config.table("report").get_string("machine"));
  if (!named.empty()) return steptime::find_machine(named, folder);
  // What the driver reported.
  if (const json::value* name = entry(run.plan, "predicted", "machine");
      name != nullptr && name->is_string()) {
    named = std::string(name->as_string());
    if (std::optional<steptime::Machine> found = steptime::machine_reported(named, folder)) {
      if (const auto ranks = number_at(entry(run.plan, "predicted", "ranks_per_host")))
        found->network.ranks_per_host = *ranks;
      return std::move(*found);
    }
  }
  throw no_figure(ErrorCode::missing_key, run,
                  "has no prediction to correct: its report.machine was not set, and no driver "
                  "reported a known device")
      .help("say which machine it ran on: --machine cpu, --machine h100x8 or --machine FILE.toml");
}

}  // namespace

// Reads the run that --from names, writes `out` and prints. The exit status.
int calibrate_from(Call& call, const std::string& out) {
  for (const char* flag : {"from", "machine"})
    if (call.has(flag) && call.value(flag).empty())
      throw Error(ErrorCode::usage, "--" + std::string(flag) + " is empty")
          .help("--from runs/first --machine h100x8");
  const runs::RunRecord run = runs::read_run(call.value("from"));
  calibrate::RunReport report = measured_of(run);
  plan::Job job = job_of(call, run);
  report.machine = machine_of(call, job, run, report.run.machine);
  plan::PlanRequest request;
  const json::value* ranks = run.environment ? run.environment->if_contains("world_size") : nullptr;
  if (ranks == nullptr && run.plan) ranks = run.plan->if_contains("world_size");
  request.world_size = std::llround(number_at(ranks).value_or(1));
  request.ranks_per_host = std::llround(report.machine.network.ranks_per_host);
  const plan::JobPlan plan = plan::make_plan(job, request);
  // As plan --machine has it.
  const std::function<steptime::Prediction(const steptime::Machine&)> predict =
      [&](const steptime::Machine& machine) { return forecast::forecast(job, plan, machine).time; };
  report.run.waits_for_work = plan.pipeline.has_value();
  report.run.halves = forecast::compute_width(plan) <= 2;
  report.before = predict(report.machine);

  const std::string now = base::utc_now();
  report.found = calibrate::fit_run(report.machine, report.run, predict, now.substr(0, 10));
  report.file = out;
  const std::string text = steptime::machine_text(
      report.found.fitted.machine, report.found.fitted.sources,
      "Written by meshwright " MESHWRIGHT_VERSION " calibrate --from " +
          report::printable(run.name) + ", " + now + ": " + report::printable(report.run.machine) +
          " with what " + report::counted(report.steps, "step", "steps") + " took.\n" +
          "Figures may be changed by hand: [source] then says where they come from.");
  report.after = predict(steptime::parse_machine(text, out));
  base::write_durably(out, text);
  if (call.json)
    call.print_json(report.json());
  else
    call.out.write(report.text(call.out_style));
  return 0;
}

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
