// One rank of `meshwright train`, from the configuration to the last step, and a run inside an
// application, which trains as far as it likes, saves and asks: what libmeshwright_engine.so gives
// to the program and to libmeshwright_c.so, which have no LibTorch of their own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "engine/config/reading.h"
#include "engine/train/preflight/source.h"
#include "meshwright/error.h"

namespace meshwright::rendezvous {
class Ending;
}

namespace meshwright::train {

struct RunOptions {
  std::shared_ptr<const config::Reading> given;  // the configuration, as it was read
  std::string command;  // as it was typed, to be typed again; empty: another launcher's
  bool trace = false;   // write runs/<name>/trace/rank_N.json
  bool live = false;    // rank 0's standard output is a terminal
  int width = 80;
  bool colour = false, unicode = true;
  int64_t sample_bytes = 0;  // byte models: write so many bytes after training
  std::string sample_prompt = "\n";
  double sample_temperature = 0.7;
  // A descriptor of memory that all attempts of local ranks share, of rank 0; -1: there is one
  // attempt.
  int attempts = -1;
  // Of an application: hears the lines that the program prints, of which nothing is printed then.
  std::function<void(const std::string&)> tell = {};
};

// Throws Error(usage) when a sample is asked for and the model's tokens are not bytes.
inline void check_sample(const RunOptions& options, int64_t vocab) {
  if (options.sample_bytes > 0 && vocab != 256)
    throw Error(ErrorCode::usage, "--sample writes bytes, but the model's vocabulary has " +
                                      std::to_string(vocab) + " entries, not 256")
        .help("leave out --sample")
        .help(
            "train a model with vocab_size = 256, for example model.config = "
            "\"configs/models/llama-tiny.json\"");
}

// Runs this process's rank. Prints to stdout (rank 0) and returns 0, or launch::kPreempted; throws
// Error. `together` hears how far the rank came; `log` is set to the run.log that is to know of
// what was thrown, where no launcher of ours tells it.
int run_rank(const RunOptions& options, rendezvous::Ending& together, std::filesystem::path& log);

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
