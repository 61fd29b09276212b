// The options of ring_zero, and how it lays parameters out in buckets. The plan and the run both
// ask here, so that what is planned is what is sent.
#pragma once

#include <meshwright/strategy.h>
#include <meshwright/typed_options.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ring_zero {

struct RingOptions {
  int64_t ring_size;
  double bucket_mb;
  bool reduce_every_micro_batch;
};
inline constexpr auto kOptions = meshwright::typed_options<RingOptions>(
    meshwright::field(
        &RingOptions::ring_size,
        meshwright::int_option("ring_size", "8", 1,
                               "Ranks that share one optimizer state, at most; the largest "
                               "divisor of dp up to it is used.")),
    meshwright::field(
        &RingOptions::bucket_mb,
        meshwright::with_flags(
            meshwright::number_option("bucket_mb", "25", 0,
                                      "Parameters are reduced and gathered in buckets of so "
                                      "many MiB."),
            MESHWRIGHT_OPEN_MIN)),
    meshwright::field(
        &RingOptions::reduce_every_micro_batch,
        meshwright::bool_option("reduce_every_micro_batch", false,
                                "Reduce gradients in every micro-batch and keep slices of them "
                                "only (ZeRO-2): less memory, more traffic.")));

// Elements of a bucket, in the dtype that gradients are reduced in.
int64_t bucket_elements(const meshwright::StrategyConfig& config);

struct Bucket {
  std::vector<std::size_t>
      members;  // indices of parameters, in the order in which they lie in the bucket
  std::vector<int64_t> offsets;  // of each in the bucket
  int64_t elements = 0;
  int64_t slice = 0;  // elements of a rank: ceil(elements / ring), so the end is padding
};

// The run [begin, end) of a parameter's elements that lies in a rank's slice, and where in the
// slice it starts.
struct Piece {
  int64_t begin = 0, end = 0, at = 0;
};

// Parameters of `counts` elements in reverse order, because backward reaches the last ones first. A
// bucket closes when it holds `limit` elements or more.
std::vector<Bucket> make_buckets(const std::vector<int64_t>& counts, int64_t limit, int64_t ring);

Piece piece_of(const Bucket& bucket, std::size_t member, int64_t count, int64_t place);

}  // namespace ring_zero
