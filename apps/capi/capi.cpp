// What every function of the C interface does around its work: nothing leaves it but a status.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/inference/generate_here.h"
#include "engine/config/describe.h"
#include "engine/config/reading.h"
#include "engine/job/plan.h"
#include "engine/job/trainable.h"
#include "engine/launch/ranks.h"
#include "engine/launch/spawn.h"
#include "engine/train/preflight/before.h"
#include "engine/train/preflight/source.h"
#include "engine/train/run/run.h"
#include "meshwright/abi.h"
#include "meshwright/error.h"
#include "meshwright/meshwright.h"
#include "sdk/base/host/quiet_writes.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/used_up.h"

namespace meshwright::capi {

// Several mistakes at once, as a configuration has them.
struct Mistakes {
  std::vector<Error> errors;
};

// A wrong use of the interface.
Error misuse(const std::string& message);
template <class T>
T& needed(T* argument, const char* name) {
  if (argument == nullptr) throw misuse(std::string(name) + " is NULL");
  return *argument;
}

// The caller's struct as this library knows it: members that the caller does not have are those of
// `out`, which this function has filled before. `least`: the size of the first release.
template <class T>
T read_struct(const T* from, const T& defaults, size_t least, const char* name) {
  T out = defaults;
  if (from == nullptr) return out;
  if (from->size < least)
    throw misuse(std::string(name) + ".size is " + std::to_string(from->size) +
                 ", not the sizeof of " + name);
  const char* bytes = reinterpret_cast<const char*>(from);
  for (size_t at = sizeof(T); at < from->size; ++at)
    if (bytes[at] != 0)
      throw misuse(std::string(name) + " has members that this release does not know");
  std::memcpy(&out, from, std::min(from->size, sizeof(T)));
  out.size = sizeof(T);
  return out;
}

}  // namespace meshwright::capi

// What is behind meshwright_job.

struct meshwright_job {
  explicit meshwright_job(meshwright::config::Reading read) : reading(std::move(read)) {}
  meshwright::config::Reading reading;
  meshwright::plan::Job job;
  std::string answer, notices;  // as given to the caller

  // Reads and checks it anew. Throws capi::Mistakes; then nothing has changed.
  void load(std::vector<std::string> with);
  meshwright::before::Reload reload() const;
  void tell(const meshwright::Diagnostics& said);
};

