#include "watchdog.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "c10d_flight.h"
#include "meshwright/export.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/transport.h"
#include "sdk/base/used_up.h"
#include "sdk/base/wait.h"
#include "sdk/base/words.h"

namespace meshwright::detail {

namespace {

// The names of peers: a transport that loses a connection knows socket addresses only, and its user
// wants to know rank and host.
using Key = std::pair<std::string, int>;

std::mutex& mutex() {
  static std::mutex one;
  return one;
}

std::map<Key, std::string>& names() {
  static std::map<Key, std::string> all;
  return all;
}

const std::string* find(const std::string& address, int port) {
  auto found = names().find({address, port});
  return found == names().end() ? nullptr : &found->second;
}

// gloo prints some ports in the order of the network's bytes.
int swapped(int port) { return ((port & 0xff) << 8) | (port >> 8); }

}  // namespace

// The text with each "[10.70.0.2]:35123" that is known replaced by "rank 1 on gpu004 (10.70.0.2)",
// and without the place in gloo's source that it begins with.
std::string with_peer_names(std::string text) {
  // "[/somewhere/gloo/transport/tcp/pair.cc:538] Read error ...": where LibTorch was built says
  // nothing to its user.
  if (size_t end = text.find("] "); text.starts_with("[/") && end != std::string::npos)
    text.erase(0, end + 2);
  std::lock_guard lock(mutex());
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t open = text.find('[', at),
           close = open == std::string::npos ? open : text.find("]:", open);
    if (close == std::string::npos) return out + text.substr(at);
    int port = 0;
    const char* digits = text.data() + close + 2;
    const char* stop = std::from_chars(digits, text.data() + text.size(), port).ptr;
    std::string address = text.substr(open + 1, close - open - 1);
    const std::string* name = port > 0 && port <= UINT16_MAX ? find(address, port) : nullptr;
    if (name == nullptr && port > 0 && port <= UINT16_MAX) name = find(address, swapped(port));
    out += text.substr(at, open - at);
    if (name == nullptr) {
      out += '[';
      at = open + 1;
      continue;
    }
    // "Read error, rank 1 on gpu004 (10.70.0.2): Connection reset by peer"
    if (out.ends_with(' ')) out.replace(out.size() - 1, 1, ", ");
    out += *name + " (" + address + ")";
    at = static_cast<size_t>(stop - text.data());
  }
  return out;
}

// "rank 1 on gpu004 (10.70.0.2)", where name_peer() told so of another host; else "rank 1".
std::string peer_of_rank(int64_t rank) {
  const std::string plain = "rank " + std::to_string(rank);
  std::lock_guard lock(mutex());
  for (const auto& [key, name] : names())
    if (name.starts_with(plain + " on ") && !key.first.starts_with("127.") && key.first != "::1")
      return name + " (" + key.first + ")";
  return plain;
}

}  // namespace meshwright::detail

namespace meshwright {

void name_peer(const std::string& address, int port, const std::string& name) {
  if (port <= 0) return;
  std::lock_guard lock(detail::mutex());
  detail::names()[{address, port}] = name;
}

}  // namespace meshwright

