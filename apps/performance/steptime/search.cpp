#include "apps/performance/steptime/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "apps/performance/steptime/kernels.h"
#include "sdk/base/pipeline.h"

namespace meshwright::steptime {

namespace {

constexpr size_t kSimulated = 64;  // of the best by the closed form
constexpr size_t kOthers = 24;     // of these with several stages, under other schedules
constexpr int64_t kMostStages = 10;
constexpr double kLeastPiece = 512;

bool divides(double part, double all) { return part > 0 && std::fmod(all, part) == 0; }

std::vector<double> divisors(double of, double most) {
  std::vector<double> out;
  const auto last = static_cast<int64_t>(std::min(of, most));
  for (int64_t d = 1; d <= last; ++d)
    if (const auto size = static_cast<double>(d); divides(size, of)) out.push_back(size);
  return out;
}

// And what is asked for, where it is none of them: what is wrong with it is told.
std::vector<double> with_asked(std::vector<double> sizes, std::optional<double> asked) {
  if (asked && std::ranges::find(sizes, *asked) == sizes.end()) sizes.push_back(*asked);
  return sizes;
}

class Search {
 public:
  Search(const SearchRequest& request, size_t most) : request_(request), most_(most) {}

  SearchResult run() {
    find_repeated();
    const double host = std::min(request_.machine.network.ranks_per_host, request_.ranks);
    for (const double tp : with_asked(divisors(host, host), asked("tp_size"))) {
      if (!stays("tp_size", tp) || !some_way("no strategy here has tp", tp, &Way::tp)) continue;
      if (!divides(tp, request_.ranks))
        count("tp does not divide the ranks");
      else if (!divides(tp, request_.shape.heads) || !divides(tp, request_.shape.kv_heads))
        count("tp does not divide the heads");
      else
        pipelines(tp);
    }
    rank();
    for (auto& [cut, layout] : families_) out_.families.push_back(std::move(layout));
    for (const auto& [reason, times] : counts_) out_.rejected[reason] += times;
    return std::move(out_);
  }

 private:
  std::optional<double> asked(const char* key) const {
    const auto found = request_.fixed.find(key);
    if (found == request_.fixed.end()) return std::nullopt;
    return static_cast<double>(found->second);
  }
  bool stays(const char* key, double value) const { return asked(key).value_or(value) == value; }
  // Whether some way has that kind of parallelism, where it takes some.
  bool some_way(const char* else_reason, double size, bool Way::* has) {
    if (size == 1 || std::ranges::any_of(request_.ways, has)) return true;
    count(else_reason);
    return false;
  }
  void count(const char* reason) { ++counts_[reason]; }

  // Ways of one strategy that come to the same: with and without stages, and where a step is one
  // micro-batch.
  void find_repeated() {
    auto plain = [](Way way, bool pipeline, bool once) {
      way.options.clear();
      if (pipeline) {
        way.reshards = false;
        way.ahead = 0;
      } else {
        way.reshards_in_pipeline = false;
      }
      if (once) way.reduces_each = false;
      return way;
    };
    const std::vector<Way>& ways = request_.ways;
    for (size_t at = 0; at < ways.size(); ++at)
      for (const bool pipeline : {false, true})
        for (const bool once : {false, true}) {
          const Way mine = plain(ways[at], pipeline, once);
          repeated_.push_back(
              std::any_of(ways.begin(), ways.begin() + static_cast<std::ptrdiff_t>(at),
                          [&](const Way& way) { return plain(way, pipeline, once) == mine; }));
        }
  }
  bool repeated(size_t way, const Job& job) const {
    return repeated_[4 * way + (job.pp > 1 ? 2 : 0) + (job.micro_batches == 1 ? 1 : 0)];
  }

  void pipelines(double tp) {
    const double rest = request_.ranks / tp;
    for (const double pp : with_asked(divisors(rest, request_.shape.layers), asked("pp_size"))) {
      if (!stays("pp_size", pp) || !some_way("no strategy here has pp", pp, &Way::pp)) continue;
      if (!divides(pp, rest)) {
        count("pp does not divide the ranks");
        continue;
      }
      if (stage_counts(pp).empty()) {
        count(asked("stages_per_rank").value_or(1) > static_cast<double>(kMostStages)
                  ? "more than 10 stages a rank are not looked at"
                  : "the layers do not divide into the stages of pp");
        continue;
      }
      std::vector<double> sizes_of_cp;
      const auto most_cp = static_cast<int64_t>(rest / pp);
      for (int64_t cp = 1; cp <= most_cp; cp *= 2) sizes_of_cp.push_back(static_cast<double>(cp));
      for (const double cp : with_asked(sizes_of_cp, asked("cp_size"))) {
        if (!stays("cp_size", cp) || !some_way("no strategy here has cp", cp, &Way::cp)) continue;
        if (!divides(cp, rest / pp))
          count("cp does not divide the ranks");
        else if (cp > 1 && request_.base.length < cp * kLeastPiece)
          count("samples are too short for cp: under 512 tokens a rank");
        else
          sizes(tp, pp, cp);
      }
    }
  }

