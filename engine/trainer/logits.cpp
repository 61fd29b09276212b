#include "engine/trainer/logits.h"

#include <ATen/ops/constant_pad_nd.h>

#include "meshwright/parallel/tensor_parallel.h"

namespace meshwright::train {

using at::Tensor;

MicroBatchLoss loss_of(Trainer& trainer, modules::CausalLM& net, const Tensor& ids) {
  int64_t length = ids.size(1) - 1;
  std::shared_ptr<TensorParallel> tensor_parallel = trainer.model().tensor_parallel();
  Tensor logits = net(ids.narrow(1, 0, length));
  const VocabularyShard* shard =
      tensor_parallel && tensor_parallel->vocabulary() ? &*tensor_parallel->vocabulary() : nullptr;
  Tensor targets = ids.narrow(1, 1, length);
  return {cross_entropy_sum(logits, targets, shard), targets.numel()};
}

Tensor logits_of(Trainer& trainer, modules::CausalLM& net, const Tensor& ids) {
  Tensor input = ids.to(trainer.world().device());
  std::shared_ptr<TensorParallel> tensor_parallel = trainer.model().tensor_parallel();
  if (!tensor_parallel) return net(input);
  // Sequence parallelism cuts the text evenly; what stands behind it changes nothing before it.
  int64_t length = ids.size(1), ranks = tensor_parallel->group()->size(),
          more = (ranks - length % ranks) % ranks;
  if (more > 0) input = at::constant_pad_nd(input, {0, more});
  return whole_logits(net(input), tensor_parallel->vocabulary()).narrow(1, 0, length);
}

}  // namespace meshwright::train
