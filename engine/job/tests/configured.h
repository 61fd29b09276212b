// A configuration of a text, or of settings alone, without its plugins.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/job/plan.h"

namespace meshwright::plan {

inline Job job_of(const std::string& text, const std::vector<std::string>& sets = {}) {
  Diagnostics diagnostics;
  const config::Source source = config::Source::parse(
      text, {.file = "job.toml", .sets = sets, .environment = {}}, diagnostics);
  Job out;
  out.config = config::resolve(source, {}, "", diagnostics);
  for (const Error& error : diagnostics.errors()) FAIL(error.what());
  return out;
}
inline Job job_with(const std::vector<std::string>& sets) { return job_of("schema = 1\n", sets); }

}  // namespace meshwright::plan
