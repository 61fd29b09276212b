#include "tests/support/record.h"

#include <algorithm>
#include <map>
#include <utility>

#include "sdk/base/words.h"

namespace meshwright::support {

namespace {

constexpr const char* kStates[] = {"proven", "refused", "differs", "not tried"};

size_t plain_values(const CoveringRow& row) {
  return static_cast<size_t>(std::ranges::count(row, 0U));
}

// Why neither prove nor this sample has the pair; empty: they have.
std::string unproven(const CoveringPair& pair) {
  const std::string& one = columns()[pair[0]].values[pair[1]].unproven;
  return one.empty() ? columns()[pair[2]].values[pair[3]].unproven : one;
}

std::string cell(const std::vector<Proof>& proofs, const CoveringPair& pair) {
  if (!is_asked(pair)) return "";
  const Proof* proof = proof_of(proofs, pair);
  if (proof == nullptr) return unproven(pair).empty() ? "?" : "·";
  switch (proof->state) {
    case State::proven:
      return "✓";
    case State::refused:
      return proof->why;
    case State::differs:
      return "✗";
    case State::not_tried:
      return "·";
  }
  return "";
}

std::string line_of(const std::vector<std::string>& cells) {
  return "| " + text::join(cells, " | ") + " |\n";
}
std::string rule_of(size_t columns) {
  std::string out = "|---|";
  for (size_t i = 1; i < columns; ++i) out += ":-:|";
  return out + "\n";
}

// The values of one factor beside those of all factors behind it.
std::string table_of(const std::vector<Proof>& proofs, size_t across) {
  const Column& head = columns()[across];
  const size_t first = head.absent ? 1 : 0;
  std::vector<std::string> cells = {head.name};
  for (size_t v = first; v < head.values.size(); ++v) cells.push_back(head.values[v].name);
  const size_t width = cells.size();
  std::string out = "## " + head.title + "\n\n" + line_of(cells) + rule_of(width);
  for (size_t down = across + 1; down < kFactors; ++down) {
    const Column& column = columns()[down];
    for (size_t w = column.absent ? 1 : 0; w < column.values.size(); ++w) {
      cells = {"**" + column.name + "** " + column.values[w].name};
      for (size_t v = first; v < head.values.size(); ++v)
        cells.push_back(cell(proofs, {across, v, down, w}));
      out += line_of(cells);
    }
  }
  return out + "\n";
}

constexpr const char* kHead = R"(# What works with what

Made by `tests/support` from what `meshwright prove` said of a sample of jobs in which every two options meet; how to
make it anew is at the end. [prove](proving.md) shows for your own job what this page says of pairs.

)";

constexpr const char* kLegend = R"(
| cell | |
|:-:|---|
| ✓ | a job with both was proven: its ranks compute what one process computes, in float64 and in the job's dtypes |
| E0306 | the plainest job with both is refused, with [this code](#codes) and help |
| ✗ | the only jobs with both differ from one process ([below](#jobs-that-differ)) |
| · | not tried ([why](#not-tried)) |
| | the two say nothing together: an option of another strategy's table |

Every proof accumulates gradients over several micro-batches, trains two steps and compares losses, gradients, norms,
clipping, updates, optimizer states, evaluation, counts and replicas. Each table shows its columns beside all that stands
in no table before it. What a name sets is said [at the end](#what-the-names-set).

)";

// What no value of the sample stands for.
constexpr std::pair<const char*, const char*> kOutside[] = {
    {"DiLoCo and local SGD ([a plugin](../examples/diloco/README.md))",
     "replicas differ within a round, so that no single process has their numbers"},
    {"models and strategies of plugins", "prove them as part of your own job"},
    {"kernels and collectives of devices", "the ranks of a proof are threads of a CPU"},
    {"checkpoints, and data as they are read", "a proof saves nothing and makes its samples up"}};

constexpr const char* kTail = R"(## How it is made

A pair is refused where the plainest job that has both is: everything else as it stands first in its list below, and
what one of the two cannot be without (`ep` has a model with experts). All other pairs meet in jobs of at most four
ranks, of tiny models; the few that need more ranks have a job each. `tests/support/proofs.txt` has them, a line each.
The test `support` proves some of them anew, others with each commit, asks of a part of the refusals whether they are
the same, and compares this page with the file.

```
MESHWRIGHT_WRITE_SUPPORT=1 build/bin/test_support     # jobs that are missing, then this page
MESHWRIGHT_WRITE_SUPPORT=none build/bin/test_support  # this page alone
MESHWRIGHT_ALL_LAYOUTS=1 build/bin/test_support       # proves all of them anew and compares
```
)";

std::string codes(const std::vector<Proof>& proofs) {
  std::map<std::string, const Proof*> first;
  std::map<std::string, int64_t> counts;
  for (const Proof& proof : proofs)
    if (proof.state == State::refused) {
      first.try_emplace(proof.why, &proof);
      ++counts[proof.why];
    }
  std::string out =
      "## Codes\n\nEach is explained in the [reference](reference.md#error-codes).\n\n";
  out += "| code | what | pairs | the first of them |\n|---|---|--:|---|\n";
  for (const auto& [code, proof] : first)
    for (const ErrorInfo& info : error_catalog())
      if (code_string(info.code) == code)
        out += line_of({code, info.title, std::to_string(counts[code]), text_of(proof->row)});
  return out + "\n";
}

std::string differing(const std::vector<Proof>& proofs) {
  std::string out = "## Jobs that differ\n\n";
  std::string rows;
  for (const Proof& proof : proofs)
    if (proof.state == State::differs) rows += line_of({text_of(proof.row), proof.why});
  if (rows.empty()) return out + "None.\n\n";
  return out + "| job | what prove says |\n|---|---|\n" + rows + "\n";
}

std::string not_tried(const std::vector<Proof>& proofs) {
  std::string out = "## Not tried\n\n| what | why |\n|---|---|\n";
  for (const Column& column : columns())
    for (const Value& one : column.values)
      if (!one.unproven.empty())
        out += line_of({"**" + column.name + "** " + one.name, one.unproven});
  std::map<std::string, std::vector<std::string>> jobs;
  for (const Proof& proof : proofs)
    if (proof.state == State::not_tried) jobs[proof.why].push_back(text_of(proof.row));
  for (const auto& [why, rows] : jobs) out += line_of({text::join(rows, "; "), why});
  for (const auto& [what, why] : kOutside) out += line_of({what, why});
  return out + "\n";
}

std::string names() {
  std::string out = "## What the names set\n\n| name | |\n|---|---|\n";
  for (const Column& column : columns())
    for (const Value& one : column.values) {
      std::vector<std::string> lines;
      for (const std::string& line : one.toml)
        if (line.find('/') == std::string::npos) lines.push_back("`" + line + "`");
      if (!lines.empty())
        out += line_of({"**" + column.name + "** " + one.name, text::join(lines, "<br>")});
    }
  return out + "\n";
}

}  // namespace

std::string text_of(const Proof& proof) {
  std::string out =
      std::string(kStates[static_cast<size_t>(proof.state)]) + " | " + text_of(proof.row);
  return proof.why.empty() ? out : out + " | " + proof.why;
}

Record read_record(const std::string& text) {
  Record out;
  for (const std::string& line : text::split(text, '\n')) {
    if (line.empty() || line.starts_with('#')) continue;
    std::vector<std::string> parts = text::split(line, '|');
    for (std::string& part : parts) part = std::string(text::trim(part));
    const auto state = std::ranges::find(kStates, parts.front());
    const std::optional<CoveringRow> row =
        parts.size() > 1 ? row_of(parts[1]) : std::optional<CoveringRow>();
    if (state == std::end(kStates) || !row)
      out.unknown.push_back(line);
    else
      out.proofs.push_back({static_cast<State>(state - std::begin(kStates)), *row,
                            parts.size() > 2 ? parts[2] : ""});
  }
  return out;
}

std::string text_of(const std::vector<Proof>& proofs) {
  std::string out =
      "# What prove said of each job of docs/support.md: tests/support/matrix.cpp has the names.\n";
  for (const Proof& proof : proofs) out += text_of(proof) + "\n";
  return out;
}

const Proof* proof_of(const std::vector<Proof>& proofs, const CoveringPair& pair) {
  const Proof* out = nullptr;
  for (const Proof& proof : proofs) {
    if (proof.row[pair[0]] != pair[1] || proof.row[pair[2]] != pair[3]) continue;
    // A refused job and one that was not tried speak for the pair that they were made for.
    const bool alone = proof.state == State::refused || proof.state == State::not_tried;
    if (alone && proof.row != plain_row(pair)) continue;
    if (out == nullptr || proof.state < out->state ||
        (proof.state == out->state && plain_values(proof.row) > plain_values(out->row)))
      out = &proof;
  }
  return out;
}

std::string page_of(const std::vector<Proof>& proofs) {
  std::map<State, int64_t> pairs;
  for (const CoveringPair& pair : asked_pairs())
    if (const Proof* proof = proof_of(proofs, pair))
      ++pairs[proof->state];
    else if (!unproven(pair).empty())
      ++pairs[State::not_tried];
  const auto jobs = std::ranges::count(proofs, State::proven, &Proof::state);
  std::string out = kHead;
  out += "Of " + std::to_string(asked_pairs().size()) + " pairs of options " +
         std::to_string(pairs[State::proven]) + " are proven, by " + std::to_string(jobs) +
         " jobs,\n" + std::to_string(pairs[State::refused]) + " are refused, " +
         std::to_string(pairs[State::differs]) + " are only in jobs that differ, and " +
         std::to_string(pairs[State::not_tried]) + " were not tried.\n";
  out += kLegend;
  for (size_t across = 0; across + 1 < kFactors; ++across) out += table_of(proofs, across);
  out += codes(proofs);
  return out + differing(proofs) + not_tried(proofs) + names() + kTail;
}

}  // namespace meshwright::support
