// Host time of a pipeline's action: stages that compute next to nothing, so that what is left is
// the runner, autograd's start of a backward, and, on two ranks, messages of 4 KiB in both
// directions. A rank is a thread. Prints microseconds of an action, the median of 50 runs: from end
// to end, where a rank waits for the other, and what the rank's own thread worked.
//
//   build/bin/bench_actions
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <torch/nn/module.h>

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "meshwright/nn/layers.h"
#include "meshwright/nn/stage.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/sharded_units.h"
#include "meshwright/parallel/testing.h"
#include "sdk/base/pipeline_runner.h"
#include "sdk/base/shared_schemas.h"

using namespace meshwright;
using at::Tensor;

namespace {

// One small layer, which every stage uses.
struct NetImpl : torch::nn::Module {
  NetImpl() { norm = register_module("norm", RMSNorm(1024, 1e-6)); }
  Tensor forward(const Tensor& x) { return norm(x); }
  RMSNorm norm{nullptr};
};
MESHWRIGHT_MODULE(Net);

constexpr int64_t kMicroBatches = 32, kRuns = 50;

struct Times {
  double whole = 0, own = 0;  // microseconds
};
double now(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return 1e6 * static_cast<double>(t.tv_sec) + 1e-3 * static_cast<double>(t.tv_nsec);
}
// Medians of runs of so many actions.
template <class F>
Times measure(int64_t actions, F&& run) {
  std::vector<double> whole, own;
  for (int64_t i = 0; i < kRuns; ++i) {
    const double began = now(CLOCK_MONOTONIC), worked = now(CLOCK_THREAD_CPUTIME_ID);
    run();
    own.push_back((now(CLOCK_THREAD_CPUTIME_ID) - worked) / static_cast<double>(actions));
    whole.push_back((now(CLOCK_MONOTONIC) - began) / static_cast<double>(actions));
  }
  for (std::vector<double>* of : {&whole, &own})
    std::nth_element(of->begin(), of->begin() + kRuns / 2, of->end());
  return {whole[kRuns / 2], own[kRuns / 2]};
}

Times action_us(PipelineSchedule schedule, int64_t ranks, int64_t local) {
  Times out;
  run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
    at::set_num_threads(1);
    DeviceMesh mesh(Mesh({{"pp", ranks}, {"dp_shard", 1}}), world);
    PipelineOptions options;
    options.schedule = schedule_name(schedule);
    options.batch_size = kMicroBatches;
    if (local > 1) options.layers_per_stage = 1;
    const PipelinePlan plan = plan_stages(ranks * local, ranks, options);
    PipelineSetup setup;
    setup.group = mesh.group("pp");
    setup.run = simulate_pipeline(make_actions(schedule, ranks, local, kMicroBatches));
    setup.stages_of_rank = plan.stages_of_rank;
    setup.message.sizes = {1024};
    setup.modules.resize(plan.stages.size());
    for (size_t s = 0; s < plan.stages.size(); ++s) setup.needs_input_gradient.push_back(s > 0);
    Net net;
    ShardGroups groups;
    groups.shard = groups.data = mesh.group("dp_shard");
    groups.shard_axis = "dp_shard";
    ShardingPolicy policy;
    policy.precision.mp = {DType::float32, DType::float32, DType::float32, true};
    const ModelOutline outline = outline_of(*net);
    auto model = shard_model(net.ptr(), bind_units(*net, outline, plan_units(outline, false)),
                             policy, groups, world);
    PipelineRunner runner(setup);
    const auto me = static_cast<size_t>(setup.group->rank());
    const Tensor first = at::randn({1024});
    const auto last = static_cast<int64_t>(plan.stages.size()) - 1;
    int64_t actions = 0;
    for (const PipelineStep& step : setup.run.steps[me])
      actions += step.kind == PipelineStep::Kind::compute ? 1 : 0;
    const Times mine = measure(actions, [&] {
      model->begin_step();
      runner.run(*model, [&](const PipelineAction& action, const Tensor& input) {
        const Tensor result = net(action.stage == 0 ? first : input);
        return action.stage == last ? result.sum() : result;
      });
      model->end_step();
    });
    if (me == 0) out = mine;
  });
  return out;
}

// The same sums with no runner: what autograd and the operators take.
Times bare_us() {
  Net net;
  const Tensor first = at::randn({1024});
  return measure(2 * kMicroBatches, [&] {
    for (int64_t m = 0; m < kMicroBatches; ++m) net(first).sum().backward();
  });
}

}  // namespace

int main() {
  at::set_num_threads(1);
  const Times bare = bare_us();
  std::printf("forward and backward without a pipeline: %.1f us each\n\n", bare.whole);
  std::printf("%-24s%8s%8s%14s%12s\n", "schedule", "ranks", "stages", "us an action", "own work");
  struct Row {
    PipelineSchedule schedule;
    int64_t ranks, local;
  };
  using enum PipelineSchedule;
  for (const Row& row :
       {Row{one_f_one_b, 1, 1}, Row{interleaved_1f1b, 1, 4}, Row{one_f_one_b, 2, 1},
        Row{gpipe, 2, 1}, Row{looped_bfs, 2, 2}, Row{interleaved_1f1b, 2, 2},
        Row{interleaved_zero_bubble, 2, 2}, Row{zbv_zero_bubble, 2, 2}, Row{dual_pipe_v, 2, 2}}) {
    const Times t = action_us(row.schedule, row.ranks, row.local);
    std::printf("%-24s%8d%8d%14.1f%12.1f\n", std::string(schedule_name(row.schedule)).c_str(),
                static_cast<int>(row.ranks), static_cast<int>(row.ranks * row.local), t.whole,
                t.own);
  }
}
