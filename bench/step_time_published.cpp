// Predicted against published steps (tests/data/published): the table of docs/step_time.md and,
// with --picture FILE, its picture as SVG. The rows and their classes are those of
// apps/performance/steptime/tests/published_test.cpp, which holds them to bars.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "apps/performance/steptime/tests/published.h"

namespace {

using namespace meshwright::steptime;
using published::quantile;
using Point = published::Compared;

struct Class {
  const char *name, *colour;
  std::vector<Point> points;
};

std::vector<Class> classes_of(const std::string& data, const published::Machines& machines) {
  std::vector<Class> out{{"fitted on", "#1b6ca8", {}},
                         {"held out, dense bf16, below 85% of memory", "#2e9e5b", {}},
                         {"held out, fp8", "#e08a1e", {}},
                         {"held out, 85% of memory or more", "#b23a48", {}},
                         {"mixtures of experts", "#7d4bb0", {}},
                         {"layouts of four models", "#888888", {}}};
  for (Point& point : compare(published::runs(data), machines)) {
    const published::Row& row = point.row;
    const bool held = row.set == "held";
    size_t at = 0;
    if (row.set != "fit") {
      if (!held) continue;
      at = row.experts() ? 4 : row.job.fp8 ? 2 : point.use < 0.85 ? 1 : 3;
    }
    out[at].points.push_back(std::move(point));
  }
  out[5].points = compare(published::sweep(data), machines);
  return out;
}

void print_row(const char* name, const std::vector<double>& errors) {
  if (errors.empty()) return;
  std::printf("%-44s%6zu%8.2f%%%11.2f%%%7.2f%%\n", name, errors.size(), 100 * quantile(errors, 0.5),
              100 * quantile(errors, 0.9), 100 * quantile(errors, 1));
}

template <class Keep>
std::vector<double> errors_of(const std::vector<Point>& points, Keep keep) {
  std::vector<double> out;
  for (const Point& point : points)
    if (keep(point)) out.push_back(point.error);
  return out;
}

// Of what is allocated, GiB of the fullest rank.
std::vector<double> memory_errors(const std::vector<Class>& classes) {
  std::vector<double> out;
  for (const Class& c : classes)
    for (const Point& point : c.points)
      if (point.row.memory > 0) out.push_back(point.memory_error());
  return out;
}

// Dense rows below 85% of all that a card has, as the bars count them; the rest of them is between
// that and 85% of what ranks may take.
std::vector<double> below_card(const std::vector<Class>& classes) {
  auto below = [](const Point& point) { return point.of_card < 0.85; };
  std::vector<double> out = errors_of(classes[1].points, below);
  for (const double error : errors_of(classes[3].points, below)) out.push_back(error);
  return out;
}

void print_within(const char* name, const std::vector<double>& errors) {
  const auto close = std::ranges::count_if(errors, [](double e) { return e <= 0.1; });
  std::printf("%s within 10%%: %td of %zu\n", name, close, errors.size());
}

void print_table(const std::vector<Class>& classes, const std::vector<Point>& small) {
  auto all = [](const Point&) { return true; };
  std::printf("%-44s%6s%9s%12s%8s\n", "rows", "n", "median", "90% within", "worst");
  for (const Class& c : classes) {
    print_row(c.name, errors_of(c.points, all));
    if (&c == &classes[1])
      print_row("of these, not of the largest source", errors_of(c.points, [](const Point& point) {
                  return !point.row.id.starts_with("MP ");
                }));
    if (&c == &classes[1]) print_row("the same, below 85% of the card", below_card(classes));
  }
  print_row("small layouts on one host", errors_of(small, all));
  const std::vector<double> memory = memory_errors(classes);
  print_row("peak memory", memory);
  print_within("dense bf16 below 85% of memory", errors_of(classes[1].points, all));
  print_within("dense bf16 below 85% of the card", below_card(classes));
  print_within("peak memory", memory);
}

// What the prediction of a layout takes; pipelines, which are simulated, most.
void print_time_of_one(const std::vector<Class>& classes) {
  constexpr int kTimes = 21;
  std::vector<double> all;
  for (const Class& c : classes)
    for (const Point& point : c.points) {
      std::vector<double> times;
      for (int i = 0; i < kTimes; ++i) {
        const auto start = std::chrono::steady_clock::now();
        const Prediction p = predict(point.machine, point.row.shape, point.row.job);
        const std::chrono::duration<double, std::micro> took =
            std::chrono::steady_clock::now() - start;
        if (p.seconds > 0) times.push_back(took.count());
      }
      all.push_back(quantile(times, 0.5));
    }
  std::printf("a prediction takes %.0f us at the median, %.0f us at 90%%, %.0f us at most\n",
              quantile(all, 0.5), quantile(all, 0.9), quantile(all, 1));
}

// A square with logarithmic axes; whole pixels, so that a repository sees what moves.
class Picture {
 public:
  Picture(double least, double most) : from_(std::log10(least)), span_(std::log10(most) - from_) {}