namespace meshwright::capi {

namespace {

struct LastError {
  int code = 0;
  std::string text, json;
};
thread_local LastError t_last;

int status_of(const Error& error) { return exit_status(error.code()); }

int keep(const std::vector<Error>& errors) {
  LastError last;
  for (const Error& error : errors)
    last.text += (last.text.empty() ? "" : "\n") + report::format_error({}, error);
  last.json = report::pretty_json(report::errors_json(errors));
  last.code = errors.empty() ? 0 : static_cast<int>(errors.front().code());
  t_last = std::move(last);
  return errors.empty() ? 0 : status_of(errors.front());
}

// Without memory for words.
int keep_code(ErrorCode code) noexcept {
  t_last.code = static_cast<int>(code);
  t_last.text.clear();
  t_last.json.clear();
  return exit_status(code);
}

std::vector<Error> errors_being_handled() {
  try {
    throw;
  } catch (const Mistakes& mistakes) {
    return detail::by_cause(mistakes.errors);
  } catch (const std::exception& error) {
    if (const std::optional<Error> limit = detail::used_up(error)) return {*limit};
    if (const auto* known = dynamic_cast<const Error*>(&error)) return {*known};
    return {Error(ErrorCode::internal, error.what())};
  } catch (...) {
    return {Error(ErrorCode::internal, "something that is no std::exception was thrown")};
  }
}

}  // namespace

// Does the work; what it throws (Error, Mistakes, anything) becomes this thread's error. Returns
// the status of meshwright.h.
int guarded(const std::function<void()>& work) noexcept {
  try {
    try {
      work();
    } catch (...) {
      return keep(errors_being_handled());
    }
    t_last.code = 0;
    return MESHWRIGHT_OK;
  } catch (...) {
    return keep_code(ErrorCode::out_of_memory);
  }
}

Error misuse(const std::string& message) { return {ErrorCode::usage, message}; }

std::vector<std::string> texts(const char* const* list, size_t count, const char* name) {
  if (count > 0) needed(list, name);
  std::vector<std::string> out;
  for (size_t i = 0; i < count; ++i) out.emplace_back(&needed(list[i], name));
  return out;
}

// Loading plugins and planning share state that no lock guards.
std::mutex& planning() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace meshwright::capi

using meshwright::capi::t_last;

const char* meshwright_version(void) { return MESHWRIGHT_VERSION; }
int meshwright_error_code(void) { return t_last.code; }
const char* meshwright_error_text(void) { return t_last.code == 0 ? "" : t_last.text.c_str(); }
const char* meshwright_error_json(void) {
  return t_last.code == 0 ? "{\"error\": null, \"errors\": []}" : t_last.json.c_str();
}

using meshwright::Diagnostics;
using meshwright::capi::guarded;
using meshwright::capi::needed;
namespace plan = meshwright::plan;

meshwright::before::Reload meshwright_job::reload() const {
  return [this](const std::vector<std::string>& more, Diagnostics& problems) {
    return plan::load_job(reading.source(more, problems), problems);
  };
}

void meshwright_job::load(std::vector<std::string> with) {
  const std::vector<std::string> before = reading.sets();
  reading.set(std::move(with));
  Diagnostics found;
  std::optional<plan::Job> loaded;
  try {
    loaded = reload()({}, found);
  } catch (...) {
    reading.set(before);
    throw;
  }
  if (!found.ok() || !loaded) {
    reading.set(before);
    throw meshwright::capi::Mistakes{found.errors()};
  }
  job = std::move(*loaded);
  tell(found);
}

void meshwright_job::tell(const Diagnostics& said) {
  notices.clear();
  std::set<std::string> once;
  for (const std::string& text : said.notices())
    if (once.insert(text).second) notices += meshwright::report::format_notice({}, text);
  for (const std::string& text : said.warnings())
    if (once.insert(text).second) notices += meshwright::report::format_warning({}, text);
}

namespace {

int open_job(const char* path, const char* toml, const char* const* overrides, size_t count,
             meshwright_job** out) {
  return guarded([&] {
    needed(out, "job");
    meshwright::config::LoadOptions options;
    if (path != nullptr) options.file = path;
    auto job = std::make_unique<meshwright_job>(toml != nullptr
                                                    ? meshwright::config::Reading(toml, options)
                                                    : meshwright::config::Reading(options));
    std::lock_guard lock(meshwright::capi::planning());
    job->load(meshwright::capi::texts(overrides, count, "overrides"));
    *out = job.release();
  });
}

void check_world(int64_t size) {
  if (size < 0)
    throw meshwright::capi::misuse("world_size is " + std::to_string(size) +
                                   ": the number of ranks, or 0");
}

// Does the work with the job, while no other thread plans.
template <class Work>
int with_job(meshwright_job* job, const Work& work) {
  return guarded([&] {
    needed(job, "job");
    std::lock_guard lock(meshwright::capi::planning());
    work(*job);
  });
}

}  // namespace

int meshwright_job_open(const char* path, const char* const* overrides, size_t count,
                        meshwright_job** job) {
  if (path == nullptr || *path == '\0')
    return guarded([] { throw meshwright::capi::misuse("path is empty"); });
  return open_job(path, nullptr, overrides, count, job);
}

int meshwright_job_parse(const char* toml, const char* const* overrides, size_t count,
                         meshwright_job** job) {
  if (toml == nullptr) return guarded([] { throw meshwright::capi::misuse("toml is NULL"); });
  return open_job(nullptr, toml, overrides, count, job);
}

void meshwright_job_close(meshwright_job* job) { delete job; }

int meshwright_job_set(meshwright_job* job, const char* key, const char* value) {
  return with_job(job, [&](meshwright_job& here) {
    std::vector<std::string> sets = here.reading.sets();
    sets.push_back(std::string(&needed(key, "key")) + "=" + &needed(value, "value"));
    here.load(std::move(sets));
  });
}

int meshwright_job_get(meshwright_job* job, const char* key, const char** value) {
  return with_job(job, [&](meshwright_job& here) {
    needed(value, "value");
    here.answer = meshwright::config::value_toml(here.job.config, &needed(key, "key"));
    *value = here.answer.c_str();
  });
}

const char* meshwright_job_notices(meshwright_job* job) {
  return job == nullptr ? "" : job->notices.c_str();
}

int meshwright_job_validate(meshwright_job* job, int64_t world_size) {
  return with_job(job, [&](meshwright_job& here) {
    const char* environment = std::getenv("WORLD_SIZE");
    std::optional<int64_t> world;
    check_world(world_size);
    if (world_size != 0)
      world = world_size;
    else if (environment != nullptr && *environment != '\0')
      world = plan::world_size_from_environment();
    const meshwright::before::Verdict verdict =
        meshwright::before::validate(here.reload(), here.job, world);
    here.tell(verdict.said);
    if (!verdict.obstacles.empty()) throw meshwright::capi::Mistakes{verdict.obstacles};
  });
}

int meshwright_job_plan(meshwright_job* job, int64_t world_size, int64_t rank, const char** json) {
  return with_job(job, [&](meshwright_job& here) {
    needed(json, "json");
    check_world(world_size);
    plan::PlanRequest request;
    request.world_size = world_size != 0 ? world_size : plan::world_size_from_environment();
    request.rank = rank;
    Diagnostics said;
    if (const std::string why = meshwright::before::count_samples(here.job); !why.empty())
      said.notice(why);
    const plan::JobPlan made = meshwright::before::plan_or_help(here.reload(), here.job, request);
    for (const std::string& text : made.notices) said.notice(text);
    for (const std::string& text : made.warnings) said.warning(text);
    here.tell(said);
    here.answer = meshwright::report::pretty_json(meshwright::before::plan_json(here.job, made));
    *json = here.answer.c_str();
  });
}

namespace {

// What the engine takes where a request says nothing.
meshwright_request defaults() {
  const meshwright::generate::Request program;
  meshwright_request out{};
  out.size = sizeof out;
  out.max_new = program.max_new;
  out.temperature = program.temperature;
  out.top_k = program.top_k;
  out.top_p = program.top_p;
  out.seed = program.seed;
  return out;
}

}  // namespace

void meshwright_request_init(meshwright_request* request, size_t size) {
  if (request == nullptr) return;
  meshwright_request ours = defaults();
  std::memset(request, 0, size);
  std::memcpy(request, &ours, std::min(size, sizeof ours));
  if (size >= sizeof request->size) request->size = size;
}

namespace meshwright::capi {

// Throws Error(usage).
generate::Request read_request(const meshwright_request* request) {
  const meshwright_request given =
      read_struct(&needed(request, "request"), defaults(),
                  offsetof(meshwright_request, stop) + sizeof(char*), "meshwright_request");
  generate::Request out;
  if (given.text != nullptr) out.prompt = given.text;
  if (given.token_count > 0) needed(given.tokens, "request.tokens");
  if (given.tokens != nullptr) {
    out.tokens.emplace();
    for (size_t i = 0; i < given.token_count; ++i)
      *out.tokens += (i > 0 ? "," : "") + std::to_string(given.tokens[i]);
  }
  if (given.stop != nullptr) out.stop = given.stop;
  if (given.max_new < 1)
    throw misuse("max_new is " + std::to_string(given.max_new) + ": at least one token is made");
  out.max_new = given.max_new;
  out.temperature = given.temperature;
  out.top_k = given.top_k;
  out.top_p = given.top_p;
  out.seed = given.seed;
  return out;
}

// LibTorch's generator and its threads are the process's: one run at a time.
class SingleRun {
 public:
  SingleRun() {
    if (taken().exchange(true))
      throw misuse("another run, or meshwright_generate(), is under way in this process");
  }
  ~SingleRun() { taken() = false; }
  SingleRun(const SingleRun&) = delete;
  SingleRun& operator=(const SingleRun&) = delete;

