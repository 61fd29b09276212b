#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "apps/cli/common.h"
#include "apps/performance/forecast/search.h"
#include "engine/job/job.h"
#include "engine/job/render.h"
#include "engine/job/trainable.h"
#include "engine/train/preflight/before.h"
#include "sdk/base/words.h"

namespace meshwright::cli {
namespace {

// All groups of one axis, one a line or as JSON, written as they come: memory does not grow with
// the world.
void print_groups(Call& call, const plan::JobPlan& plan, const std::string& axis) {
  std::vector<std::string> names;
  for (const plan::AxisView& view : plan::axes_of(plan)) names.push_back(view.name);
  if (std::find(names.begin(), names.end(), axis) == names.end()) {
    Error error(ErrorCode::no_such_axis,
                "the plan has no axis " + axis + "; it has " + text::join(names, ", "));
    if (std::string near = nearest_name(axis, names); !near.empty())
      error.help("did you mean --groups " + near + "?");
    error.help("--groups " + names.front());
    if (names.size() > 1) error.help("--groups " + names.back());
    throw error;
  }
  const std::string separator = call.json ? "," : " ";
  bool first = true;
  if (call.json) call.out.write("{\"axis\": \"" + axis + "\", \"groups\": [");
  auto print = [&](std::span<const int64_t> group) {
    std::string line = call.json ? (first ? "\n  [" : ",\n  [") : "";
    for (size_t i = 0; i < group.size(); ++i)
      line += (i > 0 ? separator : "") + std::to_string(group[i]);
    call.out.write(line + (call.json ? "]" : "\n"));
    first = false;
  };
  if (!plan.mesh.device_mesh)
    print(plan::axes_of(plan).front().group);
  else if (plan.mesh.device_mesh->has_axis(axis))
    plan.mesh.device_mesh->for_each_group(axis, print);
  else
    plan.mesh.moe_mesh->for_each_group(axis, print);
  if (call.json) call.out.write("\n]}\n");
}

// --fix tp_size=8
std::map<std::string, int64_t> fixed_sizes(const Call& call) {
  static const std::vector<std::string> kKeys = {
      "tp_size", "cp_size", "pp_size", "ep_size", "dp_replicate_size", "local_batch_size"};
  std::map<std::string, int64_t> out;
  for (const std::string& text : call.values("fix")) {
    const size_t at = text.find('=');
    const std::string key = text.substr(0, at);
    const std::string value = at == std::string::npos ? "" : text.substr(at + 1);
    const bool digits = !value.empty() && value.size() <= 9 &&
                        value.find_first_not_of("0123456789") == std::string::npos;
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end() || !digits ||
        std::stoll(value) < 1)
      throw Error(ErrorCode::usage, "--fix " + text + " is no size of a layout")
          .help("--fix KEY=N with KEY one of " + text::join(kKeys, ", "));
    if (!out.emplace(key, std::stoll(value)).second)
      throw Error(ErrorCode::usage, "--fix " + key + " stands twice")
          .help("give one size: --fix " + key + "=" + value);
  }
  return out;
}

// Empty: nobody names one.
std::string machine_named(const Call& call, const plan::Job& job) {
  if (!call.has("machine")) return job.config.table("report").get_string("machine");
  std::string out = call.value("machine");
  if (out.empty())
    throw Error(ErrorCode::usage, "--machine is empty")
        .help("--machine h100x8, or leave --machine out");
  return out;
}

int run_search(Call& call, plan::Job& job) {
  for (const char* flag : {"rank", "groups"})
    if (call.has(flag))
      throw Error(ErrorCode::usage, "--" + std::string(flag) + " shows one layout, --search many")
          .help("leave --" + std::string(flag) +
                " out, and give it to plan with the --set line of a layout that is found");
  forecast::Wanted wanted;
  wanted.world_size = world_size(call);
  plan::check_rank_limits(job, wanted.world_size);
  wanted.global_batch = call.number("global-batch", 1);
  if (call.has("max-memory")) {
    const std::optional<double> gib = call.finite("max-memory");
    if (!gib || *gib <= 0)
      throw Error(ErrorCode::usage, "--max-memory takes GiB of a rank, above 0")
          .help("--max-memory 70");
    wanted.max_memory = *gib * (int64_t{1} << 30);
  }
  wanted.most = static_cast<size_t>(call.number("top", 1).value_or(5));
  wanted.fixed = fixed_sizes(call);
  const std::vector<std::string> freed = call.values("free");
  wanted.free = std::set<std::string>(freed.begin(), freed.end());
  if (call.has("why")) wanted.why = call.value("why");
  wanted.reload = reload_of(call);
  wanted.beside_sets = !call.values("set").empty();
  Diagnostics said;
  if (const std::string why = before::count_samples(job); !why.empty()) said.notice(why);
  call.say(said);
  const steptime::Machine machine =
      steptime::find_machine(machine_named(call, job), forecast::machines_folder());
  const forecast::Found found = forecast::search(job, machine, wanted);
  if (call.json) {
    call.print_json(forecast::to_json(found));
    return 0;
  }
  call.out.write(forecast::draw(call.out_style, found));
  return 0;
}

// What a search sets itself is no reason against its job, as that the strategy which the file or
// --set names has nothing to cut along the sequence; other reasons stand without it.
std::optional<plan::Job> load_searched(Call& call, int& status) {
  Diagnostics problems;
  std::optional<plan::Job> job = plan::load_job(load_options(call), problems);
  if (!problems.ok()) {
    Diagnostics others;
    std::optional<plan::Job> other =
        reload_of(call)({"distributed.sequence_parallel=false"}, others);
    if (others.errors().size() < problems.errors().size()) {
      problems = std::move(others);
      job = std::move(other);
    }
  }
  call.say(problems);
  if (problems.ok()) return job;
  status = call.fail(problems.errors());
  return std::nullopt;
}

int run_plan(Call& call) {
  int status = 0;
  std::optional<plan::Job> job =
      call.has("search") ? load_searched(call, status) : load_job(call, status);
  if (!job) return status;
  if (call.has("search")) {
    if (machine_named(call, *job).empty())
      throw Error(ErrorCode::usage, "--search needs to know the machine")
          .help("--search --machine h100x8");
    return run_search(call, *job);
  }
  for (const char* flag : {"fix", "free", "why", "global-batch", "max-memory", "top"})
    if (call.has(flag))
      throw Error(ErrorCode::usage, "--" + std::string(flag) + " belongs to --search")
          .help("--search --machine h100x8");
  plan::PlanRequest request;
  request.world_size = world_size(call);
  request.rank = call.number("rank", 0).value_or(0);
  const std::string named = machine_named(call, *job);
  std::optional<steptime::Machine> machine;
  std::optional<Error> no_machine;  // which a plan that cannot be timed has no use for
  try {
    if (!named.empty()) machine = steptime::find_machine(named, forecast::machines_folder());
  } catch (const Error& error) {
    no_machine = error;
  }
  if (machine) request.ranks_per_host = std::llround(machine->network.ranks_per_host);
  Diagnostics said;
  if (const std::string why = before::count_samples(*job); !why.empty()) said.notice(why);
  for (const std::string& line : data::tell_mix(*job)) said.notice("dataset.mix " + line);
  plan::JobPlan plan = before::plan_or_help(reload_of(call), *job, request);
  for (const std::string& text : plan.notices) said.notice(text);
  for (const std::string& text : plan.warnings) said.warning(text);
  const std::vector<Error> obstacles = plan::errors_of_training(*job, &plan);
  if (std::string why = before::messages(obstacles, /*missing=*/false); !why.empty())
    said.warning("this plan cannot be trained: " + why);
  std::optional<forecast::Forecast> forecast;
  // A file that names a machine need not say all that a prediction wants; who asks for one is told.
  const bool can = plan.outline && plan.footprint && plan.workload.seq_len > 0;
  if (!named.empty() && (can || call.has("machine"))) {
    if (no_machine) throw Error(*no_machine);
    try {
      forecast = forecast::forecast(*job, plan, *machine);
    } catch (const Error& error) {  // of the machine that the file names
      if (call.has("machine")) throw;
      said.warning("no step time is predicted: " + error.message());
    }
    if (forecast && forecast->room() < 0)
      said.warning("the job does not fit on " + machine->name + ": " +
                   (forecast->fullest->stage_rank ? forecast->fullest->text() : "a rank") +
                   " needs " + report::human_bytes(std::llround(forecast->memory)) + " of " +
                   report::human_bytes(std::llround(forecast->usable)));
  }
  call.say(said);
  if (call.has("groups")) {
    print_groups(call, plan, call.value("groups"));
  } else if (call.json) {
    boost::json::object out = before::plan_json(*job, plan);
    if (forecast) out["time"] = forecast::to_json(*forecast);
    call.print_json(out);
  } else {
    call.out.write(render::draw(call.out_style, plan));
    if (forecast) call.out.write(forecast::draw(call.out_style, *forecast));
  }
  return 0;
}

int run_validate(Call& call) {
  int status = 0;
  std::optional<plan::Job> job = load_job(call, status);
  if (!job) return status;
  const char* environment = std::getenv("WORLD_SIZE");
  const bool given = call.has("world-size") || (environment != nullptr && *environment != '\0');
  const before::Verdict verdict = before::validate(
      reload_of(call), *job, given ? std::optional(world_size(call)) : std::nullopt);
  call.say(verdict.said);
  if (!verdict.obstacles.empty()) return call.fail(verdict.obstacles);
  const loader::LoadedStrategy& strategy = verdict.strategy;
  if (call.json) {
    call.print_json(
        boost::json::object{{"ok", true},
                            {"trains", verdict.missing.empty()},
                            {"strategy", strategy.info->name},
                            {"requested_strategy", job->config.requested_strategy},
                            {"plugin", strategy.plugin->path.string()},
                            {"world_size", verdict.world ? boost::json::value(*verdict.world)
                                                         : boost::json::value(nullptr)}});
  } else {
    const std::string& asked = job->config.requested_strategy;
    const std::string mesh = verdict.world
                                 ? "fits " + report::counted(*verdict.world, "rank", "ranks")
                                 : "not checked: give --world-size";
    call.out.write(
        report::paint(call.out_style, report::Tone::green, "ok") + ": " + call.positional(0) +
        "\n  strategy " + strategy.info->name +
        (asked == strategy.info->name ? "" : " (asked for: " + report::printable(asked) + ")") +
        " of plugin " + strategy.plugin->name + " " + strategy.plugin->version + "\n  mesh " +
        mesh + "\n");
  }
  return 0;
}

}  // namespace

