// How long single kernels take on a machine, in seconds.
#pragma once

#include "apps/performance/steptime/job.h"
#include "apps/performance/steptime/machine.h"

namespace meshwright::steptime {

enum class Precision : uint8_t { full, tf32, half, fp8 };  // fp32, fp32 in TF32, bf16, fp8

struct Product {
  double rows = 0, columns = 0, inner = 0;
};
double seconds_of(const Machine& machine, const Product& product, Precision precision);
// Share of the large products' rate that one of these sizes reaches: tiles at the edges, the last
// wave over the chip's units, a short inner dimension.
double utilisation(const Machine& machine, const Product& product);
// Kernels that only move bytes.
double elementwise(const Machine& machine, double bytes);
// The optimizer's, and those that clip its gradients.
double update(const Machine& machine, double bytes);

struct Core {
  double forward = 0, backward = 0;
};
// Attention of a rank's tokens over `length`, causal.
Core attention_core(const Machine& machine, const Job& job, double heads, double head_dim);

}  // namespace meshwright::steptime
