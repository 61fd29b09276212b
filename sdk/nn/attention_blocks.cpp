#include "attention_blocks.h"

#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "sdk/base/known_documents.h"

namespace meshwright::detail {

namespace {

using at::Tensor;

constexpr double kNoKey = -std::numeric_limits<double>::infinity();

std::shared_ptr<const DocumentStarts> starts_in(const int32_t* ids, int64_t rows, int64_t length,
                                                int64_t stride) {
  auto found = std::make_shared<DocumentStarts>(static_cast<size_t>(rows));
  for (int64_t s = 0; s < rows; ++s, ids += stride)
    for (int64_t i = 0; i < length; ++i)
      if (i == 0 || ids[i] != ids[i - 1]) (*found)[static_cast<size_t>(s)].push_back(i);
  return found;
}

// Those of tensors that somebody has told of, while their memory lives.
class KnownDocuments {
 public:
  std::shared_ptr<const DocumentStarts> find(const Tensor& documents) {
    if (documents.is_inference()) return nullptr;  // no version says whether it was written to
    std::lock_guard lock(mutex_);
    for (const Known& one : all_)
      if (one.is(documents)) return one.starts;
    return nullptr;
  }
  void add(const Tensor& documents, std::shared_ptr<const DocumentStarts> starts) {
    std::lock_guard lock(mutex_);
    std::erase_if(all_, [](const Known& one) { return one.memory.expired(); });
    all_.push_back({documents.storage().getWeakStorageImpl(), documents.storage_offset(),
                    documents.sizes().vec(), documents._version(), std::move(starts)});
  }

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
    int64_t offset;
    std::vector<int64_t> sizes;
    int64_t version;
    std::shared_ptr<const DocumentStarts> starts;
    bool is(const Tensor& t) const {
      return memory._unsafe_get_target() == t.storage().unsafeGetStorageImpl() &&
             offset == t.storage_offset() && t.sizes() == sizes && t.is_contiguous() &&
             version == t._version();
    }
  };
  std::mutex mutex_;
  std::vector<Known> all_;  // few: of the micro-batches under way
};

KnownDocuments& known_documents() {
  static KnownDocuments all;
  return all;
}

// Where documents begin. What nobody has told of is read, once for all layers: that of the last
// tensor of this thread is kept.
std::shared_ptr<const DocumentStarts> starts_of(const Tensor& documents) {
  static thread_local Tensor kept;
  static thread_local uint32_t kept_version = 0;
  static thread_local std::shared_ptr<const DocumentStarts> starts;
  if (!documents.defined()) return nullptr;
  if (auto told = known_documents().find(documents)) return told;
  const uint32_t version = documents.is_inference() ? 0 : documents._version();
  const bool known = kept.defined() && !documents.is_inference() && version == kept_version &&
                     kept.is_alias_of(documents) && kept.sizes() == documents.sizes() &&
                     kept.strides() == documents.strides() &&
                     kept.storage_offset() == documents.storage_offset();
  if (known) return starts;
  const Tensor host = documents.cpu();
  kept = documents.detach();
  kept_version = version;
  starts = starts_in(host.const_data_ptr<int32_t>(), host.size(0), host.size(1), host.stride(0));
  return starts;
}

Tensor rows_of_block(const Tensor& x, const AttentionBlock& block) {
  return x.narrow(0, block.sample, block.samples).narrow(1, block.row, block.rows);
}
Tensor keys_of_block(const Tensor& x, const AttentionBlock& block) {
  return x.narrow(0, block.sample, block.samples).narrow(1, block.key, block.keys);
}
Tensor lse_of_block(const Tensor& lse, const AttentionBlock& block) {
  return lse.narrow(0, block.sample, block.samples).narrow(2, block.row, block.rows);
}
bool covers(const AttentionBlock& block, int64_t samples, int64_t rows) {
  return block.samples == samples && block.rows == rows;
}

AttentionCall call_of(const AttentionOptions& options, const Tensor& query, const Tensor& key,
                      const Tensor& value, const AttentionBlock& block) {
  return {.query = rows_of_block(query, block),
          .key = keys_of_block(key, block),
          .value = keys_of_block(value, block),
          .scale = options.scale,
          .band = block.band,
          .documents = block.documents};
}

// What the blocks of one run of queries give. A single block of all its rows is copied as it is.
class RunOutput {
 public:
  RunOutput(const QueryPart& part, const RowRun& run)
      : run_(run), type_(attention_compute_type(part.query.scalar_type())) {
    auto rows = [&](const Tensor& x) {
      return x.defined() ? x.narrow(1, run.row, run.count) : Tensor();
    };
    out_ = rows(part.out);
    partial_ = rows(part.partial);
    lse_ = part.lse.narrow(2, run.row, run.count);
  }

  void add(AttentionBlock block, AttentionResult result) {
    block.row -= run_.row;
    if (!sum_.defined() && !only_.out.defined() && covers(block, lse_.size(0), run_.count)) {
      only_ = std::move(result);
      return;
    }
    start();
    merge_blocks(rows_of_block(sum_, block), lse_of_block(lse_, block), result.out, result.lse);
  }
  void finish() {
    if (only_.out.defined()) {
      lse_.copy_(only_.lse);
      if (out_.defined()) out_.copy_(only_.out);
      if (partial_.defined()) partial_.copy_(only_.out);
      return;
    }
    start();  // rows that no block has see no key
    if (out_.defined()) out_.copy_(sum_);
  }

