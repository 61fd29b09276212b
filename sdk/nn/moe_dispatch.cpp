#include "moe_parts.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstring>
#include <numeric>
#include <tuple>
#include <utility>

#include "sdk/base/own_kernels.h"
#include "sdk/base/row_steps.h"
#include "sdk/base/vectorised.h"
#include "sdk/nn/linear.h"

namespace meshwright {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 16384;

MESHWRIGHT_VECTORISED void add_row(float* __restrict to, const float* __restrict from,
                                   int64_t width) {
  for (int64_t i = 0; i < width; ++i) to[i] += from[i];
}

// n rounded up to one of `steps` sizes between two powers of two, at least by 8.
int64_t in_steps(int64_t n, int64_t steps) { return detail::rounded_up(n, row_step(n, steps)); }

int64_t rows_at_once(int64_t width) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(width, 1));
}

Tensor take_rows(const Tensor& x, const Tensor& rows, at::ScalarType type) {
  Tensor out = detail::empty_rows(rows.numel(), x.size(1), x.options().dtype(type));
  detail::take_rows_into(out, 0, x, rows, 0, rows.numel());
  return out;
}

const long long* numbers(const Tensor& indices) {
  static_assert(sizeof(long long) == sizeof(int64_t));
  return reinterpret_cast<const long long*>(indices.const_data_ptr<int64_t>());
}
// What a kernel does with rows of a device: one warp has each of them.
constexpr int64_t kOfBlock = kernels::kBlock / 32;

// What kernels read of rows in two tensors.
struct ReadAmong {
  Tensor rows, others, named;
  kernels::Inserted among;
  ReadAmong(const OwnKernels& own, const detail::RowsAmong& from)
      : rows(from.rows.stride(0) < from.rows.size(1) ? own.readable(from.rows)
                                                     : own.readable_rows(from.rows)) {
    if (!from.named.defined() || from.named.numel() == 0) return;
    others = own.readable(from.others);
    named = from.named.contiguous();
    among.rows = others.const_data_ptr();
    among.named = numbers(named);
    among.of = others.size(0);
    among.first = from.first;
    among.count = named.numel();
  }
};

// False: operators have to do it.
bool take_by_kernel(const Tensor& to, const detail::RowsAmong& from, const Tensor& given_rows) {
  const Tensor& given = from.rows;
  if (to.dim() != 2 || to.stride(1) != 1 || to.stride(0) < to.size(1) ||
      (given.scalar_type() != to.scalar_type() && given.scalar_type() != at::kFloat) ||
      reinterpret_cast<uintptr_t>(to.const_data_ptr()) % 16 != 0)
    return false;
  const auto own = OwnKernels::of(to, {to.size(1), to.stride(0)});
  if (!own) return false;
  OwnKernels::refuse_second_derivative();
  const ReadAmong x(*own, from);
  const Tensor rows = given_rows.contiguous();
  own->launch("take_rows", ceil_divide(rows.numel(), kOfBlock),
              kernels::TakeRows{.in = x.rows.const_data_ptr(),
                                .rows = numbers(rows),
                                .out = to.mutable_data_ptr(),
                                .of = x.rows.size(0),
                                .count = rows.numel(),
                                .size = to.size(1),
                                .wide = x.rows.scalar_type() != to.scalar_type() ? 1 : 0,
                                .in_stride = x.rows.stride(0),
                                .out_stride = to.stride(0),
                                .among = x.among});
  return true;
}

// To `type`, which is that of y or float32. Undefined: operators have to do it.
Tensor sum_by_kernel(const detail::RowsAmong& from, const Tensor& given_place,
                     at::ScalarType type) {
  const auto own = OwnKernels::of(from.rows, {from.rows.size(1)});
  if (!own) return {};
  OwnKernels::refuse_second_derivative();
  const ReadAmong read(*own, from);
  const Tensor &y = read.rows, place = given_place.contiguous();
  Tensor out = at::empty({place.size(0), y.size(1)}, y.options().dtype(type));
  own->launch("combine_rows", ceil_divide(place.size(0), kOfBlock),
              kernels::CombineRows{.in = y.const_data_ptr(),
                                   .place = numbers(place),
                                   .out = out.mutable_data_ptr(),
                                   .of = y.size(0),
                                   .count = place.size(0),
                                   .size = y.size(1),
                                   .most = static_cast<int>(place.size(1)),
                                   .wide = type != y.scalar_type() ? 1 : 0,
                                   .in_stride = y.stride(0),
                                   .among = read.among});
  return out;
}

