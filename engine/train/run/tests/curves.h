// What a run of a few steps came to, for comparing layouts. Before doctest.h: LibTorch has a CHECK
// of its own.
#pragma once

#include <ATen/ops/max.h>

#include <cmath>
#include <functional>
#include <map>
#include <mutex>

#include "engine/train/run/tests/small_models.h"
#include "engine/train/run/tests/small_run.h"
#include "meshwright/parallel/testing.h"

namespace meshwright {

struct Curve {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor>
      parameters;  // after the first five steps, or as many as asked for
};

// `one`: what a step is in place of rank.step().
using RankStep = std::function<StepResult(Rank& rank, int step)>;
inline Curve curve_of(const Layout& layout, int steps, int parameters_after = 5,
                      const RankStep& one = {}) {
  Curve out;
  std::mutex mutex;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    Curve mine;
    for (int step = 0; step < steps; ++step) {
      const StepResult result = one ? one(rank, step) : rank.step();
      mine.losses.push_back(result.loss);
      mine.norms.push_back(result.grad_norm);
      if (step == std::min(steps, parameters_after) - 1)
        for (const ParallelParameter& p : rank.trainer.model().parameters())
          mine.parameters[p.name] = rank.trainer.model().full_tensor(p.name).clone();
    }
    std::lock_guard lock(mutex);
    if (world->rank() == 0) out.losses = std::move(mine.losses), out.norms = std::move(mine.norms);
    out.parameters.merge(mine.parameters);  // stages of a pipeline have others each
  });
  return out;
}

// The largest relative difference; `b` may be longer.
inline double farthest(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] / b.at(i) - 1));
  return worst;
}
// The largest difference of an element; infinite for other sizes.
inline double farthest(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() ? (a - b).abs().max().item<double>() : HUGE_VAL;
}

// Where a curve leaves another one; nothing where it does not. Float32 sums in another order: real
// distances are 2e-7 (losses, norms) and 2e-6 (weights, where a step is 1e-3).
// `times`: limits so many times as wide.
inline std::string strays(const Curve& curve, const Curve& truth, double times = 1) {
  std::string out;
  auto told = [&](const std::string& what, double far, double limit) {
    if (!(far < limit * times) && out.size() < 600)
      out += what + " off by " + std::to_string(far * 1e6) + "e-6; ";
  };
  told("losses", farthest(curve.losses, truth.losses), 1e-6);
  told("norms", farthest(curve.norms, truth.norms), 1e-6);
  if (curve.parameters.size() != truth.parameters.size()) out += "another number of parameters; ";
  for (const auto& [name, tensor] : truth.parameters)
    told(name,
         curve.parameters.contains(name) ? farthest(curve.parameters.at(name), tensor) : HUGE_VAL,
         5e-6);
  return out;
}

inline const std::string kTp2 = "distributed.tp_size=2", kTp4 = "distributed.tp_size=4",
                         kReplicate2 = "distributed.dp_replicate_size=2",
                         kSequence = "distributed.sequence_parallel=true",
                         kBase = "distributed.tp_plan=\"base\"",
                         kAsync = "distributed.enable_async_tensor_parallel=true";

struct OnMesh {
  int64_t ranks;
  std::vector<std::string> sets;
};
inline const OnMesh kAlone{1, {}};
// tp 2, tp 4, tp 2 x shard 2, tp 2 x replicate 2 x shard 2
inline const std::vector<OnMesh> kTpMeshes = {
    {2, {kTp2}}, {4, {kTp4}}, {4, {kTp2}}, {8, {kTp2, kReplicate2}}};

// fsdp2 in one micro-batch per step. A larger epsilon than usual: AdamW would blow up the rounding
// of gradients that are nearly zero.
inline Layout calm_layout(const std::string& model, const OnMesh& mesh,
                          const std::vector<std::string>& more = {}) {
  int64_t tp = 1;
  for (const std::string& set : mesh.sets) tp = set == kTp2 ? 2 : set == kTp4 ? 4 : tp;
  Layout out{"fsdp2",
             mesh.ranks,
             {"optimizer.eps=1e-5",
              "step_scheduler.local_batch_size=" + std::to_string(kBatch * tp / mesh.ranks)},
             model};
  for (const std::vector<std::string>* sets : {&mesh.sets, &more})
    out.sets.insert(out.sets.end(), sets->begin(), sets->end());
  return out;
}

}  // namespace meshwright