Verb plan_verb() {
  return declare(run_plan, R"(
plan FILE
Show how a job would be laid out: mesh, groups, plan, memory, traffic

Starts no processes and needs no accelerator. Relative paths in the file start at the current
folder.

  meshwright plan job.toml --world-size 64 --rank 5
  meshwright plan job.toml --world-size 64 --set distributed.tp_size=4 --json
  meshwright plan job.toml --world-size 64 --machine h100x8
  meshwright plan job.toml --world-size 64 --machine h100x8 --search
  meshwright plan job.toml --world-size 64 --machine h100x8 --search --why 'tp8 pp2'

--world-size
--rank R        Show the groups and shares of this rank. Default: 0.
--groups AXIS   Print all groups of one axis instead, one a line.
--machine NAME  Predict time and memory of a step there: a shipped machine (a100-80, h100, h200, ...), with the ranks
 of a host as in h100x8, or a machine file. Default: report.machine.
--search        Rank the layouts of the model on that machine by predicted time, with the settings to use them.
--fix KEY=N...  With --search: keep tp_size, cp_size, pp_size, ep_size, dp_replicate_size or local_batch_size (samples
 of a micro-batch).
--free KEY...   With --search: try the values of this option of a strategy's own table though the file sets it.
--why LAYOUT    With --search: what takes this layout's time and memory, how far it is behind the first, or why it
 cannot be. In words of the table, as in --why 'tp8 pp2 1x8 full'; tp, cp, pp and ep are 1 unless named.
--global-batch N    With --search: samples of a step. Default: the file's.
--max-memory GIB    With --search: most memory of a rank. Default: what the machine has.
--top N         With --search: layouts to show. Default: 5.
--set
--json
)");
}

Verb validate_verb() {
  return declare(run_validate, R"(
validate FILE
Check a configuration and report every mistake in it

Checks keys, types, ranges, the strategy's own rules, the model and, where the number of ranks is
known, the mesh: what passes here is not refused by train. A file without a model or data passes if
it has no other keys that only train reads, and what train would still need is told.
Exit status: 0 fine, 2 a mistake in the file, 3 the sizes do not fit, or the job can be planned but
not trained.

--world-size
--set
--json
)");
}

}  // namespace meshwright::cli
