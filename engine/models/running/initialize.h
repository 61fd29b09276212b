// Random initial weights, the same for one seed on every layout: each element is a function of the
// seed, the parameter's name and the element's place in the whole parameter. Results do not depend
// on the processor or on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/models/running/causal_lm.h"
#include "meshwright/model/model_family.h"
#include "meshwright/parallel/parallel.h"

namespace meshwright::modules {

// Fills `out` with the slice [offsets, offsets + sizes) of a parameter of shape `global_shape`.
// `out` has the slice's shape, any floating dtype and any device. With `begin` of at least 0, as
// many of the slice's elements from there on, in row-major order. Throws Error(internal) when the
// slice does not lie within the shape or has fewer elements.
void initialize(std::string_view parameter, const std::vector<int64_t>& global_shape,
                std::span<const int64_t> offsets, std::span<const int64_t> sizes,
                const InitialValue& value, uint64_t seed, at::Tensor out, int64_t begin = -1);

// Fills this rank's part of a parameter, whatever its layout.
void initialize(const ParallelParameter& parameter, const InitialValue& value, uint64_t seed);
// The same as transformers' _init_weights would.
void initialize(const CausalLMImpl& model, const ParallelParameter& parameter, uint64_t seed);
// Fills every parameter of a model that is whole on this process.
void initialize(CausalLMImpl& model, uint64_t seed);

}  // namespace meshwright::modules
