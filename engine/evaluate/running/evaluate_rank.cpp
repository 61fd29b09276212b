#include "engine/evaluate/running/evaluate_rank.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checksum.h"
#include "engine/evaluate/running/findings.h"
#include "engine/launch/ranks.h"
#include "engine/rendezvous/rendezvous.h"
#include "engine/report/progress.h"
#include "engine/train/batches.h"
#include "engine/train/run_data.h"
#include "engine/train/same_data.h"
#include "engine/trainer/evaluation.h"
#include "engine/trainer/join_world.h"
#include "engine/trainer/load_weights.h"
#include "engine/trainer/logits.h"
#include "engine/trainer/model.h"
#include "engine/trainer/rank_agreement.h"
#include "meshwright/nn/stage.h"
#include "sdk/files/clock.h"

namespace meshwright::evaluate {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

// The configuration, refused when no such model can be made here.
Job job_of(const Subject& subject, const Request& request) {
  const launch::RankEnvironment ranks =
      launch::detect_ranks(launch::process_environment()).value_or(launch::RankEnvironment{});
  generate::Settings settings = evaluate::settings(subject, request, ranks.world_size);
  Job job = Job::from_text(settings.toml, settings.sets);
  Diagnostics problems;
  plan::check_trainable(job.impl(), problems);
  problems.throw_if_any();
  return job;
}

// What all ranks must mean alike. The data are compared by what they are.
rendezvous::Facts facts_of(const Request& request, const Subject& subject) {
  std::string folders;
  for (const fs::path& folder : subject.folders) folders += folder.filename().string() + " ";
  return {{"what is evaluated", folders},
          {"--samples", std::to_string(request.samples)},
          {"--batch", std::to_string(request.batch)}};
}

// Measures one set of weights after another on the same samples.
class Measure {
 public:
  Measure(Trainer& trainer, const train::Model& model, const Request& request,
          const Subject& subject, const data::DatasetConfig& config,
          std::shared_ptr<const SampleSource> source, const Options& table)
      : trainer_(trainer),
        model_(model),
        seed_(subject.seed),
        config_(config),
        source_(std::move(source)),
        table_(table),
        samples_(request.samples > 0 ? std::min(request.samples, source_->samples())
                                     : source_->samples()),
        progress_({request.colour, request.unicode, request.width}, request.live,
                  trainer.world().rank() == 0, micro_batches()) {}

  int64_t samples() const { return samples_; }

  Finding of(const std::string& name, int64_t step) {
    const Clock::time_point begin = Clock::now();
    progress_.begin(name);
    train::Batches batches = open(step);
    double sum = 0, auxiliary = 0, weight = 0;
    int64_t targets = 0;
    // Stages ask for micro-batches again, and not in order: those of a chunk stay.
    const bool stages = trainer_.stages() != nullptr;
    const int64_t all = micro_batches(), chunk = stages ? of_a_chunk() : all;
    for (int64_t first = 0; first < all; first += chunk) {
      const train::Evaluation found = train::Evaluator::run(
          trainer_, std::min(chunk, all - first), [&](int64_t micro, const at::Tensor& hidden) {
            batches.forget_before(stages ? first : first + micro);
            MicroBatchLoss loss =
                train::loss_of(trainer_, *model_.running, batches.at(first + micro), hidden);
            if (current_stage().first) progress_.step();
            return loss;
          });
      if (found.targets == 0) continue;
      sum += found.loss * found.weight;
      auxiliary += found.auxiliary * found.weight;
      weight += found.weight;
      targets += found.targets;
    }
    if (targets == 0)
      throw Error(ErrorCode::bad_dataset, "none of the " +
                                              report::counted(samples_, "sample", "samples") +
                                              " has a target: there is nothing to measure")
          .key(config_.table + (config_.plugin ? ".plugin" : ".path"))
          .help(
              "name data whose samples have targets: meshwright dataset show prints which tokens "
              "are learnt");
    Finding out;
    out.name = name;
    out.step = step;
    out.loss = sum / weight;
    out.auxiliary = auxiliary / weight;
    out.targets = targets;
    out.seconds = base::ms_since(begin) / 1000;
    return out;
  }

 private:
  // Of a rank: so many that the last ones may reach beyond the last sample.
  int64_t micro_batches() const {
    const int64_t each = trainer_.local_batch() * trainer_.data_parallel_size();
    return (samples_ + each - 1) / each;
  }

  // Of a pipeline, in one call.
  int64_t of_a_chunk() const { return 8 * trainer_.accumulation(); }

