#include "meshwright/nn/loss.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/own_kernels.h"
#include "sdk/base/target_losses.h"
#include "sdk/base/vectorised.h"

namespace meshwright {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr float kNone = -std::numeric_limits<float>::infinity();  // the maximum of no numbers
constexpr int kLanes = 64;  // sums side by side: enough to hide their latency

// The largest value of each row, and the sum of exponentials below it. NaN is left to the sum.
MESHWRIGHT_VECTORISED void reduce_rows(const float* __restrict x, int64_t stride, int64_t rows,
                                       int64_t size, float* __restrict max, float* __restrict sum) {
  for (int64_t r = 0; r < rows; ++r, x += stride) {
    float lanes[kLanes];
    for (float& lane : lanes) lane = kNone;
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes)
      for (int j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    for (; i < size; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int j = 0; j < half; ++j)
        lanes[j] = lanes[j + half] > lanes[j] ? lanes[j + half] : lanes[j];
    max[r] = lanes[0];
    float shift = lanes[0] == kNone ? 0.0F : lanes[0];
    for (float& lane : lanes) lane = 0;
    for (i = 0; i + kLanes <= size; i += kLanes)
      for (int j = 0; j < kLanes; ++j) lanes[j] += exponential(x[i + j] - shift);
    for (int j = 0; i < size; ++i, ++j) lanes[j] += exponential(x[i] - shift);
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    sum[r] = lanes[0];
  }
}

// `out` may be `x`.
MESHWRIGHT_VECTORISED void softmax_row(const float* x, float* out, int64_t size, float shift,
                                       float scale) {
#pragma GCC ivdep
  for (int64_t i = 0; i < size; ++i) out[i] = exponential(x[i] - shift) * scale;
}

// The rows of logits and their targets, on this rank.
struct Rows {
  Tensor logits;   // [rows, columns], each row in one piece
  Tensor targets;  // [rows] int64
  Tensor weights;  // [rows] float32; undefined: all 1
  int64_t begin = 0, ignore = -100, vocabulary = 0;

  int64_t count() const { return logits.size(0); }
  int64_t columns() const { return logits.size(1); }
  at::ScalarType computed_in() const {
    return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  }
  // Loops of our own for the types that CPUs train in; ATen's operators for all else.
  bool looped() const {
    return logits.is_cpu() &&
           (logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kBFloat16);
  }
  // Column of a target, or -1 when it is another rank's or ignored.
  int64_t place(int64_t target) const {
    return target != ignore && target >= begin && target < begin + columns() ? target - begin : -1;
  }
  Tensor ignored() const { return targets.eq(ignore); }
  // body(first row, rows): as many as are converted at a time, which fit the cache on the CPU and
  // keep a device busy elsewhere.
  template <class Body>
  void each_chunk(Body&& body) const {
    int64_t elements = int64_t{1} << (logits.is_cpu() ? 17 : 25),
            step = std::max<int64_t>(elements / std::max<int64_t>(columns(), 1), 1);
    for (int64_t first = 0; first < count(); first += step)
      body(first, std::min(step, count() - first));
  }
  // body(rows in float32, their stride, room for as many results, first row, rows), over all rows
  // in parallel. The room lies in the rows of `out` if it is given, or in the rows themselves where
  // they are a copy.
  template <class Body>
  void each_float_rows(const Tensor& out, Body&& body) const {
    int64_t grain = std::max<int64_t>((int64_t{1} << 14) / std::max<int64_t>(columns(), 1), 1);
    if (logits.scalar_type() == at::kFloat) {
      const float* x = logits.const_data_ptr<float>();
      float* to = out.defined() ? out.mutable_data_ptr<float>() : nullptr;
      int64_t stride = logits.stride(0);
      at::parallel_for(0, count(), grain, [&](int64_t begin, int64_t end) {
        body(x + begin * stride, stride, to == nullptr ? to : to + begin * columns(), begin,
             end - begin);
      });
      return;
    }
    each_chunk([&](int64_t first, int64_t rows) {
      Tensor copy = logits.narrow(0, first, rows).to(at::kFloat).contiguous();
      float* x = copy.mutable_data_ptr<float>();
      at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
        body(x + begin * columns(), columns(), x + begin * columns(), first + begin, end - begin);
      });
      if (out.defined()) out.narrow(0, first, rows).copy_(copy);
    });
  }
};

