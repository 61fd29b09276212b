#include "sdk/base/conformance.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <filesystem>
#include <stdexcept>

#include "sdk/base/beside.h"
#include "sdk/base/checks.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/used_up.h"
#include "sdk/kit/conformance/cases.h"
#include "sdk/kit/conformance/probe.h"

namespace meshwright::conformance {

void* symbol_of_training(const char* name, Report& report) {
  const std::filesystem::path path = beside_sdk("libmeshwright_conformance_training.so");
  auto failed = [&](const std::string& what) -> void* {
    report.fail(what);
    return nullptr;
  };
  if (!std::filesystem::exists(path)) {
    report.skip("it can run, but " + path.string() + ", which would check that, is not there");
    return nullptr;
  }
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return failed("cannot load " + path.string() + ": " + (why ? why : ""));
  }
  void* symbol = ::dlsym(library, name);
  return symbol != nullptr ? symbol : failed(path.string() + " is not the kit's library");
}

namespace {

constexpr Case kCases[] = {
    {"abi", Scope::library, "the loader accepts the library and its facts name what it holds",
     &check_facts},
    {"symbols", Scope::library, "the library exports its descriptor and its marker, nothing else",
     &check_symbols},
    {"descriptor", Scope::library, "names, version, license and texts are in order",
     &check_descriptor},
    {"schema", Scope::strategy,
     "defaults are valid, and wrong keys, types, ranges and choices are refused", &check_options},
    {"lifecycle", Scope::strategy, "it is made and destroyed a hundred times without growth",
     &check_lifecycle},
    {"validate", Scope::strategy, "validate answers whatever the options hold", &check_validate},
    {"mesh", Scope::strategy,
     "up to 4,096 ranks: ranks and coordinates are one to one, groups agree", &check_mesh},
    {"mesh_pure", Scope::strategy,
     "plan_mesh gives the same answer twice, in every thread, and changes nothing",
     &check_mesh_pure},
    {"mesh_refusal", Scope::strategy, "sizes that cannot be are refused, with settings that work",
     &check_mesh_refusal},
    {"tp_plan", Scope::strategy,
     "tensor-parallel plans match the model, and impossible head counts are refused",
     &check_tp_plan},
    {"footprint", Scope::strategy,
     "local shapes tile the parameters, bytes and axes are consistent", &check_footprint},
    {"parallelize", Scope::strategy,
     "what can train trains as a plain loop does, what cannot says so", &check_parallelize},
    {"data_schema", Scope::dataset,
     "defaults are valid, and wrong keys, types, ranges and choices are refused", &check_options},
    {"data_lifecycle", Scope::dataset,
     "it is made and destroyed a hundred times without growth, and validate answers whatever the "
     "options hold",
     &check_data_lifecycle},
    {"data_open", Scope::dataset,
     "it opens, tells what it is, and refuses what is not there by name", &check_data_open},
    {"data_read", Scope::dataset,
     "samples are written whole: ids of the vocabulary, ascending documents, weights",
     &check_data_read},
    {"data_pure", Scope::dataset,
     "a sample is the same in any order, in every thread, and when opened again", &check_data_pure},
    {"data_fingerprint", Scope::dataset,
     "the fingerprint is that of the samples: a copy has it, other data have another one",
     &check_data_fingerprint},
    {"model_schema", Scope::model,
     "defaults are valid, and wrong keys, types, ranges and choices are refused", &check_options},
    {"model_lifecycle", Scope::model,
     "it is made and destroyed a hundred times without growth, and validate answers whatever the "
     "options hold",
     &check_model_lifecycle},
    {"model_outline", Scope::model,
     "the model on paper is sound, the same each time, and what its plans name is there",
     &check_model_outline},
    {"model_module", Scope::model, "the module is what the outline says, and can be wrapped",
     &check_model_module},
    {"model_forward", Scope::model,
     "samples and later tokens are not seen, losses are sums, every parameter gets a gradient",
     &check_model_forward},
    {"model_layouts", Scope::model,
     "sharded, cut and in stages it trains as alone, or says beforehand that it does not",
     &check_model_layouts},
};

}  // namespace

void Report::fail(std::string problem) {
  if (count_++ < kMaxProblems) problems_.push_back(std::move(problem));
}

void Report::skip(std::string why) { skipped_ = std::move(why); }

void Report::note(std::string text, int64_t looked_at) {
  note_ = std::move(text);
  if (looked_at == 0 && skipped_.empty()) skipped_ = "it found nothing to look at: " + note_;
}

