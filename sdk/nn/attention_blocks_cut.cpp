#include "attention_blocks_cut.h"

#include <algorithm>

namespace meshwright::detail {

namespace {

class BlockCutter {
 public:
  BlockCutter(int64_t window, std::vector<AttentionBlock>& out) : window_(window), out_(out) {}

  void add(RowRun rows, RowRun keys, int64_t sample, int64_t samples) {
    if (!trim(rows, keys)) return;
    const int64_t right = rows.end() - keys.end();
    // Whether the first row sees less than the last key, and the last row less than the first key.
    const bool ahead = rows.position < keys.end() - 1;
    const bool behind = window_ > 0 && rows.end() - 1 - window_ >= keys.position;
    if (ahead && right > 0 && (!behind || right >= keys.count))
      return add_halves(rows, keys.end() - rows.position, keys, sample, samples);
    if (!ahead && behind && right >= keys.count && rows.count > keys.count + 1)
      // Rows that see all keys, however many, and at most as many as keys that do not.
      return add_halves(rows, keys.position + window_ - rows.position, keys, sample, samples);
    AttentionBand band;
    if (ahead || (behind && right < keys.count)) band.right = right;
    if (behind) band.left = window_ - 1 - right;
    out_.push_back({.sample = sample,
                    .samples = samples,
                    .row = rows.row,
                    .rows = rows.count,
                    .key = keys.row,
                    .keys = keys.count,
                    .band = band});
  }

 private:
  static RowRun part(const RowRun& run, int64_t begin, int64_t end) {
    return {run.row + begin - run.position, begin, end - begin};
  }
  void add_halves(const RowRun& rows, int64_t first, const RowRun& keys, int64_t sample,
                  int64_t samples) {
    const int64_t middle = rows.position + first;
    add(part(rows, rows.position, middle), keys, sample, samples);
    add(part(rows, middle, rows.end()), keys, sample, samples);
  }
  // To rows that see a key and keys that a row sees. The last row then sees the last key and the
  // first row the first key, so that no bound is negative.
  bool trim(RowRun& rows, RowRun& keys) const {
    int64_t begin = std::max(rows.position, keys.position), end = rows.end();
    if (window_ > 0) end = std::min(end, keys.end() - 1 + window_);
    if (begin >= end || keys.count == 0) return false;
    rows = part(rows, begin, end);
    begin = window_ > 0 ? std::max(keys.position, rows.position - window_ + 1) : keys.position;
    keys = part(keys, begin, std::min(keys.end(), rows.end()));
    return true;
  }

  int64_t window_;
  std::vector<AttentionBlock>& out_;
};

// The documents of a sample, as far as they lie in [begin, end).
std::vector<PositionRun> documents_within(const std::vector<int64_t>& starts, int64_t begin,
                                          int64_t end) {
  std::vector<PositionRun> out;
  auto next = std::upper_bound(starts.begin(), starts.end(), begin);
  while (begin < end) {
    const int64_t stop = next == starts.end() ? end : std::min(end, *next++);
    out.push_back({begin, stop - begin});
    begin = stop;
  }
  return out;
}

void cut_equal_documents(const RowRun& rows, const RowRun& keys, int64_t samples, int64_t window,
                         const DocumentStarts& documents, std::vector<AttentionBlock>& out) {
  AttentionBlock all{.samples = samples,
                     .row = rows.row,
                     .rows = rows.count,
                     .key = keys.row,
                     .keys = keys.count,
                     .band = {.left = AttentionBand::kOpen, .right = 0}};
  int64_t longest = 0;
  for (int64_t s = 0; s < samples; ++s)
    for (const PositionRun& document :
         documents_within(documents[static_cast<size_t>(s)], rows.position, rows.end())) {
      all.documents.push_back(document.count);
      longest = std::max(longest, document.count);
    }
  if (static_cast<int64_t>(all.documents.size()) == samples)
    return BlockCutter(window, out).add(rows, keys, 0, samples);
  if (window > 0 && window < longest) all.band.left = window - 1;
  out.push_back(std::move(all));
}

}  // namespace

std::vector<RowRun> row_runs(const std::vector<PositionRun>& runs) {
  std::vector<RowRun> out;
  int64_t row = 0;
  for (const PositionRun& run : runs) {
    if (!out.empty() && out.back().end() == run.position)
      out.back().count += run.count;
    else if (run.count > 0)
      out.push_back({row, run.position, run.count});
    row += run.count;
  }
  return out;
}

std::vector<AttentionBlock> cut_attention(const RowRun& rows, const RowRun& keys, int64_t samples,
                                          int64_t window, const DocumentStarts* documents) {
  std::vector<AttentionBlock> out;
  BlockCutter cutter(window, out);
  if (documents == nullptr) {
    cutter.add(rows, keys, 0, samples);
  } else if (rows.position == keys.position && rows.count == keys.count) {
    cut_equal_documents(rows, keys, samples, window, *documents, out);
  } else {
    for (int64_t s = 0; s < samples; ++s) {
      const std::vector<int64_t>& starts = (*documents)[static_cast<size_t>(s)];
      for (const PositionRun& document : documents_within(
               starts, std::min(rows.position, keys.position), std::max(rows.end(), keys.end()))) {
        auto within = [&](const RowRun& run) {
          const int64_t from = std::max(run.position, document.position);
          const int64_t to = std::min(run.end(), document.position + document.count);
          return RowRun{run.row + from - run.position, from, std::max<int64_t>(0, to - from)};
        };
        const RowRun some = within(rows), seen = within(keys);
        if (some.count > 0 && seen.count > 0) cutter.add(some, seen, s, 1);
      }
    }
  }
  return out;
}

}  // namespace meshwright::detail
