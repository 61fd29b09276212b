#include "sdk/kit/comparison/diagnosis.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"
#include "sdk/kit/comparison/pieces.h"

namespace meshwright::comparison {

using at::Tensor;

namespace {

Tensor wide(const Tensor& t) { return t.detach().to(at::kDouble); }

Tensor expected_of(const Piece& piece, const Tensor& truth) {
  return wide(piece.expected.defined() ? piece.expected : cut(truth, piece.region));
}

// So many times the expected values, if that is what they are.
std::optional<double> ratio_of(const Tensor& found, const Tensor& expected, double tolerance) {
  const double squares = expected.square().sum().item<double>();
  if (squares == 0) return std::nullopt;
  const double ratio = (found * expected).sum().item<double>() / squares;
  if (!std::isfinite(ratio)) return std::nullopt;
  // Rounding is not to be mistaken for a part of the pattern, nor the other way round.
  const double near = std::max(tolerance, 1e-5 * largest(expected));
  return largest(found - expected * ratio) <= near * std::max(1.0, std::abs(ratio))
             ? std::optional(ratio)
             : std::nullopt;
}

std::string ranks_text(const std::vector<int64_t>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    out += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  return out;
}

bool is_near(double a, double b) { return std::abs(a - b) < 1e-6 * std::max(1.0, std::abs(b)); }

// The axes of as many ranks: what is summed over one, and what is averaged.
struct Axes {
  std::vector<std::string> summed, averaged;
  const std::vector<std::string>& found() const { return summed.empty() ? averaged : summed; }
};
Axes axes_of(double ratio, const std::vector<Axis>& axes) {
  Axes out;
  for (const Axis& axis : axes) {
    const auto size = static_cast<double>(axis.ranks.size());
    if (size < 2) continue;
    if (is_near(ratio, size)) out.summed.push_back(axis.name);
    if (is_near(ratio, 1 / size)) out.averaged.push_back(axis.name);
  }
  return out;
}
bool is_of_micro_batches(double ratio, int64_t accumulation) {
  return accumulation > 1 && (is_near(ratio, 1.0 / static_cast<double>(accumulation)) ||
                              is_near(ratio, static_cast<double>(accumulation)));
}

// What a constant factor is made of.
Pattern factor_pattern(double ratio, const std::string& where, const std::vector<Axis>& axes,
                       int64_t accumulation) {
  const Axes of = axes_of(ratio, axes);
  Pattern out{.text = times_text(ratio) + " on " + where + factor_text(ratio, axes, accumulation),
              .kind = Kind::factor,
              .axes = of.found()};
  if (std::abs(ratio) < 1e-12) {
    out.mend =
        "nothing of it arrives: see that the parameter is used and that its gradient is "
        "not dropped (end_step() must leave all gradients of parameters())";
    return out;
  }
  if (!of.found().empty()) {
    const std::string either = text::join(of.found(), " or ");
    out.mend = !of.summed.empty()
                   ? "it is summed over " + either +
                         " where it should be averaged, or summed once too often: divide by "
                         "Group::size() what Group::all_reduce(ReduceOp::sum) gives"
                   : "it is averaged over " + either +
                         " where it should be summed: Group::all_reduce(ReduceOp::sum) divides by "
                         "nothing";
  }
  if (is_of_micro_batches(ratio, accumulation))
    out.mend += std::string(out.mend.empty() ? "" : "; or else: ") +
                "micro-batches add up (GradientSync::accumulate): no one divides by their number, "
                "which the loss has done";
  return out;
}

// The axes along which ranks that are right have neighbours that are wrong.
std::vector<std::string> between(const std::vector<int64_t>& right,
                                 const std::vector<int64_t>& wrong,
                                 const std::vector<std::vector<Axis>>& axes) {
  std::vector<std::string> out;
  for (const Axis& axis : axes.at(static_cast<size_t>(wrong.front())))
    if (std::ranges::any_of(axis.ranks, [&](int64_t rank) {
          return std::ranges::find(right, rank) != right.end();
        }))
      out.push_back(axis.name);
  return out;
}

// ", in rows 58 to 60 of 61 alone", where that says something.
std::string rows_text(const Tensor& truth, const std::vector<Piece>& pieces, double tolerance) {
  int64_t first = truth.dim() > 0 ? truth.size(0) : 0, last = -1;
  for (const Piece& piece : pieces) {
    if (truth.dim() < 2 || piece.expected.defined()) return {};
    const Tensor off = (wide(piece.values).flatten() - expected_of(piece, truth).flatten())
                           .abs()
                           .gt(tolerance)
                           .nonzero()
                           .flatten();
    if (off.numel() == 0) continue;
    const Tensor rows = positions_in(piece.region, truth.sizes().vec())
                            .index_select(0, off)
                            .floor_divide(truth.numel() / truth.size(0));
    first = std::min(first, rows.min().item<int64_t>());
    last = std::max(last, rows.max().item<int64_t>());
  }
  if (last < 0 || (first == 0 && last + 1 == truth.size(0))) return {};
  return ", in rows " + std::to_string(first) + " to " + std::to_string(last) + " of " +
         std::to_string(truth.size(0)) + " alone";
}

// The axes along which ranks hold the same part, and hold it differently.
std::vector<std::string> apart_along(const std::map<int64_t, const Piece*>& by_rank,
                                     const std::vector<std::vector<Axis>>& axes, double tolerance) {
  std::vector<std::string> out;
  for (const auto& [rank, piece] : by_rank)
    for (const Axis& axis : axes.at(static_cast<size_t>(rank))) {
      const auto other = by_rank.find(axis.ranks.front());
      if (axis.ranks.front() == rank || other == by_rank.end() ||
          !(other->second->region == piece->region) ||
          std::ranges::find(out, axis.name) != out.end())
        continue;
      if (!(largest(wide(piece->values).flatten() - wide(other->second->values).flatten()) <=
            tolerance))
        out.push_back(axis.name);
    }
  return out;
}

}  // namespace

std::string times_text(double ratio) {
  if (std::abs(ratio) < 1e-12) return "zero";
  if (std::abs(ratio - 1) < 1e-6) return "the truth but for its last digits";
  if (std::abs(ratio - 2) < 1e-6) return "twice the truth";
  const double inverse = 1 / ratio;
  if (std::abs(inverse - std::round(inverse)) < 1e-6 && inverse > 1.5)
    return "1/" + std::to_string(std::llround(inverse)) + " of the truth";
  return text::format("%.6g times the truth", ratio);
}

std::string factor_text(double ratio, const std::vector<Axis>& axes, int64_t accumulation) {
  std::string out;
  if (const std::vector<std::string> found = axes_of(ratio, axes).found(); !found.empty())
    out += ", and " + text::join(found, " and ") + (found.size() > 1 ? " have " : " has ") +
           std::to_string(std::llround(std::max(ratio, 1 / ratio))) + " ranks";
  if (is_of_micro_batches(ratio, accumulation))
    out += ", and a step has " + std::to_string(accumulation) + " micro-batches";
  return out;
}

std::optional<Pattern> diagnose(const Tensor& truth, const std::vector<Piece>& pieces,
                                const std::vector<std::vector<Axis>>& axes, int64_t accumulation,
                                double tolerance) {
  std::vector<int64_t> wrong, right;
  std::vector<std::optional<double>> ratios, of_wrong;
  std::map<int64_t, const Piece*> by_rank;
  for (const Piece& piece : pieces) {
    if (piece.values.numel() == 0) continue;
    by_rank[piece.rank] = &piece;
    const Tensor expected = expected_of(piece, truth).flatten(),
                 found = wide(piece.values).flatten();
    const bool off = !(largest(found - expected) <= tolerance);
    (off ? wrong : right).push_back(piece.rank);
    if (off || largest(expected) > tolerance)
      ratios.push_back(ratio_of(found, expected, tolerance));
    if (off) of_wrong.push_back(ratios.back());
  }
  if (wrong.empty()) return std::nullopt;
  // A micro-batch is on some ranks alone; of a parameter, ranks without a part of it do not count.
  const bool everywhere = by_rank.size() == axes.size() || !pieces.front().expected.defined();

  // The same factor everywhere.
  const bool constant =
      std::ranges::all_of(ratios, [&](const auto& r) { return r && is_near(*r, *ratios.front()); });
  if (!ratios.empty() && constant)
    return factor_pattern(*ratios.front(), everywhere ? "every rank" : ranks_text(wrong),
                          axes.at(static_cast<size_t>(wrong.front())), accumulation);

  // Parts of a sum, or of a mean, that nobody made.
  const auto wrong_rank = static_cast<size_t>(wrong.front());
  for (const Axis& axis : axes.at(wrong_rank)) {
    if (axis.ranks.size() < 2) continue;
    Tensor sum;
    bool alike = true, differ = false;
    for (const int64_t rank : axis.ranks) {
      const auto at = by_rank.find(rank);
      if (at == by_rank.end() || !(at->second->region == by_rank.at(wrong.front())->region)) {
        alike = false;
        break;
      }
      const Tensor one = wide(at->second->values);
      differ = differ || (sum.defined() &&
                          largest(one - wide(by_rank.at(axis.ranks.front())->values)) > tolerance);
      sum = sum.defined() ? sum + one : one;
    }
    if (!alike || !differ) continue;
    const Tensor expected = expected_of(*by_rank.at(wrong.front()), truth);
    const double many = static_cast<double>(axis.ranks.size());
    const std::string what = "differs between the ranks of " + axis.name + ": a ";
    if (largest(sum.flatten() - expected.flatten()) <= tolerance * many)
      return Pattern{
          .text = what + "sum over " + axis.name + " is missing",
          .mend = axis.name == "tp"
                      ? "give the module the style \"replicated_with_grad_allreduce\" in the "
                        "tensor-parallel plan (ModelOutline::own_tp_plan, distributed.tp_plan), so "
                        "that TensorParallel::sum_partial_gradients() has it"
                      : "Group::all_reduce(gradient, ReduceOp::sum) over the group of " +
                            axis.name + " before end_step() returns",
          .kind = Kind::missing_sum,
          .axes = {axis.name}};
    if (largest(sum.flatten() / many - expected.flatten()) <= tolerance * many)
      return Pattern{.text = what + "mean over " + axis.name + " is missing",
                     .mend = "Group::all_reduce(gradient, ReduceOp::sum) over the group of " +
                             axis.name + ", divided by its size(), before end_step() returns",
                     .kind = Kind::missing_mean,
                     .axes = {axis.name}};
  }
  if (const std::vector<std::string> found = apart_along(by_rank, axes, tolerance);
      right.empty() && !found.empty()) {
    const std::string ranks = "the ranks of " + text::join(found, " and ");
    return Pattern{.text = "differs between " + ranks + ", which should be alike",
                   .mend = "what " + ranks +
                           " compute by parts must be summed before all of them go on with it: "
                           "all_reduce() in the forward, copy_to() for the backward "
                           "(meshwright/parallel/collectives.h)",
                   .kind = Kind::apart,
                   .axes = found};
  }
  if (!right.empty()) {
    Pattern out{.text = "right on " + ranks_text(right) + ", wrong on " + ranks_text(wrong),
                .mend =
                    "what a rank does by its own number, or by what it alone knows, must come "
                    "from the group",
                .kind = Kind::some_ranks,
                .axes = between(right, wrong, axes)};
    if (!out.axes.empty()) out.text += ", other ranks of " + text::join(out.axes, " and ");
    if (std::ranges::all_of(of_wrong,
                            [&](const auto& r) { return r && is_near(*r, *of_wrong.front()); }))
      out.text += ": " + times_text(*of_wrong.front());
    return out;
  }
  // Neither a factor nor parts of a sum: what a rank has is of other numbers.
  std::optional<double> first = ratios.empty() ? std::nullopt : ratios.front();
  if (first && std::ranges::all_of(ratios, [](const auto& r) { return r.has_value(); }))
    return Pattern{
        .text = "other factors on other ranks, " + times_text(*first) + " on " +
                ranks_text({wrong.front()}),
        .mend =
            "ranks scale each by something of its own: its number of targets, or its own norm. "
            "What they divide by must be summed over all of them first",
        .kind = Kind::other_factors};
  return Pattern{.text = "wrong on " + (everywhere ? "all ranks" : ranks_text(wrong)) +
                         ", by no factor" + rows_text(truth, pieces, tolerance)};
}

namespace {

const Axis* axis_of(const RankSeen& rank, const std::string& name) {
  const auto at = std::ranges::find(rank.axes, name, &Axis::name);
  return at == rank.axes.end() || at->ranks.size() < 2 ? nullptr : &*at;
}

// The part of a whole tensor that a rank of cp should have; undefined: which dimension has the
// tokens is not clear.
Tensor tokens_of(const Tensor& whole, const RankSeen& rank, int64_t length) {
  if (rank.positions.empty()) return whole;
  int64_t dim = -1;
  for (int64_t d = 0; d < whole.dim(); ++d)
    if (whole.size(d) == length) dim = dim < 0 ? d : whole.dim();
  if (dim < 0 || dim == whole.dim()) return {};
  return whole.index_select(dim, at::tensor(rank.positions));
}

// The same of what a rank has, whose rows end with padding.
Tensor without_padding(const Tensor& mine, const Tensor& expected) {
  if (mine.dim() != expected.dim()) return mine;
  Tensor out = mine;
  for (int64_t d = 0; d < out.dim(); ++d)
    if (out.size(d) > expected.size(d)) out = out.narrow(d, 0, expected.size(d));
  return out;
}

class Comparison {
 public:
  Comparison(const std::vector<Seen>& truth, const std::vector<RankSeen>& ranks, int64_t length,
             double tolerance)
      : truth_(truth), ranks_(ranks), length_(length), tolerance_(tolerance) {
    std::set<std::string> all;
    for (const Seen& one : truth_) all.insert(one.module);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      std::set<std::string> here;
      for (const Seen& one : ranks_[r].seen) here.insert(one.module);
      for (const Seen& one : ranks_[r].seen)
        if (is_whole(one.module, all, here))
          mine_[{one.module, one.micro_batch}].emplace_back(static_cast<int64_t>(r), &one);
    }
    for (const Seen& one : truth_) {
      outputs_ = std::max(outputs_, largest(one.output));
      if (one.gradient.defined()) gradients_ = std::max(gradients_, largest(one.gradient));
    }
  }

