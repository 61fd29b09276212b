#include "apps/prove/running/prove_ranks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "apps/prove/running/resumed.h"
#include "apps/prove/running/runs.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/handed_files.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"
#include "sdk/kit/comparison/collect.h"
#include "sdk/kit/comparison/pieces.h"
#include "sdk/kit/comparison/wrong.h"

namespace meshwright::prove {

using at::Tensor;

namespace {

constexpr double kExact = 1e-10;      // float64, sums in another order
constexpr double kTimesRounding = 8;  // as far as ranks may be where one process is once
// AdamW divides by the root of a square: where a gradient is nearly nothing, its rounding counts.
constexpr double kUpdate = 1e-6;
// How long a rank waits for another one: the last stage of a pipeline waits until all others have
// had their turn on the few cores that there are.
std::chrono::seconds longest_wait(int64_t ranks) { return std::chrono::seconds(20 + 2 * ranks); }

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

class Proof {
 public:
  explicit Proof(const Request& request) : request_(request) {
    base::hand_files(request.job.files);
  }

  Findings run() {
    const auto begin = std::chrono::steady_clock::now();
    out_.dtypes = request_.wide ? "float64" : "the job's dtypes";
    if (const std::shared_ptr<const Run> truth = this_is_right()) {
      std::optional<Run> near;
      if (!request_.wide) near = go(request_.job.alone, {}, 1, "one process: ");
      const std::optional<Run> ranks = near || request_.wide
                                           ? go(request_.job.toml, sets_of_ranks(),
                                                request_.job.ranks, "", {.to = folder("ranks")})
                                           : std::nullopt;
      if (ranks) {
        compare(*truth, near ? &*near : nullptr, *ranks);
        if (!request_.folder.empty() && out_.ok()) go_on(near ? *near : *truth, *ranks);
      }
    }
    out_.seconds = base::ms_since(begin) / 1000;
    return std::move(out_);
  }

