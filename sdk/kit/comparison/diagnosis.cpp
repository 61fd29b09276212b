#include "sdk/kit/comparison/diagnosis.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "sdk/base/plain_text.h"
#include "sdk/kit/comparison/pieces.h"

namespace meshwright::comparison {

using at::Tensor;

namespace {

double largest(const Tensor& t) {
  return t.numel() == 0
             ? 0
             : t.abs().nan_to_num(std::numeric_limits<double>::infinity()).max().item<double>();
}

Tensor wide(const Tensor& t) { return t.detach().to(at::kDouble); }

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

std::string times_text(double ratio) {
  if (std::abs(ratio) < 1e-12) return "zero";
  if (std::abs(ratio - 2) < 1e-6) return "twice the truth";
  const double inverse = 1 / ratio;
  if (std::abs(inverse - std::round(inverse)) < 1e-6 && inverse > 1.5)
    return "1/" + std::to_string(std::llround(inverse)) + " of the truth";
  return text::format("%.6g times the truth", ratio);
}

bool is_near(double a, double b) { return std::abs(a - b) < 1e-6 * std::max(1.0, std::abs(b)); }

// What a constant factor is made of.
Pattern factor_pattern(double ratio, const std::vector<Axis>& axes, int64_t accumulation) {
  Pattern out{times_text(ratio) + " on every rank", {}};
  if (std::abs(ratio) < 1e-12) {
    out.mend =
        "nothing of it arrives: see that the parameter is used and that its gradient is "
        "not dropped (end_step() must leave all gradients of parameters())";
    return out;
  }
  for (const Axis& axis : axes) {
    const auto size = static_cast<double>(axis.ranks.size());
    if (size < 2) continue;
    if (is_near(ratio, size)) {
      out.text += ", and " + axis.name + " has " + std::to_string(axis.ranks.size()) + " ranks";
      out.mend = "it is summed over " + axis.name +
                 " where it should be averaged, or summed once too often: ReduceOp::average in the "
                 "place of ReduceOp::sum";
      return out;
    }
    if (is_near(ratio, 1 / size)) {
      out.text += ", and " + axis.name + " has " + std::to_string(axis.ranks.size()) + " ranks";
      out.mend = "it is averaged over " + axis.name +
                 " where it should be summed: ReduceOp::sum in the place of ReduceOp::average";
      return out;
    }
  }
  if (accumulation > 1 && (is_near(ratio, 1.0 / static_cast<double>(accumulation)) ||
                           is_near(ratio, static_cast<double>(accumulation)))) {
    out.text += ", and a step has " + std::to_string(accumulation) + " micro-batches";
    out.mend =
        "micro-batches add up (GradientSync::accumulate): no one divides by their number, "
        "which the loss has done";
  }
  return out;
}

}  // namespace

std::optional<Pattern> diagnose(const Tensor& truth, const std::vector<Piece>& pieces,
                                const std::vector<std::vector<Axis>>& axes, int64_t accumulation,
                                double tolerance) {
  std::vector<int64_t> wrong, right;
  std::vector<std::optional<double>> ratios;
  std::map<int64_t, const Piece*> by_rank;
  for (const Piece& piece : pieces) {
    if (piece.values.numel() == 0) continue;
    by_rank[piece.rank] = &piece;
    const Tensor expected = wide(cut(truth, piece.region)).flatten(),
                 found = wide(piece.values).flatten();
    const bool off = !(largest(found - expected) <= tolerance);
    (off ? wrong : right).push_back(piece.rank);
    if (off || largest(expected) > tolerance)
      ratios.push_back(ratio_of(found, expected, tolerance));
  }
  if (wrong.empty()) return std::nullopt;

  // The same factor everywhere.
  const bool constant =
      std::ranges::all_of(ratios, [&](const auto& r) { return r && is_near(*r, *ratios.front()); });
  if (!ratios.empty() && constant)
    return factor_pattern(*ratios.front(), axes.at(static_cast<size_t>(wrong.front())),
                          accumulation);

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
    const Tensor expected = wide(cut(truth, by_rank.at(wrong.front())->region));
    const double many = static_cast<double>(axis.ranks.size());
    const std::string what = "differs between the ranks of " + axis.name + ": a ";
    if (largest(sum.flatten() - expected.flatten()) <= tolerance * many)
      return Pattern{what + "sum over " + axis.name + " is missing",
                     axis.name == "tp"
                         ? "give the module the style \"replicated_with_grad_allreduce\" in the "
                           "tensor-parallel plan (ModelOutline::own_tp_plan, "
                           "distributed.tp_plan), so that TensorParallel::sum_partial_gradients() "
                           "has it"
                         : "all_reduce(gradient, ReduceOp::sum) over the group of " + axis.name +
                               " before end_step() returns"};
    if (largest(sum.flatten() / many - expected.flatten()) <= tolerance * many)
      return Pattern{what + "mean over " + axis.name + " is missing",
                     "all_reduce(gradient, ReduceOp::average) over the group of " + axis.name +
                         " before end_step() returns"};
  }
  if (!right.empty())
    return Pattern{"right on " + ranks_text(right) + ", wrong on " + ranks_text(wrong), {}};
  // Neither a factor nor parts of a sum: what a rank has is of other numbers.
  std::optional<double> first = ratios.empty() ? std::nullopt : ratios.front();
  if (first && std::ranges::all_of(ratios, [](const auto& r) { return r.has_value(); }))
    return Pattern{"other factors on other ranks, " + times_text(*first) + " on " +
                       ranks_text({wrong.front()}),
                   "ranks scale each by something of its own: its number of targets, or its own "
                   "norm. What they divide by must be summed over all of them first"};
  return Pattern{"wrong on all ranks, by no factor", {}};
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
    out_.modules = static_cast<int64_t>(compared_.size());
    for (const std::string& name : left_)
      if (!compared_.contains(name)) out_.left.push_back(name);
    return std::move(out_);
  }

 private:
  using Sees = std::vector<std::pair<int64_t, const Seen*>>;

  // Whether a rank runs all that is within the module: a stage of a pipeline has some layers of it.
  static bool is_whole(const std::string& module, const std::set<std::string>& all,
                       const std::set<std::string>& here) {
    const std::string within = module + ".";
    for (auto at = all.lower_bound(within); at != all.end() && at->starts_with(within); ++at)
      if (!here.contains(*at)) return false;
    return true;
  }

  void look_at(const Seen& whole, bool backward) {
    const auto at = mine_.find({whole.module, whole.micro_batch});
    if (at == mine_.end()) return;
    std::map<int64_t, Tensor> values;
    for (const auto& [rank, one] : at->second) {
      const Tensor& value = backward ? one->gradient : one->output;
      if (value.defined())
        values[rank] = wide(value) * (backward ? ranks_[static_cast<size_t>(rank)].scale : 1.0);
    }
    const Tensor truth = wide(backward ? whole.gradient : whole.output);
    const double scale = std::max(largest(truth), 1e-3 * (backward ? gradients_ : outputs_));
    PlaceOfFault fault{
        .module = whole.module, .backward = backward, .micro_batch = whole.micro_batch};
    std::vector<Piece> pieces;
    for (const auto& [rank, value] : values) {
      const std::optional<double> apart = difference_of(rank, value, truth, values, backward);
      if (!apart) {
        left_.insert(whole.module);
        continue;
      }
      compared_.insert(whole.module);
      const double relative = scale > 0 ? *apart / scale : *apart;
      (backward ? out_.backward : out_.forward) =
          std::max(backward ? out_.backward : out_.forward, relative);
      if (value.sizes() == truth.sizes())
        pieces.push_back({rank, Region::run(0, value.numel()), value});
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
    if (!backward && fault.pattern.text.find("missing") != std::string::npos)
      fault.pattern.mend =
          "the outputs of the ranks are parts of a sum that nobody adds up: a "
          "row-parallel layer ends with all_reduce or reduce_scatter (style "
          "\"rowwise\")";
    out_.fault = std::move(fault);
  }

  // The largest difference of what a rank has from what it should have; nullopt: it cannot be told
  // what that is.
  std::optional<double> difference_of(int64_t rank, const Tensor& value, const Tensor& truth,
                                      const std::map<int64_t, Tensor>& all, bool backward) const {
    const RankSeen& me = ranks_[static_cast<size_t>(rank)];
    const Tensor expected = tokens_of(truth, me, length_);
    if (!expected.defined()) return std::nullopt;
    const Axis* tp = axis_of(me, "tp");
    const Tensor mine = without_padding(value, expected);
    if (mine.sizes() == expected.sizes()) {
      const double apart = largest(mine - expected);
      if (!backward || tp == nullptr || apart <= tolerance_ * largest(expected)) return apart;
      // In backward a tensor may be whole and its gradient a part of a sum, which is made further
      // back.
      Tensor sum = at::zeros_like(expected);
      for (const int64_t other : tp->ranks) {
        const auto at = all.find(other);
        if (at == all.end() || at->second.sizes() != value.sizes()) return apart;
        sum = sum + without_padding(at->second, expected);
      }
      return std::min(apart, largest(sum - expected));
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
    return largest(mine - expected.narrow(dim, begin, mine.size(dim)));
  }

  const std::vector<Seen>& truth_;
  const std::vector<RankSeen>& ranks_;
  int64_t length_;
  double tolerance_, outputs_ = 0, gradients_ = 0;
  std::map<std::pair<std::string, int64_t>, Sees> mine_;
  std::set<std::string> compared_, left_;
  Compared out_;
};

}  // namespace

Compared compare_modules(const std::vector<Seen>& truth, const std::vector<RankSeen>& ranks,
                         int64_t length, double tolerance) {
  return Comparison(truth, ranks, length, tolerance).run();
}

}  // namespace meshwright::comparison
