#include "engine/job/loss_scale.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "meshwright/error.h"

namespace meshwright::plan {

namespace {

// As others begin with. A gradient of the mean loss above 1 would overflow.
constexpr double kMost = 65536;

std::string whole_number(double value) { return std::to_string(static_cast<int64_t>(value)); }

double power_below(double value) { return std::exp2(std::floor(std::log2(value))); }

}  // namespace

LossScale loss_scale(const config::Config& config, bool float16, double targets) {
  const Options& optimizer = config.table("optimizer");
  if (optimizer.is_set("loss_scale")) {
    const double given = optimizer.get_number("loss_scale");
    if (int exponent = 0; std::frexp(given, &exponent) != 0.5)
      throw Error(ErrorCode::out_of_range,
                  "optimizer.loss_scale is no power of two, which alone rounds nothing")
          .key("optimizer.loss_scale")
          .at(optimizer.origin("loss_scale"))
          .help("set optimizer.loss_scale = " +
                whole_number(power_below(std::clamp(given, 1.0, 0x1p40))));
  }
  if (!float16) return {};
  return {optimizer.is_set("loss_scale") ? optimizer.get_number("loss_scale")
                                         : power_below(std::clamp(targets, 1.0, kMost)),
          optimizer.get_bool("dynamic_loss_scale")};
}

std::string loss_scale_notice(const LossScale& scale) {
  return "some gradients are float16: losses are multiplied by " + whole_number(scale.start) +
         " (optimizer.loss_scale) before backward, and gradients divided by it in the update" +
         (scale.dynamic ? "; the factor adapts (optimizer.dynamic_loss_scale)" : "");
}

}  // namespace meshwright::plan
