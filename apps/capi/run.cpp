#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "apps/capi/guard.h"
#include "apps/capi/job.h"
#include "apps/inference/generate_here.h"
#include "engine/job/export_folders.h"
#include "engine/launch/engine_library.h"
#include "engine/launch/ranks.h"
#include "engine/train/preflight/before.h"
#include "engine/train/preflight/source.h"
#include "engine/train/run/session.h"
#include "meshwright/meshwright.h"
#include "sdk/base/host/quiet_writes.h"
#include "sdk/base/terminal/report.h"

namespace {

// meshwright_request as the engine has it.

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

using meshwright::Diagnostics;
using meshwright::Error;
using meshwright::capi::guarded;
using meshwright::capi::Mistakes;
using meshwright::capi::misuse;
using meshwright::capi::needed;
using meshwright::train::Session;
using meshwright::train::SessionStep;
using meshwright::train::StepRequests;
namespace plan = meshwright::plan;

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

// Everything that can be refused before the ranks meet, as the program does.
void check(const meshwright_job& given, const Ranks& ranks, const Tell& tell) {
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
  if (ranks && ranks->local_rank != 0) return;
  const Diagnostics found = meshwright::before::check_before_start(
      given.reload(), *job, plan, ranks ? ranks->local_world_size : 1);
  if (!ranks || ranks->rank == 0) {
    for (const std::string& text : found.notices()) tell("notice: " + text);
    for (const std::string& text : found.warnings()) tell("warning: " + text);
  }
  if (!found.ok()) throw Mistakes{found.errors()};
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
    check(job, ranks, tell);
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
