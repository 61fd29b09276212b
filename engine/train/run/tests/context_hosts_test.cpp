// What "auto" of context parallelism comes to by where the ranks are. Before doctest: LibTorch has
// a CHECK of its own.
#include "engine/train/run/tests/context_layouts.h"
#include "engine/train/step/rank_agreement.h"

#include <doctest/doctest.h>

#include "engine/job/plan.h"
#include "sdk/base/shared_schemas.h"

namespace context_hosts_test {

using namespace meshwright;

namespace {

// Four query heads on one key-value head: on one host all_gather sends least.
const SmallModel kOneKey{"one_key", "LlamaForCausalLM", "llama", 32, 4, 1, 64, ""};

plan::JobPlan plan_for(const std::string& model, const std::vector<int64_t>& hosts,
                       const std::vector<std::string>& more) {
  Layout layout{"fsdp2", 4, {"step_scheduler.local_batch_size=1"}, model};
  layout.sets.insert(layout.sets.end(), more.begin(), more.end());
  Job job = Rank::make(layout);
  return plan::make_plan(job.impl(), {.world_size = 4, .rank = 1, .hosts = hosts});
}

std::string sent(const plan::JobPlan& plan) {
  std::string out;
  for (const WireRow& row : plan.footprint->wire)
    if (row.axis == "cp") out += row.op + " ";
  return out;
}

}  // namespace

TEST_CASE("context hosts: auto is a ring where a group of cp has ranks on several hosts") {
  TestFolder folder("context_hosts");
  const std::string model = write_model(folder.path, kOneKey);
  struct Row {
    std::vector<int64_t> hosts;
    std::vector<std::string> sets;
    const char *method, *sent, *said;
  };
  const char* on_one = "; over several hosts it is ring";
  const char* several = "the ranks of cp are on several hosts; on one it would be all_gather: ";
  for (const Row& row : std::vector<Row>{
           {{}, {kCp2}, "all_gather", "all_gather reduce_scatter ", on_one},
           {{0, 0, 0, 0}, {kCp2}, "all_gather", "all_gather reduce_scatter ", "it sends"},
           {{0, 0, 2, 2}, {kCp2}, "all_gather", "all_gather reduce_scatter ", "it sends"},
           {{0, 1, 0, 1}, {kCp2}, "ring", "send ", several},
           // One group on two hosts makes all of them rings, those on one host too.
           {{0, 0, 2, 3}, {kCp2}, "ring", "send ", several},
           {{0, 0, 2, 2}, {kCp4}, "ring", "send ", several},
           {{0, 0, 2, 2}, {kCp4, kGather}, "all_gather", "all_gather reduce_scatter ", nullptr}}) {
    const plan::JobPlan plan = plan_for(model, row.hosts, row.sets);
    INFO(row.sets[0] << ", " << row.hosts.size() << " hosts known");
    CHECK(context_method_name(*plan.context) == row.method);
    CHECK(sent(plan) == row.sent);
    bool said = false;
    for (const std::string& notice : plan.notices) {
      said =
          said || (row.said &&
                   notice.starts_with("context parallelism by " + std::string(row.method) + ": ") &&
                   notice.find(row.said) != std::string::npos);
      if (!row.hosts.empty()) CHECK(notice.find(on_one) == std::string::npos);
    }
    CHECK(said == (row.said != nullptr));
    // What the strategy is run with is what was planned.
    CHECK((plan.shared.context.method == ContextMethod::ring) ==
          (std::string(row.method) == "ring"));
  }
}

TEST_CASE("context hosts: ranks of one machine are found to be, and others are not") {
  run_ranks(4, [&](const std::shared_ptr<World>& world) {
    const char* names[] = {"a", "b", "a", "c"};
    CHECK(train::hosts_of_ranks(*world, names[world->rank()]) == std::vector<int64_t>{0, 1, 0, 3});
  });
}

}  // namespace context_hosts_test
