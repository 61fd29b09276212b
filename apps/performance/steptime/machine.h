// What the step-time model knows of a machine: peaks, bandwidths, and the shares of them that a
// training step attains. docs/step_time.md says what each figure means and where it comes from.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::steptime {

// Seconds, bytes, bytes a second, operations a second; rates are shares of a peak, 0 to 1.
struct Machine {
  std::string name;                   // of the device, as its maker writes it
  std::vector<std::string> reported;  // names that drivers report of devices with these peaks
  double memory = 0;                  // bytes of the card
  double units = 0;                   // streaming multiprocessors, or cores
  double bandwidth = 0;               // of the memory
  double outside = 2.5e9;  // bytes that no job can have: the driver's context, NCCL's buffers

  double peak_bf16 = 0, peak_fp8 = 0, peak_fp32 = 0;  // dense; 0: it has none
  double peak_tf32 = 0;  // of matrix products of float32 in TF32; 0: as float32
  // Of matrix products of float32, where the job lets them be in TF32 or not.
  double peak_of_float32(bool tf32) const { return tf32 && peak_tf32 > 0 ? peak_tf32 : peak_fp32; }

  struct Rate {
    double product = 0;      // of the peak, large products inside a step
    double product_fp8 = 0;  // beyond `product`, of the fp8 peak
    double elementwise = 0;  // of the memory's bandwidth
    double attention = 0;    // of the peak: the fastest flash kernel, long sequences
    double attention_fa2 = 0, attention_triton = 0;  // older ones: FlashAttention 2, Triton of 2023
    double unfused = 0;               // beyond `product`: attention without a flash kernel
    double short_inner = 200;         // k at which a product reaches half the rate of a long one
    double attention_backward = 0.8;  // of the forward's rate
    double short_sequence = 350;      // tokens at which attention has half the rate of many
    double optimizer = 0;             // of the memory's bandwidth; 0: as `elementwise`
  } rate;

  struct Network {
    double ranks_per_host = 8;
    double bus = 0;                            // ring inside a host
    double nic = 0;                            // of one rank, to other hosts
    double nic_attained = 0;                   // share of it
    double step_inside = 0, step_outside = 0;  // seconds a ring step
    double in_switch = 1;  // an all-reduce's gain inside one host, from 6 ranks on
    double pair = 1;       // share of `bus` that a pair has on a board without a switch
    // A message of a pipeline, from one rank to the next. 0: at the rate of `bus`, of `nic`.
    double send_inside = 0, send_outside = 0;
    double send_latency_inside = 15e-6, send_latency_outside = 15e-6;  // seconds
  } network;

  struct Overlap {
    double kappa = 0;             // of a hidden collective's time, lost to slower kernels
    double async_tp = 1;          // what micro-pipelined tensor parallelism leaves of its exchanges
    double async_tp_buffers = 1;  // the same with TransformerEngine's user buffers
    double jitter = 0;            // a step is longer by so much for each doubling beyond 8 ranks
    double alone = 1;             // a rank's gain while the others of its host wait
    bool adds = false;            // compute and collectives share the cores: nothing hides
  } overlap;

  // Seconds that the host takes to launch a layer, whatever the device does meanwhile.
  struct Host {
    double layer_forward = 0, layer_backward = 0, fixed = 0;
  } host;

  std::vector<std::string> guessed;            // figures without a source, as "network.bus"
  std::map<std::string, std::string> sources;  // what a file says of each figure that it has
  std::vector<std::string> at_bound;           // figures whose source begins with kAtBound
};

// Reads a machine file. Throws Error(file_unreadable | toml_syntax | missing_key | unknown_key |
// wrong_type | out_of_range | schema_version) with the place in it.
Machine read_machine(const std::string& path);
// The same of a file's text; `path` is used in messages.
Machine parse_machine(const std::string& text, const std::string& path);
// `name`: one that is shipped in `folder`, with how many ranks a host has ("h100x8") or without, or
// a path, which has a slash or ends in ".toml". Throws Error(bad_choice) listing the names.
Machine find_machine(const std::string& name, const std::string& folder);
// The one in `folder` whose device a driver calls so ("NVIDIA H100 80GB HBM3"), or which has that
// name itself. nullopt: none, of those that can be read.
std::optional<Machine> machine_reported(const std::string& device, const std::string& folder);

// Every figure of a machine file, for what reads one and what writes one.

// More is a slip.
inline constexpr int kMostRanksOfAHost = 1024;

// What the source of a figure begins with that a fit left at the bound of its range: what was
// measured lies beyond, and forecasts that go by it are rough.
inline constexpr std::string_view kAtBound = "measured at a bound";

// `least` and `most` are what a machine of today or of the next years can have; beyond them it is a
// slip of the unit.
struct Figure {
  const char *table, *name;
  double* to;
  double least, most;
  const char* means;
  bool needed = true;
  bool whole = false;  // a count: 7.5 of it is none

  std::string key() const { return std::string(table) + "." + name; }
};

// Those of `machine`, in the order of a file.
std::vector<Figure> figures_of(Machine& machine);

// A machine file as read_machine() reads it.

// `sources`: where each figure comes from, by its key ("network.bus"). A figure that a file need
// not have is written where it has a source. `comment`: its first lines, without the #. Throws
// Error(internal) for a needed figure without a source.
std::string machine_text(const Machine& machine, const std::map<std::string, std::string>& sources,
                         const std::string& comment);

}  // namespace meshwright::steptime