  train::Batches open(int64_t step) const {
    const int64_t rows = trainer_.local_batch();
    return {source_,
            data::Sampler(source_->samples(), table_.get_bool("shuffle"), seed_ + 1),
            {.first = trainer_.data_parallel_rank() * rows,
             .stride = trainer_.data_parallel_size() * rows,
             .count = micro_batches()},
            {.rows = rows,
             .seq_len = config_.seq_len,
             .device = trainer_.world().device(),
             .workers = table_.get_int("workers"),
             .padding = train::padding_of(trainer_, *model_.running, config_, of_a_chunk()),
             .while_waiting = [this] { trainer_.world().check(); },
             .change = [this, step](HostBatch& batch) { change(batch, step); }}};
  }

  void change(HostBatch& batch, int64_t step) const {
    batch.seed = seed_;
    batch.step = std::max<int64_t>(step, 0);
    batch.training = false;
    if (model_.running->changes_batches()) model_.running->change_batch(batch);
    // Each sample counts once, on any number of ranks: beyond the last one are the first again.
    train::leave_out_from(samples_, batch);
  }

  Trainer& trainer_;
  const train::Model& model_;
  uint64_t seed_;
  const data::DatasetConfig& config_;
  std::shared_ptr<const SampleSource> source_;
  const Options& table_;
  int64_t samples_;
  report::CountProgress progress_;
};

// Collective. Fills the model; the step that the weights are of, -1 where nobody knows.
int64_t load(Trainer& trainer, const train::Model& model, const Subject& subject,
             const fs::path& folder) {
  if (!subject.source.is_checkpoint()) {
    train::load_weights(
        trainer, folder.string(), [&](const ParameterOutline& p) { return model.initial_value(p); },
        0);
    return -1;
  }
  std::optional<checkpoint::Checkpoint> from;
  train::agree_or_throw(trainer.world(), train::outcome_of([&] {
                          from.emplace(folder);
                          return std::string();
                        }));
  train::load_weights(trainer, *from);
  return from->meta().step;
}

// Collective. All ranks must read the same.
void check_same(World& world, const data::DatasetConfig& config, const SampleSource& source,
                const Subject& subject) {
  const std::string key = config.table + (config.plugin ? ".plugin" : ".path");
  std::vector<train::FileGroup> files = {{key, "files of the data", source.files()}};
  if (!subject.source.is_checkpoint())
    files.push_back(
        {"", "files of the weights", train::weight_files(subject.source.folder().string())});
  train::check_same_data(world, files, /*whole=*/false);
  train::check_same_fingerprints(
      world, {{key, "data", checkpoint::to_hex(data::fingerprint_of(config, source))}});
}

void write(const Findings& findings, const Request& request) {
  const report::Style style{request.colour, request.unicode, request.width};
  report::Output out(stdout, "standard output");
  out.write(request.json  ? report::pretty_json(findings.json())
            : request.csv ? findings.csv()
                          : findings.text(style));
  out.flush();
}

}  // namespace

int evaluate_rank(const Request& request, rendezvous::Ending& ending) {
  const Subject subject = subject_of(request);
  Job job = job_of(subject, request);
  train::set_threads(job);
  train::keep_freed_memory();
  const data::DatasetConfig config = data_of(job.impl(), subject, request);
  data::prepare_data(config);
  std::shared_ptr<World> world = train::join_world(job, facts_of(request, subject), &ending);
  const train::Model model = train::make_model(job);
  std::shared_ptr<const SampleSource> source = data::open_samples(config);
  if (source->has_documents())
    train::check_documents_reach(*model.module(), model.outline.architecture, config);
  check_same(*world, config, *source, subject);
  job.impl().fills_adapters = true;
  Trainer trainer(job, world, model.module(), model.outline, request.batch * config.seq_len);
  Measure measure(trainer, model, request, subject, config, source,
                  job.table("validation_dataset"));
  Findings findings{.data = source->describe(),
                    .bytes = !config.plugin && config.kind == "text",
                    .samples = measure.samples(),
                    .all_samples = source->samples(),
                    .seq_len = config.seq_len,
                    .rows = {}};
  for (const fs::path& folder : subject.folders) {
    const int64_t step = load(trainer, model, subject, folder);
    findings.rows.push_back(measure.of(folder.filename().string(), step));
    findings.rows.back().path = folder.string();
  }
  world->everyone()->barrier();
  if (world->rank() == 0) write(findings, request);
  return 0;
}

}  // namespace meshwright::evaluate