  Compared run() {
    for (const Seen& one : truth_) look_at(one, /*backward=*/false);
    // Gradients come in the other order.
    for (auto one = truth_.rbegin(); one != truth_.rend(); ++one)
      if (one->gradient.defined()) look_at(*one, /*backward=*/true);
    find_again();
    out_.modules = static_cast<int64_t>(compared_.size());
    for (const std::string& name : left_)
      if (!compared_.contains(name)) out_.left.push_back(name);
    return std::move(out_);
  }

 private:
  struct Beside {
    double apart = 0;
    Piece piece;
    bool parts = false;  // of a sum over tp that is right
  };
  using Sees = std::vector<std::pair<int64_t, const Seen*>>;

  // Whether a rank runs all that is within the module: a stage of a pipeline has some layers of it.
  static bool is_whole(const std::string& module, const std::set<std::string>& all,
                       const std::set<std::string>& here) {
    const std::string within = module + ".";
    for (auto at = all.lower_bound(within); at != all.end() && at->starts_with(within); ++at)
      if (!here.contains(*at)) return false;
    return true;
  }

  // What backward computes again must be what the forward computed.
  void find_again() {
    for (const Seen& one : truth_) {
      PlaceOfFault fault{.module = one.module, .micro_batch = one.micro_batch};
      for (size_t r = 0; r < ranks_.size(); ++r) {
        double most = 0;  // in any micro-batch
        for (const Seen& seen : ranks_[r].seen)
          if (seen.module == one.module) most = std::max(most, seen.again);
        if (most <= tolerance_) continue;
        fault.ranks.push_back(static_cast<int64_t>(r));
        fault.difference = std::max(fault.difference, most);
      }
      if (fault.ranks.empty()) continue;
      fault.pattern = {
          .text = "backward computes it again, and gets something else than the forward on " +
                  (fault.ranks.size() == ranks_.size() ? "every rank" : ranks_text(fault.ranks)),
          .mend =
              "what a forward draws or decides (dropout, the choice of experts, a dtype) must be "
              "the "
              "same in its second run (HookHost::around): keep it, or seed it by the step, the "
              "micro-batch and the module"};
      out_.again = std::move(fault);
      return;
    }
  }