namespace meshwright::detail {

namespace {

using Clock = std::chrono::steady_clock;
// For ranks that end a run one after the other; who has not come then has ended otherwise.
constexpr auto kTogether = std::chrono::seconds(10);
// For what the device still does when the host is done.
constexpr auto kRest = std::chrono::seconds(1);

// Whether the call came back. NCCL may wait for ever: it stays behind in its thread then. Else that
// thread has ended too, with what the call holds: back ends must go before the devices' libraries.
bool in_time(std::chrono::milliseconds limit, std::function<void()> call) {
  std::packaged_task<void()> task(std::move(call));
  auto done = task.get_future();
  std::thread thread(std::move(task));
  const bool back = done.wait_for(limit) == std::future_status::ready;
  back ? thread.join() : thread.detach();
  if (!back) return false;
  try {
    done.get();
  } catch (const std::exception&) {  // a back end that failed has not shut down
    return false;
  }
  return true;
}

}  // namespace

std::string Place::name() const { return axis + " " + text::rank_list(ranks); }

std::vector<int64_t> Place::ended() const {
  if (!liveness_check || !*liveness_check) return {};
  return (*liveness_check)({.routine = true}).silent;
}

bool says_timed_out(const std::string& what) {
  return what.find("imed out") != std::string::npos || what.find("imeout") != std::string::npos;
}

Error Place::failure(const char* op, int64_t bytes, const std::string& what, int64_t awaited,
                     const Doing& doing) const {
  const bool late = says_timed_out(what);
  std::string place = std::string(op) + " of " + text::message_size(bytes) + " in group " + name();
  std::string who = "rank " + std::to_string(world_rank);
  std::string where = doing.text.empty() ? "" : ", in " + doing.text;
  RollAnswers answers;
  std::vector<int64_t>& silent = answers.silent;
  try {
    if (liveness_check && *liveness_check)
      answers = (*liveness_check)({late ? ranks : std::vector<int64_t>(), doing.step, doing.order});
  } catch (const Error& told) {
    return told;
  }
  if (const std::optional<Error> limit = used_up(who + ": " + place + ": ", what)) return *limit;
  if (!late)
    return Error(ErrorCode::collective_failed,
                 who + ": " + place +
                     " failed: " + with_peer_names(what.substr(0, what.find('\n'))) + where)
        .help("look at the message of the rank that ended first");
  const std::string seconds = text::format("%g s", static_cast<double>(timeout.count()) / 1000);
  const std::string waited = who + " waited " + seconds + " in vain for " + place;
  // Ranks that wait in a chain are all late; the first of it is the one to look at.
  if (silent.empty() && answers.behind >= 0) {
    const std::string first = "rank " + std::to_string(answers.behind);
    return Error(
               ErrorCode::collective_timeout,
               waited + ": " + first + " is the furthest behind (" + answers.activity + ")" + where)
        .key("dist_env.timeout_minutes")
        .help("look at the log of " + first + ": the others wait for it")
        .help("raise dist_env.timeout_minutes when a rank is only slow");
  }
  if (silent.empty() && awaited >= 0) silent = {ranks[static_cast<size_t>(awaited)]};
  // Of two ranks the other one.
  if (silent.empty() && ranks.size() == 2) silent = {ranks[0] == world_rank ? ranks[1] : ranks[0]};
  std::string names =
      silent.size() == 1 ? peer_of_rank(silent[0]) : "ranks " + text::rank_list(silent);
  const bool far = names.ends_with(')');  // on another host, which is named
  return Error(ErrorCode::collective_timeout,
               waited + (silent.empty() ? "" : ": no word from " + names) + where)
      .key("dist_env.timeout_minutes")
      .help(silent.empty()
                ? "look at the logs of the other ranks of the group: one of them hangs, is stopped "
                  "or runs something else"
                : "look at the log of " + names + ": it hangs, is stopped or runs something else" +
                      (far ? ", or the network between the hosts is broken" : ""))
      .help("raise dist_env.timeout_minutes when a rank is only slow");
}

Watchdog::~Watchdog() { stop(); }

bool Watchdog::all_over() {
  auto over = [](const Entry& entry) {
    return entry.work ? entry.work->isCompleted() : entry.event->query();
  };
  try {
    return base::wait_until(Clock::now() + kRest, std::chrono::milliseconds(1),
                            [&] { return std::all_of(entries_.begin(), entries_.end(), over); });
  } catch (const std::exception&) {  // the device is of no use any more
    return false;
  }
}

void Watchdog::abort_all(const std::vector<Guarded>& guarded) {
  for (const Guarded& one : guarded) try {
      one.transport->abort();
    } catch (const std::exception&) {  // the others are aborted all the same
    }
}

void Watchdog::end(bool success) {
  stop();
  if (std::exchange(ended_, true)) return;
  if (failure_) return;  // they are aborted
  success = success && all_over();
  entries_.clear();
  std::vector<Guarded> backwards(guarded_.rbegin(), guarded_.rend());  // all ranks made them alike
  if (success && in_time(kTogether, [backwards] {
        for (const Guarded& one : backwards)
          if (auto* back_end = dynamic_cast<RunsByItself*>(one.transport.get()))
            back_end->shut_down();
      }))
    return;
  in_time(kTogether, [all = std::move(backwards)] { abort_all(all); });
}

void Watchdog::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::waited(const c10::intrusive_ptr<c10d::Work>& work, at::Device device) {
  if (device.is_cpu()) return;  // which has no events
  c10::impl::VirtualGuardImpl guard(device.type());
  c10::Event event(device.type());
  event.record(guard.getStream(device));
  c10::intrusive_ptr<c10d::Work> dropped;  // outside of the lock
  std::lock_guard lock(mutex_);
  const auto entry = std::find_if(entries_.rbegin(), entries_.rend(),
                                  [&](const Entry& e) { return e.work == work; });
  if (entry == entries_.rend()) return;  // it has ended already
  dropped = std::exchange(entry->work, nullptr);
  entry->event = std::move(event);
}

void Watchdog::guard(std::shared_ptr<Transport> transport, std::shared_ptr<const Place> place) {
  std::lock_guard lock(mutex_);
  guarded_.push_back({std::move(transport), std::move(place)});
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
}

void Watchdog::add(c10::intrusive_ptr<c10d::Work> work, std::shared_ptr<const Place> place,
                   const char* op, int64_t bytes, int64_t ticket) {
  auto deadline = std::chrono::steady_clock::now() + place->timeout;
  std::lock_guard lock(mutex_);
  entries_.push_back({std::move(work), std::nullopt, std::move(place), op, bytes, ticket,
                      Activity::now(), deadline});
}

void Watchdog::check() {
  std::lock_guard lock(mutex_);
  if (failure_) throw *failure_;
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    wake_.wait_for(lock, std::chrono::milliseconds(100));
    if (!failure_) look(lock);
  }
}