// [3, rows]: largest logit, sum of exponentials below it, logit of the target or 0; over this
// rank's columns.
Tensor looped_sums(const Rows& rows) {
  Tensor sums = at::empty({3, rows.count()}, rows.logits.options().dtype(at::kFloat));
  float *max = sums.mutable_data_ptr<float>(), *sum = max + rows.count(),
        *picked = sum + rows.count();
  const int64_t* targets = rows.targets.const_data_ptr<int64_t>();
  rows.each_float_rows({},
                       [&](const float* x, int64_t stride, float*, int64_t first, int64_t count) {
                         reduce_rows(x, stride, count, rows.columns(), max + first, sum + first);
                         for (int64_t r = 0; r < count; ++r) {
                           int64_t place = rows.place(targets[first + r]);
                           picked[first + r] = place >= 0 ? x[r * stride + place] : 0.0F;
                         }
                       });
  return sums;
}

Tensor looped_gradient(const Rows& rows, const Tensor& shift, const Tensor& inverse,
                       const Tensor& grad) {
  Tensor out = at::empty({rows.count(), rows.columns()}, rows.logits.options());
  const float *m = shift.const_data_ptr<float>(), *scale = inverse.const_data_ptr<float>();
  const int64_t* targets = rows.targets.const_data_ptr<int64_t>();
  const float* weights = rows.weights.defined() ? rows.weights.const_data_ptr<float>() : nullptr;
  const float whole = grad.item<float>();
  rows.each_float_rows(
      out, [&](const float* x, int64_t stride, float* to, int64_t first, int64_t count) {
        for (int64_t r = first; r < first + count; ++r, x += stride, to += rows.columns()) {
          if (targets[r] == rows.ignore) {
            std::fill_n(to, rows.columns(), 0.0F);
            continue;
          }
          const float g = weights != nullptr ? whole * weights[r] : whole;
          softmax_row(x, to, rows.columns(), m[r], scale[r] * g);
          if (int64_t place = rows.place(targets[r]); place >= 0) to[place] -= g;
        }
      });
  return out;
}

// The same by operators, for devices and the other types.
struct Places {
  Tensor column, elsewhere;  // [rows, 1]: column of the target, 0 when it is not here; [rows]:
                             // whether it is not
  explicit Places(const Rows& rows) {
    column = rows.targets - rows.begin;
    elsewhere = column.lt(0).logical_or_(column.ge(rows.columns())).logical_or_(rows.ignored());
    column = column.masked_fill_(elsewhere, 0).unsqueeze_(1);
  }
};

Tensor operator_sums(const Rows& rows) {
  Tensor sums = at::zeros({3, rows.count()}, rows.logits.options().dtype(rows.computed_in()));
  sums.select(0, 0).fill_(kNone);
  if (rows.columns() == 0) return sums;
  Places places(rows);
  rows.each_chunk([&](int64_t first, int64_t count) {
    Tensor x = rows.logits.narrow(0, first, count).to(rows.computed_in()),
           part = sums.narrow(1, first, count);
    Tensor max = x.amax(-1);
    max.masked_fill_(max.isnan(), 0);  // NaN is left to the sum
    part.select(0, 0).copy_(max);
    part.select(0, 1).copy_((x - max.masked_fill(max.eq(kNone), 0).unsqueeze(1)).exp_().sum(-1));
    part.select(0, 2).copy_(x.gather(1, places.column.narrow(0, first, count))
                                .squeeze(1)
                                .masked_fill_(places.elsewhere.narrow(0, first, count), 0));
  });
  return sums;
}

