#include "meshwright/nn/rotary.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "meshwright/nn/attention.h"
#include "sdk/base/own_kernels.h"
#include "sdk/base/vectorised.h"

namespace meshwright {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One position: all heads turn by the same angles. direction = -1 turns back.
MESHWRIGHT_VECTORISED void turn_heads(const float* __restrict in, float* __restrict out,
                                      const float* __restrict cos, const float* __restrict sin,
                                      float direction, int64_t heads, int64_t stride, int64_t half,
                                      int64_t size) {
  for (int64_t h = 0; h < heads; ++h, in += stride, out += size) {
    for (int64_t i = 0; i < half; ++i) {
      float a = in[i], b = in[i + half], s = sin[i] * direction;
      out[i] = a * cos[i] - b * s;
      out[i + half] = b * cos[i] + a * s;
    }
    for (int64_t i = 2 * half; i < size; ++i) out[i] = in[i];
  }
}

// Any strides as long as a head's elements are neighbours; the result is contiguous.
Tensor turn(const Tensor& given, const Tensor& cos, const Tensor& sin, float direction) {
  Tensor x = given.stride(3) == 1 ? given : given.contiguous();
  Tensor y = at::empty(x.sizes(), x.options());
  int64_t length = x.size(1), heads = x.size(2), size = x.size(3), batch_stride = x.stride(0),
          row_stride = x.stride(1), head_stride = x.stride(2), dim = cos.size(-1);
  const bool by_sample = cos.dim() == 3;
  const float *in = x.const_data_ptr<float>(), *c = cos.const_data_ptr<float>(),
              *s = sin.const_data_ptr<float>();
  float* out = y.mutable_data_ptr<float>();
  at::parallel_for(0, x.size(0) * length, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t b = row / length, t = row % length, angles = (by_sample ? row : t) * dim;
      turn_heads(in + b * batch_stride + t * row_stride, out + row * heads * size, c + angles,
                 s + angles, direction, heads, head_stride, dim / 2, size);
    }
  });
  return y;
}

// Queries and keys in one node; one pass over memory each way. float32 on the CPU.
struct FusedRotate : torch::autograd::Function<FusedRotate> {
  static variable_list forward(AutogradContext* context, const Tensor& query, const Tensor& key,
                               const Tensor& cos, const Tensor& sin) {
    context->save_for_backward({cos, sin});
    return {turn(query, cos, sin, 1), turn(key, cos, sin, 1)};
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list saved = context->get_saved_variables();
    return {turn(grads[0], saved[0], saved[1], -1), turn(grads[1], saved[0], saved[1], -1),
            Tensor(), Tensor()};
  }
};

// The same on a device, in the types that kernels of our own have.
struct DeviceRotate : torch::autograd::Function<DeviceRotate> {
  static std::optional<OwnKernels> kernels(const Tensor& x, const Tensor& cos) {
    return OwnKernels::of(x, {x.size(-1), cos.size(-1) / 2});
  }
  static kernels::Heads heads(const Tensor& x, Tensor& out) {
    return {.in = x.const_data_ptr(),
            .out = out.mutable_data_ptr(),
            .batch_stride = x.stride(0),
            .row_stride = x.stride(1),
            .head_stride = x.stride(2),
            .heads = static_cast<int>(x.size(2))};
  }
  static variable_list turn(const Tensor& given_query, const Tensor& given_key, const Tensor& cos,
                            const Tensor& sin, float direction) {
    const OwnKernels own = *kernels(given_query, cos);
    const Tensor query = own.readable_rows(given_query), key = own.readable_rows(given_key);
    Tensor turned_query = at::empty(query.sizes(), query.options()),
           turned_key = at::empty(key.sizes(), key.options());
    constexpr int64_t kOfThread = 2 * 16;  // bytes: a pack of each half of a head
    own.launch("rotate",
               ceil_divide((query.numel() + key.numel()) * query.element_size(),
                           kernels::kBlock * kOfThread),
               kernels::Rotate{.query = heads(query, turned_query),
                               .key = heads(key, turned_key),
                               .cos = cos.const_data_ptr(),
                               .sin = sin.const_data_ptr(),
                               .batch = query.size(0),
                               .length = query.size(1),
                               .size = static_cast<int>(query.size(3)),
                               .dim = static_cast<int>(cos.size(-1)),
                               .by_sample = cos.dim() == 3 ? 1 : 0,
                               .wide_angles = cos.scalar_type() != query.scalar_type() ? 1 : 0,
                               .direction = direction});
    return {turned_query, turned_key};
  }

  static variable_list forward(AutogradContext* context, const Tensor& query, const Tensor& key,
                               const Tensor& given_cos, const Tensor& given_sin) {
    const OwnKernels own = *kernels(query, given_cos);
    const Tensor cos = own.readable(given_cos), sin = own.readable(given_sin);
    context->save_for_backward({cos, sin});
    return turn(query, key, cos, sin, 1);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list saved = context->get_saved_variables();
    OwnKernels::refuse_second_derivative();
    variable_list out = turn(grads[0], grads[1], saved[0], saved[1], -1);
    out.resize(4);
    return out;
  }
};

