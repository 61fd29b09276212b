#include "meshwright/nn/attention.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "attention_blocks.h"
#include "attention_kernel.h"
#include "attention_parts.h"
#include "meshwright/error.h"
#include "sdk/base/attention_cache.h"

namespace meshwright {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local std::shared_ptr<const Sequence> sequence_of_thread;

// The heads' elements dense, whatever the other strides.
Tensor with_dense_heads(const Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); }

std::vector<PositionRun> runs_of(const Sequence* sequence, int64_t rows) {
  if (sequence == nullptr || sequence->rows.empty()) return {{0, rows}};
  int64_t count = 0;
  for (const PositionRun& run : sequence->rows) count += run.count;
  if (count != rows)
    throw Error(ErrorCode::bad_module, "attention got " + std::to_string(rows) +
                                           " rows of each sample, but the sequence around it has " +
                                           std::to_string(count))
        .help("make the SequenceScope for the tokens that the model is called with");
  return sequence->rows;
}

// All rows are here. Without dropout.
struct LocalAttention : torch::autograd::Function<LocalAttention> {
  static Tensor forward(AutogradContext* context, const Tensor& given_query,
                        const Tensor& given_key, const Tensor& given_value,
                        const AttentionOptions& options,
                        const std::shared_ptr<const Sequence>& sequence) {
    Tensor query = with_dense_heads(given_query), key = with_dense_heads(given_key),
           value = with_dense_heads(given_value);
    std::vector<PositionRun> runs = runs_of(sequence.get(), query.size(1));
    Tensor documents = sequence ? sequence->documents : Tensor();
    auto [out, lse] = detail::attend_own(options, documents, runs, query, key, value);
    context->save_for_backward({query, key, value, out, lse, documents});
    context->saved_data["scale"] = options.scale;
    context->saved_data["window"] = options.window;
    std::vector<int64_t> flat;
    for (const PositionRun& run : runs) flat.insert(flat.end(), {run.position, run.count});
    context->saved_data["runs"] = flat;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list saved = context->get_saved_variables();
    AttentionOptions options{.scale = context->saved_data["scale"].toDouble(),
                             .window = context->saved_data["window"].toInt()};
    std::vector<PositionRun> runs;
    std::vector<int64_t> flat = context->saved_data["runs"].toIntVector();
    for (size_t i = 0; i < flat.size(); i += 2) runs.push_back({flat[i], flat[i + 1]});
    auto [to_query, to_key, to_value] =
        detail::attend_own_backward(options, saved[5], runs, saved[0], saved[1], saved[2], saved[3],
                                    saved[4], with_dense_heads(grads[0]));
    return {to_query, to_key, to_value, Tensor(), Tensor()};
  }
};

// Added to the scores of LibTorch's attention: nothing for what a query sees, minus infinity for
// the rest. [rows, rows], or [batch, 1, rows, rows] with documents.
Tensor mask_of(const Tensor& like, int64_t window, const Sequence* sequence) {
  const int64_t rows = like.size(1);
  c10::NoGradGuard no_grad;
  at::TensorOptions integers = like.options().dtype(at::kLong);
  Tensor position = at::arange(rows, integers);
  if (sequence != nullptr && !sequence->rows.empty()) {
    int64_t row = 0;
    for (const PositionRun& run : runs_of(sequence, rows)) {
      position.narrow(0, row, run.count)
          .copy_(at::arange(run.position, run.position + run.count, integers));
      row += run.count;
    }
  }
  Tensor back = position.unsqueeze(1) - position;  // how far a key lies before a query
  Tensor seen = back >= 0;
  if (window > 0) seen = seen.logical_and(back < window);
  if (sequence != nullptr && sequence->documents.defined()) {
    Tensor document = sequence->documents.to(like.device()).index_select(1, position);
    seen = seen.logical_and(document.unsqueeze(2) == document.unsqueeze(1)).unsqueeze(1);
  }
  return at::zeros(seen.sizes(), like.options())
      .masked_fill_(seen.logical_not(), -std::numeric_limits<double>::infinity());
}