Tensor operator_gradient(const Rows& rows, const Tensor& shift, const Tensor& inverse,
                         const Tensor& grad) {
  Tensor out = at::empty({rows.count(), rows.columns()}, rows.logits.options());
  if (rows.columns() == 0) return out;
  Places places(rows);
  const Tensor each = rows.weights.defined() ? grad * rows.weights.to(grad.scalar_type()) : grad;
  Tensor ignored = rows.ignored(), scale = inverse * each,
         target = each.neg().expand({rows.count()}).masked_fill(places.elsewhere, 0);
  rows.each_chunk([&](int64_t first, int64_t count) {
    auto column = [&](const Tensor& t) { return t.narrow(0, first, count).unsqueeze(1); };
    Tensor x = rows.logits.narrow(0, first, count).to(rows.computed_in());
    x = (x - column(shift))
            .exp_()
            .mul_(column(scale))
            .scatter_add_(1, places.column.narrow(0, first, count), column(target));
    out.narrow(0, first, count).copy_(x.masked_fill_(column(ignored), 0));
  });
  return out;
}

[[noreturn]] void refuse_target(int64_t bad, int64_t size, int64_t ignore) {
  throw Error(ErrorCode::bad_token, "the target " + std::to_string(bad) +
                                        " lies outside of the vocabulary of " +
                                        std::to_string(size) + " and is not " +
                                        std::to_string(ignore) + ", which is ignored");
}

void check_targets(const Tensor& targets, int64_t size, int64_t ignore) {
  int64_t bad = ignore;
  if (targets.is_cpu()) {
    const int64_t* ids = targets.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < targets.numel() && bad == ignore; ++i)
      if ((ids[i] < 0 || ids[i] >= size) && ids[i] != ignore) bad = ids[i];
  } else if (Tensor wrong =
                 targets.lt(0).logical_or_(targets.ge(size)).logical_and_(targets.ne(ignore));
             wrong.any().item<bool>()) {
    bad = targets.masked_select(wrong).select(0, 0).item<int64_t>();
  }
  if (bad != ignore) refuse_target(bad, size, ignore);
}

// The same on a device, by kernels of our own, in the types that have them.
std::optional<OwnKernels> kernels_for(const Rows& rows) {
  return OwnKernels::of(rows.logits, {rows.columns(), rows.logits.stride(0)});
}

// A target outside of the vocabulary that a kernel met, in memory that device and host share: the
// host does not wait for it.
constexpr int64_t kNothingMet = std::numeric_limits<int64_t>::min();
int64_t* bad_target() {
  static auto* const kept = new Tensor(  // for good: kernels may still write to it
      at::full({1}, kNothingMet, at::TensorOptions(at::kLong).pinned_memory(true)));
  return kept->mutable_data_ptr<int64_t>();
}

// Of the call before, which the words are about.
std::atomic<int64_t> last_size = 0, last_ignore = 0;

// What a call before this one met, which had no number for a loss.
void check_last_target() {
  const int64_t bad = std::atomic_ref(*bad_target()).exchange(kNothingMet);
  if (bad != kNothingMet) refuse_target(bad, last_size, last_ignore);
}

// `losses`, float64, only where all columns are here: then the first two sums are what backward
// takes, the shift and the inverse.
Tensor kernel_sums(const Rows& rows, const OwnKernels& own, const Tensor& losses) {
  Tensor sums = at::empty({3, rows.count()}, rows.logits.options().dtype(at::kFloat));
  float* max = sums.mutable_data_ptr<float>();
  own.launch("cross_entropy", rows.count(),
             kernels::CrossEntropy{
                 .logits = rows.logits.const_data_ptr(),
                 .targets = reinterpret_cast<const long long*>(rows.targets.const_data_ptr()),
                 .max = max,
                 .sum = max + rows.count(),
                 .picked = max + 2 * rows.count(),
                 .losses = losses.defined() ? losses.mutable_data_ptr<double>() : nullptr,
                 .bad = reinterpret_cast<long long*>(bad_target()),
                 .rows = rows.count(),
                 .columns = rows.columns(),
                 .stride = rows.logits.stride(0),
                 .begin = rows.begin,
                 .vocabulary = rows.vocabulary,
                 .ignore = rows.ignore});
  return sums;
}