bool rounds_for_core(const Tensor& query) {
  const at::DeviceType device = query.device().type();
  return at::autocast::is_autocast_enabled(device) &&
         query.scalar_type() == at::autocast::get_autocast_dtype(device);
}

Tensor turn_plainly(const Tensor& given, const Tensor& cos, const Tensor& sin) {
  int64_t dim = cos.size(-1), size = given.size(-1);
  Tensor x = given.narrow(-1, 0, dim);
  std::vector<Tensor> halves = x.chunk(2, -1);
  Tensor turned = x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
  return dim == size ? turned : at::cat({turned, given.narrow(-1, dim, size - dim)}, -1);
}

// YaRN (Peng et al. 2023): what turns often enough within the original length stays, what turns too
// rarely is slowed down by the factor, and between the two dimensions that part them the
// frequencies are blended. `wavelengths`: theta^(2i / dim).
Tensor yarn_frequencies(const RopeConfig& config, const Tensor& wavelengths) {
  auto dim = static_cast<double>(config.dim);
  auto dimension_that_turns = [&](double times) {
    return dim *
           std::log(static_cast<double>(config.original_positions) /
                    (times * 2 * std::numbers::pi)) /
           (2 * std::log(config.theta));
  };
  double low = dimension_that_turns(config.beta_fast),
         high = dimension_that_turns(config.beta_slow);
  if (config.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  Tensor ramp = ((at::arange(config.dim / 2, at::kFloat) - low) / (high - low)).clamp(0, 1),
         kept = 1 - ramp;
  return (config.factor * wavelengths).reciprocal() * (1 - kept) + wavelengths.reciprocal() * kept;
}

// [dim / 2] in float32. `length` matters for dynamic and longrope only.
Tensor inverse_frequencies(const RopeConfig& config, int64_t length) {
  int64_t dim = config.dim;
  Tensor exponents = at::arange(0, dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(dim);
  double theta = config.theta;
  if (config.type == RopeType::dynamic && length > config.max_positions) {
    // In float32, as transformers computes it from a tensor of positions.
    float stretch = static_cast<float>(config.factor) * static_cast<float>(length) /
                        static_cast<float>(config.max_positions) -
                    static_cast<float>(config.factor - 1);
    theta *= static_cast<double>(std::pow(
        stretch, static_cast<float>(static_cast<double>(dim) / static_cast<double>(dim - 2))));
  }
  if (config.type == RopeType::longrope) {
    const std::vector<double>& factors =
        length > config.original_positions ? config.long_factors : config.short_factors;
    return (at::tensor(factors, at::kFloat) * at::pow(theta, exponents)).reciprocal();
  }
  Tensor frequencies = at::pow(theta, exponents).reciprocal();
  if (config.type == RopeType::linear) return frequencies / config.factor;
  if (config.type == RopeType::yarn) return yarn_frequencies(config, at::pow(theta, exponents));
  if (config.type != RopeType::llama3) return frequencies;
  // Long waves are slowed down by the factor, short ones stay, those between are blended
  // (Llama 3.1).
  double old_length = static_cast<double>(config.original_positions),
         low = config.low_frequency_factor, high = config.high_frequency_factor;
  Tensor waves = 2 * std::numbers::pi * frequencies.reciprocal();
  Tensor is_long = waves > old_length / low, is_short = waves < old_length / high;
  Tensor blend = (old_length / waves - low) / (high - low);
  Tensor between = (1 - blend) * frequencies / config.factor + blend * frequencies;
  return at::where(is_long, frequencies / config.factor, at::where(is_short, frequencies, between));
}

}  // namespace

struct RotaryEmbeddingImpl::Tables {
  struct Entry {
    size_t which;
    int64_t capacity, stretched;
    at::Device device;
    at::ScalarType dtype;
    RotaryTable table;
    std::vector<PositionRun> picked_rows;  // of the last sequence
    RotaryTable picked;
  };
  std::vector<RopeConfig> configs;
  std::vector<int64_t> stretched;  // the length that frequencies were made for, where it matters
  std::vector<Entry> entries;

  Entry& of(const Tensor& x, int64_t positions, size_t which);
};

RotaryEmbeddingImpl::RotaryEmbeddingImpl(std::vector<RopeConfig> configs)
    : tables_(std::make_unique<Tables>()) {
  tables_->configs = std::move(configs);
  for (const RopeConfig& config : tables_->configs)
    tables_->stretched.push_back(config.max_positions);
}
RotaryEmbeddingImpl::~RotaryEmbeddingImpl() = default;

bool RotaryEmbeddingImpl::follows_length() const {
  return std::ranges::any_of(tables_->configs, [](const RopeConfig& config) {
    return config.type == RopeType::dynamic || config.type == RopeType::longrope;
  });
}

RotaryTable RotaryEmbeddingImpl::forward(const Tensor& x, int64_t rows, size_t which) {
  const RopeConfig& config = tables_->configs[which];
  std::shared_ptr<const Sequence> sequence = current_sequence();
  const int64_t length = sequence && sequence->length > 0 ? sequence->length : rows;
  int64_t& stretched = tables_->stretched[which];
  if (config.type == RopeType::dynamic) {
    // As transformers: grows with the longest sequence seen, back to the start below the original
    // length.
    if (length > stretched) stretched = length;
    if (length < config.max_positions) stretched = config.max_positions;
  }
  if (config.type == RopeType::longrope)
    stretched = config.original_positions + (length > config.original_positions ? 1 : 0);
  int64_t positions = length;
  if (sequence)
    for (const PositionRun& run : sequence->rows)
      positions = std::max(positions, run.position + run.count);
  Tables::Entry& entry = tables_->of(x, positions, which);
  const RotaryTable& table = entry.table;
  c10::InferenceMode no_inference(false);
  c10::NoGradGuard no_grad;
  if (sequence && sequence->positions.defined()) {
    Tensor rows_of = sequence->positions.to(x.device());
    auto pick = [&](const Tensor& t) {
      return t.index_select(0, rows_of.reshape(-1))
          .view({rows_of.size(0), rows_of.size(1), t.size(1)});
    };
    return {pick(table.cos), pick(table.sin)};
  }
  if (!sequence || sequence->rows.empty())
    return {table.cos.narrow(0, 0, rows), table.sin.narrow(0, 0, rows)};
  if (!entry.picked.cos.defined() || entry.picked_rows != sequence->rows) {
    std::vector<Tensor> cos, sin;
    for (const PositionRun& run : sequence->rows) {
      cos.push_back(table.cos.narrow(0, run.position, run.count));
      sin.push_back(table.sin.narrow(0, run.position, run.count));
    }
    entry.picked = {at::cat(cos), at::cat(sin)};
    entry.picked_rows = sequence->rows;
  }
  return entry.picked;
}

// The table of at least so many positions.
RotaryEmbeddingImpl::Tables::Entry& RotaryEmbeddingImpl::Tables::of(const Tensor& x,
                                                                    int64_t positions,
                                                                    size_t which) {
  const RopeConfig& config = configs[which];
  const int64_t stretch = stretched[which];
  auto same = [&](const Entry& e) {
    return e.which == which && e.stretched == stretch && e.device == x.device() &&
           e.dtype == x.scalar_type();
  };
  auto entry = std::find_if(entries.begin(), entries.end(), same);
  if (entry != entries.end() && entry->capacity >= positions) return *entry;
  c10::InferenceMode no_inference(false);  // later steps save these tensors for backward
  c10::NoGradGuard no_grad;
  constexpr int64_t kStep = 256;  // sampling asks for every length in turn
  int64_t capacity = (positions + kStep - 1) / kStep * kStep;
  // On the CPU whatever the device of x, so that every device turns by the same angles.
  Tensor angles = at::outer(at::arange(capacity, at::kFloat), inverse_frequencies(config, stretch));
  angles = at::cat({angles, angles}, -1);
  RotaryTable table{(angles.cos() * config.attention_factor).to(x.options()),
                    (angles.sin() * config.attention_factor).to(x.options())};
  constexpr size_t kKept = 8;
  if (entry != entries.end()) entries.erase(entry);
  if (entries.size() == kKept) entries.erase(entries.begin());
  return entries.emplace_back(
      Entry{which, capacity, stretch, x.device(), x.scalar_type(), table, {}, {}});
}

TensorRefs tensors_of(RotaryTable& table) { return {&table.cos, &table.sin}; }

std::pair<Tensor, Tensor> rotate(const Tensor& query, const Tensor& key, const RotaryTable& table) {
  auto plain = [](const Tensor& t) { return t.is_cpu() && t.scalar_type() == at::kFloat; };
  if (plain(query) && plain(key) && plain(table.cos) && plain(table.sin)) {
    variable_list turned = FusedRotate::apply(query, key, table.cos, table.sin);
    return {turned[0], turned[1]};
  }
  const at::ScalarType type = query.scalar_type();
  const bool fits = table.cos.sizes() == table.sin.sizes() && table.cos.size(-2) == query.size(1) &&
                    (table.cos.dim() == 2 || table.cos.size(0) == query.size(0)) &&
                    key.device() == query.device() && table.cos.device() == query.device() &&
                    table.sin.device() == query.device();
  const at::ScalarType angles = table.cos.scalar_type();
  // Under autocast the core rounds what is turned by angles in float32.
  const bool rounds = angles == at::kFloat && rounds_for_core(query);
  if (fits && key.scalar_type() == type && (angles == type || rounds) &&
      table.sin.scalar_type() == angles && DeviceRotate::kernels(query, table.cos)) {
    variable_list turned = DeviceRotate::apply(query, key, table.cos, table.sin);
    return {turned[0], turned[1]};
  }
  Tensor cos = table.cos.unsqueeze(-2), sin = table.sin.unsqueeze(-2);
  return {turn_plainly(query, cos, sin), turn_plainly(key, cos, sin)};
}

}  // namespace meshwright
