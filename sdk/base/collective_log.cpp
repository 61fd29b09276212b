#include "collective_log.h"

#include <algorithm>
#include <ctime>

namespace meshwright::detail {

namespace {

int64_t unix_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

}  // namespace

const char* name_of(CollectiveState state) {
  static constexpr const char* kNames[] = {"starting", "under_way", "waiting",
                                           "queued",   "completed", "failed"};
  return kNames[static_cast<size_t>(state)];
}

CollectiveLog::CollectiveLog() : ring_(kKept) {}

size_t CollectiveLog::add_group(const std::string& axis, const std::vector<int64_t>& ranks) {
  LoggedGroup group{axis, ranks, 0, {}, {}};
  group.sent.resize(ranks.size());
  group.received.resize(ranks.size());
  std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
  return groups_.size() - 1;
}

int64_t CollectiveLog::begin(size_t group, const char* op, int64_t bytes, int64_t moment,
                             bool collective, FillPurpose fill_purpose) {
  if (frozen_.load(std::memory_order_relaxed)) return 0;
  const int64_t now = unix_now();
  std::lock_guard lock(mutex_);
  const int64_t ticket = last_.load(std::memory_order_relaxed) + 1;
  Entry& entry = at(ticket);
  entry.ticket.store(ticket, std::memory_order_relaxed);
  entry.waited_from.store(0, std::memory_order_relaxed);
  entry.ended.store(0, std::memory_order_relaxed);
  entry.moment.store(moment, std::memory_order_relaxed);
  entry.state.store(CollectiveState::starting, std::memory_order_relaxed);
  entry.op = op;
  entry.group = group;
  entry.number = collective ? ++groups_[group].entered : 0;
  entry.bytes = bytes;
  entry.began = now;
  entry.message_count = 0;
  entry.purpose_length = static_cast<uint8_t>(
      fill_purpose == nullptr ? 0 : fill_purpose(entry.purpose.data(), entry.purpose.size()));
  last_.store(ticket, std::memory_order_relaxed);
  return ticket;
}

void CollectiveLog::message(int64_t ticket, size_t group, int64_t place, bool sent, int64_t bytes) {
  if (ticket == 0) return;
  std::lock_guard lock(mutex_);
  LoggedGroup& all = groups_[group];
  const auto other = static_cast<size_t>(place);
  const int64_t number = ++(sent ? all.sent : all.received)[other];
  Entry& entry = at(ticket);
  if (entry.ticket.load(std::memory_order_relaxed) != ticket || entry.message_count == kMessages)
    return;
  entry.messages[entry.message_count++] = {all.ranks[other], sent, number, bytes};
}

void CollectiveLog::mark(int64_t ticket, CollectiveState state) {
  if (ticket == 0 || frozen_.load(std::memory_order_relaxed)) return;
  Entry& entry = at(ticket);
  if (entry.ticket.load(std::memory_order_relaxed) != ticket) return;
  // On a device it may end before anybody waits for it.
  if (entry.state.load(std::memory_order_relaxed) == CollectiveState::completed) return;
  if (state == CollectiveState::waiting)
    entry.waited_from.store(unix_now(), std::memory_order_relaxed);
  else if (state == CollectiveState::completed || state == CollectiveState::failed)
    entry.ended.store(unix_now(), std::memory_order_relaxed);
  entry.state.store(state, std::memory_order_relaxed);
}

int64_t CollectiveLog::moment_of(int64_t ticket) const {
  const Entry& entry = at(ticket);
  return ticket != 0 && entry.ticket.load(std::memory_order_relaxed) == ticket
             ? entry.moment.load(std::memory_order_relaxed)
             : 0;
}

CollectiveRecord CollectiveLog::read() const {
  CollectiveRecord out;
  out.taken = unix_now();
  std::lock_guard lock(mutex_);
  out.groups = groups_;
  const int64_t last = last_.load(std::memory_order_relaxed);
  for (int64_t ticket = std::max<int64_t>(1, last + 1 - static_cast<int64_t>(kKept));
       ticket <= last; ++ticket) {
    const Entry& entry = at(ticket);
    LoggedCollective one;
    one.number = entry.number;
    one.op = entry.op;
    one.group = entry.group;
    one.bytes = entry.bytes;
    one.began = entry.began;
    one.waited_from = entry.waited_from.load(std::memory_order_relaxed);
    one.ended = entry.ended.load(std::memory_order_relaxed);
    one.state = entry.state.load(std::memory_order_relaxed);
    one.purpose.assign(entry.purpose.data(), entry.purpose_length);
    one.messages.assign(entry.messages.begin(), entry.messages.begin() + entry.message_count);
    out.collectives.push_back(std::move(one));
  }
  return out;
}

}  // namespace meshwright::detail