// In the memory of the logits where nobody else can see them, now or in a second backward.
Tensor kernel_gradient(const Rows& rows, const OwnKernels& own, const Tensor& shift,
                       const Tensor& inverse, const Tensor& grad, bool ours) {
  Tensor out = ours && rows.logits.is_contiguous()
                   ? rows.logits
                   : at::empty({rows.count(), rows.columns()}, rows.logits.options());
  own.launch("cross_entropy_backward", rows.count(),
             kernels::CrossEntropyBackward{
                 .logits = rows.logits.const_data_ptr(),
                 .targets = reinterpret_cast<const long long*>(rows.targets.const_data_ptr()),
                 .shift = shift.const_data_ptr<float>(),
                 .inverse = inverse.const_data_ptr<float>(),
                 .grad = grad.const_data_ptr<float>(),
                 .out = out.mutable_data_ptr(),
                 .rows = rows.count(),
                 .columns = rows.columns(),
                 .stride = rows.logits.stride(0),
                 .begin = rows.begin,
                 .ignore = rows.ignore});
  return out;
}

struct CrossEntropySum : torch::autograd::Function<CrossEntropySum> {
  static Tensor forward(AutogradContext* context, const Tensor& logits, const Tensor& targets,
                        int64_t begin, int64_t vocabulary, Group* group, int64_t ignore,
                        const std::optional<Tensor>& weighed) {
    const Tensor weights = weighed.value_or(Tensor());
    Tensor flat = logits.reshape({targets.numel(), logits.size(-1)});
    if (flat.size(1) > 1 && flat.stride(1) != 1) flat = flat.contiguous();
    Rows rows{flat, targets, weights, begin, ignore, vocabulary};
    const std::optional<OwnKernels> own = kernels_for(rows);
    if (own) rows.logits = own->readable_rows(rows.logits);
    if (own) {
      check_last_target();
      last_size = vocabulary;
      last_ignore = ignore;
    } else {
      check_targets(targets, vocabulary, ignore);
    }
    context->saved_data["begin"] = begin;
    context->saved_data["ignore"] = ignore;
    context->saved_data["shape"] = logits.sizes();
    Tensor losses, sums;
    if (own) {
      if (group == nullptr) losses = at::empty({rows.count()}, flat.options().dtype(at::kDouble));
      sums = kernel_sums(rows, *own, losses);
    } else {
      sums = rows.looped() ? looped_sums(rows) : operator_sums(rows);
    }
    Tensor max = sums.select(0, 0), sum = sums.select(0, 1), picked = sums.select(0, 2),
           shift = max;
    // Without what autograd knows of it, which would hold the logits themselves; but a change of
    // theirs in place shows.
    auto keep = [&](const Tensor& inverse) {
      Tensor kept = rows.logits;
      if (own) {
        kept = rows.logits.tensor_data();
        torch::autograd::impl::set_version_counter(
            kept, torch::autograd::impl::version_counter(rows.logits));
      }
      context->save_for_backward({kept, targets, shift, inverse, weights});
    };
    auto summed = [&] {
      const Tensor each = weights.defined() ? losses * weights : losses;
      if (detail::TargetLosses* kept = detail::TargetLosses::kept(); kept != nullptr)
        kept->losses = each;
      return each.sum().to(rows.computed_in());
    };
    if (losses.defined()) {
      keep(sum);
      return summed();
    }
    if (group != nullptr) {
      shift = max.clone();
      group->all_reduce(shift, ReduceOp::max).wait();
    }
    shift = shift.masked_fill(shift.eq(kNone), 0);
    if (group != nullptr) {
      sum.mul_((max - shift).exp_());  // 0 where this rank has no columns
      group->all_reduce(sums.narrow(0, 1, 2)).wait();
    }
    losses = sum.to(at::kDouble).log().add_(shift).sub_(picked).masked_fill_(rows.ignored(), 0);
    keep(sum.reciprocal());
    return summed();
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list saved = context->get_saved_variables();
    Rows rows{saved[0], saved[1], saved[4], context->saved_data["begin"].toInt(),
              context->saved_data["ignore"].toInt()};
    const Tensor &shift = saved[2], &inverse = saved[3], &grad = grads[0];
    Tensor out;
    if (const std::optional<OwnKernels> own = kernels_for(rows)) {
      OwnKernels::refuse_second_derivative();
      const bool ours = rows.logits.storage().use_count() == 1 &&
                        !torch::autograd::get_current_graph_task_keep_graph();
      out = kernel_gradient(rows, *own, shift, inverse, grad, ours);
      if (rows.weights.defined()) out.mul_(rows.weights.unsqueeze(1));
    } else {
      out = rows.looped() ? looped_gradient(rows, shift, inverse, grad)
                          : operator_gradient(rows, shift, inverse, grad);
    }
    return {out.view(context->saved_data["shape"].toIntVector()), {}, {}, {}, {}, {}, {}};
  }
};

