// What a rank does before its first step: its threads, its memory, and the values of its part of
// the model.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/checkpoint/checkpoint.h"
#include "meshwright/model/model_family.h"
#include "meshwright/trainer.h"

namespace torch::nn {
class Module;
}

namespace meshwright::train {

// run.threads, else OMP_NUM_THREADS, else this rank's share of the cores.
void set_threads(const Job& job);
// For the program only: a library leaves its process as it is.
void keep_freed_memory();

// Fill this rank's part of every parameter, the same on every layout. Collective: a rank that
// throws Error(bad_safetensors | weights_mismatch) makes all throw it. From a Hugging Face folder,
// or at random when `pretrained` is empty; adapters from the folder `adapter`, or at random when
// that is empty.
using InitialValueOf = std::function<InitialValue(const ParameterOutline& parameter)>;
void load_weights(Trainer& trainer, const std::string& pretrained, const InitialValueOf& initial,
                  uint64_t seed, const std::string& adapter = {});
// Of a module that is whole and has its factors: all of them, from the folder of lora.adapter.
// Throws Error(bad_module) for one without values, and as above.
void read_adapters(const std::string& folder, const ModelOutline& outline,
                   torch::nn::Module& model);
// What to tell the user when a base beside adapters has fewer digits than its folder's files.
std::string rounded_base(const std::string& folder, DType then, DType now);
// From a checkpoint, its weights alone; adapters from the folder `adapter`, unless it is empty.
// Collective, as above. Throws Error(bad_checkpoint | bad_safetensors | weights_mismatch).
void load_weights(Trainer& trainer, checkpoint::Checkpoint& from, const std::string& adapter = {});

// How a parameter's rows are interleaved; nullopt: they are as in Hugging Face's files.
std::optional<FusedRows> fused_rows(const ModelOutline& outline, std::string_view parameter);

// Reads one part of a checkpoint's tensor into a tensor, over the host where that lies on a device.
void read_into(checkpoint::Checkpoint& from, const checkpoint::TensorRecord& record,
               const Region& region, const at::Tensor& to);

}  // namespace meshwright::train