Tensor sum_rows(const Tensor& y, const Tensor& place, at::ScalarType type) {
  int64_t tokens = place.size(0), active = place.size(1), width = y.size(1);
  if (!detail::plain_rows(y)) {
    if (y.size(0) == 0) return at::zeros({tokens, width}, y.options().dtype(type));
    if (Tensor out = sum_by_kernel({y}, place, type); out.defined()) return out;
    Tensor flat = place.reshape(-1), there = flat.ge(0).unsqueeze(1);
    Tensor rows = y.index_select(0, flat.clamp_min(0));
    bool narrow = y.scalar_type() != at::kDouble && y.scalar_type() != at::kFloat;
    if (narrow) rows = rows.to(at::kFloat);
    return rows.masked_fill(there.logical_not(), 0).view({tokens, active, width}).sum(1).to(type);
  }
  std::vector<const float*> rows(static_cast<size_t>(y.size(0)));
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i] = y.const_data_ptr<float>() + static_cast<int64_t>(i) * width;
  return detail::sum_plain_rows(rows, place, width);
}

struct TakeRows : torch::autograd::Function<TakeRows> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& token,
                        const Tensor& place) {
    context->save_for_backward({place});
    return take_rows(x.contiguous(), token, x.scalar_type());
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {
        sum_rows(grads[0].contiguous(), context->get_saved_variables()[0], grads[0].scalar_type()),
        Tensor(), Tensor()};
  }
};

struct SumRows : torch::autograd::Function<SumRows> {
  static Tensor forward(AutogradContext* context, const Tensor& y, const Tensor& token,
                        const Tensor& place, at::ScalarType type) {
    context->save_for_backward({token});
    context->saved_data["type"] = static_cast<int64_t>(y.scalar_type());
    return sum_rows(y.contiguous(), place, type);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    return {take_rows(grads[0].contiguous(), context->get_saved_variables()[0], type), Tensor(),
            Tensor(), Tensor()};
  }
};

ExpertOrder sort_on_host(const Tensor& given, int64_t experts, bool padded) {
  Tensor indices = given.contiguous();
  int64_t slots = indices.numel(), active = indices.size(1), rows = 0;
  const int64_t* expert = indices.const_data_ptr<int64_t>();
  ExpertOrder out;
  out.padded = padded;
  out.counts.assign(static_cast<size_t>(experts), 0);
  for (int64_t s = 0; s < slots; ++s)
    if (expert[s] >= 0) ++out.counts[static_cast<size_t>(expert[s])];
  std::vector<int64_t> next;
  for (int64_t n : out.counts) {
    next.push_back(rows);
    rows += detail::taken_rows(n, padded);
  }
  out.slot = at::zeros({rows}, indices.options());
  out.token = at::full({rows}, -1, indices.options());
  out.place = at::empty(indices.sizes(), indices.options());
  int64_t *slot = out.slot.mutable_data_ptr<int64_t>(),
          *token = out.token.mutable_data_ptr<int64_t>(),
          *place = out.place.mutable_data_ptr<int64_t>();
  for (int64_t s = 0; s < slots; ++s) {
    int64_t row = expert[s] < 0 ? -1 : next[static_cast<size_t>(expert[s])]++;
    place[s] = row;
    if (row < 0) continue;
    slot[row] = s;
    token[row] = s / active;
  }
  return out;
}

class LocalDispatcher : public ExpertDispatcher {
 public:
  Tensor forward(const Tensor& x, const Routing& routing, GroupedExperts& experts,
                 const std::function<void()>& meanwhile) override {
    const bool by_bounds = !x.is_cpu() && experts->fits_bounds(x);
    ExpertOrder order = by_bounds
                            ? sort_without_counts(routing.indices, experts->experts())
                            : sort_by_expert(routing.indices, experts->experts(), pads_rows(x));
    meanwhile();
    Tensor tokens = gather_tokens(x, order), weights = gather_weights(routing.weights, order);
    return combine_tokens(by_bounds ? experts(tokens, order.bounds, weights)
                                    : experts(tokens, order.counts, weights, order.padded),
                          order);
  }
};

}  // namespace

