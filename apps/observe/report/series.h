// One measured quantity over the steps of a run, and what is drawn of a long one.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace meshwright::runs {

// Steps ascend. A value that is not finite is kept as NaN: that there was one is worth knowing.
struct Series {
  std::vector<double> steps, values;

  void add(double step, double value) {
    steps.push_back(step);
    values.push_back(value);
  }
  bool empty() const { return steps.empty(); }
  size_t size() const { return steps.size(); }
};

struct Summary {
  size_t finite = 0, other = 0;
  double first = 0, last = 0, median = 0;  // of finite values
  double least = 0, most = 0;
  double least_at = 0, most_at = 0;  // steps
};
// nullopt: nothing in it is finite.
std::optional<Summary> summary_of(const Series& series);

// Consecutive steps as one point: the mean, and how far values went in both directions, so that no
// peak is lost.
struct Point {
  double step = 0;  // of the middle
  double mean = 0, least = 0, most = 0;
  size_t other = 0;  // values that were not finite; all of them: mean is NaN
};
// At most `most` points (1 or more), each for an equal range of steps; a series that is no longer
// has one a step.
std::vector<Point> thinned(const Series& series, size_t most);

}  // namespace meshwright::runs
