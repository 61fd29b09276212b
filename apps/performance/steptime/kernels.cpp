#include "apps/performance/steptime/kernels.h"

#include <algorithm>
#include <cmath>

namespace meshwright::steptime {
namespace {

struct Tile {
  double rows, columns, rate;
};
// Large tiles read least; small ones fill the chip where a product is small.
constexpr Tile kTiles[] = {
    {256, 128, 1}, {128, 256, 1}, {128, 128, 0.93}, {128, 64, 0.78}, {64, 64, 0.58}};
constexpr double kLaunch = 2e-6;

double peak_of(const Machine& machine, Precision precision) {
  switch (precision) {
    case Precision::full:
    case Precision::tf32:
      return machine.peak_of_float32(precision == Precision::tf32);
    case Precision::half:
      return machine.peak_bf16;
    case Precision::fp8:
      return machine.peak_fp8 * machine.rate.product_fp8;
  }
  return 0;
}

double attained(const Machine& machine, Attention kernel) {
  switch (kernel) {
    case Attention::flash:
      return machine.rate.attention;
    case Attention::fa2:
      return machine.rate.attention_fa2;
    case Attention::triton:
      return machine.rate.attention_triton;
    case Attention::unfused:
      return machine.rate.product * machine.rate.unfused;
  }
  return 0;
}

}  // namespace

double utilisation(const Machine& machine, const Product& product) {
  double best = 0;
  for (const Tile& tile : kTiles) {
    const double tiles =
        std::ceil(product.rows / tile.rows) * std::ceil(product.columns / tile.columns);
    const double filled = product.rows * product.columns / (tiles * tile.rows * tile.columns);
    const double waves = tiles / machine.units;
    best = std::max(best, tile.rate * filled * waves / std::ceil(waves));
  }
  return best * product.inner / (product.inner + machine.rate.short_inner);
}

double seconds_of(const Machine& machine, const Product& product, Precision precision) {
  const double m = product.rows, n = product.columns, k = product.inner;
  if (m <= 0 || n <= 0 || k <= 0) return 0;
  const double rate =
      peak_of(machine, precision) * machine.rate.product * utilisation(machine, product);
  const double in = precision == Precision::fp8    ? 1
                    : precision == Precision::half ? 2
                                                   : 4,
               out = precision == Precision::fp8 ? 2 : in;
  const double bytes = in * (m * k + n * k) + out * m * n;
  return std::max(2 * m * n * k / rate, bytes / machine.bandwidth) + kLaunch;
}

double elementwise(const Machine& machine, double bytes) {
  return bytes / (machine.rate.elementwise * machine.bandwidth);
}

double update(const Machine& machine, double bytes) {
  const double rate =
      machine.rate.optimizer > 0 ? machine.rate.optimizer : machine.rate.elementwise;
  return bytes / (rate * machine.bandwidth);
}

Core attention_core(const Machine& machine, const Job& job, double heads, double head_dim) {
  const double s = job.length, b = job.micro_batch, part = s / job.cp;
  const double causal = 2 * head_dim * heads * b * s * s / job.cp;
  const double peak = job.width > 2 ? machine.peak_fp32 : machine.peak_bf16;
  if (job.attention == Attention::unfused) {
    const double rate = peak * attained(machine, job.attention);
    const double scores = heads * b * s * s / job.cp;
    return {2 * causal / rate + elementwise(machine, 11 * scores),
            4 * causal / rate + elementwise(machine, 22 * scores)};
  }
  const double narrow = head_dim <= 64 && job.attention != Attention::triton ? 0.85 : 1;
  const double rate = peak * attained(machine, job.attention) * narrow * part /
                      (part + machine.rate.short_sequence);
  return {causal / rate, 2.5 * causal / (machine.rate.attention_backward * rate)};
}

}  // namespace meshwright::steptime
