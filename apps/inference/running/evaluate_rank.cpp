#include "apps/inference/running/generate_rank.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checksum.h"
#include "engine/launch/ranks.h"
#include "engine/launch/rendezvous/rendezvous.h"
#include "engine/train/run/batches.h"
#include "engine/train/run/same_data.h"
#include "engine/train/step/load_weights.h"
#include "engine/train/step/logits.h"
#include "engine/train/step/model.h"
#include "engine/train/step/rank_agreement.h"
#include "meshwright/nn/stage.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/progress.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::evaluate {

// What was measured, as a table, as CSV and as JSON.

struct Finding {
  std::string path, name;  // the folder; "step_00000050"
  int64_t step = -1;       // -1: not of a run
  double loss = 0;         // mean cross entropy of the targets
  // What routers of experts add to it in training: how evenly they spread the samples that are read
  // together. Not a number: nothing.
  double auxiliary = std::numeric_limits<double>::quiet_NaN();
  int64_t targets = 0;
  double seconds = 0;
  double perplexity() const { return std::exp(loss); }
};

struct Findings {
  std::string data;         // "3 files, 1.2 MB of text"
  bool bytes = false;       // its tokens are the bytes of texts
  int64_t samples = 0;      // that were read
  int64_t all_samples = 0;  // that there are
  int64_t seq_len = 0;
  std::vector<Finding> rows;

  bool has_auxiliary() const;
  std::string text(const report::Style& style) const;
  std::string csv() const;
  boost::json::object json() const;
};

namespace {

// JSON and CSV have no words for what is not finite.
boost::json::value or_null(double value) {
  return std::isfinite(value) ? boost::json::value(value) : boost::json::value(nullptr);
}
std::string or_empty(double value) {
  return std::isfinite(value) ? text::format("%.9g", value) : "";
}

double bits(double loss) { return loss / std::log(2.0); }

// RFC 4180.
std::string field(const std::string& path) {
  const std::string text = report::csv_cell(path);
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace

bool Findings::has_auxiliary() const {
  return std::any_of(rows.begin(), rows.end(),
                     [](const Finding& row) { return std::isfinite(row.auxiliary); });
}

std::string Findings::text(const report::Style& style) const {
  std::string out = "data: " + data + "\n" + report::human_count(samples) +
                    (samples < all_samples ? " of " + report::human_count(all_samples) : "") +
                    (all_samples == 1 ? " sample of " : " samples of ") +
                    report::human_count(seq_len) + " tokens";
  if (!rows.empty()) out += ", " + report::counted(rows[0].targets, "target", "targets");
  out += "\n\n";
  std::vector<std::vector<std::string>> cells = {{"", "loss", "perplexity"}};
  if (bytes) cells[0].emplace_back("bits a byte");
  const bool auxiliary = has_auxiliary();
  if (auxiliary) cells[0].emplace_back("auxiliary loss");
  cells[0].insert(cells[0].end(), {"tokens/s", ""});
  const auto lowest = std::min_element(
      rows.begin(), rows.end(), [](const Finding& a, const Finding& b) { return a.loss < b.loss; });
  for (auto row = rows.begin(); row != rows.end(); ++row) {
    std::vector<std::string> line = {row->name, text::format("%.6f", row->loss),
                                     text::format("%.4g", row->perplexity())};
    if (bytes) line.push_back(text::format("%.4f", bits(row->loss)));
    if (auxiliary) line.push_back(text::format("%.6f", row->auxiliary));
    line.push_back(row->seconds > 0 ? report::human_count(static_cast<int64_t>(
                                          static_cast<double>(row->targets) / row->seconds))
                                    : "");
    line.emplace_back(rows.size() > 1 && row == lowest ? "lowest" : "");
    cells.push_back(std::move(line));
  }
  constexpr size_t kRight[] = {1, 2, 3, 4, 5};
  return out + report::table(style, cells, std::span(kRight).first(cells[0].size() - 2));
}

std::string Findings::csv() const {
  const bool auxiliary = has_auxiliary();
  std::string out = "path,step,loss,perplexity,targets,seconds";
  out += auxiliary ? ",auxiliary_loss\n" : "\n";
  for (const Finding& row : rows)
    out += field(row.path) + "," + (row.step >= 0 ? std::to_string(row.step) : "") + "," +
           or_empty(row.loss) + "," + or_empty(row.perplexity()) + "," +
           std::to_string(row.targets) + "," + text::format("%.3f", row.seconds) +
           (auxiliary ? "," + or_empty(row.auxiliary) : "") + "\n";
  return out;
}

boost::json::object Findings::json() const {
  boost::json::array found;
  for (const Finding& row : rows) {
    boost::json::object one{
        {"path", row.path},
        {"step", row.step >= 0 ? boost::json::value(row.step) : boost::json::value(nullptr)},
        {"loss", or_null(row.loss)},
        {"perplexity", or_null(row.perplexity())}};
    if (bytes) one["bits_per_byte"] = or_null(bits(row.loss));
    if (std::isfinite(row.auxiliary)) one["auxiliary_loss"] = row.auxiliary;
    one["targets"] = row.targets;
    one["seconds"] = row.seconds;
    found.push_back(std::move(one));
  }
  return {{"data", data},
          {"samples", samples},
          {"all_samples", all_samples},
          {"seq_len", seq_len},
          {"evaluations", std::move(found)}};
}

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
    return {{source_, data::Sampler(source_->samples(), table_.get_bool("shuffle"), seed_ + 1)},
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
