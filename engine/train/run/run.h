// One rank of `meshwright train`, from the configuration to the last step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "engine/config/reading.h"
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

}  // namespace meshwright::train
