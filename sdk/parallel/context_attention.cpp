#include "context_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/error.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/trace_span.h"
#include "sdk/comm/activity.h"
#include "sdk/comm/group_impl.h"
#include "sdk/nn/attention_parts.h"

namespace meshwright::detail {

namespace {

using at::Tensor;
using torch::autograd::variable_list;

// Heads to the ranks of a group and back (DeepSpeed-Ulysses: Jacobs et al. 2023). Each rank has all
// heads of its own rows, or its share of the heads for the rows of all.
class HeadExchange {
 public:
  HeadExchange(Group& group, int64_t heads) : group_(group), heads_(heads) {}
  // The heads of a rank. Fewer heads than ranks: several ranks have the same one.
  int64_t each() const { return std::max<int64_t>(1, heads_ / group_.size()); }
  int64_t first_of(int64_t rank) const { return rank * heads_ / group_.size(); }

  // Heads of models that say nothing of them before they run. Several ranks may share one of the
  // keys, whose gradients add up, but none of the queries.
  void check(bool keys) const {
    if (heads_ % group_.size() == 0 || (keys && group_.size() % heads_ == 0)) return;
    throw Error(ErrorCode::model_does_not_fit,
                std::to_string(heads_) + (keys ? " key-value" : " query") +
                    " heads cannot be shared out to the " + std::to_string(group_.size()) +
                    " ranks of ulysses")
        .key("distributed.context.ulysses_size")
        .help(
            "leave out distributed.context.ring_size and distributed.context.ulysses_size, and set "
            "distributed.context.method = \"all_gather\"");
  }

  // [batch, rows, heads, head_dim] to [ranks, batch, rows, each, head_dim]: the rows of every rank.
  Tensor to_heads(const Tensor& x) const {
    if (group_.size() == 1) return (x.stride(3) == 1 ? x : x.contiguous()).unsqueeze(0);
    std::vector<int64_t> sizes{group_.size(), x.size(0), x.size(1), each(), x.size(3)};
    Tensor packed = at::empty(sizes, x.options());
    for (int64_t r = 0; r < group_.size(); ++r)
      packed.select(0, r).copy_(x.narrow(2, first_of(r), each()));
    return moved(packed);
  }
  // The gradient of the output like the heads themselves, and behind it in one message the sums of
  // its rows with the output: [batch, heads, rows] to [ranks, batch, each, rows].
  std::pair<Tensor, Tensor> to_heads(const Tensor& grad, const Tensor& delta) const {
    if (group_.size() == 1) return {to_heads(grad), delta.unsqueeze(0)};
    const int64_t ranks = group_.size(), batch = grad.size(0), rows = grad.size(1);
    const std::vector<int64_t> sizes{ranks, batch, rows, each(), grad.size(3)},
        delta_sizes{ranks, batch, each(), rows};
    const int64_t words = delta.element_size() / grad.element_size(), count = batch * rows * each(),
                  behind = (count * grad.size(3) + words - 1) / words * words;
    auto grads_in = [&](const Tensor& flat) {
      return flat.narrow(1, 0, count * grad.size(3)).view(sizes);
    };
    auto deltas_in = [&](const Tensor& flat) {
      return flat.narrow(1, behind, count * words).view(delta.scalar_type()).view(delta_sizes);
    };
    Tensor packed = at::empty({ranks, behind + count * words}, grad.options());
    for (int64_t r = 0; r < ranks; ++r) {
      grads_in(packed).select(0, r).copy_(grad.narrow(2, first_of(r), each()));
      deltas_in(packed).select(0, r).copy_(delta.narrow(1, first_of(r), each()));
    }
    Tensor mine = moved(packed);
    return {grads_in(mine), deltas_in(mine)};
  }
  // The way back. What several ranks have of one head is added up, in the dtype `compute`.
  Tensor to_rows(const Tensor& x, at::ScalarType compute) const {
    if (group_.size() == 1) return x.select(0, 0);
    Tensor mine = moved(x.contiguous());
    const bool shared = heads_ < group_.size();
    std::vector<int64_t> sizes{x.size(1), x.size(2), heads_, x.size(4)};
    Tensor out =
        shared ? at::zeros(sizes, x.options().dtype(compute)) : at::empty(sizes, x.options());
    for (int64_t r = 0; r < group_.size(); ++r) {
      Tensor to = out.narrow(2, first_of(r), each());
      if (shared)
        to.add_(mine.select(0, r));
      else
        to.copy_(mine.select(0, r));
    }
    return out.to(x.scalar_type());
  }

