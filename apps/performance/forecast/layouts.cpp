// A layout as --set takes it.
#include "apps/performance/forecast/layouts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "engine/job/trainable.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/words.h"

namespace meshwright::forecast {

namespace {

using steptime::Layout;

class Settings {
 public:
  Settings(const plan::Job& job, const Layout& layout) : job_(job), layout_(layout) {}

  std::vector<std::string> all(double layers, double global_batch) {
    const steptime::Job& sizes = layout_.job;
    set("distributed.strategy", layout_.strategy);
    add_sizes();
    for (const std::string& option : layout_.options) out_.push_back(option);
    const bool cuts = sizes.tp > 1 && sizes.sequence_parallel;
    set("distributed.sequence_parallel", cuts ? "true" : "false");
    if (job_.config.shared.enable_async_tensor_parallel &&
        !(cuts && sizes.async_tp != steptime::AsyncTp::no))
      set("distributed.enable_async_tensor_parallel", "false");
    set("distributed.activation_checkpointing", recompute_word(sizes.recompute));
    set("step_scheduler.global_batch_size", text::whole_number(global_batch));
    set("step_scheduler.local_batch_size",
        text::whole_number(sizes.micro_batch * (sizes.pp > 1 ? sizes.micro_batches : 1)));
    if (sizes.pp > 1) add_pipeline(layers);
    if (sizes.cp > 1) add_context();
    return std::move(out_);
  }

 private:
  void set(const std::string& key, const std::string& value) { out_.push_back(key + "=" + value); }
  // Where it is not what a job has anyway, or the file says something else.
  void set_size(const char* name, double value, int64_t in_file) {
    if (value > 1 || in_file > 1)
      set(std::string("distributed.") + name, text::whole_number(value));
  }

  void add_sizes() {
    const steptime::Job& sizes = layout_.job;
    const ParallelSizes& file = job_.config.shared.sizes;
    set("distributed.tp_size", text::whole_number(sizes.tp));
    set("distributed.cp_size", text::whole_number(sizes.cp));
    set("distributed.pp_size", text::whole_number(sizes.pp));
    if (file.dp) set("distributed.dp_size", "auto");
    set_size("ep_size", sizes.ep, file.ep);
    // Where nothing is sharded, copies have no size of their own.
    set_size("dp_replicate_size", sizes.shard > 1 ? sizes.replicas() : 1, file.dp_replicate);
  }

  void add_pipeline(double layers) {
    const steptime::Job& sizes = layout_.job;
    const PipelineOptions& file = job_.config.shared.pipeline;
    const std::string table = "distributed.pipeline.";
    set(table + "pp_schedule", std::string(schedule_name(sizes.schedule)));
    set(table + "layers_per_stage",
        text::whole_number(std::ceil((layers + 2 * layout_.less) / (sizes.pp * sizes.stages))));
    if (layout_.less > 0 || file.first_stage_less_layers > 0)
      set(table + "first_stage_less_layers", text::whole_number(layout_.less));
    if (layout_.less > 0 || file.last_stage_less_layers > 0)
      set(table + "last_stage_less_layers", text::whole_number(layout_.less));
    set(table + "pp_microbatch_size", text::whole_number(sizes.micro_batch));
    if (file.batch_size) set(table + "pp_batch_size", "auto");
    if (!file.schedule_csv.empty()) set(table + "pp_schedule_csv", "none");
    if (file.round != PipelineOptions::Round::none)
      set(table + "round_virtual_stages_to_pp_multiple", "none");
    if (!file.module_fqns_per_model_part.empty()) set(table + "module_fqns_per_model_part", "none");
  }

  // Sizes of the file are of its own cp.
  void add_context() {
    const ContextOptions& file = job_.config.shared.context;
    if (static_cast<double>(job_.config.shared.sizes.cp) == layout_.job.cp) return;
    if (file.ring_size) set("distributed.context.ring_size", "auto");
    if (file.ulysses_size) set("distributed.context.ulysses_size", "auto");
  }

