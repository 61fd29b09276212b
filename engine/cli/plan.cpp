#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "engine/cli/before.h"
#include "engine/cli/common.h"
#include "engine/plan/training.h"
#include "engine/render/render.h"
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

// The smallest world that has room for the sizes, when the real one is not known.
int64_t smallest_world(const ParallelSizes& sizes) {
  int64_t copies = std::max<int64_t>(1, sizes.dp_replicate);
  int64_t unit = sizes.tp * sizes.cp;
  // A stage holds whole replicas, and whole expert groups.
  int64_t stage = std::lcm(unit * copies, std::max<int64_t>(1, sizes.ep));
  if (copies > 1 && stage / unit == copies) stage *= 2;
  return stage * sizes.pp;
}

bool depends_on_the_world(ErrorCode code) {
  return code == ErrorCode::world_not_divisible || code == ErrorCode::world_mismatch ||
         code == ErrorCode::dp_replicate_not_divisor || code == ErrorCode::dp_replicate_too_large ||
         code == ErrorCode::ep_not_divisor || code == ErrorCode::bad_rank_list;
}

// Of what stands between a job and its training: what the file does not say yet, or what `train`
// refuses.
std::string messages(const std::vector<Error>& obstacles, bool missing) {
  std::string out;
  for (const Error& error : obstacles)
    if ((error.code() == ErrorCode::missing_key) == missing)
      out += (out.empty() ? "" : "; ") + error.message();
  return out;
}

int run_plan(Call& call) {
  int status = 0;
  std::optional<plan::Job> job = load_job(call, status);
  if (!job) return status;
  plan::PlanRequest request;
  request.world_size = world_size(call);
  request.rank = call.number("rank", 0).value_or(0);
  plan::JobPlan plan = plan::make_plan(*job, request);
  Diagnostics said;
  for (const std::string& text : plan.notices) said.notice(text);
  for (const std::string& text : plan.warnings) said.warning(text);
  const std::vector<Error> obstacles = plan::errors_of_training(*job, &plan);
  if (std::string why = messages(obstacles, /*missing=*/false); !why.empty())
    said.warning("this plan cannot be trained: " + why);
  call.say(said);
  if (call.has("groups")) {
    print_groups(call, plan, call.value("groups"));
  } else if (call.json) {
    boost::json::object machine = plan::to_json(plan);
    plan::add_training(machine, obstacles);
    call.print_json(machine);
  } else {
    call.out.write(render::draw(call.out_style, plan));
  }
  return 0;
}

int run_validate(Call& call) {
  int status = 0;
  std::optional<plan::Job> job = load_job(call, status);
  if (!job) return status;
  // The mesh can be judged once the number of ranks is known: given, or implied by an explicit
  // dp_size. Without it, the sizes and the model are still held against each other, on the smallest
  // world that has room for them.
  const ParallelSizes& sizes = job->config.shared.sizes;
  const char* environment = std::getenv("WORLD_SIZE");
  bool given = call.has("world-size") || (environment != nullptr && *environment != '\0');
  bool known = given || sizes.dp.has_value();
  plan::check_rank_limits(*job, given ? std::optional(world_size(call)) : std::nullopt);
  int64_t world = given      ? world_size(call)
                  : sizes.dp ? *sizes.dp * sizes.tp * sizes.cp * sizes.pp
                             : smallest_world(sizes);
  std::string mesh =
      known ? "fits " + report::counted(world, "rank", "ranks") : "not checked: give --world-size";
  loader::LoadedStrategy strategy = job->strategy;  // or the one that it hands the job on to
  std::vector<Error> obstacles;
  Diagnostics said;
  try {
    plan::JobPlan plan = plan::make_plan(*job, {world, 0, !known});
    strategy = plan.strategy;
    for (const std::string& text : plan.notices) said.notice(text);
    for (const std::string& text : plan.warnings) said.warning(text);
    obstacles = plan::errors_of_training(*job, &plan);
    Diagnostics before = check_before_start(call, *job, plan, std::nullopt);
    for (const std::string& text : before.notices()) said.notice(text);
    for (const std::string& text : before.warnings()) said.warning(text);
    obstacles.insert(obstacles.end(), before.errors().begin(), before.errors().end());
  } catch (const Error& error) {
    if (known || !depends_on_the_world(error.code())) throw;
    obstacles = plan::errors_of_training(*job, nullptr);
  }
  // A file for planning alone may leave out what only training needs.
  std::string missing = messages(obstacles, /*missing=*/true);
  if (!plan::written_for_training(*job))
    std::erase_if(obstacles,
                  [](const Error& error) { return error.code() == ErrorCode::missing_key; });
  if (!missing.empty() && obstacles.empty())
    said.notice("enough for plan, not for train: " + missing);
  call.say(said);
  if (!obstacles.empty()) return call.fail(obstacles);
  if (call.json) {
    call.print_json(boost::json::object{
        {"ok", true},
        {"trains", missing.empty()},
        {"strategy", strategy.info->name},
        {"requested_strategy", job->config.requested_strategy},
        {"plugin", strategy.plugin->path.string()},
        {"world_size", known ? boost::json::value(world) : boost::json::value(nullptr)}});
  } else {
    const std::string& asked = job->config.requested_strategy;
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

--world-size
--rank R       Show the groups and shares of this rank. Default: 0.
--groups AXIS  Print all groups of one axis instead, one a line.
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
