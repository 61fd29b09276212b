// Where the values of ranks part from those of one process, and what kind of fault does that.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/region.h"
#include "sdk/kit/comparison/watch.h"

namespace meshwright::comparison {

// An axis of a mesh as a rank sees it: its ranks, in the order of their coordinates.
struct Axis {
  std::string name;
  std::vector<int64_t> ranks;
};

// What one rank has of a tensor that one process has whole.
struct Piece {
  int64_t rank = 0;
  Region region = Region::run(0, 0);
  at::Tensor values;
  // Where a region does not say what the rank should have; `region` tells parts from one another.
  at::Tensor expected = {};
};

// What wrong values have to do with the right ones.
enum class Kind : uint8_t {
  other,          // nothing that is known here
  factor,         // so many times the truth, on every rank that has it
  missing_sum,    // parts of a sum over an axis that nobody adds up
  missing_mean,   // the same, of a mean
  apart,          // ranks of an axis hold it differently, and should be alike
  some_ranks,     // right on some ranks
  other_factors,  // a factor of its own on each rank
};

// A pattern of wrong values.
struct Pattern {
  std::string text = {};  // "twice the truth on every rank of ep"; ends without a full stop
  std::string mend = {};  // what to do about it; may be empty
  Kind kind = Kind::other;
  std::vector<std::string> axes = {};  // of which it speaks; may be empty
  bool is_missing() const { return kind == Kind::missing_sum || kind == Kind::missing_mean; }
};

// `axes`: of each rank; `accumulation`: micro-batches of a rank in a step. Values that differ from
// the truth by no more than `tolerance`, an absolute one, are right. Nothing where all are right.
std::optional<Pattern> diagnose(const at::Tensor& truth, const std::vector<Piece>& pieces,
                                const std::vector<std::vector<Axis>>& axes, int64_t accumulation,
                                double tolerance);

// "twice the truth"; of a factor that is an axis' or the micro-batches' number, ", and tp has 2
// ranks" or nothing.
std::string times_text(double ratio);
std::string factor_text(double ratio, const std::vector<Axis>& axes, int64_t accumulation);

// What a rank saw, and how it shares the tokens and the features of a micro-batch.
struct RankSeen {
  std::vector<Seen> seen;  // micro-batches counted over all ranks
  std::vector<Axis> axes;
  // Positions of its tokens in whole samples, in its order, those of padding left out; empty: all.
  std::vector<int64_t> positions;
  double scale = 1;  // of its gradients: so many times theirs are those of the one process
};

// The first place in which the ranks' values are wrong.
struct PlaceOfFault {
  std::string module;
  bool backward = false;  // the gradient of its output, not the output
  double difference = 0;  // the largest, over the largest of the truth
  int64_t micro_batch = 0;
  std::vector<int64_t> ranks = {};  // that are wrong
  Pattern pattern = {};             // text may be empty
};

// How a module fares on each rank: the largest difference over its micro-batches, relative; below
// 0: not compared there.
struct ModuleMarks {
  std::string module;
  std::vector<double> forward, backward;
};

struct Compared {
  std::optional<PlaceOfFault> fault;
  // The first module of the forward that gives something else when backward computes it again.
  std::optional<PlaceOfFault> again;
  std::vector<ModuleMarks> marks;    // in the order of the forward
  double forward = 0, backward = 0;  // the largest differences
  int64_t modules = 0;               // that were compared
  std::vector<std::string> left;     // that could not be: their parts do not make up the whole
};

// First the forward in its order, then the backward in its own. `length`: tokens of a sample.
// `tolerance`: relative to the largest element of the truth's tensor, or, where that is nearly
// zero, to that of the largest one.
Compared compare_modules(const std::vector<Seen>& truth, const std::vector<RankSeen>& ranks,
                         int64_t length, double tolerance);

}  // namespace meshwright::comparison