  void sizes(double tp, double pp, double cp) {
    Job job = request_.base;
    job.ranks = request_.ranks;
    job.tp = tp;
    job.pp = pp;
    job.cp = cp;
    const double dp = job.dp();
    if (!divides(dp, request_.global_batch)) {
      count("the batch does not divide over dp");
      return;
    }
    const double samples = request_.global_batch / dp;
    const std::optional<double> micro_asked = asked("local_batch_size");
    if (micro_asked && !divides(*micro_asked, samples)) {
      count("the micro-batch does not divide the samples of a rank");
      return;
    }
    for (const double stages : stage_counts(pp))
      for (const double micro : with_asked(divisors(samples, 16), micro_asked)) {
        if (!stays("local_batch_size", micro)) continue;
        job.stages = stages;
        job.schedule =
            stages > 1 ? PipelineSchedule::interleaved_1f1b : PipelineSchedule::one_f_one_b;
        job.micro_batch = micro;
        job.micro_batches = samples / micro;
        if (pp > 1 && (job.micro_batches < pp || (stages > 1 && !divides(pp, job.micro_batches)))) {
          count("too few micro-batches for the pipeline");
          continue;
        }
        experts(job);
      }
  }

  // Stages of a rank that the layers divide into, at most with one less at both ends.
  std::vector<double> stage_counts(double pp) const {
    std::vector<double> out;
    const int64_t most = pp == 1 ? 1 : kMostStages;
    for (int64_t stages = 1; stages <= most; ++stages) {
      const auto v = static_cast<double>(stages);
      if (v * pp > request_.shape.layers) break;
      if (stays("stages_per_rank", v) && (pp == 1 || divides(v * pp, request_.shape.layers) ||
                                          divides(v * pp, request_.shape.layers + 2)))
        out.push_back(v);
    }
    return out;
  }

  void experts(Job job) {
    const double experts = request_.shape.experts;
    const std::vector<double> all =
        experts > 0 ? divisors(experts, experts) : std::vector<double>{1};
    for (const double ep : with_asked(all, asked("ep_size"))) {
      if (!stays("ep_size", ep)) continue;
      if (ep > 1 && experts <= 0) {
        count("the model has no experts for ep");
        continue;
      }
      if (!some_way("no strategy here has ep", ep, &Way::ep)) continue;
      if (ep > 1 && !divides(ep, experts)) {
        count("ep does not divide the experts");
        continue;
      }
      if (!divides(ep, job.dp() * job.cp * job.tp)) {
        count("ep does not divide dp * cp * tp");
        continue;
      }
      job.ep = ep;
      // Less of it first: these are the fast ones, and rule others out.
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        if (request_.recompute && *request_.recompute != recompute) continue;
        job.recompute = recompute;
        ways(job);
      }
    }
  }

  void ways(Job job) {
    bounds_.clear();
    seen_.clear();
    for (size_t at = 0; at < request_.ways.size(); ++at) {
      const Way& way = request_.ways[at];
      if (repeated(at, job)) continue;
      if ((job.tp > 1 && !way.tp) || (job.cp > 1 && !way.cp) || (job.pp > 1 && !way.pp) ||
          (job.ep > 1 && !way.ep)) {
        count("the strategy has not all of these sizes");
        continue;
      }
      job.sequence_parallel = job.tp > 1 && way.sequence && divides(job.tp * job.cp, job.length);
      job.async_tp = job.sequence_parallel && way.async ? AsyncTp::torch : request_.base.async_tp;
      shards(way, job);
    }
  }

