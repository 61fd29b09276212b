#include "apps/observe/flight_recorder/verdict.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <optional>

#include "sdk/base/files/durable.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/wait.h"
#include "sdk/base/words.h"

namespace meshwright::postmortem {
namespace {

namespace fs = std::filesystem;
using detail::CollectiveState;
using detail::LoggedCollective;
using detail::LoggedGroup;
using detail::LoggedMessage;
using Ranks = std::vector<int64_t>;

constexpr size_t kMost = 3;  // sentences about ranks

std::string seconds(int64_t microseconds) {
  return text::format("%.1f s", static_cast<double>(std::max<int64_t>(microseconds, 0)) / 1e6);
}

bool among(const Ranks& ranks, int64_t rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

// "rank 3", "ranks 0, 2 and 5"
std::string named(const Ranks& ranks) {
  if (ranks.size() == 1) return "rank " + std::to_string(ranks[0]);
  std::string out = "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i == 8 && ranks.size() > 9)
      return out + " and " + std::to_string(ranks.size() - 8) + " more";
    out += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  }
  return out;
}

// Whether a rank has come to it and not beyond.
bool holds_up(const LoggedCollective& one) {
  switch (one.state) {
    case CollectiveState::starting:
    case CollectiveState::waiting:
    case CollectiveState::queued:
    case CollectiveState::failed:
      return true;
    case CollectiveState::under_way:
    case CollectiveState::completed:
      return false;
  }
  return false;
}

std::string purpose(const LoggedCollective& one) {
  return one.purpose.empty() ? "" : " (" + one.purpose + ")";
}
std::string numbered(const LoggedCollective& one) {
  return one.op + (one.number > 0 ? " #" + std::to_string(one.number) : "");
}
// "all_gather #412 of 394.0 kB"
std::string sized(const LoggedCollective& one) {
  return numbered(one) + " of " + text::message_size(one.bytes);
}
std::string within(const LoggedGroup& group) {
  return " in group " + group.axis + " " + text::rank_list(group.ranks);
}

// Records are of different moments: what a rank did after one that ended in an error had written
// its own was too late for that one.
int64_t moment_of(const RankFile& file) {
  return file.error ? file.record.taken : std::numeric_limits<int64_t>::max();
}
bool by_then(const LoggedCollective& one, int64_t moment) { return one.began <= moment; }

// How many collectives of the group the rank had entered by then.
int64_t entered_by(const RankFile& file, const LoggedGroup& group, int64_t moment) {
  int64_t out = group.entered;
  for (const LoggedCollective& one : file.record.collectives)
    if (&file.record.groups[one.group] == &group && one.number > 0 && !by_then(one, moment))
      out = std::min(out, one.number - 1);
  return out;
}
// And how many messages it had sent to the one at this place, or taken from it.
int64_t exchanged_by(const RankFile& file, const LoggedGroup& group, size_t place, bool sent,
                     int64_t moment) {
  int64_t out = (sent ? group.sent : group.received)[place];
  for (const LoggedCollective& one : file.record.collectives)
    if (&file.record.groups[one.group] == &group && !by_then(one, moment))
      for (const LoggedMessage& message : one.messages)
        if (message.sent == sent && message.rank == group.ranks[place])
          out = std::min(out, message.number - 1);
  return out;
}

// What a rank waits in for others that have not come.
struct Wait {
  const RankFile* file = nullptr;
  const LoggedCollective* entry = nullptr;
  const LoggedMessage* message = nullptr;  // of the entry; nullptr: a collective
  Ranks missing, unknown;                  // have not entered it; have left no record
  const LoggedGroup& group() const { return file->record.groups[entry->group]; }
  int64_t time() const {
    return (entry->ended > 0 ? entry->ended : file->record.taken) -
           (entry->waited_from > 0 ? entry->waited_from : entry->began);
  }
  bool same(const Wait& other) const {
    return message == nullptr && other.message == nullptr && entry->number == other.entry->number &&
           group().axis == other.group().axis && group().ranks == other.group().ranks;
  }
};

class Judge {
 public:
  explicit Judge(const Folder& records) : records_(records) {
    for (const RankFile& file : records.files) files_[file.rank] = &file;
  }

  Verdict verdict() {
    Verdict out;
    out.problems = records_.problems;
    if (files_.empty()) return out;
    if (!entered_otherwise(out)) waits(out);
    Ranks silent;
    for (int64_t rank = 0; rank < files_.begin()->second->world; ++rank)
      if (files_.count(rank) == 0 && !among(out.ranks, rank)) silent.push_back(rank);
    if (!silent.empty()) out.sentences.push_back(named(silent) + " left no record");
    return out;
  }