// The mask of the last forward of this thread: all layers of a model share it.
Tensor kept_mask(const Tensor& like, int64_t window,
                 const std::shared_ptr<const Sequence>& sequence) {
  struct Kept {
    int64_t rows, window;
    std::shared_ptr<const Sequence> sequence;
    Tensor mask;
  };
  static thread_local std::vector<Kept> kept;
  for (const Kept& k : kept)
    if (k.rows == like.size(1) && k.window == window && k.sequence == sequence &&
        k.mask.device() == like.device() && k.mask.scalar_type() == like.scalar_type())
      return k.mask;
  constexpr size_t kKept = 4;  // training and validation lengths; sampling goes through many
  if (kept.size() == kKept) kept.erase(kept.begin());
  return kept
      .emplace_back(Kept{like.size(1), window, sequence, mask_of(like, window, sequence.get())})
      .mask;
}

// Somebody has said that these rows are all positions, as generation does on every rank.
bool has_whole_samples(const Sequence* sequence, int64_t rows) {
  // A rank of cp whose part is all of a sample has padding on the others, and counts.
  return sequence != nullptr && sequence->length == rows && !sequence->counts.defined() &&
         sequence->rows == std::vector<PositionRun>{{0, rows}};
}

// The kernel reads memory as these say.
void check(const Tensor& query, const Tensor& key, const Tensor& value, const Sequence* sequence) {
  auto refuse = [](const std::string& what, const std::string& help) {
    return Error(ErrorCode::bad_module, "attention: " + what).help(help);
  };
  if (query.dim() != 4 || key.dim() != 4 || key.sizes() != value.sizes())
    throw refuse(
        "queries, keys and values are [batch, rows, heads, head_dim], keys and values alike",
        "reshape projections to [batch, rows, heads, head_dim]");
  if (key.size(0) != query.size(0) || key.size(1) != query.size(1) || key.size(3) != query.size(3))
    throw refuse("queries and keys have other batches, rows or head sizes",
                 "project queries and keys from the same rows, to heads of one size");
  if (key.size(2) == 0 || query.size(2) % key.size(2) != 0)
    throw refuse(std::to_string(query.size(2)) + " query heads are no multiple of " +
                     std::to_string(key.size(2)) + " key-value heads",
                 "let a number of query heads that is the same for each share a key-value head");
  if (!at::autocast::is_autocast_enabled(query.device().type()) &&
      (key.scalar_type() != query.scalar_type() || value.scalar_type() != query.scalar_type()))
    throw refuse("queries, keys and values have different dtypes",
                 "cast them to one dtype before the core");
  if (sequence == nullptr || !sequence->documents.defined()) return;
  int64_t end = query.size(1);
  for (const PositionRun& run : sequence->rows) end = std::max(end, run.position + run.count);
  const Tensor& documents = sequence->documents;
  if (documents.dim() != 2 || documents.scalar_type() != at::kInt ||
      documents.size(0) != query.size(0) || documents.size(1) < end || documents.stride(1) != 1)
    throw refuse("the documents of the sequence are not int32, one for each position of " +
                     std::to_string(query.size(0)) + " samples",
                 "make Sequence::documents [" + std::to_string(query.size(0)) + ", " +
                     std::to_string(end) + "] of int32, rows dense");
}

bool plain(const Tensor& t) { return detail::attends(t) && t.numel() > 0; }

}  // namespace

SequenceScope::SequenceScope(std::shared_ptr<const Sequence> sequence)
    : outer_(std::move(sequence_of_thread)) {
  sequence_of_thread = std::move(sequence);
}
SequenceScope::~SequenceScope() { sequence_of_thread = std::move(outer_); }

std::shared_ptr<const Sequence> current_sequence() { return sequence_of_thread; }

Tensor current_positions(const Tensor& ids, int64_t end) {
  const auto& sequence = sequence_of_thread;
  if (sequence && sequence->positions.defined())
    return sequence->positions.to(ids.device()).clamp_max(end - 1);
  if (!sequence || sequence->rows.empty())
    return at::arange(ids.size(1), ids.options()).unsqueeze(0);
  std::vector<Tensor> runs;
  for (const PositionRun& run : sequence->rows)
    runs.push_back(at::arange(run.position, run.position + run.count, ids.options()));
  return at::cat(runs).clamp_max(end - 1).unsqueeze(0);
}

AttentionMethod::~AttentionMethod() = default;
void* AttentionMethod::extension(uint32_t) { return nullptr; }

AttentionCoreImpl::AttentionCoreImpl(AttentionOptions options) : options_(options) {}
AttentionCoreImpl::~AttentionCoreImpl() = default;