void check_shapes(const Tensor& logits, const Tensor& targets, const VocabularyShard* shard,
                  const Tensor& weights) {
  auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::model_does_not_fit, "cross_entropy_sum: " + what);
  };
  if (logits.dim() == 0 ||
      logits.sizes().slice(0, static_cast<size_t>(logits.dim() - 1)) != targets.sizes())
    refuse("logits of shape " + c10::str(logits.sizes()) +
           " want targets of the same shape without the last dimension, not " +
           c10::str(targets.sizes()));
  if (!logits.is_floating_point() || targets.scalar_type() != at::kLong ||
      logits.device() != targets.device())
    refuse(std::string("logits are ") + c10::toString(logits.scalar_type()) + " on " +
           logits.device().str() + ", targets " + c10::toString(targets.scalar_type()) + " on " +
           targets.device().str() + "; they must be floats and Long on one device");
  if (weights.defined() &&
      (weights.sizes() != targets.sizes() || weights.scalar_type() != at::kFloat ||
       weights.device() != targets.device() || weights.requires_grad()))
    refuse("targets of shape " + c10::str(targets.sizes()) + " on " + targets.device().str() +
           " want weights of that shape there, Float and without gradients, not " +
           c10::toString(weights.scalar_type()) + " of shape " + c10::str(weights.sizes()) +
           " on " + weights.device().str());
  if (shard == nullptr) return;
  if (shard->begin < 0 || shard->end < shard->begin || shard->end > shard->size ||
      logits.size(-1) != shard->end - shard->begin)
    refuse("logits of shape " + c10::str(logits.sizes()) + " do not hold the ids from " +
           std::to_string(shard->begin) + " to " + std::to_string(shard->end) + " of " +
           std::to_string(shard->size));
}

}  // namespace

VocabularyShard VocabularyShard::of(std::shared_ptr<Group> group, int64_t size) {
  Chunk chunk = ceil_chunk(size, group->size(), group->rank());
  return {std::move(group), chunk.begin, chunk.end, size};
}

void throw_bad_target() {
  if (last_size > 0) check_last_target();
}

Tensor cross_entropy_sum(const Tensor& logits, const Tensor& targets, const VocabularyShard* shard,
                         int64_t ignore_index, const Tensor& weights) {
  check_shapes(logits, targets, shard, weights);
  Tensor ids = targets.reshape({-1}).contiguous();
  Group* group =
      shard != nullptr && shard->group && shard->group->size() > 1 ? shard->group.get() : nullptr;
  std::optional<Tensor> flat_weights;  // autograd takes no tensor that is not there
  if (weights.defined()) flat_weights = weights.reshape({-1}).contiguous();
  Tensor sum = CrossEntropySum::apply(logits, ids, shard != nullptr ? shard->begin : 0,
                                      shard != nullptr ? shard->size : logits.size(-1), group,
                                      ignore_index, flat_weights);
  if (detail::TargetLosses* kept = detail::TargetLosses::kept(); kept != nullptr) kept->sum = sum;
  return sum;
}

namespace detail {

static thread_local TargetLosses* target_losses = nullptr;

TargetLosses::TargetLosses() { target_losses = this; }
TargetLosses::~TargetLosses() { target_losses = nullptr; }
TargetLosses* TargetLosses::kept() { return target_losses; }
Tensor TargetLosses::of(const Tensor& of_sum) const {
  return sum.defined() && of_sum.is_same(sum) ? losses : Tensor();
}

}  // namespace detail

}  // namespace meshwright
