#include "attention_blocks.h"

#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>

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

}  // namespace meshwright::detail
