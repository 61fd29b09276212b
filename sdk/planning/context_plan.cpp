#include "sdk/base/context_plan.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "meshwright/error.h"
#include "sdk/base/context_split.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright {

namespace {

using std::to_string;

// Several ranks may have the same key-value head.
bool shares_heads(int64_t ranks, int64_t heads, int64_t kv_heads) {
  if (heads == 0) return true;
  return heads % ranks == 0 && (kv_heads % ranks == 0 || ranks % kv_heads == 0);
}

std::string name_of(ContextMethod method) {
  if (method == ContextMethod::ulysses) return "ulysses";
  return method == ContextMethod::ring ? "ring" : "all_gather";
}

Error refused(const std::string& message, const char* key) {
  return Error(ErrorCode::model_does_not_fit, message)
      .key(std::string("distributed.context.") + key);
}

// Bytes that a rank sends a layer, forward and backward, over those of a head of its tokens
// (semantics 14.4).
double sent_by_gather(int64_t ranks, int64_t kv_heads) {
  return 6.0 * static_cast<double>(ranks - 1) * static_cast<double>(kv_heads);
}
double sent_by_ulysses(int64_t ranks, int64_t heads, int64_t kv_heads) {
  return 4.0 * static_cast<double>(ranks - 1) / static_cast<double>(ranks) *
         static_cast<double>(heads + std::max(kv_heads, ranks));
}

ContextPlan choose(int64_t ranks, int64_t heads, int64_t kv_heads, ContextBalance balance,
                   const ContextBytes& sent) {
  ContextPlan plan;
  plan.balance = balance;
  if (heads == 0 || !shares_heads(ranks, heads, kv_heads)) {
    plan.ring = ranks;
    plan.why = heads == 0
                   ? "the model's heads are not known before it runs"
                   : to_string(heads) + " query and " + to_string(kv_heads) +
                         " key-value heads cannot be shared out to " + to_string(ranks) + " ranks";
    return plan;
  }
  double ratio = sent_by_ulysses(ranks, heads, kv_heads) / sent_by_gather(ranks, kv_heads);
  if (sent) {
    ContextPlan gather = plan, shared = plan;
    gather.ring = ranks;
    shared.method = ContextMethod::ulysses, shared.ulysses = ranks;
    const int64_t by_ulysses = sent(shared), by_gather = sent(gather);
    if (by_ulysses > 0) ratio = static_cast<double>(by_ulysses) / static_cast<double>(by_gather);
  }
  const bool ulysses = ratio < 1;
  plan.method = ulysses ? ContextMethod::ulysses : ContextMethod::all_gather;
  (ulysses ? plan.ulysses : plan.ring) = ranks;
  const auto percent = static_cast<int64_t>(std::lround(100 * (ulysses ? ratio : 1 / ratio)));
  const std::string other = ulysses ? "all_gather" : "ulysses";
  plan.why = (percent == 100 ? "it sends as much as " + other + " would"
                             : "it sends " + to_string(percent) + "% of what " + other + " would") +
             ", with " + to_string(heads) + " query and " + to_string(kv_heads) +
             " key-value heads";
  return plan;
}

}  // namespace

ContextPlan across_hosts(ContextPlan plan) {
  if (plan.why.empty() || plan.method != ContextMethod::all_gather) return plan;
  plan.method = ContextMethod::ring;
  plan.why = "the ranks of cp are on several hosts; on one it would be all_gather: " + plan.why;
  return plan;
}

ContextBalance context_balance(const ContextOptions& options) {
  return options.head_tail ? ContextBalance::head_tail : ContextBalance::contiguous;
}

std::string context_method_name(const ContextPlan& plan) {
  if (plan.ulysses == 1) return name_of(plan.method);
  return plan.ring == 1 ? "ulysses" : name_of(plan.method) + " x ulysses";
}

