// Where a run puts what checkpoint.export asks for.
#pragma once

#include "engine/config/config.h"

namespace meshwright::plan {

// In the run's folder. The adapters have the second where the whole model has the first.
inline constexpr const char *kExportFolder = "hf", *kAdapterExportFolder = "hf_adapter";

// Adds Error(output_unwritable) where the run would put an export in the place of the model that it
// begins with (model.pretrained), which its checkpoints may need. Looks at folders, writes nothing.
void check_exports(const config::Config& config, Diagnostics& diagnostics);

}  // namespace meshwright::plan