 private:
  bool stopped(int64_t rank) const { return among(records_.stopped, rank); }

  const LoggedGroup* group_of(int64_t rank, const LoggedGroup& like) const {
    for (const LoggedGroup& group : files_.at(rank)->record.groups)
      if (group.axis == like.axis && group.ranks == like.ranks) return &group;
    return nullptr;  // it has not come to make it
  }

  // Of the groups' first differences the earliest. What all are through with was none.
  bool entered_otherwise(Verdict& out) const {
    struct Entered {
      const RankFile* file;
      const LoggedCollective* entry;
    };
    using Key = std::pair<std::string, Ranks>;
    std::map<Key, std::map<int64_t, std::vector<Entered>>> all;
    for (const auto& [rank, file] : files_)
      for (const LoggedCollective& one : file->record.collectives) {
        const LoggedGroup& group = file->record.groups[one.group];
        if (one.number > 0) all[{group.axis, group.ranks}][one.number].push_back({file, &one});
      }
    const std::vector<Entered>* found = nullptr;
    for (const auto& [key, numbers] : all)
      for (const auto& [number, entered] : numbers) {
        auto unlike = [&](const Entered& other) {
          return kind_of(*other.entry) != kind_of(*entered[0].entry);
        };
        const bool over = std::all_of(entered.begin(), entered.end(), [](const Entered& one) {
          return one.entry->state == CollectiveState::completed;
        });
        if (over || std::none_of(entered.begin(), entered.end(), unlike)) continue;
        if (found == nullptr || entered[0].entry->began < (*found)[0].entry->began)
          found = &entered;
        break;
      }
    if (found == nullptr) return false;
    // What most entered is taken for right, at a tie that of the lowest rank.
    std::map<std::string, std::vector<Entered>> kinds;
    for (const Entered& one : *found) kinds[kind_of(*one.entry)].push_back(one);
    const std::vector<Entered>* right = nullptr;
    for (const auto& [kind, ranks] : kinds)
      if (right == nullptr || ranks.size() > right->size() ||
          (ranks.size() == right->size() && ranks[0].file->rank < (*right)[0].file->rank))
        right = &ranks;
    auto ranks_of = [](const std::vector<Entered>& some) {
      Ranks ranks;
      for (const Entered& one : some) ranks.push_back(one.file->rank);
      return ranks;
    };
    for (const auto& [kind, some] : kinds) {
      if (&some == right) continue;
      const LoggedCollective &odd = *some[0].entry, &usual = *(*right)[0].entry;
      out.sentences.push_back(named(ranks_of(some)) + " entered " + sized(odd) + purpose(odd) +
                              ", where " + named(ranks_of(*right)) + " entered " + sized(usual) +
                              purpose(usual) +
                              within((*right)[0].file->record.groups[usual.group]));
      for (int64_t rank : ranks_of(some)) out.ranks.push_back(rank);
    }
    std::sort(out.ranks.begin(), out.ranks.end());
    out.found = true;
    return true;
  }

  // What must be alike on all ranks. An all-to-all's sizes are each rank's own.
  static std::string kind_of(const LoggedCollective& one) {
    return one.op == "all_to_all" ? one.op : one.op + " " + std::to_string(one.bytes);
  }

  std::optional<Wait> wait_in(const RankFile& file, const LoggedCollective& entry) const {
    Wait out{&file, &entry, nullptr, {}, {}};
    if (entry.number > 0) {
      for (int64_t rank : out.group().ranks) {
        if (rank == file.rank) continue;
        if (files_.count(rank) == 0) {
          out.unknown.push_back(rank);
          continue;
        }
        // Whether a rank that is stopped has got through the start of what it entered, nobody
        // knows.
        const LoggedGroup* there = group_of(rank, out.group());
        if (there == nullptr || stopped(rank) ||
            entered_by(*files_.at(rank), *there, moment_of(file)) < entry.number)
          out.missing.push_back(rank);
      }
      if (!out.missing.empty()) out.unknown.clear();
      return out.missing.empty() && out.unknown.empty() ? std::nullopt : std::optional(out);
    }
    // What is to come first: what is sent may have found room.
    for (bool sent : {false, true})
      for (const LoggedMessage& message : entry.messages) {
        if (message.sent != sent) continue;
        out.message = &message;
        if (files_.count(message.rank) == 0) {
          out.unknown = {message.rank};
          return out;
        }
        const LoggedGroup* there = group_of(message.rank, out.group());
        const auto& ranks = out.group().ranks;
        const auto place =
            static_cast<size_t>(std::find(ranks.begin(), ranks.end(), file.rank) - ranks.begin());
        if (there == nullptr || place >= there->sent.size() || stopped(message.rank) ||
            exchanged_by(*files_.at(message.rank), *there, place, !sent, moment_of(file)) <
                message.number) {
          out.missing = {message.rank};
          return out;
        }
      }
    return std::nullopt;
  }

