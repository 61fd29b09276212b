// A layout as --set takes it.
#include <cmath>

#include "apps/performance/forecast/layouts.h"
#include "sdk/base/pipeline.h"

namespace meshwright::forecast {
namespace {

using steptime::Layout;

std::string digits(double value) { return std::to_string(std::llround(value)); }

class Settings {
 public:
  Settings(const plan::Job& job, const Layout& layout) : job_(job), layout_(layout) {}

  std::vector<std::string> all(double layers, double global_batch) {
    const steptime::Job& sizes = layout_.job;
    set("distributed.strategy", layout_.strategy);
    add_sizes();
    for (const std::string& option : layout_.options) out_.push_back(option);
    const bool cuts = sizes.tp > 1 && sizes.sequence_parallel;
    set("distributed.sequence_parallel", cuts ? "true" : "false");
    if (job_.config.shared.enable_async_tensor_parallel &&
        !(cuts && sizes.async_tp != steptime::AsyncTp::no))
      set("distributed.enable_async_tensor_parallel", "false");
    set("distributed.activation_checkpointing", recompute_word(sizes.recompute));
    set("step_scheduler.global_batch_size", digits(global_batch));
    set("step_scheduler.local_batch_size",
        digits(sizes.micro_batch * (sizes.pp > 1 ? sizes.micro_batches : 1)));
    if (sizes.pp > 1) add_pipeline(layers);
    if (sizes.cp > 1) add_context();
    return std::move(out_);
  }

 private:
  void set(const std::string& key, const std::string& value) { out_.push_back(key + "=" + value); }
  // Where it is not what a job has anyway, or the file says something else.
  void set_size(const char* name, double value, int64_t in_file) {
    if (value > 1 || in_file > 1) set(std::string("distributed.") + name, digits(value));
  }

  void add_sizes() {
    const steptime::Job& sizes = layout_.job;
    const ParallelSizes& file = job_.config.shared.sizes;
    set("distributed.tp_size", digits(sizes.tp));
    set("distributed.cp_size", digits(sizes.cp));
    set("distributed.pp_size", digits(sizes.pp));
    if (file.dp) set("distributed.dp_size", "auto");
    set_size("ep_size", sizes.ep, file.ep);
    // Where nothing is sharded, copies have no size of their own.
    set_size("dp_replicate_size", sizes.shard > 1 ? sizes.replicas() : 1, file.dp_replicate);
  }

  void add_pipeline(double layers) {
    const steptime::Job& sizes = layout_.job;
    const PipelineOptions& file = job_.config.shared.pipeline;
    const std::string table = "distributed.pipeline.";
    set(table + "pp_schedule", std::string(schedule_name(sizes.schedule)));
    set(table + "layers_per_stage",
        digits(std::ceil((layers + 2 * layout_.less) / (sizes.pp * sizes.stages))));
    if (layout_.less > 0 || file.first_stage_less_layers > 0)
      set(table + "first_stage_less_layers", digits(layout_.less));
    if (layout_.less > 0 || file.last_stage_less_layers > 0)
      set(table + "last_stage_less_layers", digits(layout_.less));
    set(table + "pp_microbatch_size", digits(sizes.micro_batch));
    if (file.batch_size) set(table + "pp_batch_size", "auto");
    if (!file.schedule_csv.empty()) set(table + "pp_schedule_csv", "none");
    if (file.round != PipelineOptions::Round::none)
      set(table + "round_virtual_stages_to_pp_multiple", "none");
    if (!file.module_fqns_per_model_part.empty()) set(table + "module_fqns_per_model_part", "none");
  }

  // Sizes of the file are of its own cp.
  void add_context() {
    const ContextOptions& file = job_.config.shared.context;
    if (static_cast<double>(job_.config.shared.sizes.cp) == layout_.job.cp) return;
    if (file.ring_size) set("distributed.context.ring_size", "auto");
    if (file.ulysses_size) set("distributed.context.ulysses_size", "auto");
  }

  const plan::Job& job_;
  const Layout& layout_;
  std::vector<std::string> out_;
};

}  // namespace

const char* recompute_word(steptime::Recompute recompute) {
  switch (recompute) {
    case steptime::Recompute::full:
      return "full";
    case steptime::Recompute::selective:
      return "selective";
    default:
      return "none";
  }
}

std::vector<std::string> settings_of(const plan::Job& job, const Layout& layout, double layers,
                                     double global_batch) {
  return Settings(job, layout).all(layers, global_batch);
}

std::string set_line(const std::vector<std::string>& settings) {
  std::string out;
  for (const std::string& setting : settings) out += (out.empty() ? "--set " : " --set ") + setting;
  return out;
}

}  // namespace meshwright::forecast
