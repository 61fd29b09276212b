#include "apps/prove/running/prove_ranks.h"

#include <ATen/ops/linalg_pinv.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
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
    const std::optional<Moved> by_evaluation = evaluation_moves(ranks);
    out_.rows.push_back({"values after the evaluation", by_evaluation ? HUGE_VAL : 0, 0,
                         by_evaluation
                             ? by_evaluation->name + ", rank " + std::to_string(by_evaluation->rank)
                             : ""});
    const std::string& differ = parted(ranks).differ;
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
    draw(ranks, found);
    // What backward computes again is told before the gradients that it spoils.
    const bool again = found.again && !(found.fault && !found.fault->backward);
    if ((found.fault || again) && !right) {
      const comparison::PlaceOfFault& at = again ? *found.again : *found.fault;
      out_.picture.turn(at.module, at.backward ? Picture::Part::backward : Picture::Part::forward);
      for (Row& one : out_.rows)
        if (one.what == (at.backward ? "modules, backward" : "modules, forward"))
          one.where = at.module;
      out_.faults.push_back(
          {.what = (at.backward ? "the gradient of the output of " : "the output of ") + at.module +
                   (again ? ", computed again" : "") + ", micro-batch " +
                   std::to_string(at.micro_batch),
           .pattern = at.pattern.text,
           .mend = at.pattern.mend,
           .ranks = at.ranks,
           .difference = at.difference});
    }
    if (ranks.ranks.front().approximate > 0) return;
    find_gradients(truth, ranks);
    find_norm(truth, ranks);
    find_replicas(ranks);
    if (out_.faults.empty()) find_step(truth, ranks);
    if (out_.faults.empty()) find_states(truth, ranks);
    find_evaluation(ranks);
    for (const auto& [name, how] : ranks.ranks.front().own) add_own(truth, ranks, name, how);
  }

  // Layers that are alike in this are one line.
  void add_own(const Run& truth, const Run& ranks, const std::string& name,
               const std::string& how) {
    std::vector<std::string> parts = text::split(name, '.');
    for (std::string& part : parts)
      if (std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; })) part = "*";
    const bool ok = worst_of(only(ranks.raw, name), only(truth.raw, name)).difference <= kExact;
    OwnParameter one{text::join(parts, "."), how, ok};
    const auto at = std::ranges::find_if(
        out_.own, [&](const OwnParameter& o) { return o.name == one.name && o.how == one.how; });
    if (at == out_.own.end())
      out_.own.push_back(std::move(one));
    else
      at->ok = at->ok && ok;
  }

  void draw(const Run& ranks, const comparison::Compared& found) {
    const size_t count = ranks.ranks.size();
    for (size_t r = 0; r < count; ++r)
      for (const comparison::Axis& axis : ranks.ranks[r].seen.axes) {
        auto at = std::ranges::find_if(out_.picture.axes,
                                       [&](const auto& one) { return one.first == axis.name; });
        if (at == out_.picture.axes.end())
          at = out_.picture.axes.insert(at, {axis.name, std::vector<int64_t>(count, 0)});
        at->second[r] = std::ranges::find(axis.ranks, static_cast<int64_t>(r)) - axis.ranks.begin();
      }
    for (const comparison::ModuleMarks& marks : found.marks) {
      Picture::Line line{marks.module, std::string(count, Picture::kNotCompared), {}, {}};
      line.backward = line.gradients = line.forward;
      auto mark = [](double difference) {
        return difference < 0       ? Picture::kNotCompared
               : difference <= 1e-9 ? Picture::kRight
                                    : Picture::kWrong;
      };
      for (size_t r = 0; r < count; ++r) {
        line.forward[r] = mark(marks.forward[r]);
        line.backward[r] = mark(marks.backward[r]);
      }
      out_.picture.lines.push_back(std::move(line));
    }
  }
  void mark_gradients(const Run& truth, const Run& ranks) {
    double scale = 0;
    for (const auto& [name, tensor] : truth.raw) scale = std::max(scale, largest(tensor));
    for (size_t r = 0; r < ranks.ranks.size(); ++r)
      for (const Part& part : unclipped(ranks.ranks[r], 0)) {
        const auto at = truth.raw.find(part.name);
        if (at == truth.raw.end()) continue;
        const double near = kExact * std::max(largest(at->second), 1e-3 * scale);
        char& mark = out_.picture.line(module_of(part.name), ranks.ranks.size()).gradients[r];
        if (!(largest(part.values.flatten() - comparison::cut(at->second, part.region).flatten()) <=
              near))
          mark = Picture::kWrong;
        else if (mark == Picture::kNotCompared)
          mark = Picture::kRight;
      }
  }
  static std::string module_of(const std::string& parameter) {
    return parameter.substr(0, std::min(parameter.rfind('.'), parameter.size()));
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
    mark_gradients(truth, ranks);
    explain(truth, ranks, groups);
    // A module that is wrong already spoils the gradients around it.
    if (!out_.faults.empty())
      std::erase_if(groups, [](const auto& group) { return group.pattern.mend.empty(); });
    for (auto& [pattern, names] : groups) {
      std::vector<std::string> modules;
      for (const std::string& name : names)
        if (modules.empty() || modules.back() != module_of(name))
          modules.push_back(module_of(name));
      out_.picture.turn(modules.front(), Picture::Part::gradients);
      if (pattern.text.ends_with("is missing"))
        pattern.text += " behind " + text::first_few(modules, 4);
      out_.faults.push_back(
          {.what = (names.size() == 1 ? "the gradient of " : "the gradients of ") +
                   text::first_few(names, 4),
           .pattern = pattern.text,
           .mend = pattern.mend});
    }
  }

  // What gradients are that no factor explains: their micro-batches by other weights, or another
  // part of the auxiliary loss.
  using Groups = std::vector<comparison::Wrong>;
  void explain(const Run& truth, const Run& ranks, Groups& groups) {
    const bool unknown = std::ranges::any_of(groups, [](const auto& group) {
      return group.pattern.mend.empty() || group.pattern.text.starts_with("other factors") ||
             group.pattern.text.starts_with("right on");
    });
    size_t wrong = 0;
    for (const auto& [pattern, names] : groups) wrong += names.size();
    if (!unknown || wrong == 0) return;
    std::optional<comparison::Pattern> found = of_auxiliary(truth, ranks);
    if (!found && wrong == truth.raw.size()) found = of_micro_batches(truth, ranks);
    if (!found) return;
    std::vector<std::string> names;
    for (const auto& group : groups)
      names.insert(names.end(), group.names.begin(), group.names.end());
    groups = {{*found, names}};
  }

  static double product(const Whole& a, const Whole& b) {
    double out = 0;
    for (const auto& [name, tensor] : a)
      if (const auto at = b.find(name); at != b.end())
        out += (tensor * at->second).sum().item<double>();
    return out;
  }
  static Whole sum_of(const Whole& a, const Whole& b, double by) {
    Whole out = a;
    for (auto& [name, tensor] : out)
      if (const auto at = b.find(name); at != b.end()) tensor = tensor + at->second * by;
    return out;
  }

  std::optional<comparison::Pattern> of_auxiliary(const Run& truth, const Run& ranks) {
    const std::optional<Run> without =
        go(request_.job.alone, wide_sets(), 1,
           "one process: ", {.without_auxiliary = true, .one_step = true});
    if (!without) return std::nullopt;
    const Whole auxiliary = sum_of(truth.raw, without->raw, -1),
                more = sum_of(ranks.raw, truth.raw, -1);
    const double squares = product(auxiliary, auxiliary);
    if (squares < 1e-16 * product(truth.raw, truth.raw)) return std::nullopt;
    const double times = product(more, auxiliary) / squares;
    if (worst_of(sum_of(truth.raw, auxiliary, times), ranks.raw).difference > 1e-7)
      return std::nullopt;
    const std::string said = comparison::times_text(times + 1);
    return comparison::Pattern{
        "the auxiliary loss of experts is " + said + " on every rank" +
            comparison::factor_text(times + 1, ranks.ranks.front().seen.axes,
                                    ranks.ranks.front().accumulation),
        "its part of each rank's loss is set by LoadBalance::set_scale(): nothing else multiplies "
        "it, by ranks or micro-batches, or cuts it off"};
  }

  // By least squares over the gradients of each micro-batch alone.
  std::optional<comparison::Pattern> of_micro_batches(const Run& truth, const Run& ranks) {
    const int64_t count = truth.ranks.front().accumulation, each = ranks.ranks.front().accumulation,
                  dp = count / each;
    if (count < 2 || count > 16) return std::nullopt;
    std::vector<Whole> alone;
    for (int64_t i = 0; i < count; ++i) {
      std::optional<Run> one = go(request_.job.alone, wide_sets(), 1,
                                  "one process: ", {.micro_batch = i, .one_step = true});
      if (!one) return std::nullopt;
      alone.push_back(std::move(one->raw));
    }
    Tensor matrix = at::zeros({count, count}, at::kDouble),
           right = at::zeros({count, 1}, at::kDouble);
    for (int64_t i = 0; i < count; ++i) {
      right[i][0] = product(alone[static_cast<size_t>(i)], ranks.raw);
      for (int64_t j = 0; j < count; ++j)
        matrix[i][j] = product(alone[static_cast<size_t>(i)], alone[static_cast<size_t>(j)]);
    }
    const Tensor weights = at::matmul(at::linalg_pinv(matrix, 1e-13), right).flatten();
    Whole all;
    std::vector<std::string> said;
    std::vector<double> by;
    for (int64_t i = 0; i < count; ++i) {
      by.push_back(weights[i].item<double>());
      const Whole& one = alone[static_cast<size_t>(i)];
      all = i == 0 ? sum_of(one, one, by[0] - 1) : sum_of(all, one, by.back());
      said.push_back(text::format("%.3g", std::abs(by.back()) < 1e-6 ? 0 : by.back()));
    }
    if (worst_of(all, ranks.raw).difference > 1e-6) return std::nullopt;
    auto like = [&](const std::function<double(int64_t)>& of) {
      for (int64_t i = 0; i < count; ++i)
        if (std::abs(by[static_cast<size_t>(i)] - of(i)) > 1e-5 * std::max(1.0, std::abs(of(i))))
          return false;
      return true;
    };
    const std::string mend =
        "micro-batches add up: begin_micro_batch() clears nothing and weighs nothing, begin_step() "
        "clears";
    if (like([&](int64_t i) { return i / dp == each - 1 ? 1.0 : 0.0; }))
      return comparison::Pattern{
          "those of the last micro-batch of a step alone, of " + std::to_string(each), mend};
    const std::string list = text::join(said, ", ");
    bool of_rank = true, of_turn = true;
    for (int64_t i = 0; i < count; ++i) {
      of_rank =
          of_rank && std::abs(by[static_cast<size_t>(i)] - by[static_cast<size_t>(i % dp)]) < 1e-5;
      of_turn = of_turn &&
                std::abs(by[static_cast<size_t>(i)] - by[static_cast<size_t>(i / dp * dp)]) < 1e-5;
    }
    if (of_turn)
      return comparison::Pattern{"micro-batches of a step weigh differently, " + list + " times",
                                 mend};
    std::vector<std::string> axes;
    for (const comparison::Axis& axis : ranks.ranks.front().seen.axes)
      if (axis.name.starts_with("dp")) axes.push_back(axis.name);
    return comparison::Pattern{
        std::string(of_rank ? "ranks" : "ranks and their micro-batches") + " of " +
            text::join(axes, " and ") + " weigh differently, " + list + " times" +
            (of_rank ? "" : ": a mean of means, if those with fewer targets weigh more"),
        "what each divides by must be summed over all of them first: losses are sums over targets, "
        "divided once by the number of all targets of the step"};
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
      if (!groups.empty())
        out_.picture.turn(module_of(groups.front().names.front()), Picture::Part::gradients);
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

  // The first time that replicas are not alike.
  static const Joined& parted(const Run& ranks) {
    return !ranks.begin.differ.empty() ? ranks.begin
           : !ranks.end.differ.empty() ? ranks.end
                                       : ranks.gradients;
  }

  // What optimizers and buffers hold, where all parameters move as they should.
  void find_states(const Run& truth, const Run& ranks) {
    const Whole found =
                    updates(only(ranks.begin.whole, "buffer "), only(ranks.end.whole, "buffer ")),
                right =
                    updates(only(truth.begin.whole, "buffer "), only(truth.end.whole, "buffer "));
    for (const auto& [name, tensor] : right) {
      const auto at = found.find(name);
      if (at == found.end() || largest(at->second - tensor) <= kUpdate * largest(tensor)) continue;
      std::vector<comparison::Piece> pieces;
      std::vector<std::vector<comparison::Axis>> axes;
      for (size_t r = 0; r < ranks.ranks.size(); ++r) {
        axes.push_back(ranks.ranks[r].seen.axes);
        for (const Part& part : ranks.ranks[r].states.back())
          if (part.name == name)
            for (const Part& before : ranks.ranks[r].states.front())
              if (before.name == name)
                pieces.push_back({static_cast<int64_t>(r), part.region,
                                  part.values.to(at::kDouble) - before.values.to(at::kDouble)});
      }
      const auto pattern = comparison::diagnose(
          tensor, pieces, axes, ranks.ranks.front().accumulation, kUpdate * largest(tensor));
      out_.faults.push_back(
          {.what = "the change of " + name,
           .pattern = pattern ? pattern->text : "",
           .mend = "buffers move once a step, after the optimizer, by what all ranks have counted "
                   "(Router::update_bias()): not in a micro-batch, nor when it is computed again"});
      out_.picture.turn(module_of(name.substr(name.find(' ') + 1)), Picture::Part::gradients);
    }
  }

  // The first value that an evaluation has moved.
  struct Moved {
    std::string name;
    size_t rank = 0;
  };
  static std::optional<Moved> evaluation_moves(const Run& ranks) {
    for (size_t r = 0; r < ranks.ranks.size(); ++r) {
      const Captured& rank = ranks.ranks[r];
      for (size_t i = 0; i < std::min(rank.evaluated_state.size(), rank.states.back().size()); ++i)
        if (!rank.evaluated_state[i].values.equal(rank.states.back()[i].values))
          return Moved{rank.evaluated_state[i].name, r};
    }
    return std::nullopt;
  }
  void find_evaluation(const Run& ranks) {
    const std::optional<Moved> moved = evaluation_moves(ranks);
    if (!moved) return;
    out_.faults.push_back({.what = "the evaluation writes to " + moved->name,
                           .pattern = "it is another after an evaluation than before it",
                           .mend = "what a forward counts or moves, it does in training alone "
                                   "(torch::nn::Module::is_training())"});
    out_.picture.turn(module_of(moved->name.substr(moved->name.find(' ') + 1)),
                      Picture::Part::forward);
  }

  void find_replicas(const Run& ranks) {
    const Joined& joined = parted(ranks);
    if (joined.differ.empty()) return;
    Fault fault{.what = "replicas of " + joined.name +
                        (&joined == &ranks.begin ? " before the first step" : ""),
                .ranks = {joined.other, joined.rank}};
    out_.picture.turn(module_of(joined.name.substr(joined.name.find(' ') + 1)),
                      Picture::Part::gradients);
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
