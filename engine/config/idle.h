// Settings that have no effect beside the others: told once each, so that nothing the file says is
// dropped in silence.
#pragma once

#include "engine/config/config.h"

namespace meshwright::config {

// Adds a notice for every key that somebody set to another value than its default although another
// setting takes its effect away. Keys of [distributed] and of the engine's own tables; those of a
// strategy's table are the strategy's to judge, and what depends on the model is said by the plan.
void tell_idle(const Config& config, Diagnostics& diagnostics);
// Whether the configuration has gradients computed, sent or kept in float16.
bool float16_gradients(const Config& config);

}  // namespace meshwright::config