 private:
  Tensor moved(const Tensor& packed) const {
    Tensor out = at::empty_like(packed);
    std::vector<int64_t> splits(static_cast<size_t>(group_.size()), 1);
    group_
        .all_to_all(packed.view({group_.size(), -1}), splits, out.view({group_.size(), -1}), splits)
        .wait();
    return out;
  }
  Group& group_;
  int64_t heads_;
};

// What all calls of one core have in common.
struct Core {
  ContextGroups groups;
  std::string activity;  // "attention of model.layers.3.self_attn.core"
  Trace& trace() const { return *GroupAccess::of(*groups.context).trace; }
};

// One call of one core, forward and backward.
class AttentionPass {
 public:
  AttentionPass(std::shared_ptr<const Core> core, const AttentionOptions& options,
                ContextSplit split, Tensor documents)
      : core_(std::move(core)),
        groups_(core_->groups),
        options_(options),
        split_(split),
        documents_(std::move(documents)) {}

  // Everything that backward needs: queries, keys, lse in the layout in which attention ran, and
  // out as the model has it, which keeps it anyway. Without our kernel out too is as attention ran.
  struct Kept {
    Tensor query, keys, out, lse;
  };

  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, Kept& kept) {
    const Activity activity(core_->activity, "forward");
    heads_ = query.size(2);
    kv_heads_ = key.size(2);
    HeadExchange(*groups_.ulysses, heads_).check(/*keys=*/false);
    HeadExchange(*groups_.ulysses, kv_heads_).check(/*keys=*/true);
    kept.query = HeadExchange(*groups_.ulysses, heads_).to_heads(query);
    kept.keys = pack(key, value);
    // All keys at once, or in parts that are merged.
    const bool once = way() != Way::ring;
    at::ScalarType compute = attention_compute_type(query.scalar_type());
    at::TensorOptions wide = query.options().dtype(compute);
    Tensor into = once ? at::empty_like(kept.query) : Tensor(), partial, lse;
    make_exchange()->forward(kept.keys, [&](std::vector<KeyPart>& keys) {
      const TraceSpan span(core_->trace(), "forward block of ", core_->activity);
      Tensor some = once ? into : at::empty(kept.query.sizes(), wide);
      Tensor some_lse = at::empty(lse_sizes(kept.query), wide);
      std::vector<QueryPart> queries = query_parts(kept.query);
      for (size_t p = 0; p < queries.size(); ++p) {
        (once ? queries[p].out : queries[p].partial) = some.select(0, static_cast<int64_t>(p));
        queries[p].lse = some_lse.select(0, static_cast<int64_t>(p));
      }
      attend(options_, documents_, queries, keys);
      if (!lse.defined()) {
        partial = some, lse = some_lse;
        return;
      }
      for (int64_t p = 0; p < partial.size(0); ++p)
        merge_attention(partial.select(0, p), lse.select(0, p), some.select(0, p),
                        some_lse.select(0, p));
    });
    kept.lse = lse;
    kept.out = once ? into : partial.to(query.scalar_type());
    Tensor rows = HeadExchange(*groups_.ulysses, heads_).to_rows(kept.out, compute);
    if (has_attention_kernel(query)) kept.out = rows;
    return rows;
  }