  ModuleMarks& marks_of(const std::string& module) {
    const auto [at, made] = marks_.try_emplace(module, out_.marks.size());
    if (made)
      out_.marks.push_back(
          {module, std::vector<double>(ranks_.size(), -1), std::vector<double>(ranks_.size(), -1)});
    return out_.marks[at->second];
  }

  void look_at(const Seen& whole, bool backward) {
    ModuleMarks& marks = marks_of(whole.module);
    const auto at = mine_.find({whole.module, whole.micro_batch});
    if (at == mine_.end()) return;
    std::map<int64_t, Tensor> values;
    for (const auto& [rank, one] : at->second) {
      const Tensor& value = backward ? one->gradient : one->output;
      // Experts have the tokens that were sent to them, in as many rows only by chance.
      const bool sent = axis_of(ranks_[static_cast<size_t>(rank)], "ep") != nullptr &&
                        whole.module.find("experts") != std::string::npos;
      if (sent) left_.insert(whole.module);
      if (value.defined() && !sent)
        values[rank] = wide(value) * (backward ? ranks_[static_cast<size_t>(rank)].scale : 1.0);
    }
    const Tensor truth = wide(backward ? whole.gradient : whole.output);
    const double scale = std::max(largest(truth), 1e-3 * (backward ? gradients_ : outputs_));
    PlaceOfFault fault{
        .module = whole.module, .backward = backward, .micro_batch = whole.micro_batch};
    std::vector<Piece> pieces;
    for (const auto& [rank, value] : values) {
      std::optional<Beside> beside = difference_of(rank, value, truth, values, backward);
      if (!beside) {
        left_.insert(whole.module);
        continue;
      }
      compared_.insert(whole.module);
      const double relative = scale > 0 ? beside->apart / scale : beside->apart;
      (backward ? out_.backward : out_.forward) =
          std::max(backward ? out_.backward : out_.forward, relative);
      double& mark = (backward ? marks.backward : marks.forward).at(static_cast<size_t>(rank));
      mark = std::max(mark, relative);
      pieces.push_back(std::move(beside->piece));
      if (beside->parts) parts_ = whole.module;
      if (relative <= tolerance_) continue;
      fault.ranks.push_back(rank);
      fault.difference = std::max(fault.difference, relative);
    }
    if (fault.ranks.empty() || out_.fault) return;
    std::vector<std::vector<Axis>> axes;
    for (const RankSeen& rank : ranks_) axes.push_back(rank.axes);
    if (pieces.size() == values.size())
      if (auto pattern = diagnose(truth, pieces, axes, 1, tolerance_ * scale))
        fault.pattern = std::move(*pattern);
    if (!backward && fault.pattern.mend.empty() && adds_one_row(pieces, tolerance_ * scale))
      fault.pattern = {
          .text = "off by the same row at every token, as of a bias that each rank of tp adds",
          .mend = "a row-parallel layer adds its bias once, behind the sum of the ranks' parts",
          .axes = {"tp"}};
    // Parts that came back to a module and were still parts at the next one that shares them.
    if (backward && !parts_.empty() && parts_ != whole.module &&
        fault.pattern.kind == Kind::apart && fault.pattern.axes == std::vector<std::string>{"tp"})
      fault.pattern = {
          .text = "differs between the ranks of tp: a sum over tp is missing behind " + parts_,
          .mend =
              "the gradient of its output comes in parts, one of each rank's columns: "
              "copy_to(x, tp group) in front of what is cut sums them (style \"colwise\" does, "
              "meshwright/parallel/collectives.h)",
          .kind = Kind::missing_sum,
          .axes = {"tp"}};
    if (!backward && fault.pattern.is_missing())
      fault.pattern.mend =
          "the outputs of the ranks are parts of a sum that nobody adds up: a "
          "row-parallel layer ends with all_reduce or reduce_scatter (style "
          "\"rowwise\")";
    out_.fault = std::move(fault);
  }

