#include <algorithm>
#include <cmath>

#include "apps/performance/steptime/kernels.h"
#include "apps/performance/steptime/predict.h"

namespace meshwright::steptime {
namespace {

Precision precision_of(const Job& job, bool fp8) {
  if (fp8) return Precision::fp8;
  if (job.width <= 2) return Precision::half;
  return job.tf32 ? Precision::tf32 : Precision::full;
}

struct Both {
  double forward = 0, backward = 0;
};

// Whether a product is in fp8. `each`: columns of one weight, where several stand beside each
// other.
bool fits_fp8(const Job& job, const Product& p, double each) {
  constexpr double kMultiple = 16;  // what the engine's products take
  if (!job.fp8 || !job.engine_casts) return job.fp8;
  return std::fmod(p.inner, kMultiple) == 0 && std::fmod(each, kMultiple) == 0;
}

// Of a product in fp8, the casts of its matrices; each Linear casts its own input. `trained`: the
// share of its weights that have a gradient.
Both casts(const Machine& machine, const Job& job, const Product& p, double trained,
           double linears) {
  if (!job.engine_casts) {
    const double bytes = job.fusion == Fusion::fused ? 2 : 4;
    return {elementwise(machine, bytes * p.rows * p.inner),
            elementwise(machine, bytes * p.rows * p.columns)};
  }
  // Each kernel reads and writes: the largest element is looked for, a copy in float32 is made and
  // scaled, and that is cast. Backward has them again, and lays matrices out the other way.
  constexpr double kScaled = 8, kCast = 5, kTurned = 2;
  const double each = job.width + (job.width < 4 ? job.width + 4 : 0) + kScaled + kCast;
  const double input = linears * p.rows * p.inner, weight = p.columns * p.inner,
               result = p.rows * p.columns;
  return {elementwise(machine, each * (input + weight)),
          elementwise(machine, each * (result + weight) + kTurned * weight +
                                   trained * (each * input + kTurned * (input + result)))};
}

// A Linear of a rank with its gradients, those of weights as often as `frozen` says; fp8 casts its
// matrices, and adapters read and write both ends once more. `each`: see fits_fp8(); 0: all
// columns. `linears`: how many they are of.
Both linear(const Machine& machine, const Job& job, const Product& p, const Frozen& frozen = {},
            double each = 0, double linears = 1) {
  const bool fp8 = fits_fp8(job, p, each > 0 ? each : p.columns);
  const Precision precision = precision_of(job, fp8);
  const double input = seconds_of(machine, {p.rows, p.inner, p.columns}, precision);
  const double weight = seconds_of(machine, {p.columns, p.inner, p.rows}, precision);
  const double trained = job.lora ? 0 : 1 - frozen.products;
  Both out{seconds_of(machine, p, precision), input + trained * weight};
  if (fp8) {
    const Both more = casts(machine, job, p, trained, linears);
    out.forward += more.forward;
    out.backward += more.backward;
  }
  if (const double adapted = job.lora ? 1 : frozen.adapted; adapted > 0) {
    const double extra = elementwise(machine, adapted * 10 * p.rows * (p.inner + p.columns));
    out.forward += extra;
    out.backward += extra;
  }
  return out;
}

// Bytes a token of the kernels between the products, forward.
double element_bytes(const Shape& shape, const Job& job, double hs, double q, double kv, double f) {
  if (shape.gated) switch (job.fusion) {
      case Fusion::eager:
        return 80 * hs + 28 * q + 24 * kv + 10 * f;
      case Fusion::compiled:
        return 16 * hs + 8 * q + 4 * kv + 6 * f;
      case Fusion::fused:
        return 20 * hs + 4 * (q + kv) + 6 * f;
    }
  return 20 * hs + 4 * f + (job.fusion == Fusion::fused ? 4 : 8) * q;
}

struct Widths {
  double hidden_kept, q, kv, f;
};
Widths widths_of(const Shape& shape, const Job& job) {
  return {job.sequence_parallel ? shape.hidden / job.tp : shape.hidden,
          shape.heads * shape.head_dim / job.tp,
          std::max(1.0, shape.kv_heads / job.tp) * shape.head_dim, shape.ffn / job.tp};
}

// Exchanges of a layer over tp: of forward, of backward, of a whole forward done again.
struct Exchanges {
  double forward = 0, backward = 0, again = 0, again_products = 0;
};

Exchanges tensor_exchanges(const Machine& machine, const Shape& shape, const Job& job) {
  if (job.tp <= 1) return {};
  const Group group{job.tp, 1, job.ranks_per_host, job.ranks};
  const double payload = job.width * job.tokens() * shape.hidden;
  Exchanges out;
  if (!job.sequence_parallel) {
    const double one = all_reduce(machine, group, payload);
    out = {2 * one, (job.separate_columns ? 5 : 2) * one, one, 0};
  } else {
    double one = all_gather(machine, group, payload);
    if (job.fp8 && job.copies_exchanges) one *= 0.75;
    if (job.copies_exchanges && job.micro_batch >= 2)
      one += elementwise(machine, 2 * job.width * job.tokens() * shape.hidden);
    const double count = job.separate_columns ? 7 : 4;
    out = {count * one, (count + (job.regathers ? 1 : 0)) * one, (count - 1) * one, 2 * one};
  }
  double left = 1;
  if (job.async_tp == AsyncTp::torch) left = machine.overlap.async_tp;
  if (job.async_tp == AsyncTp::buffers) left = machine.overlap.async_tp_buffers;
  for (double* part : {&out.forward, &out.backward, &out.again, &out.again_products}) *part *= left;
  return out;
}

Exchanges context_exchanges(const Machine& machine, const Job& job, double kv, const Core& core) {
  if (job.cp <= 1) return {};
  const Group group{job.cp, job.tp, job.ranks_per_host, job.ranks};
  const double keys = job.width * 2 * kv * job.micro_batch * job.length;  // keys and values, whole
  const double gathered = all_gather(machine, group, keys);
  if (job.context == ContextWay::gather)
    return {gathered, 2 * gathered + reduce_scatter(machine, group, keys), gathered, 0};
  const double forward = exposed_ring(machine, gathered, core.forward);
  Exchanges out{forward, exposed_ring(machine, 2 * gathered, core.backward), forward, 0};
  if (job.context == ContextWay::torch_ring) {
    const double split = 0.05 * (job.cp - 1);
    out.forward += split * core.forward;
    out.backward += split * core.backward;
    out.again += split * core.forward;
  }
  return out;
}

// The mlp of a layer, experts or not.
struct Mlp {
  Both up, down;
  double bytes = 0;  // of kernels beyond those of a dense layer
};

Both add(const Both& a, const Both& b, double weight = 1) {
  return {a.forward + weight * b.forward, a.backward + weight * b.backward};
}

Mlp experts(const Machine& machine, const Shape& shape, const Job& job) {
  const double held = shape.experts / job.ep, copies = job.tokens() * shape.experts_a_token;
  const double rows = copies * job.ep / shape.experts;
  // Grouped: all experts of a rank in one launch, so waves fill over all of them.
  const Frozen& frozen = shape.frozen;
  Job grouped = job;
  grouped.fp8 = job.fp8 && !job.engine_casts;
  const Both up =
      linear(machine, grouped, {held * rows, 2 * shape.expert_ffn, shape.hidden}, frozen);
  const Both down = linear(machine, grouped, {held * rows, shape.hidden, shape.expert_ffn}, frozen);
  constexpr double kGrouped = 0.90;
  Mlp out{{up.forward / kGrouped, up.backward / kGrouped},
          {down.forward / kGrouped, down.backward / kGrouped},
          copies * (8 * shape.hidden + 6 * shape.expert_ffn)};
  if (shape.shared_ffn > 0) {
    out.up = add(out.up, linear(machine, job, {job.tokens(), 2 * shape.shared_ffn, shape.hidden},
                                frozen, shape.shared_ffn, 2));
    out.down =
        add(out.down, linear(machine, job, {job.tokens(), shape.hidden, shape.shared_ffn}, frozen));
  }
  return out;
}

Mlp mlp_of(const Machine& machine, const Shape& shape, const Job& job, double f) {
  const double sparse = shape.experts > 0 ? (shape.layers - shape.dense_layers) / shape.layers : 0;
  Mlp out;
  if (sparse < 1) {
    const Frozen& frozen = shape.frozen;
    out.up = linear(machine, job, {job.tokens(), (shape.gated ? 2 : 1) * f, shape.hidden}, frozen,
                    f, shape.gated ? 2 : 1);
    out.down = linear(machine, job, {job.tokens(), shape.hidden, f}, frozen);
  }
  if (sparse > 0) {
    const Mlp moe = experts(machine, shape, job);
    out.up = add({out.up.forward * (1 - sparse), out.up.backward * (1 - sparse)}, moe.up, sparse);
    out.down =
        add({out.down.forward * (1 - sparse), out.down.backward * (1 - sparse)}, moe.down, sparse);
    out.bytes = sparse * moe.bytes;
  }
  return out;
}

double expert_exchange(const Machine& machine, const Shape& shape, const Job& job) {
  if (job.ep <= 1 || shape.experts <= 0) return 0;
  const double sparse = (shape.layers - shape.dense_layers) / shape.layers;
  return sparse * dispatch(machine, {job.ep, 1, job.ranks_per_host, job.ranks}, job.tokens(),
                           shape.experts_a_token, job.width * shape.hidden);
}

// Of an entry of the logits, both ways.
double loss_bytes(Loss loss) {
  switch (loss) {
    case Loss::plain:
      return 30;
    case Loss::compiled:
      return 14;
    case Loss::fused:
      return 24;
    case Loss::unfused_parallel:
      return 52;
  }
  return 0;
}

double device_time(const Parts& p) {
  return p.products + p.attention + p.elementwise + p.recompute + p.tp + p.cp + p.ep;
}

}  // namespace

double Parts::sum() const {
  return products + attention + elementwise + recompute + tp + cp + ep + shard + bubble +
         optimizer + host + stragglers;
}

LayerTime layer_time(const Machine& machine, const Shape& shape, const Job& job) {
  const double T = job.tokens(), h = shape.hidden;
  const Widths w = widths_of(shape, job);
  const Frozen& frozen = shape.frozen;
  const Both qkv = linear(machine, job, {T, w.q + 2 * w.kv, h}, frozen, w.kv, 3);
  const Both o = linear(machine, job, {T, h, w.q}, frozen);
  const Mlp mlp = mlp_of(machine, shape, job, w.f);
  const Core core = attention_core(machine, job, w.q / shape.head_dim, shape.head_dim);
  const double between = elementwise(
      machine,
      job.width / 2 *
          (T * element_bytes(shape, job, w.hidden_kept, w.q, w.kv,
                             shape.experts > 0 ? w.f * shape.dense_layers / shape.layers : w.f) +
           mlp.bytes));
  const Exchanges tp = tensor_exchanges(machine, shape, job),
                  cp = context_exchanges(machine, job, w.kv, core);
  const double ep = expert_exchange(machine, shape, job);

  LayerTime out;
  Parts &f = out.forward, &b = out.backward;
  f.products = qkv.forward + o.forward + mlp.up.forward + mlp.down.forward;
  b.products = qkv.backward + o.backward + mlp.up.backward + mlp.down.backward;
  f.attention = core.forward;
  b.attention = core.backward;
  f.elementwise = between;
  b.elementwise = 2 * between;
  f.tp = tp.forward;
  b.tp = tp.backward;
  f.cp = cp.forward;
  b.cp = cp.backward;
  f.ep = b.ep = 2 * ep;

  const double share = job.recomputed_layers;
  double again_host = 0;
  switch (job.recompute) {
    case Recompute::none:
      break;
    case Recompute::full:
      b.recompute = share * (f.products - mlp.down.forward + core.forward + between);
      b.tp += share * tp.again;
      b.cp += share * cp.again;
      b.ep += share * 2 * ep;
      again_host = share;
      break;
    case Recompute::selective:  // the mlp but its last product, and the norms
      b.recompute = share * (mlp.up.forward + 0.7 * between);
      b.tp += share * tp.again_products / 2;
      again_host = share / 2;
      break;
    case Recompute::products: {  // k, o, up, and all between
      const Both k = linear(machine, job, {T, w.kv, h});
      b.recompute = share * (k.forward + o.forward + mlp.up.forward / 2 + between);
      b.tp += share * tp.again_products;
      again_host = share / 2;
      break;
    }
    case Recompute::attention:
      b.recompute = share * core.forward;
      break;
  }

  // What a plan gives counts the exchanges that are done again already.
  if (job.tp_seconds >= 0) f.tp = b.tp = job.tp_seconds / 2;
  if (job.cp_seconds >= 0) f.cp = b.cp = job.cp_seconds / 2;
  if (job.ep_seconds >= 0) f.ep = b.ep = job.ep_seconds / 2;

  const double host_forward = job.host_forward > 0 ? job.host_forward : machine.host.layer_forward;
  const double host_backward =
      job.host_backward > 0 ? job.host_backward : machine.host.layer_backward;
  f.host = std::max(0.0, host_forward - device_time(f));
  b.host = std::max(0.0, host_backward + again_host * host_forward - device_time(b));
  return out;
}

EndTime end_time(const Machine& machine, const Shape& shape, const Job& job) {
  const double T = job.tokens(), h = shape.hidden;
  const double words = job.head_cut ? shape.vocabulary / job.tp : shape.vocabulary;
  EndTime out;
  out.embedding_forward.elementwise = elementwise(machine, 4 * h * T);
  if (shape.frozen.layers == 0)
    out.embedding_backward.elementwise = elementwise(machine, 8 * h * T);
  Job plain = job;  // the head stays in the wider type
  plain.fp8 = plain.lora = false;
  const Both head = linear(machine, plain, {T, shape.vocabulary / job.tp, h});
  out.head_forward.products = head.forward;
  // Its two products are about as long.
  out.head_backward.products =
      head.backward * ((shape.frozen.head ? 0 : 0.5) + (shape.frozen.head_input ? 0 : 0.5));
  out.head_forward.elementwise = elementwise(machine, loss_bytes(job.loss) * T * words / 2);
  out.head_backward.elementwise = out.head_forward.elementwise;
  if (job.tp > 1 && job.tp_seconds < 0) {
    const Group group{job.tp, 1, job.ranks_per_host, job.ranks};
    const double payload = job.width * T * h, one = all_gather(machine, group, payload);
    if (job.head_cut) out.embedding_forward.tp = out.embedding_backward.tp = one;
    out.head_forward.tp = out.head_backward.tp = one;
    if (!job.head_cut) {
      const double copied = elementwise(machine, 4 * T * words);
      out.head_forward.tp += all_gather(machine, group, job.width * T * words) + copied;
      out.head_backward.tp += copied;
    }
  }
  return out;
}

}  // namespace meshwright::steptime