  std::vector<Tensor> backward(Tensor given, const Kept& kept) {
    const Activity activity(core_->activity, "backward");
    const at::ScalarType type = given.scalar_type(), compute = attention_compute_type(type);
    HeadExchange heads(*groups_.ulysses, heads_), kv_heads(*groups_.ulysses, kv_heads_);
    Tensor to_query, to_keys;
    {
      if (given.stride(3) != 1) given = given.contiguous();
      const bool deltas = has_attention_kernel(given);
      auto [grad, delta] = deltas ? heads.to_heads(given, attention_deltas(kept.out, given))
                                  : std::pair(heads.to_heads(given), Tensor());
      given = Tensor();
      to_query = at::empty(kept.query.sizes(), kept.query.options().dtype(compute));
      std::vector<QueryPart> queries = query_parts(kept.query);
      for (size_t p = 0; p < queries.size(); ++p) {
        auto place = static_cast<int64_t>(p);
        queries[p].lse = kept.lse.select(0, place);
        queries[p].grad = grad.select(0, place);
        (deltas ? queries[p].delta : queries[p].out) = (deltas ? delta : kept.out).select(0, place);
        queries[p].to_query = to_query.select(0, place);
        queries[p].first = true;
      }
      to_keys = make_exchange()->backward(kept.keys, [&](std::vector<KeyPart>& keys) {
        const TraceSpan span(core_->trace(), "backward block of ", core_->activity);
        attend_backward(options_, documents_, queries, keys);
        for (QueryPart& part : queries) part.first = false;
      });
    }
    Tensor query = heads.to_rows(std::exchange(to_query, Tensor()).to(type), compute);
    return {query, kv_heads.to_rows(to_keys.select(0, 0), compute),
            kv_heads.to_rows(to_keys.select(0, 1), compute)};
  }

 private:
  int64_t ulysses() const { return groups_.ulysses->size(); }
  enum class Way : uint8_t { local, window, gather, ring };
  // A window reaches few of the other ranks' keys, whatever the method; but not where those have
  // gone to other heads.
  Way way() const {
    if (groups_.ring->size() == 1) return Way::local;
    if (options_.window > 0 && ulysses() == 1) return Way::window;
    return groups_.method == ContextMethod::ring ? Way::ring : Way::gather;
  }

  // [2, parts, batch, rows, kv_heads, head_dim].
  Tensor pack(const Tensor& key, const Tensor& value) const {
    HeadExchange heads(*groups_.ulysses, kv_heads_);
    if (ulysses() > 1) return at::stack({heads.to_heads(key), heads.to_heads(value)});
    return at::stack({key, value}).unsqueeze(1);
  }
  static std::vector<int64_t> lse_sizes(const Tensor& query) {
    return {query.size(0), query.size(1), query.size(3), query.size(2)};
  }
  // The runs of the ranks of one ulysses group, whose first rank of cp is `first`.
  std::vector<std::vector<PositionRun>> runs_from(int64_t first) const {
    std::vector<std::vector<PositionRun>> out;
    for (int64_t i = 0; i < ulysses(); ++i) out.push_back(split_.runs_of(first + i));
    return out;
  }
  std::vector<QueryPart> query_parts(const Tensor& query) const {
    std::vector<std::vector<PositionRun>> runs = runs_from(groups_.ring->rank() * ulysses());
    std::vector<QueryPart> out;
    for (size_t p = 0; p < runs.size(); ++p)
      out.push_back({.runs = runs[p], .query = query.select(0, static_cast<int64_t>(p))});
    return out;
  }
  std::unique_ptr<KeyExchange> make_exchange() const {
    if (way() == Way::local) return local_keys(runs_from(0));
    if (way() == Way::window) return window_keys(groups_.ring, split_, options_.window);
    RunsOfRanks runs;
    for (int64_t r = 0; r < groups_.ring->size(); ++r) runs.push_back(runs_from(r * ulysses()));
    return way() == Way::ring ? ring_keys(groups_.ring, std::move(runs))
                              : gathered_keys(groups_.ring, std::move(runs));
  }

  std::shared_ptr<const Core> core_;
  const ContextGroups& groups_;
  AttentionOptions options_;
  ContextSplit split_;
  Tensor documents_;
  int64_t heads_ = 0, kv_heads_ = 0;
};

struct ContextNode : torch::autograd::Node {
  explicit ContextNode(AttentionPass pass) : pass_(std::move(pass)) {}
  AttentionPass pass_;
  torch::autograd::SavedVariable query, keys, out, lse;

