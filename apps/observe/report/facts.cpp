#include <algorithm>
#include <cstdlib>

#include "apps/observe/report/report.h"
#include "apps/observe/report/scale.h"
#include "sdk/base/terminal/progress.h"

namespace meshwright::runs {
namespace {

std::string string_at(const std::optional<boost::json::object>& object, const char* key) {
  const boost::json::value* value = object ? object->if_contains(key) : nullptr;
  if (value == nullptr) return {};
  return value->is_string() ? std::string(value->as_string()) : std::string();
}
std::string number_at(const std::optional<boost::json::object>& object, const char* key) {
  const boost::json::value* value = object ? object->if_contains(key) : nullptr;
  return value != nullptr && value->is_int64() ? std::to_string(value->as_int64()) : std::string();
}

std::string unquoted(std::string text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"')
    text = text.substr(1, text.size() - 2);
  return text;
}

}  // namespace

Facts facts_of(const RunRecord& run) {
  Facts out;
  out.state = run.state();
  out.strategy = string_at(run.plan, "strategy");
  if (out.strategy.empty()) out.strategy = unquoted(run.setting("distributed.strategy"));
  out.ranks = number_at(run.environment, "world_size");
  if (out.ranks.empty()) out.ranks = number_at(run.plan, "world_size");
  out.device = string_at(run.environment, "device");
  out.started = run.started;
  if (run.seconds) out.took = report::human_duration(*run.seconds);
  out.steps = report::human_count(run.steps());
  // Of epochs the plan alone knows how many steps they are.
  std::string most = number_at(run.plan, "max_steps");
  if (most.empty()) most = run.setting("step_scheduler.max_steps");
  if (!most.empty() && unquoted(most) != "none")
    out.steps += " of " + report::human_count(std::atoll(most.c_str()));
  if (auto s = summary_of(run.metrics.of(Quantity::validation_loss)))
    out.validation =
        format("%.4g at step ", s->least) + report::human_count(static_cast<int64_t>(s->least_at));
  if (auto s = summary_of(run.metrics.of(Quantity::tokens_per_second)))
    out.tokens_per_second = s->median;
  if (auto s = summary_of(run.metrics.of(Quantity::step_ms))) out.step_ms = s->median;
  if (auto s = summary_of(run.metrics.of(Quantity::memory_bytes))) out.memory = s->most;
  bool restarted = false;  // by the launcher, and not told yet where it goes on
  for (const Event& event : run.events) {
    // A run that goes on was started again, by hand or by its launcher.
    out.restarts +=
        event.kind == Event::Kind::restart || (event.kind == Event::Kind::resume && !restarted);
    if (event.kind == Event::Kind::restart) restarted = true;
    if (event.kind == Event::Kind::resume) restarted = false;
    out.warnings += event.kind == Event::Kind::warning;
    out.faults += event.kind == Event::Kind::fault;
  }
  return out;
}

std::vector<config::Difference> differences_of(const std::vector<RunRecord>& runs) {
  std::vector<std::vector<config::Setting>> all;
  for (const RunRecord& run : runs)
    if (!run.settings.empty()) all.push_back(run.settings);
  if (all.size() != runs.size() || all.size() < 2) return {};
  std::vector<config::Difference> out = config::differences(all);
  std::erase_if(out, [](const config::Difference& one) {
    return one.key == "run.name" || one.key == "run.dir";
  });
  return out;
}

}  // namespace meshwright::runs
