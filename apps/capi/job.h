// What is behind meshwright_job.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/reading.h"
#include "engine/job/plan.h"
#include "engine/train/preflight/before.h"
#include "meshwright/meshwright.h"

struct meshwright_job {
  explicit meshwright_job(meshwright::config::Reading read) : reading(std::move(read)) {}
  meshwright::config::Reading reading;
  meshwright::plan::Job job;
  std::string answer, notices;  // as given to the caller

  // Reads and checks it anew. Throws capi::Mistakes; then nothing has changed.
  void load(std::vector<std::string> with);
  meshwright::before::Reload reload() const;
  void tell(const meshwright::Diagnostics& said);
};