  // All ranks of dp and cp share the shards, or those of one host do, or what is asked for.
  void shards(const Way& way, Job job) {
    const double dp = job.dp(), all = dp * job.cp;
    const bool whole = way.whole || way.level == 0;
    if (const double replicas = asked("dp_replicate_size").value_or(1); replicas > 1) {
      if (whole || !way.replicas) {
        count("the strategy has no copies of shards");
      } else if (!divides(replicas, dp) || replicas >= dp) {
        count("dp_replicate does not divide dp, or is all of it");
      } else {
        job.shard = all / replicas;
        add(way, job);
      }
      return;
    }
    job.shard = whole ? 1 : all;
    add(way, job);
    const double host = std::min(request_.machine.network.ranks_per_host, request_.ranks) / job.tp;
    if (asked("dp_replicate_size") || whole || !way.replicas || way.level != 3) return;
    if (host <= job.cp || host >= all || !divides(host, all) || !divides(job.cp, host)) return;
    job.shard = host;
    add(way, job);
  }

  void add(const Way& way, Job job) {
    lay_out(request_.shape, way, job);
    set_exchange(job);
    // Another way may move and keep the same at these sizes, as all do where there is nobody to
    // share with.
    if (std::ranges::find(seen_, job) != seen_.end()) return;
    seen_.push_back(job);
    Layout layout{.strategy = way.strategy,
                  .options = way.options,
                  .job = job,
                  .less = divides(job.pp * job.stages, request_.shape.layers) ? 0.0 : 1.0};
    if (!fits(layout)) return;
    const bool others = layout.job.pp > 1 && layout.job.stages > 1 && !request_.schedules.empty();
    const double limit = others ? std::max(limit_, other_limit_) : limit_;
    if (request_.bounded && least(layout.job) > limit) return;
    ++out_.predicted;
    set_time(layout, Bubble::closed_form);
    if (others) {
      others_.push_back(layout);
      if (others_.size() >= 4 * kOthers) keep_others();
    }
    if (is_left_out(layout)) return;
    out_.best.push_back(std::move(layout));
    if (out_.best.size() < 4 * kSimulated) return;
    keep(kSimulated);
    limit_ = out_.best.back().score();
  }

  // Where the ranks of cp change heads for tokens (semantics 14.4): q, k and v in, the result out,
  // and the gradients of these. Else, where the job leaves it open, keys go round between hosts.
  void set_exchange(Job& job) const {
    if (job.cp <= 1 || request_.exchange == Exchange::never) return;
    if (request_.exchange == Exchange::where_it_sends_less &&
        Group{job.cp, job.tp, job.ranks_per_host, job.ranks}.hosts() > 1)
      job.context = ContextWay::ring;
    const double c = job.cp, heads = request_.shape.heads / job.tp,
                 kv = request_.shape.kv_heads / job.tp;
    if (!divides(c, heads) || !(divides(c, kv) || divides(kv, c))) return;
    const double sent = 4 * (c - 1) / c * (heads + std::max(kv, c));
    if (request_.exchange == Exchange::where_it_sends_less && sent >= 6 * (c - 1) * kv) return;
    const double times = job.recompute == Recompute::full ? 1.5 : 1;  // forward again
    const Ring ring = ring_of(request_.machine, {c, job.tp, job.ranks_per_host, job.ranks});
    job.cp_seconds = times * (8 * (c - 1) * ring.step + sent * request_.shape.head_dim *
                                                            job.tokens() * job.width / ring.rate);
  }

  // Counts the layout, and its memory.
  bool fits(Layout& layout) {
    ++out_.enumerated;
    layout.memory = memory_of(request_.shape, layout.job);
    const double counts = said_of_memory(request_.counts, layout);
    layout.use = layout.memory.peak() / request_.memory * (counts > 0 ? counts : request_.unknown);
    if (!out_.smallest || layout.use < out_.smallest->use) out_.smallest = layout;
    const std::array<double, 4> cut = {layout.job.tp, layout.job.cp, layout.job.pp, layout.job.ep};
    const auto [known, added] = families_.try_emplace(cut, layout);
    if (!added && layout.use < known->second.use) known->second = layout;
    if (layout.use > 1) {
      count("more memory than a rank has");
      return false;
    }
    ++out_.fitting;
    return true;
  }

  void set_time(Layout& layout, Bubble bubble) const {
    layout.predicted = predict(request_.machine, request_.shape, layout.job, bubble);
    // Never less, for the sake of the lower bounds.
    layout.predicted.seconds *= std::max(1.0, said_of_time(request_.takes, layout));
  }
  bool is_left_out(const Layout& layout) const {
    return std::ranges::any_of(request_.left_out,
                               [&](const Layout& other) { return other.is_cut_as(layout); });
  }