  const plan::Job& job_;
  const Layout& layout_;
  std::vector<std::string> out_;
};

}  // namespace

const char* recompute_word(steptime::Recompute recompute) {
  switch (recompute) {
    case steptime::Recompute::full:
      return "full";
    case steptime::Recompute::selective:
      return "selective";
    default:
      return "none";
  }
}

std::vector<std::string> settings_of(const plan::Job& job, const Layout& layout, double layers,
                                     double global_batch) {
  return Settings(job, layout).all(layers, global_batch);
}

std::string set_line(const std::vector<std::string>& settings) {
  std::string out;
  for (const std::string& setting : settings) out += (out.empty() ? "--set " : " --set ") + setting;
  return out;
}

// The layouts that the model ranks first, planned one by one as `plan` would: what is shown of them
// is what their line says.

namespace {

// A round ends where so many were too large, or where some strategy's plans are refused: the next
// one is searched with what they say. And the most in all.
constexpr size_t kTooLarge = 8, kRefused = 12, kRounds = 10, kMostTooLarge = 96, kMostTries = 128,
                 kKept = 64;
// Layouts that fit and are planned at least, however few are shown: plan and model differ by some
// percent, which may change the order.
constexpr size_t kLeastPlans = 8;
// Parts of the memory of which some layouts are planned where that is not enough.
constexpr double kSafe[] = {1, 0.95, 0.9, 0.85};
// Sizes whose smallest layouts are planned where nothing fits.
constexpr size_t kSmallest = 12;

// What the job itself would be refused for is no reason against a layout of it.
std::optional<Error> obstacle_of(const plan::Job& job, const plan::Job& planned,
                                 const plan::JobPlan& plan) {
  const std::vector<Error> known = plan::errors_of_training(job, nullptr);
  for (const Error& error : plan::errors_of_training(planned, &plan))
    if (error.code() != ErrorCode::missing_key &&
        std::ranges::none_of(known, [&](const Error& other) {
          return other.code() == error.code() && other.message() == error.message();
        }))
      return error;
  return std::nullopt;
}

bool same_sizes(const steptime::Job& a, const steptime::Job& b) {
  return a.tp == b.tp && a.cp == b.cp && a.pp == b.pp && a.ep == b.ep && a.stages == b.stages &&
         (a.pp == 1 || a.schedule == b.schedule) && a.micro_batch == b.micro_batch &&
         a.micro_batches == b.micro_batches && a.recompute == b.recompute;
}

class Planned {
 public:
  Planned(const plan::Job& job, const Reload& reload, steptime::SearchRequest request, size_t most,
          bool any)
      : job_(job), reload_(reload), request_(std::move(request)), most_(most), any_(any) {
    request_.base.ranks_per_host =
        std::min(request_.machine.network.ranks_per_host, request_.ranks);
    request_.unknown = kUnknownKind;
    out_.memory = request_.memory;
  }

  Found run() {
    bool more = true;
    for (size_t round = 0; round < kRounds && more && !spent(); ++round) {
      const size_t most = std::max(kKept, 2 * most_);
      steptime::SearchResult found = steptime::search(request_, most);
      const std::vector<Layout> layouts = std::exchange(found.best, {});
      if (round == 0) out_.result = std::move(found);
      const bool all = take_first(layouts);
      // Behind the last of a full list others may be that could be first.
      const bool full = layouts.size() >= most && may_be_first(layouts.back());
      more = learn() && (!all || !enough() || full) && !(any_ && enough());
    }
    if (spent() && !(any_ && enough())) take_safe();
    take_own();
    // By the model nothing may fit, or what does is too large by its plan.
    if (layouts_.empty() && out_.result.smallest) take_smallest();
    return ranked();
  }

