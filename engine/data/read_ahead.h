// Reads micro-batches before they are asked for, in threads of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "engine/data/mix.h"
#include "engine/data/token_files.h"
#include "sdk/base/files/durable.h"

namespace meshwright::data {

// Memory for the samples of a micro-batch, [rows, seq_len] each, row by row; documents and weights
// only where the data set has them.
struct BatchMemory {
  int64_t* tokens = nullptr;
  int64_t* targets = nullptr;
  int32_t* documents = nullptr;
  float* weights = nullptr;
  std::shared_ptr<const void> owner = {};  // kept until nothing is written any more
};

// Used by one thread. The samples that a micro-batch consists of, and the error that it ends with,
// do not depend on `workers`.
class ReadAhead {
 public:
  struct Settings {
    int64_t seq_len = 0, rows = 0;
    int64_t workers = 0;  // threads; 0: wait() reads itself
    // How long the destructor waits for samples that are being read; threads that are still at it
    // then are left behind, with what they use.
    std::chrono::milliseconds patience{10000};
  };
  ReadAhead(SampleStream stream, Settings settings);
  // Ends the threads. What was begun and not waited for is dropped.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  struct Task;
  // Rows at positions [first, first + rows) of the stream. Tasks are read in the order in
  // which they are begun, their rows side by side.
  std::shared_ptr<Task> begin(int64_t first, BatchMemory memory);
  // Until the task is read. Throws the error of the first row that has one. `meanwhile`: called now
  // and then; what it throws ends the wait.
  void wait(const std::shared_ptr<Task>& task, const std::function<void()>& meanwhile = {});

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

// Writes what dataset.kind = "tokens" reads: llm.c's header and the tokens behind it.

// Tokens are written beside `path` as .NAME.tmp; `path` itself is replaced once all of them are on
// the disk, in finish(). A writer that is not finished removes what it wrote.
class TokenWriter {
 public:
  // Tokens are below `vocabulary`: of two bytes where that fits, else of four. Throws
  // Error(output_unwritable).
  TokenWriter(std::filesystem::path path, int64_t vocabulary);
  void append(std::span<const int64_t> tokens);
  void finish();
  int64_t tokens() const { return tokens_; }
  int64_t bytes() const { return file_.size(); }
  TokenType type() const { return type_; }
  const char* type_name() const { return type_ == TokenType::uint16 ? "uint16" : "uint32"; }

 private:
  std::filesystem::path path_;
  TokenType type_;
  base::NewFile file_;
  std::vector<std::byte> buffer_;
  int64_t tokens_ = 0, vocabulary_;
};

}  // namespace meshwright::data