Tensor AttentionCoreImpl::forward(const Tensor& query, const Tensor& key, const Tensor& value) {
  AttentionOptions options = options_;
  if (!is_training()) options.dropout = 0;
  std::shared_ptr<const Sequence> sequence = current_sequence();
  check(query, key, value, sequence.get());
  if (Tensor kept = detail::KeyValueScope::attend(*this, query, key, value); kept.defined())
    return kept;
  if (method_ && !has_whole_samples(sequence.get(), query.size(1)))
    return method_->forward(query, key, value, options, sequence);
  // One document in order needs no mask, whatever else the sequence says.
  if (sequence && !sequence->documents.defined() &&
      runs_of(sequence.get(), query.size(1)) == std::vector<PositionRun>{{0, query.size(1)}})
    sequence = nullptr;
  if (!sequence && options.window >= query.size(1)) options.window = 0;
  if (options.dropout == 0) {
    Tensor q = detail::as_autocast(query), k = detail::as_autocast(key),
           v = detail::as_autocast(value);
    if (plain(q) && plain(k) && plain(v)) return LocalAttention::apply(q, k, v, options, sequence);
  }
  std::optional<Tensor> mask;
  if (options.window > 0 || sequence) mask = kept_mask(query, options.window, sequence);
  return at::scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2),
                                          value.transpose(1, 2), mask, options.dropout,
                                          /*is_causal=*/!mask.has_value(), options.scale,
                                          query.size(2) != key.size(2))
      .transpose(1, 2);
}

std::vector<std::pair<std::string, AttentionCoreImpl*>> find_attention_cores(
    torch::nn::Module& model) {
  std::vector<std::pair<std::string, AttentionCoreImpl*>> out;
  for (const auto& item : model.named_modules("", /*include_self=*/true))
    if (auto* core = dynamic_cast<AttentionCoreImpl*>(item.value().get()))
      out.emplace_back(item.key(), core);
  return out;
}

namespace detail {

namespace {

template <class T>
HeadView<T> head_view(const Tensor& x, int64_t batch, int64_t head) {
  if (!x.defined()) return {};
  auto* data = static_cast<std::remove_const_t<T>*>(const_cast<void*>(x.const_data_ptr()));
  return {data + batch * x.stride(0) + head * x.stride(2), x.stride(1), x.stride(2)};
}
template <class T>
RowView<T> row_view(const Tensor& x, int64_t batch, int64_t head) {
  if (!x.defined()) return {};
  auto* data = static_cast<std::remove_const_t<T>*>(const_cast<void*>(x.const_data_ptr()));
  return {data + batch * x.stride(0) + head * x.stride(1), x.stride(1)};
}
template <class T>
HeadView<T> from_row(HeadView<T> view, int64_t row) {
  if (view.data != nullptr) view.data += row * view.row;
  return view;
}
const int32_t* documents_at(const Tensor& documents, int64_t batch, int64_t position) {
  if (!documents.defined()) return nullptr;
  return documents.const_data_ptr<int32_t>() + batch * documents.stride(0) + position;
}

// One call of the kernel: a sample and a key-value head, and of a forward a part of the queries.
template <class T>
struct Call {
  using Compute = AttentionCompute<T>;
  std::vector<QueryRun<T>> queries;
  std::vector<KeyRun<T>> keys;

