// What a way of moving and keeping a model comes to at a layout's sizes.
#include "apps/performance/steptime/search.h"

namespace meshwright::steptime {
namespace {

// By the strategy's own count: that of as many ranks, or of the next fewer that it was asked about.
void count_own(const Way& way, Job& job) {
  auto at = way.own.upper_bound(job.dp() * job.cp);
  if (at == way.own.begin()) return;
  --at;
  job.counted = job.micro_batches > 1 ? at->second.waiting : at->second.once;
  job.optimizer_bytes *= at->second.updated;
}

}  // namespace

void lay_out(const Shape& shape, const Way& way, Job& job) {
  const double trained = 1 - shape.frozen.parameters;
  double layer = shape.layer_of_rank(job.tp, job.ep);
  const double root = shape.root_parameters() / job.tp,
               all = shape.layers / job.pp * layer + root;  // that a rank computes with
  // Nothing gathers or reduces experts that ep alone cuts.
  if (job.ep > 1 && job.dp() * job.cp * job.tp <= job.ep)
    layer -= shape.routed_parameters() / job.ep;
  job.width = way.width;
  count_own(way, job);
  DataTraffic& data = job.data;
  data = {};
  job.state_whole = job.state_cut = job.whole_gradients = 0;
  const double states = way.weights + way.gradients + way.optimizer;
  if (way.whole || way.level == 0)
    job.state_whole = states;
  else if (way.level == 3)
    job.state_cut = states;
  else if (way.level == 2) {
    job.state_whole = way.weights;
    job.state_cut = way.gradients + way.optimizer;
  } else {
    job.state_whole = way.weights + way.gradients;
    job.state_cut = way.optimizer;
  }
  const double frozen = way.frozen > 0 ? way.frozen : way.weights;
  job.stored = frozen;
  job.frozen_whole = way.frozen_whole;
  if (way.on_host) job.state_whole = job.state_cut = job.stored = 0;
  const bool alone = job.shard <= 1 && job.replicas() <= 1;
  // What is whole has a copy in the dtype that it computes in.
  const double cast =
      all * way.width *
      ((way.weights != way.width ? trained : 0) + (frozen != way.width ? 1 - trained : 0));
  if (way.whole && job.engine_memory)
    data.transient = cast + (way.buckets && !alone ? trained * all * way.reduced : 0);
  if (alone) {
    job.state_whole += job.state_cut;
    job.state_cut = 0;
    return;
  }
  data.hidden = way.hidden;
  data.layer_reduced = trained * layer * way.reduced;
  data.root_reduced = trained * root * way.reduced;
  data.layer_summed = data.layer_reduced / job.shard;
  data.root_summed = data.root_reduced / job.shard;
  const bool each = way.reduces_each && job.micro_batches > 1;
  data.reduce = each ? When::each : When::once;
  if (way.whole) return;
  data.ahead = way.ahead;
  if (way.level < 3 && job.engine_memory) {
    data.transient = cast;
    if (way.level == 2)
      data.transient += data.root_reduced + 2 * data.layer_reduced;
    else if (way.reduced != way.gradients)
      data.transient += 2 * data.layer_reduced;
  }
  if (way.level == 0) return;
  // Parameters that are whole are gathered as they are stored.
  const double gathered = (way.level < 3 && job.engine_memory ? way.weights : way.width) *
                          (way.frozen_whole ? trained : 1);
  data.layer_gathered = layer * gathered;
  data.root_gathered = root * gathered;
  const bool again = job.pp > 1 ? way.reshards_in_pipeline : way.reshards,
             once = way.level < 3 || (job.pp > 1 && !again);
  data.gather_forward = once ? When::once : When::each;
  if (!once && again) data.layer_gathered_again = data.layer_gathered;
  if (way.level == 3 && job.micro_batches > 1 && !each) job.whole_gradients = way.reduced;
  if (way.rows) {
    data.copied_out = 2 * way.width * layer;
    data.copied_in = (way.width + way.reduced) * layer;
  }
}

}  // namespace meshwright::steptime
