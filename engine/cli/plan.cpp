#include "engine/cli/common.h"
#include "engine/plan/draw.h"

namespace meshwright::cli {
namespace {

// All groups of one axis, one a line, written as they come: memory does not grow with the world.
void print_groups(Call& call, const plan::JobPlan& plan, const std::string& axis) {
  auto print = [&](std::span<const int64_t> group) {
    std::string line;
    for (int64_t rank : group) line += (line.empty() ? "" : " ") + std::to_string(rank);
    call.out.write(line + "\n");
  };
  if (!plan.mesh.device_mesh) {
    if (axis != "dp")
      throw Error(ErrorCode::no_such_axis, plan.strategy.info->name + " has no mesh; its only group is dp").help("--groups dp");
    std::vector<int64_t> all = plan::axes_of(plan).front().group;
    print(all);
    return;
  }
  const Mesh& mesh = plan.mesh.moe_mesh && !plan.mesh.device_mesh->has_axis(axis) && plan.mesh.moe_mesh->has_axis(axis)
                         ? *plan.mesh.moe_mesh
                         : *plan.mesh.device_mesh;
  mesh.for_each_group(axis, print);
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
  call.say(said);
  if (call.has("groups"))
    print_groups(call, plan, call.value("groups"));
  else if (call.json)
    call.print_json(plan::to_json(plan));
  else
    call.out.write(plan::draw(call.out_style, plan));
  return 0;
}

int run_validate(Call& call) {
  int status = 0;
  std::optional<plan::Job> job = load_job(call, status);
  if (!job) return status;
  // The mesh can be judged once the number of ranks is known: given, or implied by an explicit dp_size.
  const ParallelSizes& sizes = job->config.shared.sizes;
  int64_t implied = sizes.dp.value_or(1) * sizes.tp * sizes.cp * sizes.pp;
  bool known = call.has("world-size") || std::getenv("WORLD_SIZE") != nullptr;
  int64_t world = known ? world_size(call) : implied;
  std::string mesh = "not checked: give --world-size";
  if (known || sizes.dp) {
    plan::JobPlan plan = plan::make_plan(*job, {world, 0});
    Diagnostics said;
    for (const std::string& text : plan.notices) said.notice(text);
    for (const std::string& text : plan.warnings) said.warning(text);
    call.say(said);
    mesh = "fits " + report::counted(world, "rank", "ranks");
  } else if (const std::string path = job->config.table("model").get_string("config");
             !path.empty() || sizes.tp * sizes.pp * sizes.cp > 1) {
    // Without a world the model and the model-parallel sizes can still be checked against each other: the smallest world that has them.
    int64_t least = sizes.tp * sizes.cp * sizes.pp * (sizes.dp_replicate > 1 ? 2 * sizes.dp_replicate : 1);
    if (sizes.ep > 1)
      while (least % sizes.ep != 0) least += sizes.tp * sizes.cp * sizes.pp * std::max<int64_t>(1, sizes.dp_replicate);
    if (!job->config.table("step_scheduler").is_given("global_batch_size")) plan::make_plan(*job, {least, 0});
  }
  if (call.json) {
    call.print_json(boost::json::object{{"ok", true},
                                        {"strategy", job->strategy.info->name},
                                        {"plugin", job->strategy.plugin->path.string()},
                                        {"world_size", known || sizes.dp ? boost::json::value(world) : boost::json::value(nullptr)}});
  } else {
    call.out.write(report::paint(call.out_style, report::Tone::green, "ok") + ": " + call.positional(0) + "\n  strategy " +
                   job->strategy.info->name + " of plugin " + job->strategy.plugin->name + " " + job->strategy.plugin->version +
                   "\n  mesh " + mesh + "\n");
  }
  return 0;
}

}  // namespace

Verb plan_verb() {
  return {.name = "plan",
          .summary = "Show how a job would be laid out: mesh, groups, plan, memory, traffic",
          .details =
              "Starts no processes and needs no accelerator. Relative paths in the file start at the current folder.\n\n"
              "  meshwright plan job.toml --world-size 64 --rank 5\n"
              "  meshwright plan job.toml --world-size 64 --set distributed.tp_size=4 --json",
          .positionals = {{"FILE"}},
          .flags = {kWorldSizeFlag,
                    {.name = "rank", .argument = "R", .doc = "Show the groups and shares of this rank. Default: 0."},
                    {.name = "groups", .argument = "AXIS", .doc = "Print all groups of one axis instead, one a line."},
                    kSetFlag,
                    kJsonFlag},
          .run = run_plan};
}

Verb validate_verb() {
  return {.name = "validate",
          .summary = "Check a configuration and report every mistake in it",
          .details =
              "Checks keys, types, ranges, the strategy's own rules and, where the number of ranks is known, the mesh.\n"
              "Exit status: 0 fine, 2 a mistake in the file, 3 the sizes do not fit.",
          .positionals = {{"FILE"}},
          .flags = {kWorldSizeFlag, kSetFlag, kJsonFlag},
          .run = run_validate};
}

}  // namespace meshwright::cli
