#include "meshwright/layers.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/rsqrt.h>

namespace meshwright {

RMSNormImpl::RMSNormImpl(int64_t size, double eps) : epsilon(eps) { weight = register_parameter("weight", at::ones({size})); }

at::Tensor RMSNormImpl::forward(const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat) return at::rms_norm(x, weight.sizes(), weight, epsilon);
  at::Tensor wide = x.to(at::kFloat);
  return weight * (wide * at::rsqrt(wide.square().mean({-1}, /*keepdim=*/true) + epsilon)).to(x.scalar_type());
}

}  // namespace meshwright
