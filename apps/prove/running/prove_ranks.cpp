#include "apps/prove/running/prove_ranks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "apps/prove/running/captured.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/handed_files.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"
#include "sdk/kit/comparison/collect.h"
#include "sdk/kit/comparison/pieces.h"

namespace meshwright::prove {

using at::Tensor;
using comparison::Assembly;

namespace {

constexpr double kExact = 1e-10;      // float64, sums in another order
constexpr double kTimesRounding = 8;  // as far as ranks may be where one process is once
// AdamW divides by the root of a square: where a gradient is nearly nothing, its rounding counts.
constexpr double kUpdate = 1e-6;
constexpr std::chrono::seconds kCollective{20};

const std::vector<std::string>& wide_sets() {
  static const std::vector<std::string> sets = {"model.torch_dtype=float64",
                                                "distributed.mp_policy.param_dtype=float64",
                                                "distributed.mp_policy.reduce_dtype=float64",
                                                "distributed.mp_policy.output_dtype=float64",
                                                "distributed.moe.mp_policy.param_dtype=none",
                                                "distributed.moe.mp_policy.reduce_dtype=none",
                                                "distributed.moe.mp_policy.output_dtype=none",
                                                "distributed.moe.lm_head_precision=none",
                                                "distributed.autocast_dtype=none",
                                                "optimizer.main_dtype=none"};
  return sets;
}

double largest(const Tensor& t) {
  return t.numel() == 0
             ? 0
             : t.abs().nan_to_num(std::numeric_limits<double>::infinity()).max().item<double>();
}

double apart(double found, double expected) {
  if (!std::isfinite(found) && !std::isfinite(expected)) return 0;
  const double scale = std::max(std::abs(expected), 1e-30);
  const double out = std::abs(found - expected) / scale;
  return std::isfinite(out) ? out : HUGE_VAL;
}

using Whole = std::map<std::string, Tensor>;

// The tensors that ranks hold in parts.
struct Joined {
  Whole whole;
  std::string differ;  // the first contradiction of replicas: where, and what
  std::string name;    // of that tensor, and two ranks that hold it differently
  int64_t rank = -1, other = -1;
  std::string holes;  // the first element that no rank holds
};

// `rounding`: of a tensor's largest element, by which replicas may differ.
Joined join(const std::vector<const std::vector<Part>*>& ranks, double rounding) {
  Joined out;
  std::map<std::string, Assembly> all;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (const Part& part : *ranks[rank]) {
      Assembly& one = all.try_emplace(part.name, part.shape, part.values.options()).first->second;
      const auto wrong = one.add(static_cast<int64_t>(rank), part.region, part.values,
                                 rounding > 0 ? rounding * largest(part.values) : 0);
      if (!wrong || !out.differ.empty()) continue;
      out.name = part.name;
      out.rank = static_cast<int64_t>(rank);
      out.other = wrong->other;
      const char* digits = "%.17g";  // so many tell any two apart
      out.differ = part.name + ": rank " + std::to_string(rank) + " has " +
                   text::format(digits, wrong->mine) + " at " +
                   comparison::element_text(wrong->at, one.shape()) + ", rank " +
                   std::to_string(wrong->other) + " " + text::format(digits, wrong->theirs);
    }
  for (auto& [name, one] : all) {
    if (one.owners().lt(0).any().item<bool>() && out.holes.empty())
      out.holes = name + " is not held whole by the ranks";
    out.whole[name] = one.whole().to(at::kDouble);
  }
  return out;
}

struct Worst {
  double difference = 0;
  std::string where;
  void take(double one, const std::string& at) {
    if (one > difference || (where.empty() && one >= difference)) difference = one, where = at;
  }
};

// Of each tensor the largest difference over its own largest element; of one that is nearly zero
// beside the largest of all, over a thousandth of that.
Worst worst_of(const Whole& found, const Whole& expected) {
  double scale = 0;
  for (const auto& [name, tensor] : expected) scale = std::max(scale, largest(tensor));
  Worst out;
  if (expected.empty()) out.take(HUGE_VAL, "there is nothing to compare");
  for (const auto& [name, tensor] : expected) {
    const auto at = found.find(name);
    const double mine = std::max(largest(tensor), 1e-3 * scale);
    const double one = at == found.end() || at->second.sizes() != tensor.sizes()
                           ? HUGE_VAL
                           : largest(at->second - tensor);
    out.take(mine > 0 ? one / mine : one, name);
  }
  return out;
}

// The distance of all of them together: of an update whose gradient is next to nothing, rounding
// decides the sign under AdamW.
Worst distance_of(const Whole& found, const Whole& expected) {
  double apart = 0, all = 0;
  for (const auto& [name, tensor] : expected) {
    const auto at = found.find(name);
    all += tensor.square().sum().item<double>();
    apart += at == found.end() || at->second.sizes() != tensor.sizes()
                 ? HUGE_VAL
                 : (at->second - tensor).square().sum().item<double>();
  }
  return {all > 0 ? std::sqrt(apart / all) : HUGE_VAL, "all parameters together"};
}

Whole only(const Whole& all, const std::string& state, bool others = false) {
  Whole out;
  for (const auto& [name, tensor] : all)
    if (name.starts_with(state) != others) out[name] = tensor;
  return out;
}

Whole updates(const Whole& begin, const Whole& end) {
  Whole out;
  for (const auto& [name, tensor] : end)
    if (const auto at = begin.find(name); at != begin.end() && at->second.sizes() == tensor.sizes())
      out[name] = tensor - at->second;
  return out;
}

double norm_of(const Whole& all) {
  double out = 0;
  for (const auto& [name, tensor] : all) out += tensor.square().sum().item<double>();
  return std::sqrt(out);
}

// As they were before they were clipped, each rank by the norm that it had.
std::vector<Part> unclipped(const Captured& rank, size_t step) {
  std::vector<Part> out = rank.gradients.at(step);
  for (Part& part : out) part.values = part.values / rank.clipped_by.at(step);
  return out;
}

// What the parameters of a rank moved by in a step.
std::vector<Part> moved(const Captured& rank, size_t step) {
  std::map<std::string, Tensor> before;
  for (const Part& part : rank.states.at(step)) before[part.name] = part.values;
  std::vector<Part> out;
  for (const Part& part : rank.states.at(step + 1)) {
    const auto at = before.find(part.name);
    if (!part.name.starts_with("weight ") || at == before.end()) continue;
    out.push_back(part);
    out.back().name = part.name.substr(std::string("weight ").size());
    out.back().values = part.values.to(at::kDouble) - at->second.to(at::kDouble);
  }
  return out;
}

// What a run on any number of ranks came to.
struct Run {
  std::vector<Captured> ranks;
  Joined gradients, begin, end;  // gradients: of the first step, clipped
  Whole raw;                     // before they are clipped
  double rounding = 0;           // of replicas