 private:
  void start() {
    if (sum_.defined()) return;
    const Tensor& like = out_.defined() ? out_ : partial_;
    sum_ = partial_.defined() ? partial_ : at::zeros(like.sizes(), like.options().dtype(type_));
    if (only_.out.defined()) {
      sum_.copy_(only_.out);
      lse_.copy_(only_.lse);
      only_ = {};
      return;
    }
    sum_.zero_();
    lse_.fill_(kNoKey);
  }

  RowRun run_;
  at::ScalarType type_;
  Tensor out_, partial_, lse_, sum_;
  AttentionResult only_;
};

// The gradient of a run of queries or keys, to which blocks add.
class RunGradient {
 public:
  RunGradient(const Tensor& gradient, const RowRun& run, bool first)
      : into_(gradient.narrow(1, run.row, run.count)), row_(run.row), written_(!first) {}

  void add(const AttentionBlock& block, int64_t row, int64_t rows, const Tensor& gradient) {
    if (!written_ &&
        covers({.samples = block.samples, .rows = rows}, into_.size(0), into_.size(1))) {
      into_.copy_(gradient);
    } else {
      finish();
      into_.narrow(0, block.sample, block.samples).narrow(1, row - row_, rows).add_(gradient);
    }
    written_ = true;
  }
  void finish() {
    if (!written_) into_.zero_();
    written_ = true;
  }

 private:
  Tensor into_;
  int64_t row_;
  bool written_;
};

// A run of keys, and in backward its gradients.
struct KeysOfRun {
  const KeyPart* part;
  RowRun run;
  std::optional<RunGradient> to_key = {}, to_value = {};
};
std::vector<KeysOfRun> all_key_runs(const std::vector<KeyPart>& parts, bool gradients) {
  std::vector<KeysOfRun> out;
  for (const KeyPart& part : parts)
    for (const RowRun& run : row_runs(part.runs)) {
      KeysOfRun& keys = out.emplace_back(KeysOfRun{.part = &part, .run = run});
      if (!gradients) continue;
      keys.to_key.emplace(part.to_key, run, part.first);
      keys.to_value.emplace(part.to_value, run, part.first);
    }
  return out;
}

}  // namespace

void merge_blocks(const Tensor& into, const Tensor& into_lse, const Tensor& out,
                  const Tensor& lse) {
  Tensor total = at::logaddexp(into_lse, lse);
  // Neither has a key: both weights are exp(-inf), and the sum stays 0.
  Tensor top = total.masked_fill(total == kNoKey, 0);
  auto weight = [&](const Tensor& of) { return at::exp(of - top).transpose(1, 2).unsqueeze(3); };
  into.mul_(weight(into_lse)).addcmul_(out.to(into.scalar_type()), weight(lse));
  into_lse.copy_(total);
}

void know_documents(const Tensor& documents, const int32_t* host) {
  if (documents.is_inference() || documents.dim() != 2 || !documents.is_contiguous() ||
      known_documents().find(documents))
    return;
  known_documents().add(documents,
                        starts_in(host, documents.size(0), documents.size(1), documents.size(1)));
}

void attend_by_blocks(const AttentionOperators& operators, const AttentionOptions& options,
                      const Tensor& documents, const std::vector<QueryPart>& queries,
                      const std::vector<KeyPart>& keys) {
  const std::shared_ptr<const DocumentStarts> starts = starts_of(documents);
  const std::vector<KeysOfRun> key_runs = all_key_runs(keys, /*gradients=*/false);
  for (const QueryPart& part : queries)
    for (const RowRun& run : row_runs(part.runs)) {
      RunOutput output(part, run);
      for (const KeysOfRun& of : key_runs)
        for (const AttentionBlock& block :
             cut_attention(run, of.run, part.query.size(0), options.window, starts.get()))
          output.add(block, operators.forward(
                                call_of(options, part.query, of.part->key, of.part->value, block)));
      output.finish();
    }
}

void attend_backward_by_blocks(const AttentionOperators& operators, const AttentionOptions& options,
                               const Tensor& documents, const std::vector<QueryPart>& queries,
                               const std::vector<KeyPart>& keys) {
  const std::shared_ptr<const DocumentStarts> starts = starts_of(documents);
  std::vector<KeysOfRun> key_runs = all_key_runs(keys, /*gradients=*/true);
  for (const QueryPart& part : queries)
    for (const RowRun& run : row_runs(part.runs)) {
      RunGradient to_query(part.to_query, run, part.first);
      for (KeysOfRun& of : key_runs)
        for (const AttentionBlock& block :
             cut_attention(run, of.run, part.query.size(0), options.window, starts.get())) {
          AttentionGradients found =
              operators.backward(call_of(options, part.query, of.part->key, of.part->value, block),
                                 {rows_of_block(part.out, block), lse_of_block(part.lse, block)},
                                 rows_of_block(part.grad, block));
          to_query.add(block, block.row, block.rows, found.query);
          of.to_key->add(block, block.key, block.keys, found.key);
          of.to_value->add(block, block.key, block.keys, found.value);
        }
      to_query.finish();
    }
  for (KeysOfRun& of : key_runs) {
    of.to_key->finish();
    of.to_value->finish();
  }
}

std::optional<AttentionCall> whole_call(const AttentionOptions& options, const Tensor& documents,
                                        const std::vector<PositionRun>& runs, const Tensor& query,
                                        const Tensor& key, const Tensor& value) {
  const std::vector<RowRun> rows = row_runs(runs);
  if (rows.size() != 1) return std::nullopt;
  const std::vector<AttentionBlock> blocks =
      cut_attention(rows[0], rows[0], query.size(0), options.window, starts_of(documents).get());
  if (blocks.size() != 1 || !covers(blocks[0], query.size(0), query.size(1)) ||
      blocks[0].keys != key.size(1))
    return std::nullopt;
  return call_of(options, query, key, value, blocks[0]);
}

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
