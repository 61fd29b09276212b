#include "engine/train/run/reporter.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/object.hpp>

#include "engine/config/cross_checks.h"
#include "engine/job/plan.h"
#include "engine/launch/rendezvous/notices.h"
#include "engine/train/preflight/same_run.h"
#include "engine/train/step/rank_agreement.h"
#include "meshwright/abi.h"
#include "sdk/base/host_facts.h"
#include "sdk/base/plain_text.h"

namespace meshwright::train {

void Reporter::open(const std::filesystem::path& folder, std::optional<int64_t> steps,
                    int64_t max_steps, bool details) {
  max_steps_ = max_steps;
  folder_ = std::make_unique<RunFolder>(folder, steps, tell_);
  if (!tell_) progress_ = std::make_unique<Progress>(out_, style_, live_, max_steps, details);
}

void Reporter::outlive_full_disks() {
  folder_->outlive_full_disks([this](const std::string& text) { show("warning: " + text); });
}

void Reporter::watch(MonitorSettings settings) {
  if (!folder_) return;
  settings.folder = folder_->path();
  auto tell = [this](const std::string& line) {
    show(line);
    folder_->log(line);
  };
  if (attached().monitors == nullptr) {
    if (settings.asks_for_any())
      tell("warning: [report] is left out: it is for a build with apps/observe");
    return;
  }
  try {
    if (!settings.completed) attached().keep_earlier(settings.folder, kept());
  } catch (const Error& error) {
    tell("warning: what an earlier run left stays in the way: " + error.message());
  }
  monitors_ = attached().monitors(settings, tell);
}

void Reporter::say(const std::string& line) {
  if (!folder_) return;
  folder_->log(line);
  show(line);
}

void Reporter::show(const std::string& text) {
  if (!folder_) return;
  progress_ ? progress_->say(text) : tell_(text);
}

void Reporter::put(const std::string& name, const std::string& contents) const {
  if (folder_) folder_->put(name, contents);
}

void Reporter::step(const StepResult& result, const StepCost& cost) {
  if (!folder_) return;
  const std::string row = folder_->step(result, cost);
  if (monitors_) monitors_->row(row);
  loads_.add(result);
  folder_->log(Progress::line(result, cost, max_steps_));
  if (progress_) progress_->step(result, cost);
}

void Reporter::validation(int64_t step, const Evaluation& found,
                          const std::vector<NamedLoss>& sets) {
  if (!folder_) return;
  const std::string row = folder_->validation(step, found.loss, found.auxiliary, sets);
  if (monitors_) monitors_->row(row);
  if (progress_) progress_->validation(step, found.loss, sets);
  folder_->log("step " + std::to_string(step + 1) + "  " +
               validation_words(found.loss, "%.6f", sets));
}

void Reporter::saved(const SaveReport& report, bool goes_on) {
  if (!folder_) return;
  if (monitors_) monitors_->saved(report.step, !report.error);
  std::string line =
      "step " + std::to_string(report.step) + "/" + std::to_string(max_steps_) + "  ";
  if (report.error) {
    line += "no checkpoint: " + report.error->message();
    if (goes_on) show("warning: " + line + "; the run goes on (checkpoint.on_failure)");
  } else {
    line += "checkpoint " + report.path.string() + "  " + report::human_bytes(report.bytes) +
            text::format(" in %.2f s", report.total_ms / 1000);
    if (report.pause_ms < report.total_ms)
      line += text::format(", training paused %.0f ms", report.pause_ms);
    if (report.step == max_steps_) show(line);
  }
  folder_->log(line);
}

void Reporter::sync() {
  if (folder_) folder_->sync();
  if (monitors_) monitors_->flush();
}

void Reporter::end_steps(bool finished) {
  if (!folder_) return;
  if (monitors_) monitors_->end(finished);
  if (progress_) progress_->finish();
  if (loads_.empty()) return;
  put("expert_load.json", loads_.json());
  show(loads_.draw(style_));
  folder_->log(loads_.draw({.width = 120}));
}

static std::string environment_json(const Job& job, Trainer& trainer) {
  boost::json::object out;
  out["meshwright"] = MESHWRIGHT_VERSION;
  out["host"] = host_name();
  out["world_size"] = trainer.world().size();
  out["threads"] = at::get_num_threads();
  out["device"] = trainer.world().device().str();
  const loader::LoadedPlugin& plugin = *trainer.plan().strategy.plugin;
  out["plugin"] = {{"name", plugin.name},
                   {"version", plugin.version},
                   {"path", plugin.path.string()},
                   {"facts", plugin.facts_hash}};
  boost::json::object facts;
  for (const auto& [name, value] : loader::engine_facts()) facts[name] = value;
  out["facts"] = facts;
  out["file"] = job.impl().config.file.string();
  return report::pretty_json(out);
}

std::string changed_settings(const std::filesystem::path& folder, const Job& job,
                             const std::vector<std::string>& without) {
  std::vector<config::Difference> found =
      before::settings_changed(folder, job.impl()).value_or(std::vector<config::Difference>());
  std::erase_if(found, [&](const config::Difference& one) {
    return std::ranges::find(without, one.key) != without.end();
  });
  return found.empty() ? "" : "continues with " + before::changes_text(found);
}

MonitorSettings monitor_settings(const Job& job, Trainer& trainer,
                                 std::optional<int64_t> completed) {
  const Options& asked = job.table("report");
  MonitorSettings out;
  out.completed = completed;
  out.tensorboard = asked.get_bool("tensorboard");
  out.csv = asked.get_bool("csv");
  out.prometheus_file = asked.get_string("prometheus_file");
  out.facts = {.run = job.table("run").get_string("name"),
               .strategy = trainer.plan().strategy.info->name,
               .version = MESHWRIGHT_VERSION,
               .ranks = trainer.world().size(),
               .max_steps = trainer.max_steps(),
               .completed = trainer.next_step()};
  if (asked.is_set("prometheus")) {
    const config::ListenAddress at =
        config::parse_listen_address(asked.get_string("prometheus"), "report.prometheus");
    out.host = at.host;
    out.port = at.port;
  }
  if (out.tensorboard) out.configuration = before::resolved_toml(job.impl());
  return out;
}

std::string plan_text(Trainer& trainer, const PredictionError& prediction_error) {
  boost::json::object plan = plan::to_json(trainer.plan());
  prediction_error.put_into(plan);
  return report::pretty_json(plan);
}

void write_records(const Reporter& reporter, const RunOptions& options, const Job& job,
                   Trainer& trainer, const PredictionError& prediction_error) {
  if (!reporter) return;
  reporter.put("config.toml", options.given->text());
  reporter.put(config::kResolvedFile, before::resolved_toml(job.impl()));
  reporter.put("plan.json", plan_text(trainer, prediction_error));
  reporter.put("env.json", environment_json(job, trainer));
}

std::vector<std::string> lines_of_all_ranks(World& world, const std::vector<std::string>& mine) {
  using Line = std::pair<std::string, std::vector<int64_t>>;
  std::vector<Line> lines;
  const std::vector<std::vector<std::string>> told = gather(world, mine);
  for (size_t rank = 0; rank < told.size(); ++rank)
    for (const std::string& text : told[rank]) {
      auto known = std::ranges::find(lines, text, &Line::first);
      if (known == lines.end()) known = lines.insert(known, {text, {}});
      known->second.push_back(static_cast<int64_t>(rank));
    }
  std::vector<std::string> out;
  for (const auto& [text, ranks] : lines)
    out.push_back(ranks[0] == 0 ? text : rendezvous::named_ranks(ranks) + ": " + text);
  return out;
}

}  // namespace meshwright::train
