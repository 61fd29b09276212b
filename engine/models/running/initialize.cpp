#include "engine/models/running/initialize.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/models/models.h"
#include "engine/models/running/philox.h"
#include "meshwright/error.h"
#include "sdk/base/files/hash.h"
#include "sdk/base/vectorised.h"

// This file is compiled without fused multiply-add, so that every processor rounds alike.
namespace meshwright::modules {
namespace {

using at::Tensor;

constexpr int64_t kBlocks = 64;  // of four normals, drawn at once

struct Turn {
  float cos, sin;
};

// -2 ln x for x in (0, 1] (Cephes' logf).
inline float twice_negative_log(float x) {
  int32_t bits = std::bit_cast<int32_t>(x) - 0x3F3504F3;  // mantissa into [sqrt(1/2), sqrt(2))
  float exponent = static_cast<float>(bits >> 23);
  float f = std::bit_cast<float>((bits & 0x007FFFFF) + 0x3F3504F3) - 1;
  float p = 7.0376836292e-2F;
  p = p * f - 1.1514610310e-1F;
  p = p * f + 1.1676998740e-1F;
  p = p * f - 1.2420140846e-1F;
  p = p * f + 1.4249322787e-1F;
  p = p * f - 1.6668057665e-1F;
  p = p * f + 2.0000714765e-1F;
  p = p * f - 2.4999993993e-1F;
  p = p * f + 3.3333331174e-1F;
  float square = f * f;
  float low = p * f * square - 2.12194440e-4F * exponent - 0.5F * square;
  return -2 * (f + low + 0.693359375F * exponent);
}

// cos and sin of 2 pi x for x in [0, 1), a multiple of 2^-24: the quarter and the rest of it are
// exact.
inline Turn turn(float x) {
  int32_t quarter = static_cast<int32_t>(4 * x + 0.5F), q = quarter & 3;
  float a = (x - 0.25F * static_cast<float>(quarter)) * 6.283185307179586F, s = a * a;
  float sin = a + a * s * (-1.6666654611e-1F + s * (8.3321608736e-3F - s * 1.9515295891e-4F));
  float cos =
      1 - 0.5F * s +
      s * s * (4.166664568298827e-2F + s * (-1.388731625493765e-3F + s * 2.443315711809948e-5F));
  float c = (q & 1) != 0 ? sin : cos, d = (q & 1) != 0 ? cos : sin;
  return {q == 1 || q == 2 ? -c : c, q >= 2 ? -d : d};
}

inline float unit(uint32_t bits) {
  return static_cast<float>(static_cast<int32_t>(bits >> 8)) * 0x1p-24F;
}  // [0, 1)

// Normals 4 first .. 4 (first + kBlocks) of the stream: two Box-Muller pairs per block.
MESHWRIGHT_VECTORISED void normals(uint64_t first, uint64_t seed, uint64_t stream,
                                   float* __restrict out) {
  float drawn[4][kBlocks];
  for (int64_t i = 0; i < kBlocks; ++i) {
    uint64_t at = first + static_cast<uint64_t>(i);
    PhiloxBits bits = philox({static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32),
                              static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                             static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    float r0 = __builtin_sqrtf(twice_negative_log(1 - unit(bits[0]))),
          r1 = __builtin_sqrtf(twice_negative_log(1 - unit(bits[2])));
    Turn t0 = turn(unit(bits[1])), t1 = turn(unit(bits[3]));
    drawn[0][i] = r0 * t0.cos;
    drawn[1][i] = r0 * t0.sin;
    drawn[2][i] = r1 * t1.cos;
    drawn[3][i] = r1 * t1.sin;
  }
  for (int64_t i = 0; i < kBlocks; ++i)
    for (int64_t j = 0; j < 4; ++j) out[4 * i + j] = drawn[j][i];
}

// Uniforms 4 first .. 4 (first + kBlocks) of the stream, from -1 to 1.
MESHWRIGHT_VECTORISED void uniforms(uint64_t first, uint64_t seed, uint64_t stream,
                                    float* __restrict out) {
  for (int64_t i = 0; i < kBlocks; ++i) {
    uint64_t at = first + static_cast<uint64_t>(i);
    PhiloxBits bits = philox({static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32),
                              static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                             static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    for (size_t j = 0; j < 4; ++j) out[4 * i + static_cast<int64_t>(j)] = 2 * unit(bits[j]) - 1;
  }
}

struct Values {
  InitialValue initial;
  uint64_t seed, stream;
  int64_t zero_begin, zero_end;  // flat, the row of zeros
};

// Elements [begin, begin + count) of the flattened whole.
void fill(const Values& v, int64_t begin, int64_t count, float* out) {
  const float value = static_cast<float>(v.initial.value);
  if (v.initial.kind == InitialValue::Kind::constant) {
    std::fill_n(out, count, value);
  } else {
    constexpr int64_t kAtOnce = 4 * kBlocks;
    float drawn[kAtOnce];
    for (int64_t done = 0; done < count;) {
      int64_t at = begin + done, chunk = at / kAtOnce, skip = at % kAtOnce,
              n = std::min(kAtOnce - skip, count - done);
      if (v.initial.kind == InitialValue::Kind::normal)
        normals(static_cast<uint64_t>(chunk * kBlocks), v.seed, v.stream, drawn);
      else
        uniforms(static_cast<uint64_t>(chunk * kBlocks), v.seed, v.stream, drawn);
      for (int64_t i = 0; i < n; ++i) out[done + i] = drawn[skip + i] * value;
      done += n;
    }
  }
  int64_t zero_begin = std::clamp(v.zero_begin - begin, int64_t{0}, count),
          zero_end = std::clamp(v.zero_end - begin, int64_t{0}, count);
  std::fill(out + zero_begin, out + zero_end, 0.0F);
}

Values values_of(std::string_view parameter, const std::vector<int64_t>& shape,
                 const InitialValue& initial, uint64_t seed) {
  Values v{initial, seed, base::fnv1a(parameter), 0, 0};
  if (initial.zero_row) {
    int64_t width = element_count(shape) / std::max<int64_t>(shape.at(0), 1);
    v.zero_begin = *initial.zero_row * width;
    v.zero_end = v.zero_begin + width;
  }
  return v;
}

// Runs write(float* memory) on memory of out's elements in order, and converts them where out is
// not float32 on the CPU.
template <class F>
void write_to(Tensor& out, F write) {
  c10::NoGradGuard no_grad;
  bool direct = out.is_cpu() && out.scalar_type() == at::kFloat && out.is_contiguous();
  Tensor memory = direct ? out : at::empty(out.sizes(), at::TensorOptions().dtype(at::kFloat));
  write(memory.mutable_data_ptr<float>());
  if (!direct) out.copy_(memory);
}

constexpr int64_t kGrain = 16384;

void fill_flat(const Values& v, int64_t begin, Tensor& out) {
  write_to(out, [&](float* memory) {
    at::parallel_for(0, out.numel(), kGrain, [&](int64_t from, int64_t to) {
      fill(v, begin + from, to - from, memory + from);
    });
  });
}

}  // namespace

void initialize(std::string_view parameter, const std::vector<int64_t>& global_shape,
                std::span<const int64_t> offsets, std::span<const int64_t> sizes,
                const InitialValue& value, uint64_t seed, Tensor out, int64_t begin) {
  size_t dims = global_shape.size();
  int64_t count = 1;
  bool inside = offsets.size() == dims && sizes.size() == dims;
  for (size_t d = 0; inside && d < dims; ++d) {
    inside = offsets[d] >= 0 && sizes[d] >= 0 && offsets[d] + sizes[d] <= global_shape[d];
    count *= sizes[d];
  }
  if (!inside || (begin < 0 ? out.numel() != count : out.numel() > count - begin))
    throw Error(ErrorCode::internal, "initialize: " + std::string(parameter) +
                                         " has no such slice, or its tensor has another size");
  if (out.numel() == 0) return;
  begin = std::max<int64_t>(begin, 0);
  Values v = values_of(parameter, global_shape, value, seed);
  // Whole trailing dimensions and the first cut one before them make a run of neighbours.
  size_t cut = dims;
  int64_t run = 1, inner = 1;
  while (cut > 0 && sizes[cut - 1] == global_shape[cut - 1]) inner *= global_shape[--cut];
  run = inner * (cut > 0 ? sizes[cut - 1] : 1);
  std::vector<int64_t> strides(dims, 1);
  for (size_t d = dims; d-- > 1;) strides[d - 1] = strides[d] * global_shape[d];
  if (run == count) {
    for (size_t d = 0; d < dims; ++d) begin += offsets[d] * strides[d];
    fill_flat(v, begin, out);
    return;
  }
  int64_t end = begin + out.numel();
  write_to(out, [&](float* memory) {
    at::parallel_for(begin / run, (end + run - 1) / run, std::max<int64_t>(1, kGrain / run),
                     [&](int64_t from, int64_t to) {
                       for (int64_t r = from; r < to; ++r) {
                         int64_t place = offsets[cut - 1] * strides[cut - 1], rest = r;
                         for (size_t d = cut - 1; d-- > 0; rest /= sizes[d])
                           place += (offsets[d] + rest % sizes[d]) * strides[d];
                         int64_t first = std::max(begin, r * run),
                                 last = std::min(end, (r + 1) * run);
                         fill(v, place + first - r * run, last - first, memory + first - begin);
                       }
                     });
  });
}

void initialize(const ParallelParameter& parameter, const InitialValue& value, uint64_t seed) {
  Tensor out = parameter.local;
  if (out.numel() == 0) return;
  const Region& region = parameter.region;
  if (region.flat())
    fill_flat(values_of(parameter.name, parameter.global_shape, value, seed), region.begin, out);
  else
    initialize(parameter.name, parameter.global_shape, region.offsets, region.sizes, value, seed,
               out, region.within_box() ? region.begin : 0);
}

void initialize(const CausalLMImpl& model, const ParallelParameter& parameter, uint64_t seed) {
  initialize(parameter, model.outline().initial_value(parameter.name), seed);
}

void initialize(CausalLMImpl& model, uint64_t seed) {
  auto parameters = model.named_parameters();
  for (const ParameterOutline& p : model.outline().parameters)
    initialize(p.name, p.shape, std::vector<int64_t>(p.shape.size(), 0), p.shape,
               model.outline().initial_value(p.name), seed, parameters[p.name]);
}

}  // namespace meshwright::modules
