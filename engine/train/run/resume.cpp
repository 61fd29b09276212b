#include "engine/train/run/resume.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "engine/checkpoint/adapters.h"
#include "engine/checkpoint/weights/read_region.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "engine/job/plan.h"
#include "engine/launch/rank_file.h"
#include "engine/launch/supervisor.h"
#include "engine/train/run/reporter.h"
#include "engine/train/step/rank_agreement.h"
#include "meshwright/error.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::train {

void hold_to_first_attempt(int memory, const MadeOf& made_of) {
  const std::string now = base::json_text(made_of);
  const std::string then = launch::bytes_of(memory, "what the first attempt left");
  if (then.empty()) {
    if (::pwrite(memory, now.data(), now.size(), 0) != static_cast<ssize_t>(now.size()))
      throw Error(ErrorCode::internal,
                  std::string("what the run is made of cannot be kept for later attempts: ") +
                      std::strerror(errno));
    return;
  }
  const auto known = base::read_json_text<MadeOf>(then);
  for (const auto& one : made_of) {
    if (std::find(known.begin(), known.end(), one) != known.end()) continue;
    throw Error(ErrorCode::checkpoint_mismatch,
                one.first +
                    " changed since the first attempt of this run, of which nothing was saved: "
                    "starting again would train another run")
        .help("put it back, or start the run again as it is now")
        .help("set checkpoint.every_steps to save earlier");
  }
}

namespace fs = std::filesystem;

std::unique_ptr<base::RunLock> lock_run(World& world, const fs::path& run,
                                        const std::function<void(const std::string&)>& say,
                                        const std::shared_ptr<LostFolder>& lost) {
  std::unique_ptr<base::RunLock> lock;
  std::function<void(const Error&)> hears;
  if (lost) hears = [lost](const Error& why) { lost->tell(why); };
  agree_or_throw(world, outcome_of([&] {
                   if (world.rank() == 0 && !launch::launcher_owns_run_folder(run))
                     lock = launch::own_run_folder(
                         run, launch::process_environment(),
                         [&](const std::string& text) {
                           if (say) return say("notice: " + text);
                           std::fprintf(stderr, "notice: %s\n", text.c_str());
                         },
                         hears);
                   return std::string();
                 }));
  return lock;
}

ResumePoint begin_run(const Job& job, World& world, const fs::path& checkpoints) {
  ResumePoint out;
  auto choose = [&] {
    if (world.rank() != 0) return std::string();
    out.start = checkpoint::choose_start(job.table("checkpoint").get_string("resume"), checkpoints,
                                         checkpoint::restarted());
    return (out.start.own ? "1" : "0") + out.start.from.string();
  };
  std::string choice = agree_or_throw(world, outcome_of(choose))[0], path = choice.substr(1);
  out.own = choice[0] == '1';
  auto open = [&] {
    if (!path.empty()) out.from = std::make_unique<checkpoint::Checkpoint>(path);
    return std::string();
  };
  agree_or_throw(world, outcome_of(open));
  for (const std::string& told : out.start.told) world.notice(told);
  return out;
}

std::string set_aside(const ResumePoint& beginning, World& world, const fs::path& checkpoints) {
  std::string aside;
  agree_or_throw(world, outcome_of([&] {
                   if (world.rank() == 0)
                     aside = checkpoint::set_aside(beginning.start, checkpoints);
                   return std::string();
                 }));
  return aside;
}

namespace {

// The first word of a command, as a shell takes it.
std::string program_of(const std::string& command) {
  bool quoted = false;
  for (size_t i = 0; i < command.size(); ++i) {
    if (command[i] == '\'')
      quoted = !quoted;
    else if (command[i] == '\\' && !quoted)
      ++i;
    else if (command[i] == ' ' && !quoted)
      return command.substr(0, i);
  }
  return command.empty() ? "meshwright" : command;
}

}  // namespace

