#include "apps/observe/report/chart.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <tuple>

#include "apps/observe/report/html.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::runs {
namespace {

// In units of the picture, which is as wide as its column.
constexpr double kWidth = 460, kHeight = 226, kTop = 10, kBottom = 30;

constexpr const char* kDashes[] = {"",     "7 3",     "2 3", "9 3 2 3",
                                   "12 4", "4 2 1 2", "1 2", "14 3 4 3"};

std::string dash_of(size_t run) {
  const char* dash = kDashes[run % std::size(kDashes)];
  return *dash == 0 ? "" : std::string(" stroke-dasharray=\"") + dash + "\"";
}

// Fewer digits where the numbers allow it, as values stand in the page many times.
std::string data_number(double value) {
  return std::isfinite(value) ? format("%.6g", value) : "nan";
}

std::string sign_path(ChartMark::Sign sign, double x, double y) {
  switch (sign) {
    case ChartMark::Sign::cross:
      return format("<path d=\"M%.1f %.1fl8 8m0-8l-8 8\"/>", x - 4, y - 4);
    case ChartMark::Sign::triangle:
      return format("<path d=\"M%.1f %.1fl4.5 8h-9z\"/>", x, y - 4);
    case ChartMark::Sign::square:
      return format("<path d=\"M%.1f %.1fh7v7h-7z\"/>", x - 3.5, y - 3.5);
  }
  return {};
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart)
      : chart_(chart), right_(chart.lines.size() > 1 ? 26 : 12), log_(wants_log(chart)) {
    least_ = std::numeric_limits<double>::infinity();
    most_ = -least_;
    for (const ChartLine& line : chart.lines)
      for (const Point& point : line.points)
        if (std::isfinite(point.mean)) {
          least_ = std::min(least_, point.least);
          most_ = std::max(most_, point.most);
        }
    if (least_ > most_) least_ = 0, most_ = 1;
    if (!log_) std::tie(least_, most_) = shown_range(least_, most_);
    if (log_) {
      const double room = std::pow(most_ / least_, 0.04);
      least_ /= room, most_ *= room;
    } else {
      const double room =
          most_ > least_ ? (most_ - least_) * 0.05 : std::max(std::abs(most_) * 0.05, 1e-12);
      // What is never negative is not drawn as if it could be.
      least_ = least_ >= 0 && least_ < room ? 0 : least_ - room;
      most_ += room;
    }
    heights_ = ticks(least_, most_, log_, chart.bytes);
    const double size = std::max(std::abs(least_), std::abs(most_));
    for (double at : heights_)
      labels_.push_back(log_ || heights_.size() < 2
                            ? value_text(at, chart.bytes)
                            : axis_text(at, size, heights_[1] - heights_[0], chart.bytes));
    // Digits of the letters of a narrow screen, which are the largest, are 8.5 wide.
    for (const std::string& label : labels_)
      left_ = std::max(left_, 8 + 8.5 * static_cast<double>(label.size()));
  }

  std::string draw() {
    std::string out = "<figure class=\"chart\" id=\"chart-" + chart_.key + "\"><figcaption><b>" +
                      escaped(chart_.title) + "</b>";
    std::string words = chart_.unit;
    if (log_) words += std::string(words.empty() ? "" : ", ") + "logarithmic";
    if (!words.empty()) out += " <span class=\"dim\">" + escaped(words) + "</span>";
    out += "<output></output></figcaption>\n";
    out += format(
        "<svg viewBox=\"0 0 %g %g\" role=\"img\" tabindex=\"0\" data-x=\"%.9g,%.9g,%g,%g\" "
        "data-y=\"%.9g,%.9g,%g,%g,%d\" data-bytes=\"%d\" aria-label=\"",
        kWidth, kHeight, chart_.first_step, last(), left_, kWidth - right_, least_, most_,
        kHeight - kBottom, kTop, log_ ? 1 : 0, chart_.bytes ? 1 : 0);
    out += escaped(words_of()) + "\">\n" + axes() + bands() + lines() + ends() + marks();
    return out + "<g class=\"cursor\"></g></svg></figure>\n";
  }

 private:
  double last() const { return std::max(chart_.last_step, chart_.first_step + 1); }
  double x(double step) const {
    return left_ +
           (step - chart_.first_step) / (last() - chart_.first_step) * (kWidth - right_ - left_);
  }
  double y(double value) const {
    const double part = log_ ? std::log(value / least_) / std::log(most_ / least_)
                             : (value - least_) / (most_ - least_);
    return kHeight - kBottom - part * (kHeight - kBottom - kTop);
  }

