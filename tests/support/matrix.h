// What is asked of prove: the options of a job as a few factors, of which each two values meet.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "sdk/comm/tests/covering.h"

namespace meshwright::support {

enum Factor : size_t {
  strategy,
  family,
  schedule,
  tp,
  cp,
  ep,
  dp,
  dtype,
  recompute,
  trains,
  samples,
  optimizer,
  model,
  option,
  kFactors
};

struct Value {
  std::string name;
  std::vector<std::string> toml = {};  // lines of the job
  int64_t ranks = 1;                   // how many times as many
  std::vector<std::string> of = {};    // of these strategies (or families) alone; empty: of all
  std::string unproven = {};           // why prove has no part for it
};

struct Column {
  std::string name;   // "tp"
  std::string title;  // of its table
  bool absent;        // the first value is: without
  std::vector<Value> values;
};

const std::vector<Column>& columns();
inline const Value& value(const CoveringRow& row, Factor f) { return columns()[f].values[row[f]]; }

// "strategy: ddp, tp: 2": the values that are not plain.
std::string text_of(const CoveringRow& row);
std::optional<CoveringRow> row_of(const std::string& text);  // nullopt: no value of that name

int64_t ranks_of(const CoveringRow& row);
// Whether the two say something together: an option of another strategy's table does not.
bool is_asked(const CoveringPair& pair);
// Whether prove has a part for each of its values.
bool is_provable(const CoveringRow& row);
// What a pair needs of other factors.
void bring(CoveringRow& row, const CoveringPair& wanted);
// The plainest job that has both.
CoveringRow plain_row(const CoveringPair& pair);
std::vector<CoveringPair> asked_pairs();

// The job's file, written into the folder beside its model's.
std::filesystem::path write_job(const CoveringRow& row, const std::filesystem::path& folder);
// What `plan`, `train` or `prove` refuse of that file; nullopt: none of them does.
std::optional<Error> refusal_of(const CoveringRow& row, const std::filesystem::path& folder);

}  // namespace meshwright::support
