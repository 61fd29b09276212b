// Runs beside each other: as a page, in the terminal, for machines.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/observe/report/run_record.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::runs {

// One HTML file that needs nothing else: styles, script and pictures are in it. `made`: when, as
// text.
std::string html_page(const std::vector<RunRecord>& runs, const std::string& made);
// Curves of characters, then what happened. As wide as the style.
std::string text_report(const report::Style& style, const std::vector<RunRecord>& runs);
boost::json::object report_json(const std::vector<RunRecord>& runs);

// What the three forms say of a run in the same words.
struct Facts {
  std::string state, strategy, ranks, device, started;
  std::string took;        // "2 h 05 min"; empty: the log has no times
  std::string steps;       // "300 of 500"
  std::string validation;  // "1.514 at step 450": the least; empty: none
  double tokens_per_second = 0, step_ms = 0, memory = 0;  // medians, and the peak; 0: unknown
  size_t restarts = 0;
};
Facts facts_of(const RunRecord& run);
// What a run has read of a source of its mix.
struct ReadSource {
  std::string name;
  int64_t samples = 0, tokens = 0;
  double share = 0;                 // of all samples
  std::optional<double> loss = {};  // the last one; the run may not have told any
  std::string loss_text() const;    // "2.31"; "-": none
};
std::vector<ReadSource> sources_of(const Metrics& metrics);
// A step as it was predicted, beside what it took.
struct PredictedStep {
  struct Pair {
    std::optional<double> predicted, measured;
  };
  std::string machine;                                // empty: not known
  std::vector<std::pair<std::string, double>> parts;  // seconds of those that take some
  Pair seconds, exposed, memory;                      // memory: bytes of rank 0
  bool pipeline = false;                              // some of the step is a bubble

  // A table, the first row is its header; the other columns are numbers.
  std::vector<std::vector<std::string>> rows() const;
  std::string about() const;  // what the figures are, a sentence or two
};
// nullopt: plan.json has no prediction by part, as without a machine or of an earlier version.
std::optional<PredictedStep> predicted_step(const RunRecord& run);
// Keys whose values differ between runs, but for those that name a run.
std::vector<config::Difference> differences_of(const std::vector<RunRecord>& runs);

}  // namespace meshwright::runs
