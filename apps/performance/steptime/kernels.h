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

// How long collectives take, by the ranks that take part and where these lie.

// Every `stride`-th rank, `size` of them; of each host `ranks_per_host` take part in the job.
struct Group {
  double size = 1, stride = 1, ranks_per_host = 8;
  // All of the job, which such groups divide up: where hosts are no multiple of a group, nor it of
  // them, some lie across hosts, and what is said is of the worst. 0: each begins with a host.
  double ranks = 0;

  double members_a_host() const;  // the fewest on one of its hosts
  double hosts() const;
};

// Bytes a second and rank that a ring over the group attains, and the seconds of one of its steps.
struct Ring {
  double rate = 0, step = 0;
};
Ring ring_of(const Machine& machine, const Group& group);

// `bytes`: gathered, the whole of what is reduced, what one rank sends.
double all_gather(const Machine& machine, const Group& group, double bytes);
double reduce_scatter(const Machine& machine, const Group& group, double bytes);
double all_reduce(const Machine& machine, const Group& group, double bytes);
double send(const Machine& machine, const Group& group, double bytes);
// Messages of `moved` seconds that travel beside kernels of `compute` seconds, as keys and values
// around a ring do: what exceeds the kernels, and 15% of all. All of it where both share the cores.
double exposed_ring(const Machine& machine, double moved, double compute);
// Tokens to those of the group's ranks that have one of the `choices` experts of each.
double dispatch(const Machine& machine, const Group& group, double tokens, double choices,
                double bytes_a_token);

}  // namespace meshwright::steptime