  // `part`: what of each rank.
  template <class Of>
  Joined together(const Of& part) const {
    std::vector<std::vector<Part>> all;
    std::vector<const std::vector<Part>*> each;
    for (const Captured& rank : ranks) all.push_back(part(rank));
    for (const std::vector<Part>& one : all) each.push_back(&one);
    return join(each, rounding);
  }
  void put_together() {
    gradients = together([](const Captured& rank) { return rank.gradients.front(); });
    begin = together([](const Captured& rank) { return rank.states.front(); });
    end = together([](const Captured& rank) { return rank.states.back(); });
    raw = together([](const Captured& rank) { return unclipped(rank, 0); }).whole;
  }
};

class Proof {
 public:
  explicit Proof(const Request& request) : request_(request) {
    base::hand_files(request.job.files);
  }

  Findings run() {
    const auto begin = std::chrono::steady_clock::now();
    out_.dtypes = request_.wide ? "float64" : "the job's dtypes";
    if (const std::optional<Run> truth = go(request_.job.alone, wide_sets(), 1, "one process: ")) {
      std::optional<Run> near;
      if (!request_.wide) near = go(request_.job.alone, {}, 1, "one process: ");
      const std::vector<std::string> none;
      const std::optional<Run> ranks =
          go(request_.job.toml, request_.wide ? sets_of_ranks() : none, request_.job.ranks, "");
      if (ranks && (near || request_.wide)) compare(*truth, near ? &*near : nullptr, *ranks);
    }
    out_.seconds = base::ms_since(begin) / 1000;
    return std::move(out_);
  }

