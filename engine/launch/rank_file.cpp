#include "engine/launch/rank_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "engine/launch/supervisor.h"
#include "meshwright/error.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/words.h"

namespace meshwright::launch {

namespace {

// Ranks of a launcher die with it, and nothing more is written.
[[noreturn]] void leave(const Error& error) {
  std::string text = std::string(error.what()) + "\n";
  for (const std::string& note : error.notes()) text += "  note: " + note + "\n";
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) ::_exit(exit_status(error.code()));
  ::_exit(exit_status(error.code()));
}

}  // namespace

std::unique_ptr<base::RunLock> own_run_folder(const std::filesystem::path& folder,
                                              const Lookup& environment, const Say& waiting,
                                              const std::function<void(const Error&)>& lost) {
  base::RunLock::Settings settings;
  settings.waiting = waiting;
  settings.lost = lost ? lost : leave;
  try {
    auto lock = std::make_unique<base::RunLock>(folder, settings);
    if (const std::optional<base::LockOwner>& former = lock->former())
      base::append_line(folder / "run.log",
                        "the run before, process " + std::to_string(former->pid) + " on " +
                            former->host + " since " + former->since +
                            ", ended without a word: it was killed, or its host went down");
    return lock;
  } catch (const Error& error) {
    std::vector<std::string> variables = unrecognised_launcher(environment);
    if (error.code() != ErrorCode::run_folder_locked || variables.empty()) throw;
    throw Error(ErrorCode::unknown_launcher,
                "the environment looks like that of a launcher which is not recognised (" +
                    text::join(variables, ", ") + "), so each process trains alone; " +
                    error.message())
        .key("run.name")
        .help(kSetRankVariables)
        .help("if this is to be a run of its own, set run.name to another name");
  }
}