Verdict Report::verdict() const {
  if (count_ > 0) return Verdict::failed;
  return skipped_.empty() ? Verdict::ok : Verdict::skipped;
}

std::span<const Case> cases() { return kCases; }

const Case* find_case(std::string_view name) {
  for (const Case& c : kCases)
    if (c.name == name) return &c;
  return nullptr;
}

Report run_case(const Case& c, const Subject& subject) {
  Report report;
  try {
    // Nothing can be asked of what has options that cannot be made; the case that says why is
    // "schema".
    if (c.scope != Scope::library && c.run != &check_options) try {
        check_schema(schema_of(subject));
      } catch (const Error&) {
        report.skip("its option schema is not sound");
        return report;
      }
    c.run(subject, report);
  } catch (const std::exception& error) {
    report.fail(std::string("the case ended early: ") + error.what());
  } catch (...) {
    report.fail("the case ended early with an exception that is not a std::exception");
  }
  return report;
}

}  // namespace meshwright::conformance

extern char** environ;

namespace meshwright::conformance {

namespace {

constexpr size_t kMaxOutput = size_t{64} << 10, kMaxAnswer = size_t{16} << 20;

// Both ends stay above the descriptors that the child gets, or dup2 would overwrite one with
// another.
struct Pipe {
  int ends[2] = {-1, -1};
  Pipe() {
    int low[2];
    if (::pipe2(low, O_CLOEXEC) != 0)
      throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
    int reason = 0;
    for (int i : {0, 1}) {
      ends[i] = ::fcntl(low[i], F_DUPFD_CLOEXEC, kAnswerFd + 1);
      if (ends[i] < 0) reason = detail::reason_of_copy(errno);
      ::close(low[i]);
    }
    if (ends[0] < 0 || ends[1] < 0)
      throw std::runtime_error(std::string("pipe: ") + std::strerror(reason));
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close(0);
    close(1);
  }
  void close(int end) {
    if (ends[end] >= 0) ::close(ends[end]);
    ends[end] = -1;
  }
  // Takes what is there; false at its end. What goes beyond the limit is read and dropped, so that
  // the child never waits.
  bool drain(std::string& text, size_t most) {
    char buffer[4096];
    for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) != 0;) {
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      if (text.size() < most) text.append(buffer, static_cast<size_t>(n));
    }
    return false;
  }
};

// What has come of an answer. Whole lines only: one that breaks off is not taken for a field.
class Heard {
 public:
  explicit Heard(const Hear& hear) : hear_(hear) {}
  bool drain(Pipe& from) {
    const bool open = from.drain(text_, kMaxAnswer);
    for (size_t end; (end = text_.find('\n', at_)) != std::string::npos; at_ = end + 1) try {
        fields_.push_back(base::read_json_text<Fields::value_type>(text_.substr(at_, end - at_)));
        if (hear_) hear_(fields_.back());
      } catch (const base::JsonProblem&) {  // the plugin has written there
      }
    return open;
  }
  Fields take() { return std::move(fields_); }

 private:
  const Hear& hear_;
  std::string text_;
  size_t at_ = 0;  // of the line that has not come whole
  Fields fields_;
};

pid_t spawn(const std::vector<std::string>& arguments, int output, int answer) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output, 1);
  ::posix_spawn_file_actions_adddup2(&actions, output, 2);
  ::posix_spawn_file_actions_adddup2(&actions, answer, kAnswerFd);
  sigset_t defaults, none;
  ::sigemptyset(&defaults);
  ::sigemptyset(&none);
  for (int signal : {SIGCHLD, SIGPIPE}) ::sigaddset(&defaults, signal);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(
      &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  pid_t child = 0;
  int failed = ::posix_spawn(&child, argv[0], &actions, &attributes, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0) throw std::runtime_error(arguments[0] + ": " + std::strerror(failed));
  return child;
}

std::string seconds_text(double seconds) { return text::format("%g s", seconds); }

}  // namespace