 private:
  std::vector<std::string> sets_of_ranks() const {
    std::vector<std::string> out = wide_sets();
    out.insert(out.end(), request_.job.wide_sets.begin(), request_.job.wide_sets.end());
    return out;
  }
  // nullopt: some rank did not come to its end, which is told.
  std::optional<Run> go(const std::string& toml, const std::vector<std::string>& sets,
                        int64_t ranks, const std::string& who, int64_t last = 0) {
    Run out;
    out.ranks.resize(static_cast<size_t>(ranks));
    const comparison::RunOutcome outcome = comparison::collect(
        ranks,
        [&](const std::shared_ptr<World>& world, comparison::RankFound&) {
          out.ranks[static_cast<size_t>(world->rank())] =
              run_job(request_, toml, sets, world, last);
        },
        kCollective);
    for (const auto& [rank, problems] : outcome.problems)
      for (const std::string& problem : problems)
        out_.problems.push_back(
            who + (rank >= 0 && ranks > 1 ? "rank " + std::to_string(rank) + ": " : "") + problem);
    if (!outcome.refusal.empty()) out_.problems.push_back(who + "refused: " + outcome.refusal);
    if (!out_.problems.empty()) return std::nullopt;
    // LibTorch's float64 products round a row by where it stands among others, as those of the
    // job's dtypes do not.
    out.rounding = replicas_round();
    out.put_together();
    return out;
  }

  // `measure` gives how far a run is from the truth; in the job's dtypes one process is some way
  // from it by rounding alone, and ranks may be a few times as far.
  template <class Measure>
  void row(const std::string& what, double exact, const Run* near, const Run& ranks,
           const Measure& measure) {
    const Worst found = measure(ranks);
    Row one{.what = what, .difference = found.difference, .tolerance = exact, .where = found.where};
    if (near != nullptr) {
      const double rounding = measure(*near).difference;
      one.tolerance = 1e-6;
      out_.rows.push_back(std::move(one));
      allow(rounding);
      return;
    }
    out_.rows.push_back(std::move(one));
  }

  // That rounding alone moves the last row by so much. Where it is one number, one process may have
  // come near to it by chance, and what it is made of tells better.
  void allow(double rounding) {
    Row& last = out_.rows.back();
    last.tolerance = std::max(kTimesRounding * rounding, last.tolerance);
    if (!(rounding < 0.1))
      last.not_compared = text::format("rounding alone moves it by %.0e in one process", rounding);
  }

