// What a proof asks for and what it found. Links no LibTorch.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/prove/picture.h"
#include "apps/prove/shrink.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::prove {

// One kind of number, on all ranks.
struct Row {
  std::string what;
  double difference = 0, tolerance = 0;  // the largest one; relative
  std::string where = {};                // of the largest one: "model.norm.weight, rank 3"
  std::string not_compared = {};         // why; then it is neither right nor wrong
  bool ok() const { return not_compared.empty() && difference <= tolerance; }
};

// Where it turned, and what that looks like.
struct Fault {
  std::string what;                     // "the output of model.layers.0.mlp.down_proj"
  std::string pattern = {}, mend = {};  // may be empty
  std::vector<int64_t> ranks = {};      // that are wrong; empty: not of single ranks
  double difference = 0;
};

// What Request::progress hears of in all, where everything is right.
inline int64_t work_of(const Shrunk& job, int64_t steps) {
  return steps + 1 + job.ranks * (steps + 2);
}

// What a plugin's model brings that no style of tensor parallelism cuts or says.
struct OwnParameter {
  std::string name;  // "layers.*.attention.norm.weight"
  std::string how;   // "whole, its gradients summed over tp"
  bool ok = true;    // its gradient is right
};

// One run on the ranks beside one process.
struct Findings {
  std::string dtypes;  // "float64", "the job's: bfloat16, reduced in float32"
  std::vector<Row> rows;
  std::vector<Fault> faults;          // the first place first
  std::vector<std::string> problems;  // what ended a rank, by rank
  int64_t modules = 0;                // that were compared
  std::vector<std::string> modules_left;
  Picture picture;                // in float64
  std::vector<OwnParameter> own;  // the same
  double seconds = 0;
  bool timed_out = false;  // and was killed

  bool ok() const;
  boost::json::object json() const;
  static Findings of(const boost::json::object& json);
  std::string text(const report::Style& style) const;
};

struct Request {
  const Shrunk& job;
  int64_t steps = 2;
  bool wide = true;  // in float64; else in the job's dtypes
  Findings* found = nullptr;
  std::string folder = {};  // an empty one, for checkpoints; empty: none are made
  // Keeps what one process computes in float64, from the first run to the next; nullptr: each
  // computes it.
  std::shared_ptr<const void>* truth = nullptr;
  // Hears, in one thread at a time, of steps that all ranks of a run have done: how many ranks. May
  // be empty.
  std::function<void(int64_t ranks)> progress = {};
};

}  // namespace meshwright::prove
