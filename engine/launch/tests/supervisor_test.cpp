// Ranks as processes: who speaks, who is blamed, what ends whom, and that nothing is left behind.
// Long because most of it is rows of scripts and what must come of them, which share one program.
#include "engine/launch/supervisor.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "engine/launch/spawn.h"
#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/words.h"
#include "sdk/comm/tests/shared_memory_switch.h"

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::launch;
using base::read_file;
using std::chrono::milliseconds;

namespace {

const std::string kProgram = MESHWRIGHT_BUILD_DIR "/bin/launch_rank";

struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "launch_test.XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
};

struct Ended {
  int code = 0;
  std::string out, err;
  milliseconds took{};
};

Ended supervise(int64_t ranks, std::vector<std::string> commands, LocalJob job = {}) {
  Folder folder;
  job.argv = std::move(commands);
  job.argv.insert(job.argv.begin(), kProgram);
  job.ranks = ranks;
  job.out_fd =
      ::open((folder.path / "out").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  job.err_fd =
      ::open((folder.path / "err").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  auto begin = std::chrono::steady_clock::now();
  Ended ended;
  ended.code = run_local_ranks(job);
  ended.took = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
  ::close(job.out_fd);
  ::close(job.err_fd);
  ended.out = read_file(folder.path / "out");
  ended.err = read_file(folder.path / "err");
  return ended;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Waits until a file is there; its number.
pid_t pid_in(const fs::path& path) {
  for (int i = 0; i < 1000 && !fs::exists(path); ++i) std::this_thread::sleep_for(milliseconds(10));
  return static_cast<pid_t>(std::atol(read_file(path).c_str()));
}

// Not there, or a zombie that its new parent has yet to collect.
bool is_gone(pid_t pid) {
  for (int i = 0; i < 500; ++i) {
    std::string status = read_file("/proc/" + std::to_string(pid) + "/stat");
    if (status.empty() || has(status, ") Z ")) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

// A supervisor in a process of its own, so that signals can be sent to it.
struct Supervised {
  Folder folder;
  pid_t pid = -1;
  explicit Supervised(int64_t ranks, const std::vector<std::string>& commands,
                      int64_t restarts = 0) {
    std::vector<std::string> words = {kProgram, "supervise",
                                      std::to_string(ranks) + "+" + std::to_string(restarts),
                                      folder.path.string()};
    words.insert(words.end(), commands.begin(), commands.end());
    words.push_back("all:pid=" + (folder.path / "pid_").string());
    words.push_back("all:sleep=60000");
    pid = ::fork();
    if (pid == 0) {
      int out = ::open((folder.path / "out").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
      ::dup2(out, 1);
      ::dup2(out, 2);
      std::vector<char*> argv;
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  pid_t rank(int64_t number) const {
    return pid_in(folder.path / ("pid_" + std::to_string(number)));
  }
  int wait() const {
    int status = 0;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    return status;
  }
};

}  // namespace

TEST_CASE("ranks that succeed: their output, whole lines, prefixed but for rank 0") {
  Ended ended = supervise(3, {"all:sleep=50", "0:out=step 1", "1:out=from one", "2:err=from two",
                              "0:partial=no newline at the end"});
  CHECK(ended.code == 0);
  CHECK(has(ended.out, "step 1\n"));
  CHECK(has(ended.out, "[rank 1] from one\n"));
  CHECK(has(ended.out, "no newline at the end"));
  CHECK(ended.err == "[rank 2] from two\n");
}

TEST_CASE("where any status is a result, rank 0's is the job's, and only an error is a failure") {
  LocalJob job;
  job.any_status = true;
  Ended ended = supervise(2, {"all:exit=7"}, job);
  CHECK(ended.code == 7);
  CHECK(ended.err == "");
  CHECK(supervise(2, {"1:sleep=50", "0:exit=0", "1:exit=7"}, job).code == 0);
  ended = supervise(2, {"1:err=error[E0602]: lost", "1:exit=6", "0:sleep=60000"}, job);
  CHECK(ended.code == 6);
  CHECK(has(ended.err, "rank 1 failed first"));
  CHECK(supervise(2, {"1:raise=9", "0:sleep=60000"}, job).code == 128 + 9);
}

TEST_CASE("each rank finds itself in its environment, and rank 0 alone inherits the socket") {
  LocalJob job;
  job.environment = {{"EXTRA", "seven"}};
  Ended ended = supervise(
      2,
      {"all:env=RANK", "all:env=WORLD_SIZE", "all:env=LOCAL_RANK", "all:env=LOCAL_WORLD_SIZE",
       "all:env=MASTER_ADDR", "all:env=EXTRA", "all:listens", "all:descriptors"},
      job);
  CHECK(ended.code == 0);
  for (const char* line :
       {"RANK=0\n", "WORLD_SIZE=2\n", "LOCAL_RANK=0\n", "LOCAL_WORLD_SIZE=2\n",
        "MASTER_ADDR=127.0.0.1\n", "EXTRA=seven\n", "listens\n", "[rank 1] RANK=1\n",
        "[rank 1] WORLD_SIZE=2\n", "[rank 1] LOCAL_RANK=1\n", "[rank 1] does not listen\n"})
    CHECK_MESSAGE(has(ended.out, line), line);
  // The socket is all that rank 0 has beyond the others; pipes of other ranks leak to nobody.
  auto descriptors = [&](const std::string& before) {
    return std::stoi(ended.out.substr(ended.out.find(before) + before.size()));
  };
  // What started this test may have left a descriptor 3 of its own to all ranks; the socket then
  // takes its place.
  int flags = ::fcntl(3, F_GETFD);
  bool taken = flags >= 0 && (flags & FD_CLOEXEC) == 0;
  CHECK(descriptors("\ndescriptors ") == descriptors("[rank 1] descriptors ") + (taken ? 0 : 1));
}

TEST_CASE("local ranks share a secret that is new in every job, and is on no command line") {
  const testing::Variable other("MESHWRIGHT_JOB_SECRET", "of another job than this");
  std::string secrets[2];
  for (std::string& secret : secrets) {
    const Ended ended = supervise(2, {"all:env=MESHWRIGHT_JOB_SECRET"}, LocalJob());
    CHECK(ended.code == 0);
    auto value = [&](const std::string& before) {
      const size_t at = ended.out.find(before + "MESHWRIGHT_JOB_SECRET=");
      REQUIRE(at != std::string::npos);
      const size_t begin = ended.out.find('=', at) + 1;
      return ended.out.substr(begin, ended.out.find('\n', begin) - begin);
    };
    secret = value("[rank 1] ");
    CHECK(secret.size() == 64);
    CHECK(secret.find_first_not_of("0123456789abcdef") == std::string::npos);
    // Rank 0's is the same, with or without a prefix before it.
    size_t times = 0;
    for (size_t at = ended.out.find(secret); at != std::string::npos;
         at = ended.out.find(secret, at + 1))
      ++times;
    CHECK(times == 2);
  }
  CHECK(secrets[0] != secrets[1]);
}

TEST_CASE("who is blamed when ranks fail together") {
  struct Row {
    const char *what, *commands;  // one a line
    int code;
    const char* words;  // of the verdict
  };
  const Row rows[] = {
      {"one fails", "1:err=error[E0801]: loss is nan\n1:exit=5\nall:sleep=60000", 5,
       "[rank 1] error[E0801]: loss is nan\nrank 1 failed first"},
      {"one fails without a word", "1:exit=7\nall:sleep=60000", 7,
       "error[E0505]: rank 1 failed with exit status 7\n"},
      {"one is killed", "1:raise=9\nall:sleep=60000", 137,
       "error[E0505]: rank 1 was ended by signal 9 (SIGKILL)\n"},
      {"rank 0 crashes", "0:raise=11\nall:sleep=60000", 139,
       "error[E0505]: rank 0 was ended by signal 11 (SIGSEGV)\n"},
      {"a killed rank, though another noticed first",
       "0:err=error[E0602]: lost rank 1\n0:exit=6\n1:sleep=200\n1:raise=9\nall:sleep=60000", 137,
       "error[E0505]: rank 1 was ended by signal 9 (SIGKILL)\n"},
      {"a rank with an error of its own, though another noticed first",
       "0:err=error[E0502]: nobody there\n0:exit=4\n"
       "2:err=error[E0701]: bad.bin is truncated\n2:sleep=200\n2:exit=7\nall:sleep=60000",
       7, "[rank 2] error[E0701]: bad.bin is truncated\nrank 2 failed first"},
      {"memory that ended, though another noticed first",
       "0:err=error[E0601]: rank 0 lost rank 2\n0:exit=6\n"
       "2:err=error[E0508]: the memory does not suffice\n2:sleep=200\n2:exit=4\nall:sleep=60000",
       4, "[rank 2] error[E0508]: the memory does not suffice\nrank 2 failed first"},
      {"nothing but lost connections",
       "2:err=error[E0601]: rank 2 waited 5 s in vain\n2:exit=6\nall:sleep=60000", 6,
       "[rank 2] error[E0601]"},
      {"one that fails only while being ended", "0:exit=6\n1:leave=12:1\nall:sleep=60000", 6,
       "rank 0 failed with exit status 6"},
      {"a kill and a failure that follows from it", "0:exit=1\n1:raise=9\nall:sleep=60000", 137,
       "rank 1 was ended by signal 9"},
      {"preempted by themselves", "all:exit=75", 75, ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    LocalJob job;
    job.grace = milliseconds(1000);
    Ended ended = supervise(3, text::split(row.commands, '\n'), job);
    CAPTURE(ended.err);
    CHECK(ended.code == row.code);
    CHECK(has(ended.err, row.words));
    CHECK(ended.took < milliseconds(4000));
  }
}

TEST_CASE(
    "the rank at fault speaks first, whatever order the words came in, and the same words are not "
    "repeated") {
  Ended ended = supervise(
      4, {"0:err=error[E0602]: connection lost", "2:err=error[E0602]: connection lost",
          "0:err=  help: look at rank 1", "3:err=error[E0602]: group of 3 broke", "1:sleep=100",
          "1:err=error[E0801]: loss is nan", "1:err=  help: lower lr", "1:exit=5", "all:exit=6"});
  CHECK(ended.code == 5);
  CHECK(ended.err ==
        "[rank 1] error[E0801]: loss is nan\n[rank 1]   help: lower lr\nrank 1 failed first; all "
        "others are ended\n"
        "error[E0602]: connection lost\n  help: look at rank 1\n[rank 2] error[E0602]: connection "
        "lost\n[rank 3] error[E0602]: group of 3 "
        "broke\n");
  Ended same = supervise(3, {"all:err=error[E0503]: rank 2 has lr 1, the others 2", "all:exit=4"});
  CHECK(same.code == 4);
  size_t first = same.err.find("rank 2 has lr 1");
  CHECK(first != std::string::npos);
  CHECK(same.err.find("rank 2 has lr 1", first + 1) == std::string::npos);
  CHECK(has(same.err, "(2 more ranks ended with the same"));
}

TEST_CASE("an error that ends nothing is shown in the end") {
  Ended ended = supervise(1, {"0:err=error[E0001]: of a library, not fatal", "0:sleep=100"});
  CHECK(ended.code == 0);
  CHECK(ended.err == "error[E0001]: of a library, not fatal\n");
}

TEST_CASE("a rank that ignores SIGUSR2 and one that is stopped are killed after the grace period") {
  LocalJob job;
  job.grace = milliseconds(400);
  for (const char* stubborn : {"1:ignore=12", "1:raise=19"}) {
    Ended ended = supervise(2, {stubborn, "0:sleep=300", "0:exit=5", "all:sleep=60000"}, job);
    CHECK(ended.code == 5);
    CHECK(ended.took >= milliseconds(600));
    CHECK(ended.took < milliseconds(5000));
  }
}

TEST_CASE("what a rank started ends with it and does not keep its output open") {
  Folder folder;
  std::string file = (folder.path / "child").string();
  Ended ended = supervise(2, {"1:child=" + file});
  CHECK(ended.code == 0);
  CHECK(ended.took < milliseconds(5000));
  CHECK(is_gone(pid_in(file)));
}

TEST_CASE("much output arrives complete and whole, on the streams and in the logs") {
  Folder folder;
  LocalJob job;
  job.log_folder = folder.path;
  Ended ended = supervise(3, {"all:lines=20000", "2:long=300000"}, job);
  CHECK(ended.code == 0);
  size_t lines = 0;
  for (const std::string* text : {&ended.out, &ended.err}) {
    std::istringstream in(*text);
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with("[rank 2] xxx")) continue;
      std::string bare = line.starts_with("[rank ") ? line.substr(9) : line;
      size_t number = std::stoul(bare.substr(41));
      CHECK_MESSAGE(bare == std::string(40, static_cast<char>('a' + number % 20)) + " " +
                                std::to_string(number),
                    line);
      ++lines;
    }
  }
  CHECK(lines == 60000);
  size_t longs = 0;
  for (size_t at = 0; (at = ended.out.find("[rank 2] xxx", at)) != std::string::npos;
       at = ended.out.find('\n', at))
    longs += ended.out.find('\n', at) - at - 9;
  CHECK(longs == 300000);
  std::string log = read_file(folder.path / "rank_2.log");
  CHECK(std::count(log.begin(), log.end(), 'x') == 300000);
  CHECK(std::count(log.begin(), log.end(), '\n') == 20000);
}

TEST_CASE("a program that is not there, and a log folder that is not there, are errors") {
  LocalJob job;
  job.argv = {"/nowhere/meshwright"};
  job.ranks = 2;
  try {
    run_local_ranks(job);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::rank_failed);
    CHECK(has(error.message(), "/nowhere/meshwright"));
  }
  job.argv = {kProgram, "all:sleep=60000"};
  job.log_folder = "/nowhere/logs";
  try {
    run_local_ranks(job);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::output_unwritable);
    CHECK(has(error.message(), "/nowhere/logs/rank_0.log"));
  }
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no child is left
}

TEST_CASE(
    "a signal to the supervisor reaches all ranks, and its exit status says how they took it") {
  struct Row {
    int signal, code;
    const char* commands;
  };
  const Row rows[] = {
      {SIGINT, 130, ""},
      {SIGTERM, 143, ""},
      {SIGHUP, 129, ""},
      {SIGTERM, 75, "all:leave=15:75"},
      {SIGUSR1, 75, "all:leave=10:75"},
      {SIGINT, 75, "all:leave=2:75"},
      {SIGHUP, 75, "all:leave=1:75"},
      {SIGTERM, 0, "all:leave=15:0"},
      {SIGTERM, 7, "0:leave=15:75 1:leave=15:7"},
      {SIGINT, 130, "0:leave=2:6"},
  };
  for (const Row& row : rows) {
    Supervised job(2, text::split_names(row.commands, ' '));
    pid_t ranks[] = {job.rank(0), job.rank(1)};
    ::kill(job.pid, row.signal);
    int status = job.wait();
    CAPTURE(row.signal);
    CAPTURE(read_file(job.folder.path / "out"));
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == row.code);
    for (pid_t rank : ranks) CHECK(is_gone(rank));
  }
}

TEST_CASE(
    "after a fault the others end at once, also those that take signals as the request to save") {
  Ended ended = supervise(3, {"0:sleep=200", "0:exit=5", "all:ignore=1", "all:ignore=2",
                              "all:ignore=15", "all:ignore=10", "all:sleep=60000"});
  CHECK(ended.code == 5);
  CHECK(ended.took < milliseconds(5000));
}

TEST_CASE(
    "the same signal twice within a moment is one request, which ranks may take their time over") {
  Supervised job(2, {"all:later=15:75:800"});
  job.rank(0);
  job.rank(1);
  ::kill(job.pid, SIGTERM);
  std::this_thread::sleep_for(milliseconds(20));
  ::kill(job.pid, SIGTERM);
  CHECK(WEXITSTATUS(job.wait()) == 75);
}

TEST_CASE(
    "a terminal that goes away says so several times, and does not hurry what another signal has "
    "asked for") {
  for (int first : {SIGHUP, SIGINT}) {
    Supervised job(2, {"all:ignore=1", "all:later=" + std::to_string(first) + ":75:1200"});
    job.rank(0);
    job.rank(1);
    ::kill(job.pid, first);
    for (int i = 0; i < 2; ++i) {
      std::this_thread::sleep_for(milliseconds(400));
      ::kill(job.pid, SIGHUP);
    }
    CHECK(WEXITSTATUS(job.wait()) == 75);
  }
}

TEST_CASE("SIGHUP that was ignored stays ignored, for the supervisor and its ranks") {
  auto before = std::signal(SIGHUP, SIG_IGN);
  Supervised job(1, {});
  std::signal(SIGHUP, before);
  pid_t rank = job.rank(0);
  ::kill(job.pid, SIGHUP);
  ::kill(rank, SIGHUP);
  std::this_thread::sleep_for(milliseconds(400));
  CHECK(::waitpid(job.pid, nullptr, WNOHANG) == 0);
  CHECK(::kill(rank, 0) == 0);
  ::kill(job.pid, SIGTERM);
  CHECK(WEXITSTATUS(job.wait()) == 143);
}

TEST_CASE(
    "a parent that ignores SIGCHLD or blocks signals: the ranks' ends are seen, signals come, and "
    "all is put back") {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  sigset_t blocked, old;
  ::sigemptyset(&blocked);
  for (int signal : {SIGTERM, SIGINT, SIGUSR2}) ::sigaddset(&blocked, signal);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &old);
  CHECK(supervise(2, {"all:sleep=20"}).code == 0);
  CHECK(supervise(2, {"1:exit=5", "0:sleep=60000"}).code == 5);
  Supervised job(1, {});
  job.rank(0);
  // Before the job may end: whoever ignores SIGCHLD then has no status of it.
  std::signal(SIGCHLD, SIG_DFL);
  ::kill(job.pid, SIGTERM);
  CHECK(WEXITSTATUS(job.wait()) == 128 + SIGTERM);
  sigset_t now;
  ::pthread_sigmask(SIG_SETMASK, &old, &now);
  CHECK(::sigismember(&now, SIGTERM) == 1);
  std::signal(SIGCHLD, before);
}

TEST_CASE("logs of a former run stay in front of the new one's; a long one makes way for it") {
  Folder folder;
  LocalJob job;
  job.log_folder = folder.path;
  fs::path log = folder.path / "rank_0.log";
  for (const char* words : {"0:out=the first", "0:out=the second"})
    CHECK(supervise(1, {words}, job).code == 0);
  std::string text = read_file(log);
  CHECK(text.starts_with("the first\n=== "));
  CHECK(text.ends_with(": another start ===\nthe second\n"));
  fs::resize_file(log, 17 << 20);
  CHECK(supervise(1, {"0:out=the third"}, job).code == 0);
  CHECK(read_file(log) == "the third\n");
  CHECK(fs::file_size(folder.path / "rank_0.1.log") == 17 << 20);
}

TEST_CASE("failures, restarts and signals are recorded too") {
  std::string heard;
  LocalJob job;
  job.max_restarts = 1;
  job.record = [&](const std::string& lines) { heard += lines; };
  CHECK(
      supervise(2, {"1:err=error[E0801]: loss is nan", "1:exit=1", "all:sleep=60000"}, job).code ==
      1);
  for (const char* part :
       {"[rank 1] error[E0801]: loss is nan\nrank 1 failed first",
        "restart 1 of 1 after rank 1 failed with exit status 1", "no restart is left of 1\n"})
    CHECK_MESSAGE(has(heard, part), heard);
}

TEST_CASE(
    "ranks start again after what may not come again, as often as allowed, and the logs go on") {
  struct Row {
    const char* commands;
    int64_t restarts;
    int code, starts;
    const char* words;
  };
  const Row rows[] = {
      {"1:until=1 1:raise=9 all:sleep=50", 3, 0, 2,
       "restart 1 of 3 after rank 1 was ended by signal 9 (SIGKILL), from step 7; "},
      {"1:until=2 1:exit=1 all:sleep=50", 2, 0, 3,
       "restart 2 of 2 after rank 1 failed with exit status 1, from step 7; "},
      {"1:until=2 1:exit=4 all:sleep=50", 2, 0, 3,
       "restart 2 of 2 after rank 1 failed with exit status 4"},
      {"0:until=1 0:exit=6 all:sleep=50", 2, 0, 2,
       "restart 1 of 2 after rank 0 failed with exit status 6"},
      {"0:raise=11 all:sleep=60000", 1, 139, 2, "no restart is left of 1\n"},
      {"0:raise=9 all:sleep=60000", 0, 137, 1, "rank 0 was ended by signal 9"},
      {"0:exit=2", 2, 2, 1, ""},
      {"0:exit=3", 2, 3, 1, ""},
      {"0:exit=5", 2, 5, 1, ""},
      {"0:exit=7", 2, 7, 1, ""},
      {"all:exit=75", 2, 75, 1, ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.commands);
    Folder folder;
    LocalJob job;
    job.max_restarts = row.restarts;
    job.log_folder = folder.path;
    job.continues = [] { return std::string("from step 7"); };
    std::vector<std::string> commands = text::split_names(row.commands, ' ');
    commands.insert(commands.begin(), "0:out=a start");
    Ended ended = supervise(2, commands, job);
    CAPTURE(ended.err);
    CHECK(ended.code == row.code);
    CHECK(has(ended.err, row.words));
    CHECK(has(ended.err, "restart 1 of") == (row.starts > 1));
    for (const std::string& text : {ended.out, read_file(folder.path / "rank_0.log")}) {
      int starts = 0;
      for (size_t at = 0; (at = text.find("a start\n", at)) != std::string::npos; ++at) ++starts;
      CHECK(starts == row.starts);
    }
    CHECK(has(read_file(folder.path / "rank_0.log"), ": restart 1 ===\n") == (row.starts > 1));
  }
}

TEST_CASE(
    "ranks that end soon after their start wait longer and longer before the next, and a signal "
    "ends the wait") {
  LocalJob three;
  three.max_restarts = 3;
  Ended ended = supervise(1, {"0:env=MESHWRIGHT_RESTART", "0:exit=1"}, three);
  CHECK(ended.code == 1);
  CHECK(ended.took > milliseconds(250 + 500 + 1000));
  CHECK(has(ended.err, "500 ms to wait"));
  CHECK(ended.out ==
        "MESHWRIGHT_RESTART=(unset)\nMESHWRIGHT_RESTART=1\nMESHWRIGHT_RESTART=2\nMESHWRIGHT_"
        "RESTART=3\n");
  // Many restarts: the wait is long by the time the signal comes.
  Supervised job(1, {"0:exit=1"}, 30);
  std::this_thread::sleep_for(milliseconds(2200));
  auto begin = std::chrono::steady_clock::now();
  ::kill(job.pid, SIGTERM);
  CHECK(WEXITSTATUS(job.wait()) == 128 + SIGTERM);
  CHECK(std::chrono::steady_clock::now() - begin < milliseconds(1000));
  CHECK(has(read_file(job.folder.path / "out"), "stopped by signal"));
}

TEST_CASE("a signal of the user is no fault to restart after") {
  for (const char* command : {"all:sleep=60000", "all:leave=15:6", "all:leave=15:1"}) {
    CAPTURE(command);
    Supervised job(2, {command}, 3);
    std::string word = command;
    if (word != "all:sleep=60000") {
      job.rank(0);
      job.rank(1);
    } else {
      std::this_thread::sleep_for(milliseconds(300));
    }
    ::kill(job.pid, SIGTERM);
    CHECK(WEXITSTATUS(job.wait()) == (word == "all:leave=15:1" ? 1 : 143));
    CHECK(!has(read_file(job.folder.path / "out"), "restart"));
  }
}

TEST_CASE(
    "a rank that takes its time over a signal is not hurried by the others, but a second signal "
    "kills") {
  Supervised slow(2, {"0:leave=15:75", "1:ignore=15"});
  pid_t one = slow.rank(1);
  slow.rank(0);
  ::kill(slow.pid, SIGTERM);
  std::this_thread::sleep_for(milliseconds(1500));
  CHECK(::kill(one, 0) == 0);
  CHECK(::waitpid(slow.pid, nullptr, WNOHANG) == 0);
  ::kill(slow.pid, SIGTERM);
  int status = slow.wait();
  CHECK(WEXITSTATUS(status) == 143);
  CHECK(is_gone(one));
}

TEST_CASE("when the supervisor is killed, its ranks die with it") {
  Supervised job(3, {"all:follow", "all:ignore=15", "all:ignore=1"});
  pid_t ranks[] = {job.rank(0), job.rank(1), job.rank(2)};
  ::kill(job.pid, SIGKILL);
  job.wait();
  for (pid_t rank : ranks) CHECK(is_gone(rank));
}

TEST_CASE("Ctrl-Z stops the ranks with the supervisor, and they go on with it") {
  Supervised job(2, {});
  pid_t rank = job.rank(1);
  job.rank(0);
  auto state = [](pid_t pid) {
    std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    return stat[stat.rfind(')') + 2];
  };
  auto becomes = [&](pid_t pid, bool stopped) {
    for (int i = 0; i < 500 && (state(pid) == 'T') != stopped; ++i)
      std::this_thread::sleep_for(milliseconds(10));
    return (state(pid) == 'T') == stopped;
  };
  ::kill(job.pid, SIGTSTP);
  CHECK(becomes(job.pid, true));
  CHECK(becomes(rank, true));
  ::kill(job.pid, SIGCONT);
  CHECK(becomes(rank, false));
  ::kill(job.pid, SIGTERM);
  CHECK(WEXITSTATUS(job.wait()) == 143);
}

TEST_CASE("a reader that went away does not end the ranks") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  ::close(ends[0]);
  LocalJob job;
  Folder folder;
  job.argv = {kProgram, "all:lines=1000", "all:pid=" + (folder.path / "pid_").string()};
  job.ranks = 2;
  job.out_fd = job.err_fd = ends[1];
  CHECK(run_local_ranks(job) == 0);
  ::close(ends[1]);
  CHECK(fs::exists(folder.path / "pid_1"));
}

TEST_CASE(
    "the soft limit of open files becomes the hard one, at most a million, and never less than it "
    "was") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(before.rlim_max >= 128);
  rlimit low = before, after{};
  low.rlim_cur = 64;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  raise_descriptor_limit();
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &after) == 0);
  CHECK(after.rlim_cur == std::min<rlim_t>(before.rlim_max, 1 << 20));
  CHECK(after.rlim_max == before.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &before);
}
