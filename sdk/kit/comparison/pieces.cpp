#include "sdk/kit/comparison/pieces.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <limits>

#include "meshwright/outline.h"
#include "sdk/base/plain_text.h"

namespace meshwright::comparison {

using at::Tensor;

double largest(const Tensor& t) {
  return t.numel() == 0
             ? 0
             : t.abs().nan_to_num(std::numeric_limits<double>::infinity()).max().item<double>();
}

Tensor positions_in(const Region& region, const std::vector<int64_t>& shape) {
  Tensor out = at::arange(element_count(shape)).view(shape);
  if (!region.flat())
    for (size_t d = 0; d < region.sizes.size(); ++d)
      out = out.narrow(static_cast<int64_t>(d), region.offsets[d], region.sizes[d]);
  out = out.flatten();
  return region.begin >= 0 ? out.narrow(0, region.begin, region.end - region.begin) : out;
}

Tensor cut(const Tensor& whole, const Region& region) {
  return whole.flatten()
      .index_select(0, positions_in(region, whole.sizes().vec()))
      .view(region.stored_shape());
}

std::string number_text(double value) { return text::format("%.8g", value); }

std::string shape_text(at::IntArrayRef shape) {
  std::string out;
  for (int64_t size : shape) out += (out.empty() ? "" : ", ") + std::to_string(size);
  return "[" + out + "]";
}

std::string element_text(int64_t position, const std::vector<int64_t>& shape) {
  std::vector<int64_t> at(shape.size());
  for (size_t d = shape.size(); d-- > 0; position /= shape[d]) at[d] = position % shape[d];
  return "element " + shape_text(at);
}

std::optional<Difference> difference(const Tensor& found, const Tensor& expected,
                                     double tolerance) {
  if (found.numel() == 0) return std::nullopt;
  const Tensor ours = found.detach().flatten().to(at::kDouble),
               theirs = expected.detach().flatten().to(at::kDouble);
  const Tensor apart =
      (ours - theirs).abs().nan_to_num(/*nan=*/std::numeric_limits<double>::infinity());
  const auto at = apart.argmax().item<int64_t>();
  if (apart[at].item<double>() <= tolerance) return std::nullopt;
  return Difference{at, ours[at].item<double>(), theirs[at].item<double>()};
}

std::string text_of(const Difference& difference, const Region& region,
                    const std::vector<int64_t>& shape) {
  return number_text(difference.found) + " at " +
         element_text(positions_in(region, shape)[difference.at].item<int64_t>(), shape);
}

Assembly::Assembly(const std::vector<int64_t>& shape, const at::TensorOptions& options)
    : shape_(shape),
      whole_(at::full({element_count(shape)}, std::numeric_limits<double>::quiet_NaN(), options)),
      owner_(at::full({element_count(shape)}, -1, at::kLong)) {}

std::optional<Assembly::Apart> Assembly::add(int64_t rank, const Region& region,
                                             const Tensor& values, double rounding) {
  const Tensor at = positions_in(region, shape_), given = values.flatten();
  const Tensor owners = owner_.index_select(0, at), there = whole_.index_select(0, at);
  const Tensor near = rounding > 0 ? (there - given).abs().le(rounding) : there.eq(given);
  const Tensor apart = owners.ge(0).logical_and(near.logical_not());
  if (apart.any().item<bool>()) {
    const Tensor where = apart.nonzero().flatten();
    const auto i = where[0].item<int64_t>();
    return Apart{.at = at[i].item<int64_t>(),
                 .mine = given[i].item<double>(),
                 .other = owners[i].item<int64_t>(),
                 .theirs = there[i].item<double>(),
                 .count = where.numel(),
                 .of = given.numel()};
  }
  whole_.index_copy_(0, at, given);
  owner_.index_fill_(0, at, rank);
  return std::nullopt;
}

Tensor Assembly::whole() const { return whole_.view(shape_); }

}  // namespace meshwright::comparison