 private:
  static std::atomic<bool>& taken() {
    static std::atomic<bool> one = false;
    return one;
  }
};

}  // namespace meshwright::capi

using meshwright::Error;
using meshwright::capi::Mistakes;
using meshwright::capi::misuse;
using meshwright::train::Session;
using meshwright::train::SessionStep;
using meshwright::train::StepRequests;

struct meshwright_run {
  meshwright::capi::SingleRun single;
  std::unique_ptr<Session> session;
  std::thread::id thread = std::this_thread::get_id();
  bool busy = false;
};

namespace {

using Ranks = std::optional<meshwright::launch::RankEnvironment>;
using Tell = std::function<void(const std::string&)>;

Tell tell_to(const meshwright_run_options& options) {
  return [message = options.message, user = options.user](const std::string& line) {
    if (message != nullptr) message(line.c_str(), user);
  };
}

meshwright_run_options read_options(const meshwright_run_options* options) {
  meshwright_run_options none{};
  none.size = sizeof none;
  return meshwright::capi::read_struct(options, none,
                                       offsetof(meshwright_run_options, trace) + sizeof(int),
                                       "meshwright_run_options");
}

// Everything that can be refused before the ranks meet, as the program does. Returns what was found
// of the host.
Diagnostics check(const meshwright_job& given, const Ranks& ranks) {
  std::lock_guard lock(meshwright::capi::planning());
  Diagnostics problems;
  std::optional<plan::Job> job = given.reload()({}, problems);
  if (job) plan::check_trainable(*job, problems);
  if (job) plan::check_exports(job->config, problems);
  if (!problems.ok()) throw Mistakes{problems.errors()};
  meshwright::before::count_samples(*job);  // what is wrong with the data is said below
  const plan::JobPlan plan =
      meshwright::before::plan_to_start(given.reload(), *job, ranks, /*wanted=*/1);
  plan::check_runs(plan, *job);
  // What depends on the host is asked by one rank of each.
  if (ranks && ranks->local_rank != 0) return {};
  return meshwright::before::check_before_start(given.reload(), *job, plan,
                                                ranks ? ranks->local_world_size : 1);
}

// The other ranks, which may not refuse by themselves, end with the same error.
void refuse(const Ranks& ranks, const Error& error) {
  if (!ranks || ranks->world_size == 1) return;
  try {
    meshwright::launch::engine_function<int(const void*)>("meshwright_refuse")(&error);
  } catch (const Error&) {  // without the engine's library there is no way to the others
  }
}

void check_together(const meshwright_job& job, const Tell& tell) {
  const Ranks ranks = meshwright::launch::detect_ranks(meshwright::launch::process_environment());
  try {
    const Diagnostics found = check(job, ranks);
    if (!ranks || ranks->rank == 0) {  // nothing is locked here: who hears it may plan
      for (const std::string& text : found.notices()) tell("notice: " + text);
      for (const std::string& text : found.warnings()) tell("warning: " + text);
    }
    if (!found.ok()) throw Mistakes{found.errors()};
  } catch (const Mistakes& mistakes) {
    refuse(ranks, mistakes.errors.front());
    throw;
  } catch (const Error& error) {
    refuse(ranks, error);
    throw;
  }
}

// Does the work with the session of a run that this thread opened.
template <class Work>
int with_run(meshwright_run* run, const Work& work) {
  return guarded([&] {
    needed(run, "run");
    if (run->thread != std::this_thread::get_id())
      throw misuse("a run belongs to the thread that opened it");
    if (run->busy) throw misuse("a callback of a run cannot call functions of the run");
    struct Busy {
      bool& busy;
      explicit Busy(bool& flag) : busy(flag) { busy = true; }
      ~Busy() { busy = false; }
    } at_work(run->busy);
    const meshwright::base::QuietWrites quiet;
    const meshwright::base::HandlerStack stack;
    work(*run->session);
  });
}

meshwright_step as_c(const SessionStep& step) {
  meshwright_step out{};
  out.size = sizeof out;
  out.step = step.step;
  out.loss = step.loss;
  out.grad_norm = step.grad_norm;
  out.lr = step.lr;
  out.tokens = step.tokens;
  out.step_ms = step.step_ms;
  out.memory_bytes = step.memory_bytes;
  return out;
}

meshwright::train::OnToken as_cpp(meshwright_on_token on_token, void* user) {
  return [on_token, user](int64_t token, const std::string& text) {
    if (on_token != nullptr) on_token(token, text.c_str(), user);
  };
}

}  // namespace

int meshwright_run_open(const meshwright_job* job, const meshwright_run_options* options,
                        meshwright_run** run) {
  return guarded([&] {
    needed(job, "job");
    needed(run, "run");
    const meshwright_run_options given = read_options(options);
    const meshwright::base::QuietWrites quiet;
    const meshwright::base::HandlerStack stack;
    auto out = std::make_unique<meshwright_run>();
    meshwright::train::RunOptions here;
    here.given = std::make_shared<meshwright::config::Reading>(job->reading);
    here.trace = given.trace != 0;
    here.tell = tell_to(given);
    check_together(*job, here.tell);
    out->session.reset(static_cast<Session*>(
        meshwright::launch::engine_function<void*(const void*)>("meshwright_open_session")(&here)));
    *run = out.release();
  });
}

int meshwright_run_train(meshwright_run* run, int64_t steps, meshwright_after_step after_step,
                         void* user) {
  return with_run(run, [&](Session& session) {
    if (steps < 0) throw misuse("steps is " + std::to_string(steps) + ": 0 for all that are left");
    std::function<StepRequests(const SessionStep&)> after;
    if (after_step != nullptr)
      after = [&](const SessionStep& step) {
        const meshwright_step told = as_c(step);
        const int asked = after_step(&told, user);
        return StepRequests{(asked & MESHWRIGHT_STOP) != 0, (asked & MESHWRIGHT_SAVE) != 0};
      };
    session.train(steps == 0 ? session.max_steps() : steps, after);
  });
}

int meshwright_run_save(meshwright_run* run) {
  return with_run(run, [](Session& session) { session.save(); });
}

int meshwright_run_evaluate(meshwright_run* run, double* loss) {
  return with_run(run, [&](Session& session) {
    needed(loss, "loss");
    *loss = session.evaluate();
  });
}

int meshwright_run_generate(meshwright_run* run, const meshwright_request* request,
                            meshwright_on_token on_token, void* user) {
  return with_run(run, [&](Session& session) {
    session.generate(meshwright::capi::read_request(request), as_cpp(on_token, user));
  });
}

int meshwright_run_finish(meshwright_run* run) {
  return with_run(run, [](Session& session) { session.finish(); });
}

void meshwright_run_close(meshwright_run* run) {
  if (run == nullptr || run->busy) return;
  const meshwright::base::QuietWrites quiet;
  delete run;
}

int64_t meshwright_run_rank(const meshwright_run* run) { return run ? run->session->rank() : 0; }
int64_t meshwright_run_world_size(const meshwright_run* run) {
  return run ? run->session->world_size() : 0;
}
int64_t meshwright_run_steps_done(const meshwright_run* run) {
  return run ? run->session->next_step() : 0;
}
int64_t meshwright_run_max_steps(const meshwright_run* run) {
  return run ? run->session->max_steps() : 0;
}
const char* meshwright_run_folder(const meshwright_run* run) {
  return run ? run->session->folder().c_str() : "";
}

int meshwright_generate(const char* folder, const char* const* overrides, size_t count,
                        const meshwright_request* request, const meshwright_run_options* options,
                        meshwright_on_token on_token, void* user) {
  return guarded([&] {
    const meshwright::capi::SingleRun single;
    const meshwright::base::QuietWrites quiet;
    const meshwright::base::HandlerStack stack;
    meshwright::generate::GenerateHere here;
    here.request = meshwright::capi::read_request(request);
    here.request.folder = &needed(folder, "folder");
    here.request.sets = meshwright::capi::texts(overrides, count, "overrides");
    here.tell = tell_to(read_options(options));
    here.token = as_cpp(on_token, user);
    meshwright::launch::engine_function<void(const void*)>("meshwright_generate_here")(&here);
  });
}