 private:
  bool enough() const {
    if (any_) return !layouts_.empty();
    return layouts_.size() >= most_ && fitting_ >= kLeastPlans;
  }
  bool spent() const {
    return request_.left_out.size() >= kMostTooLarge || tried_ >= std::max(kMostTries, 4 * most_);
  }
  // The score by the model, as far as plans of its kind tell how much longer they take and how much
  // less they hold.
  double told_score(const Layout& layout) const {
    const double takes = std::max(1.0, steptime::said_of_time(takes_, layout)),
                 counts = steptime::said_of_memory(counts_, layout);
    Layout by_plan = layout;
    by_plan.predicted.seconds = takes * layout.predicted.parts.sum();
    constexpr double kNearly = 0.95;
    by_plan.use = kNearly * (counts > 0 ? counts : 1) * layout.memory.peak() / out_.memory;
    return by_plan.score();
  }
  bool may_be_first(const Layout& layout) const {
    constexpr double kClearly = 0.995;
    return !any_ && std::ranges::none_of(layouts_, [&](const Layout& other) {
      return told_score(layout) >= kClearly * other.score();
    });
  }
  // Plans the first layouts, and those behind them that may be the first of all. False: not to the
  // end, as so many were in vain.
  bool take_first(const std::vector<Layout>& layouts) {
    too_large_ = refused_ = 0;
    for (const Layout& layout : layouts) {
      if (spent() || too_large_ >= kTooLarge || refused_ >= kRefused) return false;
      if (!enough() || may_be_first(layout)) take(layout);
    }
    return true;
  }
  // Where plan after plan was too large: the first of those that fit though their plans may hold
  // as much more as any of the kind.
  void take_safe() {
    steptime::SearchRequest request = request_;
    request.unknown = 1;
    for (const double part : kSafe) {
      request.memory = part * out_.memory;
      request.counts = most_counts_;
      request.takes = takes_;
      request.left_out = request_.left_out;
      size_t left = kLeastPlans;
      for (const Layout& layout : steptime::search(request, kKept).best) {
        if (left == 0) break;
        if (enough() && !may_be_first(layout)) continue;
        const size_t before = tried_;
        take(layout);
        left -= tried_ - before;
      }
    }
  }
  // The model's smallest, and the smallest of the sizes nearest to it: plans differ.
  void take_smallest() {
    std::vector<Layout> smallest = out_.result.families;
    auto bytes = [](const Layout& layout) { return layout.memory.peak(); };
    std::ranges::stable_sort(smallest,
                             [&](const Layout& a, const Layout& b) { return bytes(a) < bytes(b); });
    if (smallest.size() > kSmallest) smallest.resize(kSmallest);
    take(*out_.result.smallest);
    for (const Layout& layout : smallest) take(layout);
  }
  // Of a strategy with a count of its own the model knows what it holds, not what it sends: its
  // first layouts are planned wherever they rank.
  void take_own() {
    std::set<std::string> names;
    for (const steptime::Way& way : request_.ways)
      if (!way.own.empty()) names.insert(way.strategy);
    for (const std::string& name : names) {
      steptime::SearchRequest request = request_;
      std::erase_if(request.ways, [&](const steptime::Way& way) { return way.strategy != name; });
      const std::vector<Layout> first = steptime::search(request, kLeastPlans).best;
      for (const Layout& layout : first) take(layout);
    }
  }
  // For the next round: strategies that no plan was made for stay away, and how much plans of a
  // kind come to at least is known. False: this one told nothing.
  bool learn() {
    const size_t before = request_.ways.size();
    std::erase_if(request_.ways, [&](const steptime::Way& way) {
      const auto found = made_by_.find(way.strategy);
      return found != made_by_.end() && found->second.first == 0 && found->second.second >= 3;
    });
    const bool news = request_.counts != counts_ || request_.takes != takes_;
    request_.counts = counts_;
    request_.takes = takes_;
    return news || too_large_ > 0 || request_.ways.size() < before;
  }
  void learn_of(const Layout& layout, const Forecast& forecast) {
    auto keep_least = [](double& of, double value) { of = of > 0 ? std::min(of, value) : value; };
    steptime::LayoutKind kind = kind_of(layout);
    const double counts = forecast.memory / layout.memory.peak();
    // The model's own seconds, without what is known already. The smallest layouts were not timed.
    if (const double seconds = layout.predicted.parts.sum(); seconds > 0)
      keep_least(takes_[kind], forecast.time.seconds / seconds);
    for (const bool options : {true, false}) {
      if (!options) kind.options.clear();
      keep_least(counts_[kind], counts);
      most_counts_[kind] = std::max(most_counts_[kind], counts);
    }
  }
  void count(const std::string& reason) { ++out_.result.rejected[reason]; }

