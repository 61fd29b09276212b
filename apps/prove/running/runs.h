// What runs of the shrunk job came to, put together from all ranks, and how far two of them are
// apart.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/prove/running/captured.h"
#include "sdk/kit/comparison/pieces.h"

namespace meshwright::prove {

constexpr double kExact = 1e-10;  // float64, sums in another order
// AdamW divides by the root of a square: where a gradient is nearly nothing, its rounding counts.
constexpr double kUpdate = 1e-6;

// By name.
using Whole = std::map<std::string, at::Tensor>;

// The tensors that ranks hold in parts.
struct Joined {
  Whole whole;                                  // in float64
  std::map<std::string, at::ScalarType> types;  // that they are held in
  std::string differ;  // the first contradiction of replicas: where, and what
  std::string name;    // of that tensor, and two ranks that hold it differently
  int64_t rank = -1, other = -1;
  std::string holes;  // the first element that no rank holds
};
// `rounding`: of a tensor's largest element, by which replicas may differ.
Joined join(const std::vector<const std::vector<Part>*>& ranks, double rounding);

struct Worst {
  double difference = 0;
  std::string where = {};
  void take(double one, const std::string& at) {
    if (one > difference || (where.empty() && one >= difference)) difference = one, where = at;
  }
};

using comparison::largest;
double apart(double found, double expected);
// Of each tensor the largest difference over its own largest element; of one that is nearly zero
// beside the largest of all, over a thousandth of that.
Worst worst_of(const Whole& found, const Whole& expected);
// The distance of all of them together: of an update whose gradient is next to nothing, rounding
// decides the sign under AdamW.
Worst distance_of(const Whole& found, const Whole& expected);
// Those whose names begin so, or all others.
Whole only(const Whole& all, const std::string& state, bool others = false);
Whole updates(const Whole& begin, const Whole& end);
double norm_of(const Whole& all);
// "model.norm", of "model.norm.weight".
std::string module_of(const std::string& parameter);

// As they were before they were clipped, each rank by the norm that it had.
std::vector<Part> unclipped(const Captured& rank, size_t step);
// What the parameters of a rank moved by in a step.
std::vector<Part> moved(const Captured& rank, size_t step);

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
  void put_together();
  // The first time that replicas are not alike, if they ever are not.
  const Joined& parted() const;
  // The first value that an evaluation has moved.
  struct Written {
    std::string name;
    size_t rank = 0;
  };
  std::optional<Written> written_by_evaluation() const;
  // A rank's place along an axis; 0 where there is no such one.
  int64_t coordinate(size_t rank, const std::string& axis) const;
};

}  // namespace meshwright::prove