  // What the picture shows, for those who do not see it.
  std::string words_of() const {
    std::string out = chart_.title;
    for (const ChartLine& line : chart_.lines) {
      const Summary& s = line.summary;
      auto text = [&](double value) { return value_text(value, chart_.bytes); };
      out += "; " + line.name + ": from " + text(s.first) + " to " + text(s.last) + ", least " +
             text(s.least) + " at step " + report::human_count(std::llround(s.least_at)) +
             ", most " + text(s.most) + " at step " + report::human_count(std::llround(s.most_at));
    }
    return out;
  }

  std::string axes() const {
    std::string out = "<g class=\"axis\">";
    for (size_t i = 0; i < heights_.size(); ++i) {
      const double at = y(heights_[i]);
      out += format("<path d=\"M%g %.1fH%g\"/><text x=\"%g\" y=\"%.1f\" class=\"y\">%s</text>",
                    left_, at, kWidth - right_, left_ - 6, at + 4, labels_[i].c_str());
    }
    for (double at : ticks(chart_.first_step, last(), false, false, 5)) {
      if (at != std::floor(at)) continue;
      out += format("<path d=\"M%.1f %gv4\"/><text x=\"%.1f\" y=\"%g\">%s</text>", x(at),
                    kHeight - kBottom, x(at), kHeight - kBottom + 17,
                    report::human_count(std::llround(at)).c_str());
    }
    return out + format("<path class=\"base\" d=\"M%g %gV%gH%g\"/></g>\n", left_, kTop,
                        kHeight - kBottom, kWidth - right_);
  }

  // How far values go in each range of steps, where a point stands for many.
  std::string bands() const {
    std::string out;
    for (const ChartLine& line : chart_.lines) {
      std::string shapes, there, back;
      // Two corners a point; a range that is wider than a point would hide others.
      auto add = [&](const Point& point) {
        there += format("%s%.1f %.1f", there.empty() ? "M" : "L", x(point.step), y(point.most));
        back.insert(0, format("L%.1f %.1f", x(point.step), y(point.least)));
      };
      auto close = [&] {
        if (!there.empty()) shapes += there + back + "Z";
        there.clear(), back.clear();
      };
      // A shape begins and ends at a point without a spread, or where there is none.
      const Point* flat = nullptr;
      for (const Point& point : line.points) {
        const bool known = std::isfinite(point.mean), wide = known && point.least != point.most;
        if (wide && there.empty() && flat != nullptr) add(*flat);
        if (wide || (known && !there.empty())) add(point);
        if (!wide) close();
        flat = known && !wide ? &point : nullptr;
      }
      close();
      if (!shapes.empty())
        out += format("<path class=\"band r%zu\" d=\"", line.run % std::size(kDashes)) + shapes +
               "\"/>\n";
    }
    return out;
  }

  std::string lines() const {
    std::string out;
    for (const ChartLine& line : chart_.lines) {
      std::string path, data, dots, nans;
      bool open = false;
      double before = -1, nan_at = -1e9;
      const bool few = line.points.size() <= 48;
      for (const Point& point : line.points) {
        data += (data.empty() ? "" : ";") + format("%.9g,", point.step) + data_number(point.mean);
        if (point.least != point.most && std::isfinite(point.mean))
          data += "," + data_number(point.least) + "," + data_number(point.most);
        const double at = x(point.step);
        if (point.other > 0 && at > nan_at + 5) {
          nans += sign_path(ChartMark::Sign::cross, at, kTop);
          nan_at = at;
        }
        if (!std::isfinite(point.mean)) {
          open = false;
          continue;
        }
        path += format("%s%.1f %.1f", open ? "L" : "M", at, y(point.mean));
        // A point alone would have no length, and not be seen.
        if (!open) path += "h0";
        open = true;
        if (few && at >= before + 8) {
          dots += dot(line.run, at, y(point.mean));
          before = at;
        }
      }
      out += format("<g class=\"s r%zu\" data-name=\"%s\" data-points=\"",
                    line.run % std::size(kDashes),
                    chart_.lines.size() > 1 ? letter_of(line.run).c_str() : "") +
             data + "\"><path class=\"line\"" + dash_of(line.run) + " d=\"" + path + "\"/>" + dots +
             (nans.empty()
                  ? ""
                  : "<g class=\"sign\"><title>values that are not finite</title>" + nans + "</g>") +
             "</g>\n";
    }
    return out;
  }

