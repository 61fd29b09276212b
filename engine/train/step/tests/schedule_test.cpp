// The learning rate of every step, against formulas written down once more and values worked out by
// hand.
#include "engine/train/step/optimizer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "meshwright/trainer.h"

namespace schedule_test {

using namespace meshwright;
using meshwright::train::Schedule;

namespace {

struct Shape {
  const char* style;
  double lr, min_lr;
  int64_t warmup, steps;
};

Schedule schedule_of(const Shape& s) {
  Job job;
  job.set("optimizer.lr", std::to_string(s.lr));
  job.set("lr_scheduler.min_lr", std::to_string(s.min_lr));
  job.set("lr_scheduler.lr_warmup_steps", std::to_string(s.warmup));
  job.set("lr_scheduler.lr_decay_style", std::string("\"") + s.style + "\"");
  return {job.table("optimizer"), job.table("lr_scheduler"), s.steps};
}

}  // namespace

TEST_CASE("each style's values, worked out by hand") {
  struct Row {
    Shape shape;
    std::vector<double> lr;
  };
  for (const Row& row : std::vector<Row>{
           {{"constant", 1, 0.1, 0, 4}, {1, 1, 1, 1}},
           {{"constant", 1, 0.1, 4, 6}, {0.25, 0.5, 0.75, 1, 1, 1}},
           {{"linear", 1, 0, 0, 5}, {1, 0.75, 0.5, 0.25, 0}},
           {{"linear", 1, 0.2, 2, 7}, {0.5, 1, 1, 0.8, 0.6, 0.4, 0.2}},
           {{"cosine", 1, 0, 0, 5}, {1, 0.5 + std::sqrt(0.125), 0.5, 0.5 - std::sqrt(0.125), 0}},
           {{"cosine", 0.4, 0.2, 1, 4}, {0.4, 0.4, 0.3, 0.2}},
           // The last tenth: two steps of twenty fall.
           {{"wsd", 1, 0, 2, 20}, {0.5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0.5, 0}},
           {{"wsd", 1, 0.5, 0, 5}, {1, 1, 1, 1, 0.5}},
           {{"linear", 1, 0, 8, 4}, {0.125, 0.25, 0.375, 0.5}},  // ends within the warm-up
           // The warm-up ends right before the last step.
           {{"cosine", 1, 0.1, 2, 3}, {0.5, 1, 0.1}},
           {{"wsd", 1, 0.1, 1, 2}, {1, 0.1}},
           {{"cosine", 1, 0, 0, 1}, {1}},
           {{"linear", 0, 0, 3, 5}, {0, 0, 0, 0, 0}},
       }) {
    Schedule schedule = schedule_of(row.shape);
    INFO(std::string(row.shape.style));
    CAPTURE(row.shape.steps);
    for (size_t s = 0; s < row.lr.size(); ++s) {
      CAPTURE(s);
      CHECK(schedule.at(static_cast<int64_t>(s)) == doctest::Approx(row.lr[s]).epsilon(1e-12));
    }
  }
}

TEST_CASE(
    "every style rises to lr in the warm-up, never leaves [min_lr, lr] after it, falls steadily "
    "and ends at min_lr") {
  for (const char* style : {"linear", "cosine", "wsd"})
    for (int64_t warmup : {0, 1, 7, 30})
      for (int64_t steps : {31, 100, 1000}) {
        Shape shape{style, 3e-3, 3e-4, warmup, steps};
        if (warmup + 1 >= steps) continue;
        Schedule schedule = schedule_of(shape);
        INFO(std::string(shape.style));
        CAPTURE(warmup);
        CAPTURE(steps);
        for (int64_t s = 0; s < warmup; ++s)
          CHECK(schedule.at(s) ==
                doctest::Approx(3e-3 * static_cast<double>(s + 1) / static_cast<double>(warmup))
                    .epsilon(1e-12));
        for (int64_t s = warmup; s + 1 < steps; ++s) {
          CHECK(schedule.at(s + 1) <= schedule.at(s));
          CHECK(schedule.at(s) <= 3e-3 * (1 + 1e-12));
          CHECK(schedule.at(s) >= 3e-4 * (1 - 1e-12));
        }
        CHECK(schedule.at(warmup) == doctest::Approx(3e-3).epsilon(1e-12));
        CHECK(schedule.at(steps - 1) == doctest::Approx(3e-4).epsilon(1e-12));
        CHECK(schedule.at(steps + 10) == doctest::Approx(3e-4).epsilon(1e-12));
      }
}

}  // namespace schedule_test
