#include "delays.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <list>
#include <random>
#include <utility>

#include "runtime.h"

namespace fake_device {

namespace {

struct Write {
  size_t stream = 0;
  uint64_t time = 0;
  uintptr_t from = 0;
  std::vector<char> bytes;  // the new ones; the old ones while the operation runs
  uintptr_t end() const { return from + bytes.size(); }
};

const char* seed() {
  static const char* given = getenv("FAKE_DEVICE_DELAYS");
  return given != nullptr && *given != 0 ? given : nullptr;
}

// In the order of the program; two of the same bytes are there only when nothing orders them.
std::list<Write>& waiting() {
  static auto* all = new std::list<Write>;  // never destroyed: other libraries end later
  return *all;
}
thread_local std::vector<Write> running;  // of this thread's operation

size_t pick(size_t below) {
  static std::mt19937 random = [] {
    const char* rank = getenv("RANK");
    return std::mt19937(static_cast<unsigned>(atoi(seed()) * 1000 + (rank ? atoi(rank) : 0)));
  }();
  return std::uniform_int_distribution<size_t>(0, below - 1)(random);
}

bool is_over(const Write& write, const Clock& clock) {
  return at(clock, write.stream) >= write.time;
}
void happen(const Write& write, size_t bytes) {
  memcpy(view_at(write.from), write.bytes.data(), bytes);
}

}  // namespace

void settle(const Clock& clock, uintptr_t from, size_t bytes) {
  if (seed() == nullptr) return;
  for (auto it = waiting().begin(); it != waiting().end();) {
    const bool touched = it->from < from + bytes && from < it->end();
    const bool over = touched && is_over(*it, clock);
    if (over) {
      happen(*it, it->bytes.size());
    } else if (touched) {
      const size_t chance = pick(3);  // nothing, all, or a part of it
      if (chance > 0) happen(*it, chance == 1 ? it->bytes.size() : pick(it->bytes.size()));
    }
    it = over ? waiting().erase(it) : std::next(it);
  }
}

void put_aside(const Stream& stream, uintptr_t from, size_t bytes) {
  if (seed() == nullptr) return;
  const char* old = view_at(from);
  running.push_back({stream.number, at(stream.clock, stream.number), from, {old, old + bytes}});
}

void end_operation() {
  std::vector<std::vector<char>> old;
  for (Write& write : running) {
    const char* now = view_at(write.from);
    old.push_back(std::exchange(write.bytes, {now, now + write.bytes.size()}));
  }
  for (size_t i = running.size(); i-- > 0;)
    memcpy(view_at(running[i].from), old[i].data(), old[i].size());
  std::move(running.begin(), running.end(), std::back_inserter(waiting()));
  running.clear();
}

void settle_all(const Clock& host) {
  for (auto it = waiting().begin(); it != waiting().end();) {
    const bool over = is_over(*it, host);
    if (over) happen(*it, it->bytes.size());
    it = over ? waiting().erase(it) : std::next(it);
  }
}

bool is_late() { return seed() != nullptr && pick(2) == 0; }

void drop_writes(uintptr_t from, size_t bytes) {
  waiting().remove_if(
      [&](const Write& write) { return write.from < from + bytes && from < write.end(); });
}

}  // namespace fake_device