  // Shapes differ as dashes do.
  static std::string dot(size_t run, double at, double height) {
    switch (run % 4) {
      case 0:
        return format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\"/>", at, height);
      case 1:
        return format("<path class=\"dot\" d=\"M%.1f %.1fh5v5h-5z\"/>", at - 2.5, height - 2.5);
      case 2:
        return format("<path class=\"dot\" d=\"M%.1f %.1fl3 5.4h-6z\"/>", at, height - 3.2);
      default:
        return format("<path class=\"dot\" d=\"M%.1f %.1fl3.4 3.4l-3.4 3.4l-3.4-3.4z\"/>", at,
                      height - 3.4);
    }
  }

  // Letters where lines end, apart from each other.
  std::string ends() const {
    if (chart_.lines.size() < 2) return {};
    struct Label {
      size_t run;
      double at, height;
    };
    std::vector<Label> labels;
    for (const ChartLine& line : chart_.lines)
      for (size_t i = line.points.size(); i-- > 0;)
        if (std::isfinite(line.points[i].mean)) {
          labels.push_back({line.run, x(line.points[i].step), y(line.points[i].mean)});
          break;
        }
    std::sort(labels.begin(), labels.end(),
              [](const Label& a, const Label& b) { return a.height < b.height; });
    constexpr double kApart = 12;
    for (size_t i = 1; i < labels.size(); ++i)
      labels[i].height = std::max(labels[i].height, labels[i - 1].height + kApart);
    for (size_t i = labels.size(); i-- > 0;)
      labels[i].height =
          std::min(labels[i].height,
                   kHeight - kBottom - kApart * static_cast<double>(labels.size() - 1 - i));
    std::string out;
    for (const Label& label : labels)
      out += format("<text class=\"end r%zu\" x=\"%.1f\" y=\"%.1f\">%s</text>",
                    label.run % std::size(kDashes), label.at + 5, label.height + 4,
                    letter_of(label.run).c_str());
    return out + "\n";
  }

  std::string marks() const {
    std::string out;
    for (const ChartMark& mark : chart_.marks) {
      if (mark.step < chart_.first_step - 1 || mark.step > last()) continue;
      const double at = x(std::max(mark.step, chart_.first_step));
      out += format("<g class=\"sign r%zu\"><title>", mark.run % std::size(kDashes)) +
             escaped(mark.text) + "</title>" +
             format("<path class=\"post\" d=\"M%.1f %gV%g\"/>", at, kTop, kHeight - kBottom) +
             sign_path(mark.sign, at, kHeight - kBottom);
      // Whose it is, where there are several: also on paper.
      if (chart_.lines.size() > 1)
        out += format("<text x=\"%.1f\" y=\"%g\">%s</text>", at + 5, kHeight - kBottom - 3,
                      letter_of(mark.run).c_str());
      out += "</g>";
    }
    return out;
  }

  const Chart& chart_;
  double right_;
  bool log_;
  double least_ = 0, most_ = 1;
  double left_ = 58;             // where the curves begin: labels have room
  std::vector<double> heights_;  // of the grid, with their labels
  std::vector<std::string> labels_;
};

}  // namespace

bool wants_log(const Chart& chart) {
  if (!chart.may_be_log) return false;
  double least = std::numeric_limits<double>::infinity(), most = 0;
  std::vector<double> medians;
  for (const ChartLine& line : chart.lines) {
    least = std::min(least, line.summary.least);
    most = std::max(most, line.summary.most);
    medians.push_back(line.summary.median);
  }
  return !medians.empty() && least > 0 &&
         most > 20 * *std::min_element(medians.begin(), medians.end());
}

std::string draw_chart(const Chart& chart) { return Drawing(chart).draw(); }

std::string line_sample(size_t run) {
  return format(
             "<svg class=\"sample\" viewBox=\"0 0 40 12\" aria-hidden=\"true\"><g class=\"s "
             "r%zu\">",
             run % std::size(kDashes)) +
         "<path class=\"line\"" + dash_of(run) + " d=\"M1 6h38\"/></g></svg>";
}

}  // namespace meshwright::runs