ChildResult run_child(const std::vector<std::string>& arguments, double seconds, const Hear& hear) {
  using Clock = std::chrono::steady_clock;
  Pipe output, answers;
  ChildResult result;
  Heard heard(hear);
  auto begin = Clock::now();
  pid_t child = spawn(arguments, output.ends[1], answers.ends[1]);
  output.close(1);
  answers.close(1);
  int status = 0;
  bool lost = false;  // whoever ignores SIGCHLD has no status of its children
  // The pipes end with the last process that holds them, which may outlive the child; the child's
  // own end counts.
  for (int wait_ms = 1;; wait_ms = std::min(wait_ms * 2, 20)) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    lost = ended < 0 && errno == ECHILD;
    if (ended == child || lost) break;
    if (std::chrono::duration<double>(Clock::now() - begin).count() >= seconds) {
      result.timed_out = true;
      ::kill(-child, SIGKILL);
      ::waitpid(child, &status, 0);
      break;
    }
    struct pollfd waiting[] = {{output.ends[0], POLLIN, 0}, {answers.ends[0], POLLIN, 0}};
    ::poll(waiting, 2, wait_ms);
    bool open = output.drain(result.output, kMaxOutput);
    open = heard.drain(answers) && open;
    if (!open) ::usleep(1000);  // poll returns at once for a pipe that has ended
  }
  if (!lost) ::kill(-child, SIGKILL);
  output.drain(result.output, kMaxOutput);
  heard.drain(answers);
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  result.fields = heard.take();
  if (!result.timed_out && !lost && WIFEXITED(status)) result.exit_status = WEXITSTATUS(status);
  if (!result.timed_out && WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

Outcome run_case_in_child(const std::vector<std::string>& arguments, double seconds) {
  Outcome outcome;
  outcome.child = run_child(arguments, seconds);
  const ChildResult& child = outcome.child;
  std::vector<std::string> verdict = values_of(child.fields, "verdict");
  if (child.timed_out) {
    outcome.lines = {"did not end within " + seconds_text(seconds) + " and was killed"};
  } else if (child.signal != 0) {
    outcome.lines = {"ended by signal " + std::to_string(child.signal) + " (" +
                     ::strsignal(child.signal) + ")"};
  } else if (verdict.empty()) {
    outcome.lines = {"ended with status " + std::to_string(child.exit_status) +
                     " before the case was over"};
  } else if (child.exit_status != 0) {
    outcome.lines = {"passed its checks, but the process then ended with status " +
                     std::to_string(child.exit_status)};
  } else {
    outcome.verdict = verdict[0] == "ok"        ? Verdict::ok
                      : verdict[0] == "skipped" ? Verdict::skipped
                                                : Verdict::failed;
    outcome.lines = values_of(child.fields, outcome.verdict == Verdict::ok        ? "note"
                                            : outcome.verdict == Verdict::skipped ? "why"
                                                                                  : "problem");
    return outcome;
  }
  // A failure before the end: what it found until then, and the last it said.
  for (const std::string& problem : values_of(child.fields, "problem"))
    outcome.lines.push_back(problem);
  std::string last = child.output;
  while (!last.empty() && last.back() == '\n') last.pop_back();
  last = last.substr(last.rfind('\n') + 1);
  if (!last.empty()) outcome.lines.push_back("it last printed: " + last.substr(0, 300));
  return outcome;
}

void prepare_child() {
  const struct rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // What the plugin starts must not hold the answer open, nor write to it.
  ::fcntl(kAnswerFd, F_SETFD, FD_CLOEXEC);
}

bool answer(const Fields& fields) {
  std::string text;
  for (const auto& field : fields) text += base::json_text(field) + "\n";
  for (size_t at = 0; at < text.size();) {
    ssize_t n = ::write(kAnswerFd, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += static_cast<size_t>(n);
  }
  return true;
}

Fields fields_of(const Report& report) {
  Fields fields;
  switch (report.verdict()) {
    case Verdict::ok:
      fields = {{"verdict", "ok"}};
      if (!report.note().empty()) fields.emplace_back("note", report.note());
      break;
    case Verdict::skipped:
      fields = {{"verdict", "skipped"}, {"why", report.why_skipped()}};
      break;
    case Verdict::failed:
      fields = {{"verdict", "failed"}};
      for (const std::string& problem : report.problems()) fields.emplace_back("problem", problem);
      if (size_t more = report.problem_count() - report.problems().size(); more > 0)
        fields.emplace_back("problem", "and " + std::to_string(more) + " more");
      break;
  }
  return fields;
}

std::vector<std::string> values_of(const Fields& fields, const std::string& name) {
  std::vector<std::string> out;
  for (const auto& [key, value] : fields)
    if (key == name) out.push_back(value);
  return out;
}

}  // namespace meshwright::conformance