  void take(const Layout& layout) {
    std::vector<std::string> settings =
        settings_of(job_, layout, request_.shape.layers, request_.global_batch);
    std::string line = set_line(settings);
    if (!lines_.insert(line).second) return;
    ++tried_;
    auto& [made, refused] = made_by_[layout.strategy];
    PlannedLayout planned = plan_layout(job_, reload_, request_, settings);
    if (planned.refused) {
      count("refused by its plan, " + code_string(planned.refused->code()) + ": " +
            error_info(planned.refused->code()).title);
      if (!out_.refused) out_.refused = std::move(planned.refused);
      ++refused;
      ++refused_;
      return;
    }
    ++made;
    const Forecast& forecast = *planned.forecast;
    learn_of(layout, forecast);
    if (!out_.least || forecast.memory < *out_.least) {
      out_.least = forecast.memory;
      least_ = layout;
    }
    if (forecast.memory > out_.memory) {
      count("more memory than a rank has, by its plan");
      ++too_large_;
      request_.left_out.push_back(layout);
      return;
    }
    ++fitting_;
    if (is_known(layout, forecast)) {
      count("the same as one before it");
      return;
    }
    layouts_.push_back(layout);
    layouts_.back().predicted = forecast.time;
    layouts_.back().use = forecast.memory / out_.memory;
    out_.forecasts.push_back(forecast);
    out_.sets.push_back(std::move(line));
  }

  // Options without an effect make the same plan.
  bool is_known(const Layout& layout, const Forecast& forecast) const {
    for (size_t i = 0; i < layouts_.size(); ++i)
      if (out_.forecasts[i].time.seconds == forecast.time.seconds &&
          out_.forecasts[i].memory == forecast.memory && same_sizes(layouts_[i].job, layout.job))
        return true;
    return false;
  }

  Found ranked() {
    std::vector<size_t> order(layouts_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t at) { return layouts_[at].score(); });
    if (order.size() > most_) order.resize(most_);
    Found out = out_;
    out.forecasts.clear();
    out.sets.clear();
    if (least_) out.result.smallest = least_;
    for (const size_t at : order) {
      out.result.best.push_back(layouts_[at]);
      out.forecasts.push_back(out_.forecasts[at]);
      out.sets.push_back(out_.sets[at]);
    }
    return out;
  }

  const plan::Job& job_;
  const Reload& reload_;
  steptime::SearchRequest request_;
  size_t most_;
  bool any_;
  Found out_;
  std::vector<Layout> layouts_;  // those that are taken
  std::optional<Layout> least_;
  std::set<std::string> lines_;
  std::map<std::string, std::pair<size_t, size_t>> made_by_;  // of a strategy: plans, refusals
  // The least of plans over the model, bytes and seconds; and the most, of bytes.
  steptime::Said counts_, takes_, most_counts_;
  size_t fitting_ = 0, tried_ = 0;      // plans that fit, and all that were asked for
  size_t too_large_ = 0, refused_ = 0;  // of this round
};

}  // namespace

PlannedLayout plan_layout(const plan::Job& job, const Reload& reload,
                          const steptime::SearchRequest& search,
                          const std::vector<std::string>& settings) {
  PlannedLayout out;
  try {
    Diagnostics problems;
    std::optional<plan::Job> other = reload(settings, problems);
    problems.throw_if_any();
    if (!other) throw Error(ErrorCode::internal, "the job cannot be loaded once more");
    other->samples = job.samples;
    const plan::JobPlan plan = plan::make_plan(
        *other, {.world_size = std::llround(search.ranks),
                 .ranks_per_host = std::llround(search.machine.network.ranks_per_host),
                 .compares_sequence = false});  // nobody sees the plan
    out.refused = obstacle_of(job, *other, plan);
    if (!out.refused) out.forecast = forecast(*other, plan, search.machine);
  } catch (const Error& error) {
    out.refused = error;
  }
  return out;
}

Found planned_layouts(const plan::Job& job, const Reload& reload,
                      const steptime::SearchRequest& request, size_t most, bool any) {
  return Planned(job, reload, request, most, any).run();
}

}  // namespace meshwright::forecast