  std::string draw(const std::vector<Class>& classes) {
    constexpr int kSide = kLeft + kSize + 20;
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
        "font-family=\"sans-serif\" "
        "font-size=\"12\">\n<title>Predicted against published seconds of a step</title>\n"
        "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
        kSide, kSize + 70, kSide, kSize + 70);
    add("<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#333333\"/>\n",
        kLeft, kTop, kSize, kSize);
    ticks();
    for (const double share : {0.9, 1.0, 1.1}) diagonal(share);
    for (auto c = classes.rbegin(); c != classes.rend(); ++c)  // the many below the few
      for (const Point& point : c->points)
        add("<circle cx=\"%d\" cy=\"%d\" r=\"3\" fill=\"%s\" fill-opacity=\"0.7\"/>\n",
            x_of(point.row.seconds), y_of(point.predicted.seconds), c->colour);
    int y = kTop + 20;
    for (const Class& c : classes) {
      if (c.points.empty()) continue;
      add("<circle cx=\"%d\" cy=\"%d\" r=\"4\" fill=\"%s\"/>\n", kLeft + 15, y - 4, c.colour);
      add("<text x=\"%d\" y=\"%d\">%s (%zu)</text>\n", kLeft + 25, y, c.name, c.points.size());
      y += 17;
    }
    add("<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">seconds of a step, published</text>\n",
        kLeft + kSize / 2, kTop + kSize + 40);
    add("<text transform=\"translate(16 %d) rotate(-90)\" text-anchor=\"middle\">seconds of a "
        "step, "
        "predicted</text>\n",
        kTop + kSize / 2);
    return out_ + "</svg>\n";
  }

 private:
  static constexpr int kLeft = 60, kTop = 15, kSize = 520;

  template <class... Values>
  void add(const char* pattern, Values... values) {
    char text[400];
    std::snprintf(text, sizeof text, pattern, values...);
    out_ += text;
  }
  int along(double seconds) const {
    return static_cast<int>(std::lround((std::log10(seconds) - from_) / span_ * kSize));
  }
  int x_of(double seconds) const { return kLeft + along(seconds); }
  int y_of(double seconds) const { return kTop + kSize - along(seconds); }

  void ticks() {
    for (double decade = std::pow(10, std::floor(from_)); decade <= std::pow(10, from_ + span_);
         decade *= 10)
      for (const double step : {1.0, 2.0, 5.0}) {
        const double value = decade * step;
        if (along(value) < 0 || along(value) > kSize) continue;
        add("<path d=\"M%d %dv%dM%d %dh%d\" stroke=\"#dddddd\"/>\n", x_of(value), kTop, kSize,
            kLeft, y_of(value), kSize);
        add("<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%g</text>\n", x_of(value),
            kTop + kSize + 17, value);
        add("<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%g</text>\n", kLeft - 6, y_of(value) + 4,
            value);
      }
  }
  // Where predicted is so much of published; the edges of a tenth are dashed.
  void diagonal(double share) {
    const double least = std::pow(10, from_), most = std::pow(10, from_ + span_);
    const double begin = share < 1 ? least / share : least, end = share > 1 ? most / share : most;
    add("<path d=\"M%d %dL%d %d\" stroke=\"#555555\"%s/>\n", x_of(begin), y_of(begin * share),
        x_of(end), y_of(end * share), share == 1 ? "" : " stroke-dasharray=\"4 4\"");
  }

  double from_, span_;
  std::string out_;
};

}  // namespace

int main(int count, char** arguments) {
  const std::string data = "tests/data/published";
  const published::Machines machines = published::machines("configs/machines");
  const std::vector<Class> classes = classes_of(data, machines);
  print_table(classes, compare(published::single(data), machines));
  print_time_of_one(classes);
  if (count == 1) return 0;
  if (count != 3 || std::string(arguments[1]) != "--picture") {
    std::fprintf(stderr, "bench_step_time_published [--picture FILE.svg]\n");
    return 2;
  }
  double least = 1e9, most = 0;
  for (const Class& c : classes)
    for (const Point& point : c.points) {
      least = std::min({least, point.row.seconds, point.predicted.seconds});
      most = std::max({most, point.row.seconds, point.predicted.seconds});
    }
  std::ofstream out(arguments[2]);
  out << Picture(least / 1.2, most * 1.2).draw(classes);
  if (!out.flush()) {
    std::fprintf(stderr, "cannot write %s\n", arguments[2]);
    return 1;
  }
  return 0;
}