// Collectives of one group end in their order, so the first late one is the one to name.
void Watchdog::look(std::unique_lock<std::mutex>& lock) {
  auto now = std::chrono::steady_clock::now(), since = now;
  std::vector<Entry> left;
  for (Entry& entry : entries_) {
    if (failure_) break;
    auto failure = [&](const std::string& what) {
      return entry.place->failure(entry.op, entry.bytes, what, /*awaited=*/-1, entry.doing);
    };
    try {
      if (entry.work && entry.work->isCompleted()) {
        if (auto problem = entry.work->exception()) std::rethrow_exception(problem);
        log_->mark(entry.ticket, CollectiveState::completed);
        continue;
      }
      if (entry.event && entry.event->query()) {
        log_->mark(entry.ticket, CollectiveState::completed);
        continue;
      }
      if (now > entry.deadline) {
        since = entry.deadline;
        failure_ = failure("timed out");
      }
    } catch (const c10::Error& error) {
      failure_ = failure(error.what_without_backtrace());
    } catch (const std::exception& error) {
      failure_ = failure(error.what());
    }
    if (failure_) log_->mark(entry.ticket, CollectiveState::failed);
    left.push_back(std::move(entry));
  }
  entries_ = std::move(left);
  // Of works that are let go, the back end still says what became of them.
  // What is under way with a rank that has ended never ends.
  if (!failure_ && !guarded_.empty())
    if (std::vector<int64_t> ended = guarded_[0].place->ended(); !ended.empty()) {
      const std::string what = "rank " + std::to_string(ended[0]) + " ended";
      failure_ = entries_.empty() ? guarded_[0].place->failure("a collective", 0, what, -1, {})
                                  : entries_[0].place->failure(entries_[0].op, entries_[0].bytes,
                                                               what, -1, entries_[0].doing);
    }
  for (const Guarded& one : guarded_)
    if (auto* back_end = failure_ ? nullptr : dynamic_cast<RunsByItself*>(one.transport.get()))
      if (std::optional<std::string> what = back_end->failure())
        failure_ = one.place->failure("a collective", 0, *what, /*awaited=*/-1, {});
  if (!failure_) return;
  entries_.clear();
  std::vector<Guarded> guarded = guarded_;
  lock.unlock();
  // Calling the roll has taken some of the time.
  const auto late = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since);
  in_time(abort_limit(late), [guarded] { abort_all(guarded); });
  lock.lock();
}

}  // namespace meshwright::detail