  // Seconds that no way of moving parameters and no schedule undercuts: kernels and the exchanges
  // of tp, cp and ep. They depend on two things that ways differ in.
  double least(const Job& job) {
    for (const Bound& known : bounds_)
      if (known.sequence_parallel == job.sequence_parallel && known.async_tp == job.async_tp &&
          known.width == job.width)
        return known.seconds;
    Job bare = job;
    bare.data = {};
    const Prediction p = predict(request_.machine, request_.shape, bare, Bubble::closed_form);
    const double seconds =
        p.seconds - p.parts.stragglers - p.parts.bubble - p.parts.optimizer - p.parts.shard;
    bounds_.push_back({job.sequence_parallel, job.async_tp, job.width, seconds});
    return seconds;
  }

  // Halved backwards fill most of what a pipeline idles.
  static double other_score(const Layout& layout) {
    return layout.predicted.seconds - 2.0 / 3 * layout.predicted.parts.bubble;
  }
  void keep(size_t most) {
    std::ranges::stable_sort(out_.best, {}, &Layout::score);
    if (out_.best.size() > most) out_.best.resize(most);
  }
  void keep_others() {
    std::ranges::stable_sort(others_, {}, other_score);
    if (others_.size() <= kOthers) return;
    others_.resize(kOthers);
    other_limit_ = other_score(others_.back());
  }
  void rank() {
    if (request_.only_schedules) out_.best.clear();
    keep(kSimulated);
    keep_others();
    for (Layout& layout : out_.best)
      if (layout.job.pp > 1) set_time(layout, Bubble::simulated);
    for (const Layout& other : others_)
      for (const PipelineSchedule schedule : request_.schedules) {
        if ((folds(schedule) && other.job.stages != 2) ||
            !runs_micro_batches(schedule, std::llround(other.job.pp),
                                std::llround(other.job.micro_batches)))
          continue;
        Layout layout = other;
        layout.job.schedule = schedule;
        if (!fits(layout) || is_left_out(layout)) continue;
        ++out_.predicted;
        set_time(layout, Bubble::simulated);
        out_.best.push_back(std::move(layout));
      }
    keep(most_);
  }

  struct Bound {
    bool sequence_parallel;
    AsyncTp async_tp;
    double width, seconds;
  };
  const SearchRequest& request_;
  size_t most_;
  SearchResult out_;
  std::map<std::array<double, 4>, Layout> families_;  // by tp, cp, pp and ep
  std::vector<Layout> others_;                        // that may be better under another schedule
  std::vector<bool> repeated_;                        // [way][pipeline][one micro-batch]
  std::vector<Bound> bounds_;                         // of the sizes at hand
  std::vector<Job> seen_;                             // of these, too
  std::map<const char*, int64_t> counts_;             // by the text, as it stands in this file
  double limit_ = std::numeric_limits<double>::infinity(), other_limit_ = limit_;
};

double said_of(const Said& said, const LayoutKind& kind) {
  const auto found = said.find(kind);
  return found == said.end() ? 0 : found->second;
}

}  // namespace

double Layout::score() const { return predicted.seconds * (use > kComfortable ? 1.05 : 1); }

bool Layout::is_cut_as(const Layout& other) const {
  const Job &a = job, &b = other.job;
  return a.tp == b.tp && a.cp == b.cp && a.pp == b.pp && a.ep == b.ep && a.stages == b.stages &&
         a.shard == b.shard && a.micro_batch == b.micro_batch && a.recompute == b.recompute &&
         a.schedule == b.schedule && strategy == other.strategy && options == other.options;
}

LayoutKind kind_of(const Layout& layout) {
  const Job& job = layout.job;
  return {layout.strategy, layout.options, job.tp > 1,
          job.cp > 1,      job.pp > 1,     job.ep > 1,
          job.stages > 1,  job.shard > 1,  job.pp > 1 ? job.schedule : PipelineSchedule::gpipe,
          job.recompute};
}

double said_of_time(const Said& takes, const Layout& layout) {
  return takes.empty() ? 0 : said_of(takes, kind_of(layout));
}

double said_of_memory(const Said& counts, const Layout& layout) {
  if (counts.empty()) return 0;
  LayoutKind kind = kind_of(layout);
  const double exactly = said_of(counts, kind);
  if (exactly > 0) return exactly;
  kind.options.clear();
  return said_of(counts, kind);
}

SearchResult search(const SearchRequest& request, size_t most) {
  return Search(request, most).run();
}

// What a way of moving and keeping a model comes to at a layout's sizes.

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