  void compare(const Run& truth, const Run* near, const Run& ranks) {
    const Captured& one = truth.ranks.front();
    const bool routed_alike = near == nullptr || same_routes(one, near->ranks.front(), ranks);
    const size_t first_row = out_.rows.size();
    row("losses", kExact, near, ranks, [&](const Run& run) {
      Worst out;
      for (size_t r = 0; r < run.ranks.size(); ++r)
        for (size_t s = 0; s < one.steps.size(); ++s)
          out.take(apart(run.ranks[r].steps[s].loss, one.steps[s].loss),
                   "step " + std::to_string(s) + ", rank " + std::to_string(r));
      return out;
    });
    row("gradients", kExact, near, ranks,
        [&](const Run& run) { return worst_of(run.raw, truth.raw); });
    const double most = norm_of(truth.gradients.whole);
    row("gradient norm", kExact, near, ranks, [&](const Run& run) {
      Worst out;
      for (size_t r = 0; r < run.ranks.size(); ++r)
        out.take(apart(run.ranks[r].steps[0].grad_norm, one.steps[0].grad_norm),
                 "rank " + std::to_string(r));
      return out;
    });
    // A norm is off by the distance of its gradients at most.
    if (near != nullptr) allow(distance_of(near->raw, truth.raw).difference);
    if (one.clipped_by.front() < 1)
      row("clipping", kExact, near, ranks, [&](const Run& run) {
        Worst out;
        out.take(apart(norm_of(run.gradients.whole), most), "the norm of the clipped gradients");
        return out;
      });
    const std::string steps = " after " + text::counted(request_.steps, "step");
    const Whole moved =
        updates(only(truth.begin.whole, "weight "), only(truth.end.whole, "weight "));
    row("updates" + steps, kUpdate, near, ranks, [&](const Run& run) {
      const Whole mine = updates(only(run.begin.whole, "weight "), only(run.end.whole, "weight "));
      return near == nullptr ? worst_of(mine, moved) : distance_of(mine, moved);
    });
    const Whole states = only(truth.end.whole, "weight ", /*others=*/true);
    if (!states.empty())
      row("optimizer's states", kUpdate, near, ranks, [&](const Run& run) {
        return worst_of(only(run.end.whole, "weight ", /*others=*/true), states);
      });
    row("evaluation", kUpdate, near, ranks, [&](const Run& run) {
      Worst out;
      for (size_t r = 0; r < run.ranks.size(); ++r)
        out.take(apart(run.ranks[r].evaluated, one.evaluated), "rank " + std::to_string(r));
      return out;
    });
    if (near != nullptr) allow(out_.rows[first_row].tolerance / kTimesRounding);
    if (!routed_alike)
      for (size_t i = first_row; i < out_.rows.size(); ++i)
        if (!out_.rows[i].ok())
          out_.rows[i].not_compared = "by rounding, tokens went to other experts";
    Worst counts;
    for (size_t r = 0; r < ranks.ranks.size(); ++r)
      for (size_t s = 0; s < one.steps.size(); ++s) {
        const StepResult &mine = ranks.ranks[r].steps[s], &theirs = one.steps[s];
        counts.take(static_cast<double>(std::abs(mine.count - theirs.count) +
                                        std::abs(mine.tokens - theirs.tokens)),
                    "step " + std::to_string(s) + ", rank " + std::to_string(r));
      }
    out_.rows.push_back({"targets and tokens", counts.difference, 0, counts.where});
    const std::string& differ =
        !ranks.end.differ.empty() ? ranks.end.differ : ranks.gradients.differ;
    out_.rows.push_back({replicas_round() > 0 ? "replicas" : "replicas, to the bit",
                         differ.empty() ? 0 : HUGE_VAL, replicas_round(), differ});
    for (const std::string& holes : {ranks.gradients.holes, ranks.end.holes})
      if (!holes.empty()) out_.problems.push_back(holes);
    if (near == nullptr) find_place(truth, ranks);
  }

  double replicas_round() const { return request_.wide && !request_.job.one_dtype ? kExact : 0; }

  // Whether rounding has sent no token to another expert.
  static bool same_routes(const Captured& truth, const Captured& near, const Run& ranks) {
    auto alike = [&](const Captured& other) {
      for (size_t s = 0; s < truth.steps.size(); ++s)
        for (size_t b = 0; b < truth.steps[s].experts.size(); ++b)
          if (truth.steps[s].experts[b].tokens != other.steps[s].experts[b].tokens) return false;
      return true;
    };
    return alike(near) && alike(ranks.ranks.front());
  }

  void find_place(const Run& truth, const Run& ranks) {
    std::vector<comparison::RankSeen> seen;
    for (const Captured& rank : ranks.ranks) seen.push_back(rank.seen);
    std::vector<comparison::Seen> whole = truth.ranks.front().seen.seen;
    for (comparison::Seen& one : whole)
      if (one.gradient.defined()) one.gradient = one.gradient * truth.ranks.front().seen.scale;
    const comparison::Compared found =
        comparison::compare_modules(whole, seen, request_.job.length, 1e-9);
    out_.modules = found.modules;
    out_.modules_left = found.left;
    // Modules say where numbers turn wrong. Where all of them are right, outputs that differ are
    // other parts, or of another micro-batch: recomputation and pipelines call them in turns.
    const bool right = out_.problems.empty() &&
                       std::ranges::all_of(out_.rows, [](const Row& r) { return r.ok(); });
    for (const auto& [what, difference] : {std::pair("modules, forward", found.forward),
                                           std::pair("modules, backward", found.backward)})
      out_.rows.push_back({what, difference, 1e-9, "",
                           right && difference > 1e-9
                               ? "which part of which micro-batch each is, is not known"
                               : ""});
    if (found.fault && !right) {
      const comparison::PlaceOfFault& at = *found.fault;
      for (Row& one : out_.rows)
        if (one.what == (at.backward ? "modules, backward" : "modules, forward"))
          one.where = at.module;
      out_.faults.push_back(
          {.what = (at.backward ? "the gradient of the output of " : "the output of ") + at.module +
                   ", micro-batch " + std::to_string(at.micro_batch),
           .pattern = at.pattern.text,
           .mend = at.pattern.mend,
           .ranks = at.ranks,
           .difference = at.difference});
    }
    find_gradients(truth, ranks);
    find_norm(truth, ranks);
    find_replicas(ranks);
    if (out_.faults.empty()) find_step(truth, ranks);
  }

