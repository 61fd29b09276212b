#include "meshwright/parallel/context_split.h"

#include <algorithm>
#include <string>

#include "meshwright/error.h"

namespace meshwright {

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
