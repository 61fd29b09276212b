// Attention as one module that has no parameters, so that what surrounds it can decide how it is
// computed: whole on one rank, or with other ranks' keys.
//
//   struct BlockImpl : torch::nn::Module {
//     AttentionCore core = register_module("core", AttentionCore(AttentionOptions{.scale = s}));
//     ...  core(query, key, value)  // after rotary embedding
//   };
//   // Around the forward of a model whose rows are not positions 0, 1, 2, ... of one document:
//   SequenceScope scope(sequence);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/nn/module.h"
#include "meshwright/region.h"

namespace meshwright {

// Where the rows of a forward lie in their samples. Everything left out says that row i is position
// i of one document.
struct Sequence {
  int64_t length = 0;             // positions of a whole sample, without padding; 0: the rows
  std::vector<PositionRun> rows;  // of each sample, in the order of the rows
  // The document of every position of the samples, [batch, positions] int32, ascending along the
  // sequence, at least as long as the rows reach: a key is seen by queries of its document alone.
  at::Tensor documents;
  // The angle that rotary embedding turns a row by, [batch, rows] int64: positions restart with
  // each document. Undefined: the positions of `rows`.
  at::Tensor positions;
  at::Tensor
      counts;  // [batch, rows] bool: false is padding, which no router counts; undefined: all
  std::shared_ptr<const Later> later = {};
};

// Makes `sequence` that of the forwards run by this thread while it lives. What recomputes under
// activation checkpointing sees the sequence of its first run.
class MESHWRIGHT_API SequenceScope {
 public:
  explicit SequenceScope(std::shared_ptr<const Sequence> sequence);
  ~SequenceScope();
  SequenceScope(const SequenceScope&) = delete;
  SequenceScope& operator=(const SequenceScope&) = delete;

 private:
  std::shared_ptr<const Sequence> outer_;
};
// nullptr: row i is position i of one document.
MESHWRIGHT_API std::shared_ptr<const Sequence> current_sequence();
// For learned positions: those of the rows of `ids` [batch, rows], [1 or batch, rows] int64 on its
// device. Padding, which lies behind all that counts, has positions below `end`, too.
MESHWRIGHT_API at::Tensor current_positions(const at::Tensor& ids, int64_t end);

struct AttentionOptions {
  double scale = 1;
  // A query sees the `window` positions that end with its own; 0: all before it.
  int64_t window = 0;
  double dropout = 0;  // of probabilities, in training
  std::shared_ptr<const Later> later = {};
};

// How attention is computed. `sequence` may be null.
class MESHWRIGHT_API AttentionMethod {
 public:
  virtual ~AttentionMethod();
  virtual at::Tensor forward(const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, const AttentionOptions& options,
                             const std::shared_ptr<const Sequence>& sequence) = 0;
  // Growth: an interface by id, or nullptr.
  virtual void* extension(uint32_t id);
};

class MESHWRIGHT_API AttentionCoreImpl : public torch::nn::Module {
 public:
  explicit AttentionCoreImpl(AttentionOptions options);
  ~AttentionCoreImpl() override;
  // Softmax(scale q k^T) v over the keys that each query sees: of its document, at its position and
  // before it, within the window. query [batch, rows, heads, head_dim]; key, value [batch, rows,
  // kv_heads, head_dim], heads a multiple of kv_heads. Gives [batch, rows, heads, head_dim].
  // Nothing of the size rows * rows is made on the CPU.
  at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

  const AttentionOptions& options() const { return options_; }
  void set_method(std::shared_ptr<AttentionMethod> method) { method_ = std::move(method); }

 private:
  AttentionOptions options_;
  std::shared_ptr<AttentionMethod> method_;  // nullptr: all rows are here
  std::shared_ptr<const Later> later_;       // room for what later versions add
};
MESHWRIGHT_MODULE(AttentionCore);

// Dotted names and cores, in the order of the modules.
MESHWRIGHT_API std::vector<std::pair<std::string, AttentionCoreImpl*>> find_attention_cores(
    torch::nn::Module& model);

}  // namespace meshwright