  // Tensors that are wrong, those of one pattern together. `found`: what a rank has of them.
  template <class Of>
  std::vector<std::pair<comparison::Pattern, std::vector<std::string>>> wrong_ones(
      const Whole& truth, const Run& ranks, double exact, const Of& found) {
    double scale = 0;
    for (const auto& [name, tensor] : truth) scale = std::max(scale, largest(tensor));
    std::vector<std::vector<comparison::Axis>> axes;
    std::map<std::string, std::vector<comparison::Piece>> pieces;
    for (size_t r = 0; r < ranks.ranks.size(); ++r) {
      axes.push_back(ranks.ranks[r].seen.axes);
      for (const Part& part : found(ranks.ranks[r]))
        pieces[part.name].push_back({static_cast<int64_t>(r), part.region, part.values});
    }
    std::vector<std::pair<comparison::Pattern, std::vector<std::string>>> groups;
    for (const auto& [name, whole] : truth) {
      const auto at = pieces.find(name);
      if (at == pieces.end()) {
        out_.problems.push_back("no rank has a gradient of " + name);
        continue;
      }
      const double mine = std::max(largest(whole), 1e-3 * scale);
      const auto pattern = comparison::diagnose(whole, at->second, axes,
                                                ranks.ranks.front().accumulation, exact * mine);
      if (!pattern) continue;
      const auto same = std::ranges::find_if(
          groups, [&](const auto& group) { return group.first.text == pattern->text; });
      if (same != groups.end())
        same->second.push_back(name);
      else
        groups.push_back({*pattern, {name}});
    }
    return groups;
  }

  void find_gradients(const Run& truth, const Run& ranks) {
    auto groups = wrong_ones(truth.raw, ranks, kExact,
                             [](const Captured& rank) { return unclipped(rank, 0); });
    // No one factor: perhaps micro-batches are missing.
    const int64_t each = ranks.ranks.front().accumulation,
                  last = truth.ranks.front().accumulation / each;
    if (groups.size() == 1 && groups.front().second.size() == truth.raw.size() && each > 1)
      if (const std::optional<Run> some =
              go(request_.job.alone, wide_sets(), 1, "one process: ", last))
        if (worst_of(ranks.raw, some->raw).difference <= kExact)
          groups.front().first = {
              "those of the last micro-batch of a step alone, of " + std::to_string(each),
              "micro-batches add up: begin_micro_batch() clears nothing, begin_step() does"};
    for (const auto& [pattern, names] : groups)
      out_.faults.push_back(
          {.what = (names.size() == 1 ? "the gradient of " : "the gradients of ") +
                   text::first_few(names, 4),
           .pattern = pattern.text,
           .mend = pattern.mend});
  }

  // The first step was right, but for its update, or a later one is not.
  void find_step(const Run& truth, const Run& ranks) {
    Whole before;
    for (size_t s = 0; s < truth.ranks.front().steps.size(); ++s) {
      auto gradients = [s](const Captured& rank) { return unclipped(rank, s); };
      auto moves = [s](const Captured& rank) { return moved(rank, s); };
      const std::string in = " in step " + std::to_string(s);
      Whole right = truth.together(gradients).whole;
      auto groups = wrong_ones(right, ranks, kUpdate, gradients);
      if (s > 0 && !groups.empty()) {
        // What is too much is that of the step before, which was divided by other targets.
        const Whole found = ranks.together(gradients).whole;
        double product = 0, squares = 0;
        for (const auto& [name, tensor] : right) {
          product += ((found.at(name) - tensor) * before.at(name)).sum().item<double>();
          squares += before.at(name).square().sum().item<double>();
        }
        Whole both = right;
        for (auto& [name, tensor] : both) tensor = tensor + before.at(name) * (product / squares);
        if (worst_of(found, both).difference <= kUpdate)
          groups.front().first = {
              "those of the step before are still in them",
              "begin_step() clears the gradients: what a step leaves must not reach the next"};
      }
      const std::string what = groups.empty() ? "the update" : "the gradient";
      if (groups.empty()) groups = wrong_ones(truth.together(moves).whole, ranks, kUpdate, moves);
      for (const auto& [pattern, names] : groups)
        out_.faults.push_back(
            {.what = what + (names.size() == 1 ? " of " : "s of ") + text::first_few(names, 4) + in,
             .pattern = pattern.text,
             .mend = what == "the gradient" ? pattern.mend
                                            : "the optimizer moves update_groups(): nothing else "
                                              "writes values, and all parameters are in them"});
      if (!groups.empty()) return;
      before = std::move(right);
    }
  }

