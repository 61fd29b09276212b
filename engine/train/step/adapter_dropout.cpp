#include "engine/train/step/adapter_dropout.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "engine/models/running/philox.h"
#include "meshwright/nn/attention.h"
#include "meshwright/parallel/activation_checkpoint.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/files/hash.h"
#include "sdk/base/vectorised.h"

namespace meshwright::train {
namespace {

using at::Tensor;

constexpr int64_t kBlocks = 64;  // of four columns, drawn at once
constexpr int64_t kAtOnce = 4 * kBlocks;
constexpr int64_t kGrain = 16384;

// A row of a Linear's input. Its parts, with the columns, are the counter of the generator.
struct Place {
  uint32_t position, row, step;
  uint64_t key;
};

// Of columns 4 first .. 4 (first + kBlocks), which of them are dropped.
MESHWRIGHT_VECTORISED void draw(uint32_t first, const Place& place, uint32_t below,
                                bool* __restrict out) {
  uint32_t drawn[4][kBlocks];
  for (int64_t i = 0; i < kBlocks; ++i) {
    const modules::PhiloxBits bits =
        modules::philox({first + static_cast<uint32_t>(i), place.position, place.row, place.step},
                        static_cast<uint32_t>(place.key), static_cast<uint32_t>(place.key >> 32));
    for (size_t j = 0; j < 4; ++j) drawn[j][i] = bits[j];
  }
  for (int64_t i = 0; i < kBlocks; ++i)
    for (int64_t j = 0; j < 4; ++j) out[4 * i + j] = drawn[j][i] < below;
}

// Columns [begin, begin + count).
void draw_row(const Place& place, uint32_t below, int64_t begin, int64_t count, bool* out) {
  bool drawn[kAtOnce];
  for (int64_t done = 0; done < count;) {
    const int64_t at = begin + done, chunk = at / kAtOnce, skip = at % kAtOnce,
                  n = std::min(kAtOnce - skip, count - done);
    draw(static_cast<uint32_t>(chunk * kBlocks), place, below, drawn);
    std::copy_n(drawn + skip, n, out + done);
    done += n;
  }
}

// Of the rows of each sample: part number `index` of equal ones.
std::vector<int64_t> positions(int64_t length, int64_t parts, int64_t index) {
  std::vector<int64_t> all;
  if (const std::shared_ptr<const Sequence> sequence = current_sequence())
    for (const PositionRun& run : sequence->rows)
      for (int64_t i = 0; i < run.count; ++i) all.push_back(run.position + i);
  if (static_cast<int64_t>(all.size()) != length * parts) {
    all.resize(static_cast<size_t>(length * parts));
    std::iota(all.begin(), all.end(), int64_t{0});
  }
  const auto begin = all.begin() + index * length;
  return {begin, begin + length};
}

}  // namespace

Tensor AdapterDropout::dropped(const Tensor& x, std::string_view module, int64_t columns,
                               bool part) const {
  Tensor dropped = at::empty(x.sizes(), at::kBool);
  if (x.numel() == 0) return dropped.to(x.device());
  const std::vector<Tensor> kept = once_under_recompute([this]() -> std::vector<Tensor> {
    return {at::tensor({place_.step, place_.first_row, place_.rows}, at::kLong)};
  });
  const int64_t* place = kept[0].const_data_ptr<int64_t>();
  const int64_t here = x.size(-1), tokens = x.numel() / here,
                begin = here < columns ? ceil_chunk(columns, tensor_ranks_, tensor_rank_).begin : 0,
                length = tokens % place[2] == 0 ? tokens / place[2] : 1;
  const std::vector<int64_t> position =
      positions(length, part ? tensor_ranks_ : 1, part ? tensor_rank_ : 0);
  const auto below = static_cast<uint32_t>(rate_ * 0x1p32);
  const uint64_t key = seed_ ^ base::fnv1a(module);
  bool* out = dropped.mutable_data_ptr<bool>();
  at::parallel_for(
      0, tokens, std::max<int64_t>(1, kGrain / here), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
          draw_row(
              {static_cast<uint32_t>(position[static_cast<size_t>(i % length)]),
               static_cast<uint32_t>(place[1] + i / length), static_cast<uint32_t>(place[0]), key},
              below, begin, here, out + i * here);
      });
  return dropped.to(x.device());
}

}  // namespace meshwright::train
