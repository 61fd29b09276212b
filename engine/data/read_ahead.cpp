#include "engine/data/read_ahead.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/data/token_files.h"

namespace meshwright::data {

struct ReadAhead::Task {
  int64_t first = 0;
  BatchMemory memory;
  int64_t next_row = 0, rows_left = 0;
  std::vector<std::exception_ptr> errors;  // a row
};

// Outlives the ReadAhead where a thread does.
struct ReadAhead::Shared {
  Shared(SampleStream data, Settings wanted) : stream(std::move(data)), settings(wanted) {}
  const SampleStream stream;
  const Settings settings;

  std::mutex mutex;  // of what follows, and of the tasks
  std::condition_variable more, done;
  std::deque<std::shared_ptr<Task>> waiting;  // which have rows that nobody has taken
  bool stop = false;
  size_t running = 0;  // threads

  void read_row(const Task& task, int64_t row) const {
    const auto length = static_cast<size_t>(settings.seq_len);
    const int64_t at = row * settings.seq_len;
    stream.read(
        task.first + row,
        {{task.memory.tokens + at, length},
         {task.memory.targets + at, length},
         stream.has_documents() ? std::span(task.memory.documents + at, length)
                                : std::span<int32_t>(),
         stream.has_weights() ? std::span(task.memory.weights + at, length) : std::span<float>()});
  }

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      more.wait(lock, [&] { return stop || !waiting.empty(); });
      if (stop) break;
      const std::shared_ptr<Task> task = waiting.front();
      const int64_t row = task->next_row++;
      if (task->next_row == settings.rows) waiting.pop_front();
      lock.unlock();
      std::exception_ptr error;
      try {
        read_row(*task, row);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      task->errors[static_cast<size_t>(row)] = error;
      if (--task->rows_left == 0) done.notify_all();
    }
    --running;
    done.notify_all();
  }
};

ReadAhead::ReadAhead(SampleStream stream, Settings settings)
    : shared_(std::make_shared<Shared>(std::move(stream), settings)) {
  // Signals are the main thread's: one that asks the run to end must not end a read.
  sigset_t all, before;
  ::sigfillset(&all);
  for (int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) ::sigdelset(&all, fault);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int64_t i = 0; i < settings.workers; ++i) {
    try {
      threads_.emplace_back([shared = shared_] { shared->work(); });
    } catch (const std::system_error&) {
      if (!threads_.empty()) break;  // fewer do as well
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    ::pthread_setname_np(threads_.back().native_handle(), "read_ahead");
    std::lock_guard lock(shared_->mutex);
    ++shared_->running;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ReadAhead::~ReadAhead() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->waiting.clear();
  shared_->more.notify_all();
  const bool ended = shared_->done.wait_for(lock, shared_->settings.patience,
                                            [&] { return shared_->running == 0; });
  lock.unlock();
  for (std::thread& thread : threads_) ended ? thread.join() : thread.detach();
}

std::shared_ptr<ReadAhead::Task> ReadAhead::begin(int64_t first, BatchMemory memory) {
  auto task = std::make_shared<Task>();
  task->first = first;
  task->memory = std::move(memory);
  task->rows_left = shared_->settings.rows;
  task->errors.resize(static_cast<size_t>(shared_->settings.rows));
  if (shared_->settings.workers > 0) {
    std::lock_guard lock(shared_->mutex);
    shared_->waiting.push_back(task);
    shared_->more.notify_all();
  }
  return task;
}

void ReadAhead::wait(const std::shared_ptr<Task>& task, const std::function<void()>& meanwhile) {
  if (shared_->settings.workers == 0) {
    for (; task->rows_left > 0; --task->rows_left) shared_->read_row(*task, task->next_row++);
    return;
  }
  std::unique_lock lock(shared_->mutex);
  while (!shared_->done.wait_for(lock, std::chrono::milliseconds(200),
                                 [&] { return task->rows_left == 0; })) {
    if (!meanwhile) continue;
    lock.unlock();
    meanwhile();
    lock.lock();
  }
  for (const std::exception_ptr& error : task->errors)
    if (error) std::rethrow_exception(error);
}

namespace fs = std::filesystem;

namespace {

fs::path beside(const fs::path& path) {
  return path.parent_path() / ("." + path.filename().string() + ".tmp");
}

// Over the beginning of a file that is still open elsewhere, whose sync takes it along.
void write_front(const fs::path& path, std::span<const int32_t> head) {
  int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) throw base::unwritable(path, errno, "open");
  ssize_t done = 0;
  do done = ::pwrite(fd, head.data(), head.size_bytes(), 0);
  while (done < 0 && errno == EINTR);
  int reason = done < 0 ? errno : ENOSPC;
  ::close(fd);
  if (done != static_cast<ssize_t>(head.size_bytes())) throw base::unwritable(path, reason);
}

template <class T>
void convert(std::span<const int64_t> tokens, std::byte* out) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    T token = static_cast<T>(tokens[i]);
    std::memcpy(out + i * sizeof token, &token, sizeof token);
  }
}

}  // namespace

TokenWriter::TokenWriter(fs::path path, int64_t vocabulary)
    : path_(std::move(path)),
      type_(vocabulary <= 65536 ? TokenType::uint16 : TokenType::uint32),
      file_(beside(path_)),
      vocabulary_(vocabulary) {
  file_.append(std::vector<std::byte>(kTokenHeader));  // filled in once the tokens are counted
}

void TokenWriter::append(std::span<const int64_t> tokens) {
  for (int64_t token : tokens)
    if (token < 0 || token >= vocabulary_)
      throw Error(ErrorCode::internal, "the token " + std::to_string(token) +
                                           " is outside of the vocabulary of " +
                                           std::to_string(vocabulary_));
  buffer_.resize(tokens.size() * static_cast<size_t>(token_width(type_)));
  type_ == TokenType::uint16 ? convert<uint16_t>(tokens, buffer_.data())
                             : convert<uint32_t>(tokens, buffer_.data());
  file_.append(buffer_);
  tokens_ += static_cast<int64_t>(tokens.size());
}

void TokenWriter::finish() {
  std::array<int32_t, 5> head{};
  for (const TokenMagic& known : kTokenMagics)
    if (known.type == type_) head[0] = known.magic, head[1] = known.version;
  head[2] = tokens_ <= INT32_MAX ? static_cast<int32_t>(tokens_) : kLongCount;
  if (head[2] == kLongCount) std::memcpy(&head[3], &tokens_, sizeof tokens_);
  write_front(file_.path(), head);
  file_.finish();
  base::rename_durably(file_.path(), path_);
}

}  // namespace meshwright::data
