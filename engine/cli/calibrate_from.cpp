#include "engine/cli/calibrate_from.h"

#include <cmath>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

#include "engine/calibrate/run_report.h"
#include "engine/forecast/forecast.h"
#include "engine/plan/foreign_plugins.h"
#include "engine/plan/plan.h"
#include "engine/runs/run_record.h"
#include "engine/steptime/write_machine.h"
#include "meshwright/abi.h"
#include "sdk/files/clock.h"
#include "sdk/files/durable.h"

namespace meshwright::cli {
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
  options.file = run.folder / "config.resolved.toml";
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
  report.run.halves = forecast::compute_width(job, plan) <= 2;
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

}  // namespace meshwright::cli
