// A run inside an application, which trains as far as it likes, saves and asks. What
// libmeshwright_engine.so gives to libmeshwright_c.so, which has no LibTorch of its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "engine/train/preflight/source.h"
#include "engine/train/run/run.h"

namespace meshwright::train {

// One more row of metrics.jsonl.
struct SessionStep {
  int64_t step = 0;  // from 0
  double loss = 0, grad_norm = 0, lr = 0;
  int64_t tokens = 0;  // targets of the step, all ranks
  double step_ms = 0;
  int64_t memory_bytes = 0;  // peak tensor bytes of this rank
};

// What may be asked for after a step; of all ranks together what any of them asked for.
struct StepRequests {
  bool stop = false, save = false;
};

// A token and the text that it adds; the last call, of token -1, has what was held back of it.
using OnToken = std::function<void(int64_t id, const std::string& text)>;

// One of a process at a time, used by the thread that opened it. All but the getters are collective
// and throw Error. An error of the ranks ends the run: the connections are closed, the others are
// told, and nothing can be asked of it any more. One that is refused before anything collective
// (ErrorCode::usage, bad_token, missing_key) leaves the run as it was.
class Session {
 public:
  virtual ~Session() = default;
  // Trains at most `most` steps of those that are left, and saves as the job says. `after` is
  // called on every rank after each step; may be empty.
  virtual void train(int64_t most,
                     const std::function<StepRequests(const SessionStep&)>& after) = 0;
  virtual void save() = 0;
  virtual double evaluate() = 0;
  virtual void generate(const generate::Request& request, const OnToken& token) = 0;
  // Writes what is still to be written, and lets the other ranks go.
  virtual void finish() = 0;

  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  virtual int64_t next_step() const = 0;
  virtual int64_t max_steps() const = 0;
  virtual const std::filesystem::path& folder() const = 0;
};

// Collective. `options` as of the program; `tell` must be set.
std::unique_ptr<Session> open_session(const RunOptions& options);

}  // namespace meshwright::train
