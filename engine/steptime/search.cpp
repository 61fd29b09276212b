#include "engine/steptime/search.h"

#include <algorithm>
#include <cmath>

namespace meshwright::steptime {
namespace {

constexpr size_t kSimulated = 64;  // of the best by the closed form
constexpr double kMostStages = 10, kLeastPiece = 512;

bool divides(double part, double all) { return part > 0 && std::fmod(all, part) == 0; }

std::vector<double> divisors(double of, double most) {
  std::vector<double> out;
  for (double d = 1; d <= std::min(of, most); ++d)
    if (divides(d, of)) out.push_back(d);
  return out;
}

class Search {
 public:
  Search(const SearchRequest& request, size_t most) : request_(request), most_(most) {}

  SearchResult run() {
    const double host = std::min(request_.machine.network.ranks_per_host, request_.ranks);
    for (const Way& way : request_.ways)
      for (const double tp : divisors(host, host)) {
        if (!stays("tp_size", tp) || (tp > 1 && !way.tp) || !divides(tp, request_.ranks)) continue;
        if (!divides(tp, request_.shape.heads) || !divides(tp, request_.shape.kv_heads)) {
          count("tp does not divide the heads");
          continue;
        }
        pipelines(way, tp);
      }
    rank();
    return std::move(out_);
  }

 private:
  bool stays(const char* key, double value) const {
    const auto found = request_.fixed.find(key);
    return found == request_.fixed.end() || static_cast<double>(found->second) == value;
  }
  void count(const char* reason) { ++out_.rejected[reason]; }

  void pipelines(const Way& way, double tp) {
    const double rest = request_.ranks / tp;
    for (const double pp : divisors(rest, request_.shape.layers)) {
      if (!stays("pp_size", pp) || (pp > 1 && !way.pp)) continue;
      for (double cp = 1; cp <= rest / pp; cp *= 2) {
        if (!stays("cp_size", cp) || (cp > 1 && !way.cp) || !divides(cp, rest / pp)) continue;
        if (cp > 1 && request_.base.length < cp * kLeastPiece) break;
        sizes(way, tp, pp, cp);
      }
    }
  }

  void sizes(const Way& way, double tp, double pp, double cp) {
    Job job = request_.base;
    job.ranks = request_.ranks;
    job.tp = tp;
    job.pp = pp;
    job.cp = cp;
    job.sequence_parallel = tp > 1 && way.sequence && divides(tp * cp, job.length);
    const double dp = job.dp();
    if (!divides(dp, request_.global_batch)) {
      count("the batch does not divide over dp");
      return;
    }
    const double samples = request_.global_batch / dp;
    for (const double stages : stage_counts(pp))
      for (double micro = 1; micro <= std::min(16.0, samples); ++micro) {
        if (!stays("local_batch_size", micro) || !divides(micro, samples)) continue;
        job.stages = stages;
        job.schedule =
            stages > 1 ? PipelineSchedule::interleaved_1f1b : PipelineSchedule::one_f_one_b;
        job.micro_batch = micro;
        job.micro_batches = samples / micro;
        if (pp > 1 && (job.micro_batches < pp || (stages > 1 && !divides(pp, job.micro_batches)))) {
          count("too few micro-batches for the pipeline");
          continue;
        }
        experts(way, job);
      }
  }

  // Stages of a rank that the layers divide into, at most with one less at both ends.
  std::vector<double> stage_counts(double pp) const {
    if (pp == 1) return {1};
    std::vector<double> out;
    for (double v = 1; v <= kMostStages && v * pp <= request_.shape.layers; ++v)
      if (divides(v * pp, request_.shape.layers) || divides(v * pp, request_.shape.layers + 2))
        out.push_back(v);
    return out;
  }

  void experts(const Way& way, Job job) {
    const double experts = request_.shape.experts;
    for (const double ep : experts > 0 ? divisors(experts, experts) : std::vector<double>{1}) {
      if (!stays("ep_size", ep) || (ep > 1 && !way.ep)) continue;
      if (!divides(ep, job.dp() * job.cp * job.tp)) continue;
      job.ep = ep;
      shards(way, job);
    }
  }

