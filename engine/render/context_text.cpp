#include "engine/render/context_text.h"

#include <algorithm>
#include <array>
#include <vector>

namespace meshwright::render {

namespace {

constexpr int64_t kStrip = 32, kMostShown = 8;

// A sample from left to right, the rank's tokens in it filled.
std::string strip(const report::Style& style, const ContextSplit& split,
                  const std::vector<PositionRun>& runs) {
  std::string out;
  const int64_t cells = std::min(kStrip, split.padded());
  for (int64_t cell = 0; cell < cells; ++cell) {
    const int64_t position = cell * split.padded() / cells;
    const bool mine = std::any_of(runs.begin(), runs.end(), [&](const PositionRun& run) {
      return run.position <= position && position < run.position + run.count;
    });
    out += mine ? (style.unicode ? "█" : "#") : (style.unicode ? "·" : ".");
  }
  return out;
}

std::string words(const std::vector<PositionRun>& runs) {
  std::string out;
  for (const PositionRun& run : runs)
    out += (out.empty() ? "" : ", ") + std::to_string(run.position) + " to " +
           std::to_string(run.position + run.count - 1);
  return out;
}

}  // namespace

std::string context_text(const report::Style& style, const plan::JobPlan& plan) {
  const Mesh& mesh = *plan.mesh.device_mesh;
  const int64_t mine = mesh.coordinate(plan.rank, "cp");
  std::string out;
  for (const std::string& line :
       report::wrap("method " + context_method_name(*plan.context) +
                        (plan.context->why.empty() ? "" : ": " + plan.context->why),
                    static_cast<size_t>(style.width)))
    out += line + "\n";
  if (plan.workload.seq_len == 0)
    return out + "set dataset.seq_len to see which tokens each rank has\n";
  const ContextSplit split(plan.workload.seq_len, mesh.size("cp"), plan.context->balance);
  out += std::to_string(split.length()) + " tokens a sample" +
         (split.padded() > split.length() ? ", padded to " + std::to_string(split.padded()) : "") +
         "; [" + std::to_string(plan.rank) + "] = with the chosen rank\n";
  std::vector<std::vector<std::string>> rows{{"cp", "a sample", "positions"}};
  for (int64_t rank = 0; rank < split.ranks(); ++rank) {
    if (split.ranks() > kMostShown && rank >= kMostShown - 1 && rank != mine) continue;
    const std::vector<PositionRun> runs = split.runs_of(rank);
    rows.push_back(
        {std::to_string(rank) + (rank == mine ? " [" + std::to_string(plan.rank) + "]" : ""),
         strip(style, split, runs), words(runs)});
  }
  out += report::table(style, rows);
  if (split.ranks() > kMostShown) out += "and so on for the others\n";
  if (plan.context_costs.empty()) return out;
  rows = {{"method", "sends a step", "holds at its peak", ""}};
  for (const ContextCost& cost : plan.context_costs)
    rows.push_back({cost.method, report::human_bytes(cost.bytes),
                    report::human_bytes(cost.transient), cost.chosen ? "chosen" : ""});
  constexpr std::array<size_t, 2> right = {1, 2};
  return out + report::table(style, rows, right);
}

}  // namespace meshwright::render