  void fill(const Tensor& documents, const std::vector<QueryPart>& query_parts,
            const std::vector<KeyPart>& key_parts, int64_t batch, int64_t head, int64_t group) {
    queries.clear();
    keys.clear();
    for (const QueryPart& part : query_parts) {
      QueryRun<T> all;  // the part's rows
      all.q = head_view<const T>(part.query, batch, head * group);
      all.out = head_view<T>(part.out, batch, head * group);
      all.partial = head_view<Compute>(part.partial, batch, head * group);
      all.lse = row_view<Compute>(part.lse, batch, head * group);
      all.grad = head_view<const T>(part.grad, batch, head * group);
      all.delta = row_view<const Compute>(part.delta, batch, head * group);
      all.dq = head_view<Compute>(part.to_query, batch, head * group);
      all.first = part.first;
      int64_t row = 0;
      for (const PositionRun& at : part.runs) {
        QueryRun<T> run = rows_of(all, row, at.count);
        run.position = at.position;
        run.documents = documents_at(documents, batch, at.position);
        queries.push_back(run);
        row += at.count;
      }
    }
    for (const KeyPart& part : key_parts) {
      int64_t row = 0;
      for (const PositionRun& at : part.runs) {
        KeyRun<T> run;
        run.position = at.position;
        run.count = at.count;
        run.documents = documents_at(documents, batch, at.position);
        run.k = from_row(head_view<const T>(part.key, batch, head), row);
        run.v = from_row(head_view<const T>(part.value, batch, head), row);
        run.dk = from_row(head_view<Compute>(part.to_key, batch, head), row);
        run.dv = from_row(head_view<Compute>(part.to_value, batch, head), row);
        run.first = part.first;
        keys.push_back(run);
        row += at.count;
      }
    }
    std::sort(keys.begin(), keys.end(),
              [](const KeyRun<T>& a, const KeyRun<T>& b) { return a.position < b.position; });
  }
  // Only share `index` of `count` of every run's rows.
  void keep_share(int64_t index, int64_t count) {
    for (QueryRun<T>& run : queries) {
      int64_t begin = run.count * index / count, end = run.count * (index + 1) / count;
      run = rows_of(run, begin, end - begin);
    }
    std::erase_if(queries, [](const QueryRun<T>& run) { return run.count == 0; });
  }
};

template <class F>
void for_each_type(const Tensor& query, F&& f) {
  switch (query.scalar_type()) {
    case at::kDouble:
      return f(double{});
    case at::kBFloat16:
      return f(c10::BFloat16{});
    default:
      return f(float{});
  }
}

AttentionShape shape_of(const AttentionOptions& options, const std::vector<QueryPart>& queries,
                        const std::vector<KeyPart>& keys) {
  AttentionShape shape;
  shape.head_dim = queries.front().query.size(3);
  shape.group = queries.front().query.size(2) / keys.front().key.size(2);
  shape.scale = options.scale;
  shape.window = options.window;
  return shape;
}

}  // namespace

bool has_attention_kernel(const Tensor& query) {
  at::ScalarType type = query.scalar_type();
  return attention_operators(query) == nullptr && query.is_cpu() &&
         (type == at::kFloat || type == at::kDouble || type == at::kBFloat16);
}

bool attends(const Tensor& query) {
  return attention_operators(query) != nullptr || has_attention_kernel(query);
}

Tensor as_autocast(const Tensor& x) {
  const c10::DeviceType device = x.device().type();
  if (!at::autocast::is_autocast_enabled(device) || x.scalar_type() == at::kDouble) return x;
  return x.to(at::autocast::get_autocast_dtype(device));
}

at::ScalarType attention_compute_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

void attend(const AttentionOptions& options, const Tensor& documents,
            const std::vector<QueryPart>& queries, const std::vector<KeyPart>& keys) {
  if (const AttentionOperators* operators = attention_operators(queries.front().query))
    return attend_by_blocks(*operators, options, documents, queries, keys);
  const AttentionShape shape = shape_of(options, queries, keys);
  const Tensor& key = keys.front().key;
  const int64_t heads = key.size(2), calls = key.size(0) * heads;
  if (queries.front().query.numel() == 0 || calls == 0) return;
  // Fewer heads than threads: the queries of each are shared out, too. Bits do not depend on it.
  const int64_t threads = at::get_num_threads();
  const int64_t shares = calls >= threads ? 1 : (threads + calls - 1) / calls * 2;
  for_each_type(queries.front().query, [&](auto like) {
    using T = decltype(like);
    at::parallel_for(0, calls * shares, 1, [&](int64_t begin, int64_t end) {
      Call<T> call;
      for (int64_t i = begin; i < end; ++i) {
        call.fill(documents, queries, keys, i / shares / heads, i / shares % heads, shape.group);
        if (shares > 1) call.keep_share(i % shares, shares);
        attention_forward<T>(shape, call.queries, call.keys);
      }
    });
  });
}

void attend_backward(const AttentionOptions& options, const Tensor& documents,
                     const std::vector<QueryPart>& queries, const std::vector<KeyPart>& keys) {
  if (const AttentionOperators* operators = attention_operators(queries.front().query))
    return attend_backward_by_blocks(*operators, options, documents, queries, keys);
  const AttentionShape shape = shape_of(options, queries, keys);
  const Tensor& key = keys.front().key;
  const int64_t heads = key.size(2);
  if (queries.front().query.numel() == 0) return;
  for_each_type(queries.front().query, [&](auto like) {
    using T = decltype(like);
    at::parallel_for(0, key.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
      Call<T> call;
      for (int64_t i = begin; i < end; ++i) {
        call.fill(documents, queries, keys, i / heads, i % heads, shape.group);
        attention_backward<T>(shape, call.queries, call.keys);
      }
    });
  });
}

