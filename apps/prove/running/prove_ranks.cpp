#include "apps/prove/running/prove_ranks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/prove/running/captured.h"
#include "apps/prove/running/finding.h"
#include "apps/prove/running/resumed.h"
#include "apps/prove/running/runs.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/handed_files.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"
#include "sdk/kit/comparison/collect.h"

namespace meshwright::prove {

namespace {

constexpr double kTimesRounding = 8;  // as far as ranks may be where one process is once
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
    if (!request_.wide)
      tolerance = {.one = std::max(1e-6, loss_tolerance_), .back = 1e-6, .norms = false};
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
    if (near == nullptr)
      row("weights at the start", kExact, near, ranks, [&](const Run& run) {
        return worst_of(only(run.begin.whole, "weight "), only(truth.begin.whole, "weight "));
      });
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
    loss_tolerance_ = std::max(out_.rows[first_row].tolerance, out_.rows.back().tolerance);
    if (!routed_alike)
      for (size_t i = first_row; i < out_.rows.size(); ++i)
        if (!out_.rows[i].ok())
          out_.rows[i].not_compared = "by rounding, tokens went to other experts";
    const double approximate = ranks.ranks.front().approximate;
    if (approximate > 0)
      for (size_t i = first_row; i < out_.rows.size(); ++i)
        if (!out_.rows[i].ok())
          out_.rows[i].not_compared = text::format(
              "approximate on purpose: `plugins check` holds gradients to %g", approximate);
    Worst counts;
    for (size_t r = 0; r < ranks.ranks.size(); ++r)
      for (size_t s = 0; s < one.steps.size(); ++s) {
        const StepResult &mine = ranks.ranks[r].steps[s], &theirs = one.steps[s];
        counts.take(static_cast<double>(std::abs(mine.count - theirs.count) +
                                        std::abs(mine.tokens - theirs.tokens)),
                    "step " + std::to_string(s) + ", rank " + std::to_string(r));
      }
    out_.rows.push_back({"targets and tokens", counts.difference, 0, counts.where});
    const std::optional<Run::Written> by_evaluation = ranks.written_by_evaluation();
    out_.rows.push_back({"values after the evaluation", by_evaluation ? HUGE_VAL : 0, 0,
                         by_evaluation
                             ? by_evaluation->name + ", rank " + std::to_string(by_evaluation->rank)
                             : ""});
    const std::string& differ = ranks.parted().differ;
    out_.rows.push_back({replicas_round() > 0 ? "replicas" : "replicas, to the bit",
                         differ.empty() ? 0 : HUGE_VAL, replicas_round(), differ});
    for (const std::string& holes : {ranks.gradients.holes, ranks.end.holes})
      if (!holes.empty()) out_.problems.push_back(holes);
    if (near != nullptr) return;
    find_fault(
        request_, truth, ranks,
        [this](const Different& different) {
          return go(request_.job.alone, wide_sets(), 1, "one process: ", different);
        },
        [this](const Different& different) {
          return go(request_.job.toml, sets_of_ranks(), request_.job.ranks, "", different);
        },
        out_);
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

  const Request& request_;
  double loss_tolerance_ = 0;  // of a step or of the evaluation, the larger one
  Findings out_;
};

}  // namespace

Findings prove(const Request& request) { return Proof(request).run(); }

}  // namespace meshwright::prove