  // All ranks of dp and cp share the shards, or those of one host do.
  void shards(const Way& way, Job job) {
    const double all = job.dp() * job.cp;
    const double host = std::min(request_.machine.network.ranks_per_host, request_.ranks) / job.tp;
    std::vector<double> sizes{way.whole ? 1 : all};
    if (!way.whole && way.replicas && way.level == 3 && host > 1 && host < all &&
        divides(host, all) && host > job.cp && divides(job.cp, host))
      sizes.push_back(host);
    for (const double shard : sizes) {
      if (!way.whole && !stays("dp_replicate_size", all / shard)) continue;
      job.shard = shard;
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        if (request_.recompute && *request_.recompute != recompute) continue;
        job.recompute = recompute;
        add(way, job);
      }
    }
  }

  void add(const Way& way, Job job) {
    lay_out(request_.shape, way, job);
    ++out_.enumerated;
    Layout layout;
    layout.strategy = way.strategy;
    layout.less = divides(job.pp * job.stages, request_.shape.layers) ? 0 : 1;
    layout.predicted.memory = memory_of(request_.shape, job);
    layout.use = layout.predicted.memory.peak() / request_.memory;
    layout.job = std::move(job);
    if (!out_.smallest || layout.use < out_.smallest->use) out_.smallest = layout;
    if (layout.use > 1) {
      count("more memory than a rank has");
      return;
    }
    ++out_.fitting;
    layout.predicted = predict(request_.machine, request_.shape, layout.job, Bubble::closed_form);
    out_.best.push_back(std::move(layout));
    if (out_.best.size() >= 64 * kSimulated) keep(kSimulated);
  }

  static double score(const Layout& layout) {
    return layout.predicted.seconds * (layout.use > kComfortable ? 1.05 : 1);
  }
  void keep(size_t most) {
    std::stable_sort(out_.best.begin(), out_.best.end(),
                     [](const Layout& a, const Layout& b) { return score(a) < score(b); });
    if (out_.best.size() > most) out_.best.resize(most);
  }
  void rank() {
    keep(kSimulated);
    for (Layout& layout : out_.best)
      if (layout.job.pp > 1)
        layout.predicted = predict(request_.machine, request_.shape, layout.job);
    keep(most_);
  }

  const SearchRequest& request_;
  size_t most_;
  SearchResult out_;
};

}  // namespace

SearchResult search(const SearchRequest& request, size_t most) {
  return Search(request, most).run();
}

void lay_out(const Shape& shape, const Way& way, Job& job) {
  const double experts = job.ep > 1 ? shape.expert_parameters() : 0;
  const double layer = (shape.layer_parameters() - experts) / job.tp,
               root = shape.root_parameters() / job.tp;
  job.width = way.width;
  DataTraffic& data = job.data;
  data = {};
  data.hidden = way.hidden;
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
  job.stored = way.weights;
  if (job.shard <= 1 && job.replicas() <= 1) return;
  const double trained = 1 - shape.frozen.parameters;
  data.layer_reduced = trained * layer * way.reduced;
  data.root_reduced = trained * root * way.reduced;
  data.layer_summed = data.layer_reduced / job.shard;
  data.root_summed = data.root_reduced / job.shard;
  data.reduce = When::once;
  if (way.whole) return;
  data.layer_gathered = layer * way.width;
  data.root_gathered = root * way.width;
  const bool once = way.level < 3 || job.pp > 1;
  data.gather_forward = once ? When::once : When::each;
  if (!once && way.reshards) data.gather_backward = When::each;
  if (way.level == 3 && job.micro_batches > 1) job.whole_gradients = way.reduced;
  if (way.rows) {
    data.copied_out = 2 * way.width * layer;
    data.copied_in = (way.width + way.reduced) * layer;
  }
}

}  // namespace meshwright::steptime