 private:
  // What one process computes in float64.
  std::shared_ptr<const Run> this_is_right() {
    if (request_.truth != nullptr && *request_.truth)
      return std::static_pointer_cast<const Run>(*request_.truth);
    std::optional<Run> found = go(request_.job.alone, wide_sets(), 1, "one process: ");
    if (!found) return nullptr;
    auto out = std::make_shared<const Run>(std::move(*found));
    if (request_.truth != nullptr) *request_.truth = out;
    return out;
  }
  std::string folder(const char* whose) const {
    return request_.folder.empty() ? ""
                                   : request_.folder + (request_.wide ? "/wide_" : "/job_") + whose;
  }
  // Of the process that loads what the ranks have saved. Where they keep main weights that it does
  // not (megatron_fsdp's preserve_fp32_weights), it keeps some too: a load never rounds for good.
  std::vector<std::string> sets_of_one(const Run& near, const Run& ranks) const {
    if (request_.wide) return wide_sets();
    for (const auto& [name, type] : ranks.end.types)
      if (const auto at = near.end.types.find(name);
          name.starts_with("weight ") && at != near.end.types.end() && type == at::kFloat &&
          c10::elementSize(at->second) < c10::elementSize(type))
        return {"optimizer.main_dtype=float32"};
    return {};
  }
  std::vector<std::string> sets_of_ranks() const {
    if (!request_.wide) return {};
    std::vector<std::string> out = wide_sets();
    out.insert(out.end(), request_.job.wide_sets.begin(), request_.job.wide_sets.end());
    return out;
  }
  // nullopt: some rank did not come to its end, which is told.
  std::optional<Run> go(const std::string& toml, const std::vector<std::string>& sets,
                        int64_t ranks, const std::string& who, const Different& different = {}) {
    Run out;
    out.ranks.resize(static_cast<size_t>(ranks));
    const comparison::RunOutcome outcome = comparison::collect(
        ranks,
        [&](const std::shared_ptr<World>& world, comparison::RankFound&) {
          out.ranks[static_cast<size_t>(world->rank())] =
              run_job(request_, toml, sets, world, different);
        },
        longest_wait(ranks));
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

  // The ranks' checkpoint in one process, and that one's on the ranks. `near`: one process as it
  // trains in these dtypes.
  void go_on(const Run& near, const Run& ranks) {
    if (!is_saved(ranks, "the ranks' checkpoint")) return;
    const std::optional<Run> one =
        go_on_from(request_.job.alone, sets_of_one(near, ranks), 1,
                   {.from = folder("ranks"), .to = folder("one")}, "loading the ranks' checkpoint");
    if (!one || !is_saved(*one, "the checkpoint of one process")) return;
    const std::optional<Run> back =
        go_on_from(request_.job.toml, sets_of_ranks(), request_.job.ranks, {.from = folder("one")},
                   "loading the checkpoint of one process on the ranks");
    if (!back) return;
    StepTolerance tolerance{.one = kExact, .back = kExact};
    if (!request_.wide) {
      tolerance = {.one = 1e-6, .back = 1e-6, .norms = false};
      for (const Row& row : out_.rows)
        if (row.what == "losses" || row.what == "evaluation")
          tolerance.one = std::max(tolerance.one, row.tolerance);
    }
    compare_resumed(ranks, *one, *back, tolerance, out_);
  }
  bool is_saved(const Run& run, const std::string& what) {
    const std::optional<Error>& why = run.ranks.front().not_saved;
    if (!why) return true;
    // Copies that float64 rounds apart are not written, and are no fault of the layout.
    const bool by_rounding = replicas_round() > 0 && why->code() == ErrorCode::replicas_differ;
    refused(what, why->message(), by_rounding || why->code() == ErrorCode::output_unwritable);
    return false;
  }
  void refused(const std::string& what, const std::string& why, bool machine) {
    out_.rows.push_back({.what = "checkpoint",
                         .difference = HUGE_VAL,
                         .where = what,
                         .not_compared = machine ? why : ""});
    if (!machine) out_.faults.push_back({.what = what, .pattern = why});
  }
  std::optional<Run> go_on_from(const std::string& toml, const std::vector<std::string>& sets,
                                int64_t ranks, const Different& different,
                                const std::string& what) {
    std::optional<Run> out = go(toml, sets, ranks, "", different);
    if (!out) {
      refused(what, text::join(out_.problems, "; "), /*machine=*/false);
      out_.problems.clear();
    }
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

  // Tensors that are wrong. `found`: what a rank has of them.
  template <class Of>
  std::vector<comparison::Wrong> wrong_ones(const Whole& truth, const Run& ranks, double exact,
                                            const Of& found) {
    std::vector<std::vector<comparison::Axis>> axes;
    std::map<std::string, std::vector<comparison::Piece>> pieces;
    for (size_t r = 0; r < ranks.ranks.size(); ++r) {
      axes.push_back(ranks.ranks[r].seen.axes);
      for (const Part& part : found(ranks.ranks[r]))
        pieces[part.name].push_back({static_cast<int64_t>(r), part.region, part.values});
    }
    std::vector<std::string> missing;
    std::vector<comparison::Wrong> out = comparison::wrong_tensors(
        truth, pieces, axes, ranks.ranks.front().accumulation, exact, missing);
    for (const std::string& name : missing)
      out_.problems.push_back("no rank has a gradient of " + name);
    return out;
  }

  void find_gradients(const Run& truth, const Run& ranks) {
    auto groups = wrong_ones(truth.raw, ranks, kExact,
                             [](const Captured& rank) { return unclipped(rank, 0); });
    // No one factor: perhaps micro-batches are missing.
    const int64_t each = ranks.ranks.front().accumulation,
                  last = truth.ranks.front().accumulation / each;
    if (groups.size() == 1 && groups.front().names.size() == truth.raw.size() && each > 1)
      if (const std::optional<Run> some =
              go(request_.job.alone, wide_sets(), 1, "one process: ", {.last = last}))
        if (worst_of(ranks.raw, some->raw).difference <= kExact)
          groups.front().pattern = {
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
          groups.front().pattern = {
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