  void find_replicas(const Run& ranks) {
    const Joined& joined = !ranks.end.differ.empty() ? ranks.end : ranks.gradients;
    if (joined.differ.empty()) return;
    Fault fault{.what = "replicas of " + joined.name, .ranks = {joined.other, joined.rank}};
    fault.pattern = "ranks " + std::to_string(joined.other) + " and " +
                    std::to_string(joined.rank) + " hold it differently";
    for (const comparison::Axis& axis : ranks.ranks[static_cast<size_t>(joined.rank)].seen.axes)
      if (std::ranges::find(axis.ranks, joined.other) != axis.ranks.end())
        fault.pattern += ", which are ranks of " + axis.name;
    fault.mend =
        "replicas are alike to the bit: all of them compute the same from the same, or one "
        "computes "
        "and broadcasts";
    out_.faults.push_back(std::move(fault));
  }

  // What a norm counts twice or leaves out, where the gradients themselves are right.
  void find_norm(const Run& truth, const Run& ranks) {
    if (worst_of(ranks.raw, truth.raw).difference > kExact &&
        apart(norm_of(ranks.raw), ranks.ranks.front().steps[0].grad_norm) < 1e-9)
      return;
    const double right = norm_of(truth.raw), squares = right * right;
    std::set<double> found;
    for (const Captured& rank : ranks.ranks) found.insert(rank.steps[0].grad_norm);
    const double mine = *found.rbegin();
    if (found.size() == 1 && apart(mine, right) <= kExact) return;
    Fault fault{.what = "the gradient norm", .difference = apart(mine, right)};
    if (found.size() > 1) {
      std::vector<std::string> axes;  // along which it differs
      for (const comparison::Axis& axis : ranks.ranks.front().seen.axes)
        if (std::ranges::any_of(axis.ranks, [&](int64_t rank) {
              return ranks.ranks[static_cast<size_t>(rank)].steps[0].grad_norm !=
                     ranks.ranks.front().steps[0].grad_norm;
            }))
          axes.push_back(axis.name);
      fault.pattern =
          "other norms on other ranks" + (axes.empty() ? "" : " of " + text::join(axes, " and ")) +
          ", " + comparison::number_text(*found.begin()) + " to " + comparison::number_text(mine) +
          "; that of one process is " + comparison::number_text(right);
      fault.mend =
          "clip_grad_norm() answers the same on all ranks: sum the squares over the "
          "groups that cut the parameters (GradientSet::groups, clip_gradients())";
      out_.faults.push_back(std::move(fault));
      return;
    }
    const double more = mine * mine - squares;
    for (const auto& [name, tensor] : truth.raw) {
      const double own = tensor.square().sum().item<double>();
      if (own < 1e-12 * squares) continue;
      const double times = more / own;
      if (std::abs(times - std::round(times)) > 1e-6 || times < -1.5 || times > 64.5 ||
          std::abs(times) < 0.5)
        continue;
      fault.pattern = times < 0 ? "it leaves " + name + " out"
                                : "it counts " + name + " " +
                                      std::to_string(std::llround(times) + 1) + " times";
      fault.mend =
          "of each parameter one rank of every group of replicas counts "
          "(GradientSet::counted, TensorParallel::gradient_sets())";
      break;
    }
    if (fault.pattern.empty())
      fault.pattern = comparison::number_text(mine / right) + " times that of one process";
    out_.faults.push_back(std::move(fault));
  }

  const Request& request_;
  Findings out_;
};

}  // namespace

Findings prove(const Request& request) { return Proof(request).run(); }

}  // namespace meshwright::prove
