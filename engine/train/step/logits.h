// What the loop asks of a language model: losses and logits, whatever part of the vocabulary this
// rank holds.
#pragma once

#include <string>

#include "engine/train/step/micro_batch.h"
#include "meshwright/model/running_model.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

// Logits are never gathered, and nothing waits for the device. `hidden`: what the stage before
// gave, as Trainer::StageForward has it.
MicroBatchLoss loss_of(Trainer& trainer, RunningModel& net, const MicroBatch& batch,
                       const at::Tensor& hidden = {});

// Collective. ids: [batch, length] on any device, any length; gives [batch, length, vocabulary] on
// every rank, without gradients. Under a pipeline those of the last position alone, [batch, 1,
// vocabulary].
at::Tensor logits_of(Trainer& trainer, RunningModel& net, const at::Tensor& ids);
// What to tell whoever has text written on ranks that share samples; empty: nothing.
std::string whole_text_notice(Trainer& trainer);

}  // namespace meshwright::train