std::string finished_text(const fs::path& checkpoint, int64_t steps, int64_t max_steps,
                          const std::string& command, std::optional<int64_t> epochs) {
  const std::pair<std::string, const char*> ways[] = {
      {epochs ? "--set step_scheduler.epochs=" + std::to_string(2 * *epochs)
              : "--set step_scheduler.max_steps=" + std::to_string(2 * steps),
       "to train on"},
      {"--set run.name=another", "to train another run beside it"},
      {"--set checkpoint.resume=none",
       "to start this one afresh; what is there is kept under another name"}};
  size_t width = 0;
  for (const auto& [what, why] : ways) width = std::max(width, what.size());
  std::string out = "this run is finished: " + checkpoint.string() + " has " +
                    std::to_string(steps) + " steps, " +
                    (epochs ? "step_scheduler.epochs = " + std::to_string(*epochs)
                            : std::string("step_scheduler.max_steps")) +
                    " is " + std::to_string(max_steps) + "\n";
  for (const auto& [what, why] : ways) out += "  " + report::pad(what, width) + "   " + why + "\n";
  return out + "  " + program_of(command) + " generate " + checkpoint.string() +
         "   to let it write\n";
}

void leave_to_base(Saver::Settings& saving, const checkpoint::Checkpoint* from,
                   const std::string& pretrained, const ModelOutline& outline) {
  if (pretrained.empty() || (from != nullptr && !from->meta().base)) return;
  const weights::WeightFolder folder(pretrained);
  saving.facts.base = checkpoint::BaseRecord{fs::absolute(pretrained).lexically_normal().string(),
                                             checkpoint::fingerprint_of(folder)};
  if (from != nullptr) {
    // What trained in between is no longer the folder's.
    for (const checkpoint::TensorRecord& tensor : from->meta().tensors)
      if (tensor.base) saving.in_base.emplace(tensor.name, *tensor.base);
    return;
  }
  for (const ParameterOutline& parameter : outline.parameters)
    if (std::string name = weights::name_in(folder, outline.architecture, parameter);
        !name.empty() && !low_rank_factor(parameter.name))
      saving.in_base.emplace(parameter.name, std::move(name));
}

Error with_way_on(Error error, const fs::path& damaged) {
  if (error.code() != ErrorCode::bad_checkpoint) return error;
  std::vector<checkpoint::Found> all = checkpoint::find_all(damaged.parent_path());
  for (size_t i = all.size(); i-- > 0;)
    if (all[i].problem.empty() && all[i].path != damaged)
      return error.key("checkpoint.resume")
          .help("set checkpoint.resume = \"" + all[i].path.string() + "\" to continue that one");
  return error.key("checkpoint.resume")
      .help(
          "set checkpoint.resume = \"none\" to start afresh; what is there is kept under another "
          "name");
}

Error unsaved(Error error, bool ending, const fs::path& checkpoints) {
  // Neither room nor patience helps.
  if (error.code() == ErrorCode::replicas_differ) return error;
  // What an export reads has gone: nothing of the configuration is wrong, which the exit status of
  // a file that cannot be read says, so the launcher may start the run again.
  if (error.code() == ErrorCode::file_unreadable) {
    Error out(ErrorCode::output_unwritable, error.message());
    for (const std::string& help : error.helps()) out.help(help);
    for (const std::string& note : error.notes()) out.note(note);
    return out;
  }
  if (!ending)
    return error.help(
        "set checkpoint.on_failure = \"continue\" to train on when a checkpoint cannot be written");
  return error.help("once it can be written run the same command: it goes on from " +
                    checkpoint::next_start(checkpoints) + " and saves again");
}

std::string resume_text(const checkpoint::Checkpoint& from, const World& world,
                        const std::string& strategy, double ms) {
  const checkpoint::Meta& meta = from.meta();
  std::string out =
      "continues after step " + std::to_string(meta.step) + ": " + from.folder().string();
  if (meta.strategy != strategy || meta.world_size != world.size())
    out +=
        ", saved by " + meta.strategy + " on " + report::counted(meta.world_size, "rank", "ranks");
  return out +
         text::format("; %s read in %.2f s", report::human_bytes(from.bytes()).c_str(), ms / 1000);
}

}  // namespace meshwright::train
