#include "engine/data/read_ahead.h"

#include <pthread.h>

#include <condition_variable>
#include <csignal>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

namespace meshwright::data {

struct ReadAhead::Task {
  int64_t first = 0;
  BatchMemory memory;
  int64_t next_row = 0, rows_left = 0;
  std::vector<std::exception_ptr> errors;  // a row
};

// Outlives the ReadAhead where a thread does.
struct ReadAhead::Shared {
  Shared(std::shared_ptr<const SampleSource> data, Sampler order, Settings wanted)
      : source(std::move(data)),
        sampler(order),
        settings(wanted),
        documents(source->has_documents()),
        weights(source->has_weights()) {}
  const std::shared_ptr<const SampleSource> source;
  const Sampler sampler;
  const Settings settings;
  const bool documents, weights;

  std::mutex mutex;  // of what follows, and of the tasks
  std::condition_variable more, done;
  std::deque<std::shared_ptr<Task>> waiting;  // which have rows that nobody has taken
  bool stop = false;
  size_t running = 0;  // threads

  void read_row(const Task& task, int64_t row) const {
    const auto length = static_cast<size_t>(settings.seq_len);
    const int64_t at = row * settings.seq_len;
    source->read(sampler.at(task.first + row),
                 {{task.memory.tokens + at, length},
                  {task.memory.targets + at, length},
                  documents ? std::span(task.memory.documents + at, length) : std::span<int32_t>(),
                  weights ? std::span(task.memory.weights + at, length) : std::span<float>()});
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

ReadAhead::ReadAhead(std::shared_ptr<const SampleSource> source, Sampler sampler, Settings settings)
    : shared_(std::make_shared<Shared>(std::move(source), sampler, settings)) {
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

}  // namespace meshwright::data
