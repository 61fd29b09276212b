#include "apps/observe/report/chart.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace meshwright::runs;

TEST_CASE("a long series becomes few points that keep its peaks and what was not finite") {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  Series series;
  for (int step = 1; step <= 100'000; ++step)
    series.add(step, step == 31'415 ? 99 : step == 27'182 ? -7 : step == 50'000 ? kNaN : 1);
  const std::vector<Point> points = thinned(series, 320);
  CHECK(points.size() <= 320);
  CHECK(points.size() >= 300);
  double most = 0, least = 0;
  size_t other = 0;
  for (const Point& point : points) {
    most = std::max(most, point.most);
    least = std::min(least, point.least);
    other += point.other;
    CHECK(point.least <= point.mean);
    CHECK(point.mean <= point.most);
    if (point.most == 99) CHECK(std::abs(point.step - 31'415) < 320);
  }
  CHECK(most == 99);
  CHECK(least == -7);
  CHECK(other == 1);
}

TEST_CASE("a series that is short enough keeps every step") {
  Series series;
  for (int step : {2, 4, 7}) series.add(step, step * 10);
  const std::vector<Point> points = thinned(series, 3);
  REQUIRE(points.size() == 3);
  CHECK(points[1].step == 4);
  CHECK(points[1].mean == 40);
  CHECK(points[1].least == points[1].most);
  CHECK(thinned(series, 1).size() == 1);
  CHECK(thinned(Series(), 5).empty());
}

TEST_CASE("a summary tells of finite values only, and how many others there were") {
  Series series;
  CHECK(!summary_of(series));
  series.add(1, std::numeric_limits<double>::infinity());
  CHECK(!summary_of(series));
  for (int step = 2; step <= 5; ++step) series.add(step, step == 4 ? 50 : step);
  const Summary s = summary_of(series).value();
  CHECK(s.finite == 4);
  CHECK(s.other == 1);
  CHECK(s.first == 2);
  CHECK(s.last == 5);
  CHECK(s.least_at == 2);
  CHECK(s.most == 50);
  CHECK(s.most_at == 4);
  CHECK(s.median == 4);  // of 2, 3, 5 and 50
}