bool launcher_owns_run_folder(const std::filesystem::path& folder) {
  const char* lock = std::getenv(kRunLock);
  struct stat held{}, named{};
  return lock != nullptr && ::fstat(std::atoi(lock), &held) == 0 &&
         ::stat((folder / "lock").c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

}  // namespace meshwright::launch

namespace meshwright::detail {

BOOST_DESCRIBE_ENUM(CollectiveState, starting, under_way, waiting, queued, completed, failed)
BOOST_DESCRIBE_STRUCT(LoggedGroup, (), (axis, ranks, entered, sent, received))

}  // namespace meshwright::detail

namespace meshwright::postmortem {

namespace {

namespace fs = std::filesystem;

// What the file has, where what did not happen is left out.
struct Message {
  std::optional<int64_t> to, from;
  int64_t number, bytes;
};
BOOST_DESCRIBE_STRUCT(Message, (), (to, from, number, bytes))

struct Collective {
  std::optional<int64_t> number;
  std::string op;
  size_t group;
  int64_t bytes;
  detail::CollectiveState state;
  int64_t began;
  std::optional<int64_t> waited_from, ended;
  std::optional<std::string> for_;
  std::optional<std::vector<Message>> messages;
};
BOOST_DESCRIBE_STRUCT(Collective, (),
                      (number, op, group, bytes, state, began, waited_from, ended, for_, messages))

struct Whole {
  int64_t rank, world;
  std::string host;
  int64_t process, attempt;
  std::string why;
  bool error;
  int64_t taken;
  std::vector<detail::LoggedGroup> groups;
  std::optional<std::vector<Collective>> collectives;
};
BOOST_DESCRIBE_STRUCT(Whole, (),
                      (rank, world, host, process, attempt, why, error, taken, groups, collectives))

struct Launcher {
  std::vector<int64_t> stopped;
};
BOOST_DESCRIBE_STRUCT(Launcher, (), (stopped))

Collective as_written(const detail::LoggedCollective& one) {
  auto unless_0 = [](int64_t number) { return number > 0 ? std::optional(number) : std::nullopt; };
  Collective out{unless_0(one.number),
                 one.op,
                 one.group,
                 one.bytes,
                 one.state,
                 one.began,
                 unless_0(one.waited_from),
                 unless_0(one.ended),
                 {},
                 {}};
  if (!one.purpose.empty()) out.for_ = one.purpose;
  for (const detail::LoggedMessage& m : one.messages) {
    if (!out.messages) out.messages.emplace();
    out.messages->push_back({m.sent ? std::optional(m.rank) : std::nullopt,
                             m.sent ? std::nullopt : std::optional(m.rank), m.number, m.bytes});
  }
  return out;
}

detail::LoggedCollective as_logged(Collective&& one) {
  detail::LoggedCollective out{one.number.value_or(0),
                               std::move(one.op),
                               one.group,
                               one.bytes,
                               one.began,
                               one.waited_from.value_or(0),
                               one.ended.value_or(0),
                               one.state,
                               one.for_.value_or(""),
                               {}};
  for (const Message& m : one.messages.value_or(std::vector<Message>())) {
    if (m.to.has_value() == m.from.has_value())
      throw Error(ErrorCode::file_unreadable, "a message goes to a rank, or comes from one");
    out.messages.push_back({m.to ? *m.to : *m.from, m.to.has_value(), m.number, m.bytes});
  }
  return out;
}

std::optional<int64_t> rank_of(std::string_view name) {
  constexpr std::string_view kBegin = "rank_", kEnd = ".json";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return std::nullopt;
  name.remove_suffix(kEnd.size());
  const std::optional<int64_t> rank = text::to_number(name.substr(kBegin.size()));
  return rank && *rank >= 0 ? rank : std::nullopt;
}

constexpr const char* kLauncherFile = "launcher.json";

std::vector<int64_t> read_stopped(const fs::path& file) {
  try {
    return base::read_json_text<Launcher>(base::read_file(file, base::kSmallFile)).stopped;
  } catch (const base::JsonProblem&) {
    return {};  // it is not there, as a rule
  }
}

}  // namespace

std::string file_name(int64_t rank) { return "rank_" + std::to_string(rank) + ".json"; }

// A line for each collective: such a file is also read by people.
std::string to_text(const RankFile& file) {
  std::string out =
      base::json_text(Whole{file.rank, file.world, file.host, file.process, file.attempt, file.why,
                            file.error, file.record.taken, file.record.groups, std::nullopt});
  out.pop_back();
  out += ",\"collectives\":[";
  const char* between = "\n";
  for (const detail::LoggedCollective& one : file.record.collectives) {
    out += between + base::json_text(as_written(one));
    between = ",\n";
  }
  return out + "]}\n";
}

RankFile parse(std::string_view text) try {
  auto whole = base::read_json_text<Whole>(text);
  for (const detail::LoggedGroup& group : whole.groups)
    if (group.sent.size() != group.ranks.size() || group.received.size() != group.ranks.size())
      throw Error(ErrorCode::file_unreadable, "a group's lists differ in length");
  if (!whole.collectives) throw Error(ErrorCode::file_unreadable, "it has no collectives");
  RankFile out{whole.rank,    whole.world, whole.host,  whole.process,
               whole.attempt, whole.why,   whole.error, {whole.taken, std::move(whole.groups), {}}};
  for (Collective& one : *whole.collectives) {
    if (one.group >= out.record.groups.size())
      throw Error(ErrorCode::file_unreadable, "there is no group " + std::to_string(one.group));
    out.record.collectives.push_back(as_logged(std::move(one)));
  }
  return out;
} catch (const base::JsonProblem& problem) {
  throw Error(ErrorCode::file_unreadable, problem.what);
}

void write_stopped(const fs::path& folder, const std::vector<int64_t>& ranks) {
  base::write_durably(folder / kLauncherFile, base::json_text(Launcher{ranks}) + "\n");
}

Folder read_folder(const fs::path& folder) {
  Folder out;
  out.stopped = read_stopped(folder / kLauncherFile);
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    const std::optional<int64_t> rank = rank_of(at->path().filename().string());
    if (!rank) continue;
    try {
      RankFile file =
          parse(base::read_foreign(at->path(), base::kSmallFile, ErrorCode::file_unreadable));
      if (file.rank != *rank)
        throw Error(ErrorCode::file_unreadable, "it is of rank " + std::to_string(file.rank));
      out.files.push_back(std::move(file));
    } catch (const Error& error) {
      std::string why = error.message().substr(0, error.message().find('\n'));
      if (const std::string begin = at->path().string() + ": "; why.starts_with(begin))
        out.problems.push_back(std::move(why));
      else
        out.problems.push_back(at->path().string() + " is damaged (" + why + ")");
    }
  }
  int64_t newest = 0;
  for (const RankFile& file : out.files) newest = std::max(newest, file.attempt);
  std::erase_if(out.files, [&](const RankFile& file) {
    if (file.attempt == newest) return false;
    out.problems.push_back((folder / file_name(file.rank)).string() + " is of attempt " +
                           std::to_string(file.attempt) + ", others of " + std::to_string(newest));
    return true;
  });
  std::sort(out.files.begin(), out.files.end(),
            [](const RankFile& a, const RankFile& b) { return a.rank < b.rank; });
  std::sort(out.problems.begin(), out.problems.end());
  return out;
}

}  // namespace meshwright::postmortem
