#include <algorithm>

#include "apps/performance/calibrate/fit.h"

namespace meshwright::calibrate {

Line fit_line(std::span<const Sample> samples) {
  // Of u = a / seconds and v = b / seconds: 1 = x u + y v.
  double u = 0, v = 0, uu = 0, uv = 0, vv = 0;
  for (const Sample& s : samples) {
    if (s.seconds <= 0) continue;
    const double p = s.a / s.seconds, q = s.b / s.seconds;
    u += p;
    v += q;
    uu += p * p;
    uv += p * q;
    vv += q * q;
  }
  const double det = uu * vv - uv * uv;
  if (det > 1e-9 * uu * vv) {
    const Line both{(u * vv - v * uv) / det, (v * uu - u * uv) / det};
    if (both.x >= 0 && both.y >= 0) return both;
  }
  // One of them is 0: what it takes off the sum of squares is u^2 / uu, or v^2 / vv.
  const double by_x = uu > 0 ? u * u / uu : 0, by_y = vv > 0 ? v * v / vv : 0;
  if (by_x == 0 && by_y == 0) return {};
  return by_x >= by_y ? Line{u / uu, 0} : Line{0, v / vv};
}

}  // namespace meshwright::calibrate