  // Whether ranks of tp have too much of one row, the same at every token.
  bool adds_one_row(const std::vector<Piece>& pieces, double tolerance) const {
    return std::ranges::all_of(pieces, [&](const Piece& piece) {
      if (axis_of(ranks_[static_cast<size_t>(piece.rank)], "tp") == nullptr ||
          piece.values.dim() < 2 || piece.values.sizes() != piece.expected.sizes())
        return false;
      const Tensor more = (piece.values - piece.expected).flatten(0, -2);
      return more.size(0) > 1 && largest(more[0]) > tolerance &&
             largest(more - more[0]) <= tolerance;
    });
  }

  // The largest difference of what a rank has from what it should have; nullopt: it cannot be told
  // what that is.
  std::optional<Beside> difference_of(int64_t rank, const Tensor& value, const Tensor& truth,
                                      const std::map<int64_t, Tensor>& all, bool backward) const {
    const RankSeen& me = ranks_[static_cast<size_t>(rank)];
    const Tensor expected = tokens_of(truth, me, length_);
    if (!expected.defined()) return std::nullopt;
    const Axis* tp = axis_of(me, "tp");
    const int64_t first = me.positions.empty() ? 0 : me.positions.front();
    const Tensor mine = without_padding(value, expected);
    if (mine.sizes() == expected.sizes()) {
      const double apart = largest(mine - expected);
      Beside out{apart, {rank, Region::run(first, first + mine.numel()), mine, expected}};
      if (!backward || tp == nullptr || apart <= tolerance_ * largest(expected)) return out;
      // In backward a tensor may be whole and its gradient a part of a sum, which is made further
      // back.
      Tensor sum = at::zeros_like(expected);
      for (const int64_t other : tp->ranks) {
        const auto at = all.find(other);
        if (at == all.end() || at->second.sizes() != value.sizes()) return out;
        sum = sum + without_padding(at->second, expected);
      }
      const double in_all = largest(sum - expected), near = tolerance_ * largest(expected);
      // Parts of a sum that is so many times the truth are what is to be told.
      if (in_all <= apart || (ratio_of(sum, expected, near) && !ratio_of(mine, expected, near)))
        out = {std::min(apart, in_all), {rank, out.piece.region, sum, expected}, in_all <= near};
      return out;
    }
    if (tp == nullptr || mine.dim() != expected.dim()) return std::nullopt;
    int64_t dim = -1;
    for (int64_t d = 0; d < mine.dim(); ++d)
      if (mine.size(d) != expected.size(d)) dim = dim < 0 ? d : mine.dim();
    if (dim < 0 || dim == mine.dim()) return std::nullopt;
    std::vector<Tensor> parts;
    int64_t begin = 0, size = 0;
    for (const int64_t other : tp->ranks) {
      const auto at = all.find(other);
      if (at == all.end() || at->second.dim() != expected.dim()) return std::nullopt;
      if (other == rank) begin = size;
      size += at->second.size(dim);
    }
    if (size != expected.size(dim)) return std::nullopt;
    const Tensor part = expected.narrow(dim, begin, mine.size(dim));
    return Beside{largest(mine - part),
                  {rank, Region::box({first, dim, begin}, {1, 1, mine.size(dim)}), mine, part},
                  false};
  }

  const std::vector<Seen>& truth_;
  const std::vector<RankSeen>& ranks_;
  int64_t length_;
  double tolerance_, outputs_ = 0, gradients_ = 0;
  std::map<std::pair<std::string, int64_t>, Sees> mine_;
  std::map<std::string, size_t> marks_;  // in out_.marks
  std::string parts_;                    // the last module whose gradient came in parts
  std::set<std::string> compared_, left_;
  Compared out_;
};

}  // namespace

Compared compare_modules(const std::vector<Seen>& truth, const std::vector<RankSeen>& ranks,
                         int64_t length, double tolerance) {
  return Comparison(truth, ranks, length, tolerance).run();
}

}  // namespace meshwright::comparison
