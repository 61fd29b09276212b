#include "apps/capi/job.h"

#include <cstdlib>
#include <memory>
#include <set>
#include <utility>

#include "apps/capi/guard.h"
#include "engine/config/describe.h"
#include "sdk/base/terminal/report.h"

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
