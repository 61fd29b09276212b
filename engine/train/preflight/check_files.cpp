// The files that a run begins with, and the folder that it will write: what `train` would meet.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/resume.h"
#include "engine/checkpoint/weights/export.h"
#include "engine/checkpoint/weights/model_tensors.h"
#include "engine/config/config.h"
#include "engine/job/export_folders.h"
#include "engine/job/job_data.h"
#include "engine/job/training.h"
#include "engine/train/preflight/before.h"
#include "engine/train/preflight/same_run.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/read_file.h"

namespace meshwright::before {
namespace {

namespace fs = std::filesystem;

template <class Check>
void add_what_throws(const plan::Job& job, Diagnostics& found, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    found.add(config::placed(error, job.config));
  }
}

void check_weights(const plan::Job& job, const plan::JobPlan& plan) {
  const std::string folder = job.config.table("model").get_string("pretrained");
  if (folder.empty() || !plan.outline) return;
  weights::check_tied_head(weights::open_model_tensors(folder, *plan.outline), folder,
                           *plan.outline);
}

// All that a run which goes on is held against.
void check_same_run(const plan::Job& job, const plan::JobPlan& plan,
                    const std::optional<std::string>& fingerprint, checkpoint::Checkpoint& from) {
  const fs::path file = config::model_config_file(job.config.table("model"));
  std::error_code failed;
  const std::string text = fs::is_regular_file(file, failed) ? base::read_file(file) : "";
  if (const std::optional<plan::JobModel> model = plan::model_of(job))
    refuse_other_model(from, job, *model, text);
  refuse_other_optimizer(from, job.config.table("optimizer").get_string("name"));
  refuse_other_adapters(from, job);
  check_base(from, job.config.table("model").get_string("pretrained"));
  check_scale(from, job.config.table("lora"), "");
  refuse_other_data(from, job, fingerprint, job.config.table("dataset").get_int("seq_len"));
  if (plan.max_steps && from.meta().step >= *plan.max_steps) refuse_other_settings(from, job);
}

// What [dataset] and [validation_dataset] name. Of a run that goes on: the fingerprint of the
// first, where it is known.
std::optional<std::string> check_data(const plan::Job& job, const plan::JobPlan& plan, bool goes_on,
                                      Diagnostics& found) {
  std::optional<std::string> fingerprint;
  for (const char* name : {"dataset", "validation_dataset"}) {
    const Options& table = job.config.table(name);
    // What is missing is said where all keys are checked; mock tokens are of a known vocabulary.
    if (!data::names_data(table) || (!plan.outline && table.get_string("kind") == "mock")) continue;
    add_what_throws(job, found, [&] {
      const auto seed = static_cast<uint64_t>(job.config.table("run").get_int("seed"));
      const std::optional<uint64_t> value = data::look_at_data(
          data::dataset_config(job, name, plan.outline ? plan.outline->vocab_size : 0, seed),
          job.config.table("model").get_string("pretrained"),
          goes_on && name == std::string_view("dataset"));
      if (value) fingerprint = checkpoint::to_hex(*value);
    });
  }
  return fingerprint;
}

// The checkpoint that the run would go on from; one with adapters alone needs its model, too.
void check_beginning(const plan::Job& job, const plan::JobPlan& plan, const fs::path& start,
                     const std::optional<std::string>& fingerprint, Diagnostics& found) {
  if (start.empty()) return check_weights(job, plan);
  checkpoint::Checkpoint from(start);
  for (Error& error : from.check_headers()) found.add(error.key("checkpoint.resume"));
  check_same_run(job, plan, fingerprint, from);
  if (from.meta().base) check_weights(job, plan);
}

// The folder that is there already and would get the next one.
fs::path nearest(const fs::path& folder) {
  std::error_code failed;
  fs::path at = fs::absolute(folder, failed).lexically_normal();
  while (at.has_relative_path() && !fs::exists(at, failed)) at = at.parent_path();
  return at;
}

void try_run_folder(const plan::Job& job) {
  const fs::path folder = config::run_folder(job.config.table("run"));
  const std::string name = job.config.table("run").get_string("name");
  auto refuse = [&](int reason, const char* key) {
    return base::unwritable(folder, reason, "make").key(key);
  };
  // Beside it lie names that are longer than those of checkpoints.
  constexpr size_t kRoom = 128;
  std::error_code failed;
  bool long_path = fs::absolute(folder, failed).native().size() + kRoom > PATH_MAX;
  for (const fs::path& part : folder) long_path = long_path || part.native().size() > NAME_MAX;
  if (long_path) {
    const bool by_name = name.size() > NAME_MAX;
    throw refuse(ENAMETOOLONG, by_name ? "run.name" : "run.dir")
        .help(std::string("set ") + (by_name ? "run.name" : "run.dir") +
              " to a shorter name: a folder's name has at most " + std::to_string(NAME_MAX) +
              " bytes, a path " + std::to_string(PATH_MAX - kRoom));
  }
  const fs::path at = nearest(folder);
  struct stat status{};
  int reason = ::stat(at.c_str(), &status) == 0 ? 0 : errno;
  if (at.empty()) throw refuse(reason, "run.dir");  // the current folder is gone
  if (reason == 0 && !S_ISDIR(status.st_mode)) reason = ENOTDIR;
  // Permissions alone do not tell: root has them all, and some file systems take nothing.
  const fs::path probe = at / (".meshwright." + std::to_string(::getpid()));
  if (reason == 0 && ::mkdir(probe.c_str(), 0700) != 0) reason = errno;
  if (reason == 0) ::rmdir(probe.c_str());
  if (reason != 0)
    throw refuse(reason, "run.dir")
        .help("set run.dir to a folder that may be written to: " + at.string() + " may not");
}

// What stands where the run would write: an export is made after the last step, a trace too.
void check_names_in(const plan::Job& job) {
  const fs::path folder = config::run_folder(job.config.table("run"));
  std::error_code failed;
  for (const char* name :
       {"metrics.jsonl", "run.log", "plan.json", "env.json", "config.toml", config::kResolvedFile})
    if (fs::is_directory(folder / name, failed))
      throw base::unwritable(folder / name, EISDIR)
          .key("run.name")
          .help("move that folder away, or set run.name to another name");
  for (const char* name : {"rank_logs", "trace", "checkpoints"})
    if (fs::exists(folder / name, failed) && !fs::is_directory(folder / name, failed))
      throw base::unwritable(folder / name, ENOTDIR, "make")
          .key("run.name")
          .help("move that file away, or set run.name to another name");
  if (job.config.table("checkpoint").get_string("export") == "none") return;
  weights::check_target(folder / plan::kExportFolder);
  if (job.config.table("lora").get_int("r") > 0)
    weights::check_target(folder / plan::kAdapterExportFolder);
}

}  // namespace

Diagnostics check_files(const plan::Job& job, const plan::JobPlan& plan, bool data) {
  Diagnostics found;
  std::optional<fs::path> start;
  add_what_throws(job, found, [&] {
    start = checkpoint::choose_start(job.config.table("checkpoint").get_string("resume"),
                                     config::run_folder(job.config.table("run")) / "checkpoints",
                                     checkpoint::restarted())
                .from;
  });
  std::optional<std::string> fingerprint;
  if (data) fingerprint = check_data(job, plan, start && !start->empty(), found);
  if (plan.outline && start)
    add_what_throws(job, found, [&] { check_beginning(job, plan, *start, fingerprint, found); });
  return found;
}

Diagnostics check_run_folder(const plan::Job& job) {
  Diagnostics found;
  if (plan::written_for_training(job))
    add_what_throws(job, found, [&] {
      try_run_folder(job);
      check_names_in(job);
    });
  return found;
}

}  // namespace meshwright::before
