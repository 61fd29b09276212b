// Of the models built in, whose module a test holds itself.
#pragma once

#include "engine/models/models.h"
#include "engine/models/running/causal_lm.h"
#include "engine/train/step/load_weights.h"
#include "engine/train/step/logits.h"

namespace meshwright::train {

inline MicroBatchLoss loss_of(Trainer& trainer, modules::CausalLM& net, const MicroBatch& batch,
                              const at::Tensor& hidden = {}) {
  modules::RunningCausalLM running(net);
  return loss_of(trainer, running, batch, hidden);
}
// ids: [batch, length + 1]; each position's target is the next id.
inline MicroBatchLoss loss_of(Trainer& trainer, modules::CausalLM& net, const at::Tensor& ids,
                              const at::Tensor& hidden = {}) {
  return loss_of(trainer, net, next_tokens(ids), hidden);
}
inline at::Tensor logits_of(Trainer& trainer, modules::CausalLM& net, const at::Tensor& ids) {
  modules::RunningCausalLM running(net);
  return logits_of(trainer, running, ids);
}
inline void load_weights_of(Trainer& trainer, const std::string& pretrained, modules::CausalLM& net,
                            uint64_t seed) {
  load_weights(
      trainer, pretrained,
      [&](const ParameterOutline& p) { return net->outline().initial_value(p.name); }, seed);
}

}  // namespace meshwright::train