  std::string name() const override { return "ContextAttention"; }
  void release_variables() override {
    for (auto* saved : {&query, &keys, &out, &lse}) saved->reset_data();
  }
  variable_list apply(variable_list&& grads) override {
    c10::NoGradGuard no_grad;
    // The other ranks wait for this one's part of the exchanges, be it zeros.
    Tensor given = grads[0].defined() ? std::move(grads[0]) : input_metadata(0).zeros_like();
    return pass_.backward(std::move(given),
                          {query.unpack(), keys.unpack(), out.unpack(), lse.unpack()});
  }
};

class ContextAttention final : public AttentionMethod {
 public:
  explicit ContextAttention(Core core) : core_(std::make_shared<const Core>(std::move(core))) {}

  Tensor forward(const Tensor& given_query, const Tensor& given_key, const Tensor& given_value,
                 const AttentionOptions& given,
                 const std::shared_ptr<const Sequence>& sequence) override {
    Tensor query = as_autocast(given_query), key = as_autocast(given_key),
           value = as_autocast(given_value);
    if (!sequence || sequence->rows.empty())
      throw Error(
          ErrorCode::bad_module,
          "attention over the ranks of cp runs without a sequence: which positions the rows "
          "are is not known")
          .key("distributed.cp_size")
          .help("run the forward within ContextParallel::scope()");
    if (!attends(query))
      throw Error(ErrorCode::not_in_release,
                  std::string("attention over the ranks of cp is not computed in ") +
                      c10::toString(query.scalar_type()) + " on " + query.device().str())
          .key("distributed.cp_size")
          .help("set distributed.cp_size = 1");
    const ContextGroups& groups = core_->groups;
    ContextSplit split(sequence->length, groups.context->size(), groups.balance);
    if (split.rows() != query.size(1) || split.runs_of(groups.context->rank()) != sequence->rows)
      throw Error(ErrorCode::bad_module,
                  "attention got " + std::to_string(query.size(1)) + " rows of each sample of " +
                      std::to_string(sequence->length) + " tokens, but a rank of cp has " +
                      std::to_string(split.rows()))
          .help("make the scope for the samples that the model is called with");
    // Keys of all positions may come here, those of padding too.
    if (sequence->documents.defined() && sequence->documents.size(1) < split.padded())
      throw Error(ErrorCode::bad_module,
                  "the documents of the sequence are of " +
                      std::to_string(sequence->documents.size(1)) + " positions, but samples of " +
                      std::to_string(sequence->length) + " tokens have " +
                      std::to_string(split.padded()) + " with the padding of cp")
          .help("give the documents to ContextParallel::scope(), which pads them");
    AttentionOptions options = given;
    if (options.window >= split.length()) options.window = 0;
    AttentionPass pass(core_, options, split, sequence->documents);
    AttentionPass::Kept kept;
    Tensor result;
    {
      c10::NoGradGuard no_grad;
      // It may share memory with what backward reads, and tells that when it is written to.
      result = pass.forward(query, key, value, kept).detach();
    }
    if (!c10::GradMode::is_enabled() ||
        !(query.requires_grad() || key.requires_grad() || value.requires_grad()))
      return result;
    auto node =
        std::shared_ptr<ContextNode>(new ContextNode(std::move(pass)), torch::autograd::deleteNode);
    node->set_next_edges(torch::autograd::collect_next_edges(query, key, value));
    node->query = torch::autograd::SavedVariable(kept.query, /*is_output=*/false);
    node->keys = torch::autograd::SavedVariable(kept.keys, /*is_output=*/false);
    node->out = torch::autograd::SavedVariable(kept.out, /*is_output=*/false);
    node->lse = torch::autograd::SavedVariable(kept.lse, /*is_output=*/false);
    torch::autograd::set_history(result, node);
    return result;
  }

 private:
  std::shared_ptr<const Core> core_;
};

}  // namespace

std::shared_ptr<AttentionMethod> context_attention(ContextGroups groups, const std::string& core) {
  return std::make_shared<ContextAttention>(Core{std::move(groups), "attention of " + core});
}

}  // namespace meshwright::detail