namespace detail {

std::vector<int64_t> counts_of(const Tensor& bounds) {
  const Tensor on_host = bounds.cpu();
  const int32_t* bound = on_host.const_data_ptr<int32_t>();
  std::vector<int64_t> out;
  for (int64_t e = 0; e + 1 < on_host.numel(); ++e) out.push_back(bound[e + 1] - bound[e]);
  return out;
}
ExpertOrder with_counts(ExpertOrder order, std::vector<int64_t> counts) {
  order.counts = std::move(counts);
  const int64_t rows = std::accumulate(order.counts.begin(), order.counts.end(), int64_t{0});
  for (Tensor* of_rows : {&order.slot, &order.token}) *of_rows = of_rows->narrow(0, 0, rows);
  return order;
}

bool plain_rows(const Tensor& t) {
  return t.is_cpu() && t.scalar_type() == at::kFloat && t.is_contiguous();
}

Tensor empty_rows(int64_t n, int64_t width, const at::TensorOptions& options) {
  at::AutoDispatchBelowADInplaceOrView not_a_view;
  return at::empty({in_steps(n, kStepsOfMemory), width}, options).narrow(0, 0, n);
}

void take_rows_into(const Tensor& out, int64_t at, const Tensor& x, const Tensor& rows,
                    int64_t begin, int64_t n) {
  if (n == 0) return;
  if (!plain_rows(x) || !plain_rows(out)) {
    Tensor to = out.narrow(0, at, n), from = rows.narrow(0, begin, n);
    if (take_by_kernel(to, {x}, from)) return;
    Tensor missing = from.lt(0);
    if (x.scalar_type() == to.scalar_type())
      at::index_select_out(to, x, 0, from.clamp_min(0));
    else
      to.copy_(x.index_select(0, from.clamp_min(0)));
    to.masked_fill_(to.dim() > 1 ? missing.unsqueeze(1) : missing, 0);
    return;
  }
  int64_t width = x.dim() > 1 ? x.size(1) : 1;
  auto bytes = static_cast<size_t>(width) * sizeof(float);
  const float* from = x.const_data_ptr<float>();
  const int64_t* row = rows.const_data_ptr<int64_t>() + begin;
  float* to = out.mutable_data_ptr<float>() + at * width;
  at::parallel_for(0, n, rows_at_once(width), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      if (row[i] < 0)
        std::memset(to + i * width, 0, bytes);
      else
        std::memcpy(to + i * width, from + row[i] * width, bytes);
    }
  });
}

Tensor sum_plain_rows(std::span<const float* const> rows, const Tensor& place, int64_t width) {
  int64_t tokens = place.size(0), active = place.size(1);
  Tensor out = at::empty({tokens, width}, at::TensorOptions().dtype(at::kFloat));
  const int64_t* at = place.const_data_ptr<int64_t>();
  float* to = out.mutable_data_ptr<float>();
  at::parallel_for(0, tokens, rows_at_once(width * active), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      bool first = true;
      for (int64_t j = 0; j < active; ++j) {
        int64_t row = at[t * active + j];
        if (row < 0) continue;
        const float* from = rows[static_cast<size_t>(row)];
        if (first)
          std::memcpy(to + t * width, from, static_cast<size_t>(width) * sizeof(float));
        else
          add_row(to + t * width, from, width);
        first = false;
      }
      if (first) std::memset(to + t * width, 0, static_cast<size_t>(width) * sizeof(float));
    }
  });
  return out;
}

Tensor rows_together(const RowsAmong& from) {
  const int64_t rows = from.rows.size(0);
  return at::cat({from.rows.narrow(0, 0, from.first), from.others.index_select(0, from.named),
                  from.rows.narrow(0, from.first, rows - from.first)});
}

void take_among_into(const Tensor& out, const RowsAmong& from, const Tensor& index) {
  const int64_t n = index.numel();
  if (n > 0 && !take_by_kernel(out, from, index))
    take_rows_into(out, 0, rows_together(from), index, 0, n);
}

Tensor sum_among(const RowsAmong& from, const Tensor& place) {
  const at::ScalarType type = from.rows.scalar_type();
  Tensor out = sum_by_kernel(from, place, type);
  return out.defined() ? out : sum_rows(rows_together(from), place, type);
}