  void waits(Verdict& out) const {
    std::map<int64_t, Wait> wait_of;  // by the rank that waits
    const LoggedCollective* held_up = nullptr;
    const RankFile* where = nullptr;
    for (const auto& [rank, file] : files_)
      for (const LoggedCollective& one : file->record.collectives) {
        if (!holds_up(one) || stopped(rank)) continue;
        if (held_up == nullptr) held_up = &one, where = file;
        if (std::optional<Wait> wait = wait_in(*file, one)) {
          wait_of.emplace(rank, std::move(*wait));
          break;
        }
      }
    drop_ended_ranks(wait_of);
    std::map<int64_t, std::vector<const Wait*>> awaited;
    for (const auto& [rank, wait] : wait_of)
      for (const Ranks* ranks : {&wait.missing, &wait.unknown})
        for (int64_t late : *ranks) awaited[late].push_back(&wait);
    if (awaited.empty()) {
      all_entered(out, where, held_up);
      return;
    }
    out.found = true;
    for (const auto& [rank, waiting] : awaited)
      if (wait_of.count(rank) == 0) out.ranks.push_back(rank);
    out.told_already =
        !out.ranks.empty() && std::all_of(out.ranks.begin(), out.ranks.end(), [&](int64_t rank) {
          const auto file = files_.find(rank);
          // Errors of collectives are about other ranks.
          return file != files_.end() && file->second->error &&
                 !file->second->why.starts_with("error[E06");
        });
    const bool circle = out.ranks.empty();
    if (circle)
      for (const auto& [rank, waiting] : awaited) out.ranks.push_back(rank);
    for (size_t i = 0; i < out.ranks.size() && i < kMost; ++i)
      out.sentences.push_back(about(out.ranks[i], awaited.at(out.ranks[i])));
    if (out.ranks.size() > kMost)
      out.sentences.push_back(std::to_string(out.ranks.size() - kMost) +
                              " more ranks are waited for: " +
                              named(Ranks(out.ranks.begin() + kMost, out.ranks.end())));
    if (circle) out.sentences.emplace_back("these ranks wait for each other");
  }

  // Who began to wait for a rank after that one had given up waiting for it came too late: it is
  // no cause.
  void drop_ended_ranks(std::map<int64_t, Wait>& wait_of) const {
    auto waits_for = [&](int64_t rank, int64_t other) {
      const auto wait = wait_of.find(rank);
      return wait != wait_of.end() && among(wait->second.missing, other);
    };
    for (auto one = wait_of.begin(); one != wait_of.end();) {
      const int64_t rank = one->first;
      std::erase_if(one->second.missing, [&](int64_t other) {
        const RankFile& gone = *files_.at(other);
        return gone.error && !by_then(*one->second.entry, gone.record.taken) &&
               waits_for(other, rank);
      });
      const bool waits = !one->second.missing.empty() || !one->second.unknown.empty();
      one = waits ? std::next(one) : wait_of.erase(one);
    }
  }

  void all_entered(Verdict& out, const RankFile* file, const LoggedCollective* held_up) const {
    constexpr int64_t kLong = 1000000;
    if (held_up == nullptr) {
      out.sentences.emplace_back("no rank waited for another in a collective");
      return;
    }
    const Wait wait{file, held_up, nullptr, {}, {}};
    out.found = wait.time() >= kLong;
    out.sentences.push_back("rank " + std::to_string(file->rank) + " waited " +
                            seconds(wait.time()) + " in " + sized(*held_up) + within(wait.group()) +
                            purpose(*held_up) +
                            ", which all ranks that left a record have entered" +
                            (out.found ? ": look at the network, or at the devices" : ""));
  }