std::pair<Tensor, Tensor> attend_own(const AttentionOptions& options, const Tensor& documents,
                                     const std::vector<PositionRun>& runs, const Tensor& query,
                                     const Tensor& key, const Tensor& value) {
  if (const AttentionOperators* operators = attention_operators(query))
    if (std::optional<AttentionCall> call =
            whole_call(options, documents, runs, query, key, value)) {
      AttentionResult result = operators->forward(*call);
      return {result.out.contiguous(), result.lse};  // padded heads are cut, for one
    }
  Tensor out = at::empty(query.sizes(), query.options());
  Tensor lse = at::empty({query.size(0), query.size(2), query.size(1)},
                         query.options().dtype(attention_compute_type(query.scalar_type())));
  attend(options, documents, {{.runs = runs, .query = query, .out = out, .lse = lse}},
         {{.runs = runs, .key = key, .value = value}});
  return {out, lse};
}

std::array<Tensor, 3> attend_own_backward(const AttentionOptions& options, const Tensor& documents,
                                          const std::vector<PositionRun>& runs, const Tensor& query,
                                          const Tensor& key, const Tensor& value, const Tensor& out,
                                          const Tensor& lse, const Tensor& grad) {
  auto rounded = [&](const Tensor& to_query, const Tensor& to_key, const Tensor& to_value) {
    return std::array<Tensor, 3>{to_query.to(query.scalar_type()), to_key.to(key.scalar_type()),
                                 to_value.to(value.scalar_type())};
  };
  if (const AttentionOperators* operators = attention_operators(query))
    if (std::optional<AttentionCall> call =
            whole_call(options, documents, runs, query, key, value)) {
      AttentionGradients found = operators->backward(*call, {out, lse}, grad);
      return rounded(found.query, found.key, found.value);
    }
  auto gradient_of = [&](const Tensor& x) {
    return at::empty(x.sizes(), x.options().dtype(attention_compute_type(query.scalar_type())));
  };
  Tensor to_query = gradient_of(query), to_key = gradient_of(key), to_value = gradient_of(value);
  attend_backward(options, documents,
                  {{.runs = runs,
                    .query = query,
                    .out = out,
                    .lse = lse,
                    .grad = grad,
                    .delta = attention_deltas(out, grad),
                    .to_query = to_query,
                    .first = true}},
                  {{.runs = runs,
                    .key = key,
                    .value = value,
                    .to_key = to_key,
                    .to_value = to_value,
                    .first = true}});
  return rounded(to_query, to_key, to_value);
}

Tensor attention_deltas(const Tensor& out, const Tensor& grad) {
  if (!has_attention_kernel(out)) return {};
  const int64_t batch = out.size(0), rows = out.size(1), heads = out.size(2);
  Tensor delta = at::empty({batch, heads, rows},
                           out.options().dtype(attention_compute_type(out.scalar_type())));
  for_each_type(out, [&](auto like) {
    using T = decltype(like);
    using Compute = AttentionCompute<T>;
    at::parallel_for(0, batch, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        attention_delta<T>(out.size(3), heads, rows, head_view<const T>(out, b, 0),
                           head_view<const T>(grad, b, 0), row_view<Compute>(delta, b, 0));
    });
  });
  return delta;
}

void merge_attention(const Tensor& into, const Tensor& into_lse, const Tensor& out,
                     const Tensor& lse) {
  if (!has_attention_kernel(into)) return merge_blocks(into, into_lse, out, lse);
  auto merge = [&]<class C>(C) {
    for (int64_t b = 0; b < into.size(0); ++b)
      attention_merge<C>(into.size(3), into.size(2), into.size(1), head_view<C>(into, b, 0),
                         row_view<C>(into_lse, b, 0), head_view<const C>(out, b, 0),
                         row_view<const C>(lse, b, 0));
  };
  if (into.scalar_type() == at::kDouble)
    merge(double{});
  else
    merge(float{});
}

}  // namespace detail

}  // namespace meshwright
