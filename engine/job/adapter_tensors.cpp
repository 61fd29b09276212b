#include "engine/checkpoint/weights/adapter_tensors.h"

#include <optional>

#include "engine/job/adapter_folder.h"
#include "engine/job/adapters.h"

namespace meshwright::plan {
namespace {

// nullopt: the job names no model, or what is wrong with it is said where it is planned.
std::optional<ModelOutline> outline_with_adapters(const Job& job) try {
  const std::optional<JobModel> model = model_of(job);
  if (!model) return std::nullopt;
  ModelOutline outline = model->outline(job.config);
  add_adapters(job.config, outline);
  return outline;
} catch (const Error&) {
  return std::nullopt;
}

}  // namespace

void check_adapter_files(const Job& job, Diagnostics& diagnostics) {
  const size_t before = diagnostics.errors().size();
  check_adapter_folder(job, diagnostics);
  const Options& table = job.config.table("lora");
  if (diagnostics.errors().size() != before || !table.is_set("adapter") || table.get_int("r") == 0)
    return;
  const std::optional<ModelOutline> outline = outline_with_adapters(job);
  if (!outline) return;
  try {
    weights::open_adapter_tensors(table.get_string("adapter"), *outline);
  } catch (Error& error) {
    diagnostics.add(error.at(table.origin("adapter")));
  }
}

}  // namespace meshwright::plan