ContextPlan plan_context(const ContextOptions& options, int64_t ranks, int64_t heads,
                         int64_t kv_heads, const ContextBytes& sent) {
  ContextPlan plan;
  const bool sized = options.ring_size || options.ulysses_size;
  if (!options.method && !sized && ranks > 1) {
    plan = choose(ranks, heads, kv_heads, context_balance(options), sent);
  } else {
    const ContextMethod method = options.method.value_or(ContextMethod::ring);
    plan.ulysses = options.ulysses_size.value_or(
        options.ring_size                  ? std::max<int64_t>(1, ranks / *options.ring_size)
        : method == ContextMethod::ulysses ? ranks
                                           : 1);
    plan.ring = options.ring_size.value_or(std::max<int64_t>(1, ranks / plan.ulysses));
    plan.method = plan.ring == 1                     ? ContextMethod::ulysses
                  : method == ContextMethod::ulysses ? ContextMethod::ring
                                                     : method;
  }
  // One of the words would be ignored.
  if (options.method && ranks > 1 && plan.ring * plan.ulysses == ranks &&
      (*options.method == ContextMethod::ulysses ? plan.ring : plan.ulysses) == ranks)
    throw refused("method = \"" + name_of(*options.method) + "\" with ring_size " +
                      to_string(plan.ring) + " and ulysses_size " + to_string(plan.ulysses) +
                      " would have nothing to do",
                  "method")
        .help(plan.ulysses == 1 || shares_heads(plan.ulysses, heads, kv_heads)
                  ? "leave out distributed.context.method"
                  : "leave out distributed.context.ring_size and "
                    "distributed.context.ulysses_size");
  plan.balance = context_balance(options);
  if (plan.ring * plan.ulysses != ranks) {
    Error error = refused(
        "ring_size " + to_string(plan.ring) + " times ulysses_size " + to_string(plan.ulysses) +
            " is " + to_string(plan.ring * plan.ulysses) + ", not cp_size " + to_string(ranks),
        options.ring_size ? "ring_size" : "ulysses_size");
    // With one of them as large as cp_size, the other way of two would have nothing to do.
    if (options.method != ContextMethod::ulysses)
      error.help("set distributed.context.ring_size = " + to_string(ranks) +
                 " and distributed.context.ulysses_size = 1");
    if (options.method == ContextMethod::ulysses && !shares_heads(ranks, heads, kv_heads))
      throw error.help(
          "leave out distributed.context.method, distributed.context.ring_size and "
          "distributed.context.ulysses_size");
    throw error.help(
        "leave out distributed.context.ring_size and distributed.context.ulysses_size");
  }
  if (plan.ulysses > 1 && !shares_heads(plan.ulysses, heads, kv_heads)) {
    Error error = refused(to_string(heads) + " query and " + to_string(kv_heads) +
                              " key-value heads cannot be shared out to the " +
                              to_string(plan.ulysses) + " ranks of ulysses",
                          options.ulysses_size ? "ulysses_size"
                          : options.ring_size  ? "ring_size"
                                               : "method");
    for (int64_t size = plan.ulysses - 1; size > 1; --size)
      if (ranks % size == 0 && shares_heads(size, heads, kv_heads)) {
        error.help("set distributed.context.ulysses_size = " + to_string(size) +
                   " and distributed.context.ring_size = " + to_string(ranks / size));
        break;
      }
    throw error.help(
        options.ring_size || options.ulysses_size
            ? "leave out distributed.context.ring_size and distributed.context.ulysses_size, and "
              "set distributed.context.method = \"all_gather\""
            : "set distributed.context.method = \"all_gather\"");
  }
  return plan;
}

ContextSplit::ContextSplit(int64_t length, int64_t ranks, ContextBalance balance)
    : length_(length),
      ranks_(ranks),
      chunk_(0),
      balance_(ranks > 1 ? balance : ContextBalance::contiguous) {
  if (length < 1 || ranks < 1)
    throw Error(ErrorCode::internal, "a sample of " + std::to_string(length) +
                                         " tokens cannot be split over " + std::to_string(ranks) +
                                         " ranks");
  chunk_ = length / chunks() + (length % chunks() != 0);
}

int64_t ContextSplit::rank_of(int64_t chunk) const {
  return balance_ == ContextBalance::head_tail ? std::min(chunk, 2 * ranks_ - 1 - chunk) : chunk;
}

int64_t ContextSplit::row_of(int64_t chunk) const {
  return balance_ == ContextBalance::head_tail && chunk >= ranks_ ? chunk_ : 0;
}

std::vector<int64_t> ContextSplit::chunks_of(int64_t rank) const {
  if (balance_ == ContextBalance::contiguous) return {rank};
  return {rank, 2 * ranks_ - 1 - rank};
}

std::vector<PositionRun> ContextSplit::runs_of(int64_t rank) const {
  std::vector<PositionRun> out;
  for (int64_t chunk : chunks_of(rank)) {
    int64_t position = chunk * chunk_;
    if (!out.empty() && out.back().position + out.back().count == position)
      out.back().count += chunk_;
    else
      out.push_back({position, chunk_});
  }
  return out;
}

int64_t ContextSplit::tokens_of(int64_t rank) const {
  int64_t tokens = 0;
  for (int64_t chunk : chunks_of(rank))
    tokens += std::clamp<int64_t>(length_ - chunk * chunk_, 0, chunk_);
  return tokens;
}

int64_t ContextSplit::first_seen(int64_t chunk, int64_t window) const {
  if (window <= 0) return 0;
  return std::max<int64_t>(0, chunk * chunk_ - window + 1) / chunk_;
}

bool ContextSplit::sees(int64_t rank, int64_t chunk, int64_t window) const {
  const std::vector<int64_t> queries = chunks_of(rank);
  return std::any_of(queries.begin(), queries.end(), [&](int64_t query) {
    return first_seen(query, window) <= chunk && chunk <= query;
  });
}

}  // namespace meshwright