RowPlaces places_of_runs(std::span<const int64_t> counts, std::span<const int64_t> begins,
                         int64_t all, c10::Device device) {
  const auto runs = static_cast<int64_t>(counts.size());
  // Where each run ends among the rows that come, and how far its rows move.
  Tensor table =
      at::empty({2, runs}, at::TensorOptions().dtype(at::kLong).pinned_memory(!device.is_cpu()));
  int64_t *end = table.mutable_data_ptr<int64_t>(), *shift = end + runs;
  int64_t rows = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    shift[i] = begins[i] - rows;
    rows += counts[i];
    end[i] = rows;
  }
  table = table.to(device, /*non_blocking=*/true);
  const Tensor row = at::arange(rows, table.options());
  RowPlaces out;
  // On the right: a row is of the first run that ends behind it, which is none without rows.
  const Tensor run = at::searchsorted(table.select(0, 0), row, /*out_int32=*/false, /*right=*/true);
  out.place = row + table.select(0, 1).index_select(0, run);
  out.row = all == rows ? at::empty({all}, table.options()) : at::full({all}, -1, table.options());
  out.row.scatter_(0, out.place, row);
  return out;
}

}  // namespace detail

TensorRefs tensors_of(Routing& routing) { return {&routing.weights, &routing.indices}; }

ExpertDispatcher::~ExpertDispatcher() = default;
void* ExpertDispatcher::extension(uint32_t) { return nullptr; }

int64_t padded_rows(int64_t n) { return in_steps(n, kStepsOfProducts); }
bool pads_rows(const Tensor& x) {
  return !at::autocast::is_autocast_enabled(x.device().type()) && detail::product_is_compiled(x);
}

ExpertOrder sort_without_counts(const Tensor& indices, int64_t experts) {
  Tensor flat = indices.reshape(-1), expert;
  ExpertOrder out;
  // -1 becomes the number of experts, so that what is masked comes last.
  std::tie(expert, out.slot) =
      at::remainder(flat, experts + 1).sort(/*stable=*/true, 0, /*descending=*/false);
  out.bounds = at::searchsorted(expert, at::arange(experts + 1, flat.options()),
                                /*out_int32=*/true);
  out.token = out.slot.floor_divide(std::max<int64_t>(indices.size(1), 1));
  out.place = at::empty(flat.sizes(), flat.options())
                  .scatter_(0, out.slot, at::arange(flat.numel(), flat.options()))
                  .masked_fill_(flat.lt(0), -1)
                  .view(indices.sizes());
  return out;
}
ExpertOrder sort_by_expert(const Tensor& indices, int64_t experts, bool padded) {
  if (indices.is_cpu()) return sort_on_host(indices, experts, padded);
  if (!padded) {
    ExpertOrder order = sort_without_counts(indices, experts);
    return detail::with_counts(order, detail::counts_of(order.bounds));
  }
  ExpertOrder order = sort_on_host(indices.cpu(), experts, padded);
  for (Tensor* t : {&order.slot, &order.token, &order.place}) *t = t->to(indices.device());
  return order;
}

Tensor gather_tokens(const Tensor& x, const ExpertOrder& order) {
  return TakeRows::apply(x, order.token, order.place);
}
Tensor gather_weights(const Tensor& weights, const ExpertOrder& order) {
  Tensor flat = weights.reshape(-1);
  // What is masked has a slot there too, and no gradient.
  if (order.counts.empty()) flat = flat.masked_fill(order.place.reshape(-1).lt(0), 0);
  return flat.index_select(0, order.slot);
}
Tensor combine_tokens(const Tensor& y, const ExpertOrder& order) {
  return SumRows::apply(y, order.token, order.place, y.scalar_type());
}
Tensor detail::combine_wide(const Tensor& y, const ExpertOrder& order) {
  if (y.is_cpu())
    return combine_tokens(y.scalar_type() == at::kDouble ? y : y.to(at::kFloat), order);
  if (y.scalar_type() == at::kDouble) return combine_tokens(y, order);
  return SumRows::apply(y, order.token, order.place, at::kFloat);
}

std::shared_ptr<ExpertDispatcher> local_dispatcher() { return std::make_shared<LocalDispatcher>(); }

}  // namespace meshwright