  std::string about(int64_t rank, const std::vector<const Wait*>& waiting) const {
    const Wait& first = **std::min_element(
        waiting.begin(), waiting.end(),
        [](const Wait* a, const Wait* b) { return a->entry->began < b->entry->began; });
    Ranks waiters;
    int64_t time = first.time();
    for (const Wait* wait : waiting)
      if (wait == &first || wait->same(first)) {
        waiters.push_back(wait->file->rank);
        time = std::max(time, wait->time());
      }
    const std::string in = within(first.group()) + purpose(*first.entry), who = named({rank}),
                      wait = named(waiters) + (waiters.size() == 1 ? " waits" : " wait"),
                      since = " since " + seconds(time);
    if (files_.count(rank) == 0)
      return who + " left no record (it was killed, is stopped or ended without a word); " + wait +
             " for it" + since + " in " + sized(*first.entry) + in;
    const int64_t moment = moment_of(*first.file);
    if (stopped(rank))
      return who + " was stopped by a signal or a debugger; " + wait + " for it" + since + " in " +
             sized(*first.entry) + in + "; " + last_of(*files_.at(rank), first.group(), moment);
    std::string out = who;
    if (first.message != nullptr) {
      const LoggedMessage& message = *first.message;
      out += std::string(message.sent ? " has not taken" : " has not sent") + " message #" +
             std::to_string(message.number) + " of " + text::message_size(message.bytes) +
             (message.sent ? " from " : " to ") + named({first.file->rank}) + in +
             ", for which that one waits" + since;
    } else {
      out += " has not entered " + sized(*first.entry) + in + ", in which " + wait + since;
    }
    return out + "; " + last_of(*files_.at(rank), first.group(), moment);
  }

  // Where a rank is that others wait for, or was when they gave up.
  static std::string last_of(const RankFile& file, const LoggedGroup& among, int64_t moment) {
    std::string out;
    const auto& all = file.record.collectives;
    const auto found = std::find_if(all.rbegin(), all.rend(), [&](const LoggedCollective& one) {
      return by_then(one, moment);
    });
    if (found == all.rend()) {
      out = all.empty() ? "it has entered none at all"
                        : "it came after that one had ended in an error";
    } else {
      const LoggedCollective& last = *found;
      const int64_t now = std::min(moment, file.record.taken);
      const LoggedGroup& group = file.record.groups[last.group];
      const std::string what =
          numbered(last) +
          (group.axis == among.axis && group.ranks == among.ranks ? "" : within(group)) +
          purpose(last);
      if (last.state == CollectiveState::completed && last.ended <= now)
        out = "the last it did was " + what + ", " + seconds(now - last.ended) + " before";
      else
        out = "the last it began is " + what + ", " + seconds(now - last.began) + " before";
      if (found != all.rbegin()) out += "; it came after that one had ended in an error";
    }
    if (file.error) out += "; it ended with " + file.why;
    return out;
  }

  const Folder& records_;
  std::map<int64_t, const RankFile*> files_;
};

}  // namespace

std::string Verdict::text() const {
  std::string out;
  for (const std::vector<std::string>* lines : {&sentences, &problems})
    for (const std::string& line : *lines) out += line + "\n";
  return out;
}

std::string Verdict::told() const {
  if (!found || told_already) return {};
  std::string out = "verdict: ";
  for (const std::string& sentence : sentences)
    out += (&sentence == &sentences[0] ? "" : "  ") + sentence + "\n";
  return out;
}

Verdict judge_run(const fs::path& run) {
  const Folder records = read_folder(run / kFolder);
  return Judge(records).verdict();
}

void wait_for_all(const fs::path& run, std::chrono::milliseconds patience) noexcept {
  try {
    base::wait_until(std::chrono::steady_clock::now() + patience, std::chrono::milliseconds(50),
                     [&] {
                       const std::vector<RankFile> files = read_folder(run / kFolder).files;
                       return files.empty() || static_cast<int64_t>(files.size()) >= files[0].world;
                     });
  } catch (const std::exception&) {  // then without them
  }
}

Verdict write_verdict(const fs::path& run, const Ranks& stopped) noexcept {
  Verdict out;
  try {
    if (!stopped.empty() && fs::exists(run / kFolder)) write_stopped(run / kFolder, stopped);
    out = judge_run(run);
    if (!out.sentences.empty()) base::write_durably(run / kFolder / "verdict.txt", out.text());
  } catch (const std::exception&) {  // the run's own error is what matters
  }
  return out;
}

}  // namespace meshwright::postmortem
