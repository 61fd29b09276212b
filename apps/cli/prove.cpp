// prove: this process makes the job small and prints; the ranks run in a child, with limits of time
// and memory, so that what hangs or crashes there is a finding.
#include <sys/resource.h>
#include <unistd.h>

#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "apps/cli/common.h"
#include "apps/prove/findings.h"
#include "engine/launch/spawn.h"
#include "sdk/base/conformance.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/files/temporary_folder.h"
#include "sdk/base/host_facts.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/progress.h"
#include "sdk/base/words.h"

namespace meshwright::cli {
namespace {

namespace conf = conformance;
namespace json = boost::json;

constexpr const char *kFound = "found", *kRefused = "refused", *kProgress = "progress";
constexpr int64_t kProofSteps = 2;
constexpr const char* kDtypes[] = {"float64", "the job's dtypes"};  // of the runs, in turn

int64_t wanted_world(const Call& call) { return call.number("world-size", 1).value_or(0); }

// A process has some hundred megabytes of LibTorch, and a rank a small model and its threads.
void limit_memory(int64_t ranks) {
  const auto bytes = static_cast<rlim_t>((int64_t{4} << 30) + ranks * (int64_t{256} << 20));
  const struct rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_DATA, &limit);
}

int prove_here(Call& call) {
  conf::prepare_child();
  auto tell = [](const char* name, const std::string& text) {
    if (!conf::answer({{name, text}}))
      throw Error(ErrorCode::usage, "--child is for the program itself").help("leave out --child");
  };
  try {
    int status = 0;
    const std::optional<plan::Job> job = load_job(call, status);
    if (!job) return status;
    const prove::Shrunk small = prove::shrink(*job, wanted_world(call));
    limit_memory(small.ranks);
    launch::raise_descriptor_limit();
    std::shared_ptr<const void> truth;
    for (const bool wide : {true, false}) {
      if (!wide && small.one_dtype) break;
      prove::Findings found;
      const prove::Request request{small,
                                   call.number("steps", 1).value_or(kProofSteps),
                                   wide,
                                   &found,
                                   call.value("folder"),
                                   &truth,
                                   [&](int64_t ranks) { tell(kProgress, std::to_string(ranks)); }};
      launch::engine_function<void(const void*)>("meshwright_prove")(&request);
      tell(kFound, json::serialize(found.json()));
      if (!found.ok()) break;  // what is wrong by algebra is wrong in fewer digits too
    }
  } catch (const Error& error) {
    tell(kRefused, base::error_text(error));
  }
  return 0;
}

// What was going on when the child ended too early.
prove::Findings cut_short(const conf::ChildResult& child, const std::string& dtypes,
                          double seconds) {
  prove::Findings out;
  out.dtypes = dtypes;
  out.seconds = child.seconds;
  out.timed_out = child.timed_out;
  std::string how = child.timed_out
                        ? text::format("did not end within %g s and was killed", seconds)
                    : child.signal != 0 ? "ended by signal " + std::to_string(child.signal) + " (" +
                                              ::strsignal(child.signal) + ")"
                                        : "ended with status " + std::to_string(child.exit_status);
  std::string last(text::trim(child.output));
  // What a crash within a plugin leaves says which one, before its help.
  const size_t error = last.find("error[");
  last = error != std::string::npos ? last.substr(error, last.find('\n', error) - error)
                                    : last.substr(last.rfind('\n') + 1);
  out.problems = {"the process of the ranks " + how +
                  (last.empty() ? "" : "; it last printed: " + last.substr(0, 300))};
  return out;
}

std::string what_is_proven(const prove::Shrunk& small) {
  std::string out = small.model + " on " + text::counted(small.ranks, "rank");
  for (size_t i = 0; i < small.axes.size(); ++i)
    out += (i == 0 ? ": " : ", ") + small.axes[i].first + " " + small.axes[i].second;
  out += ", beside one process\n";
  if (!small.sizes.empty()) out += "cut to " + text::join(small.sizes, ", ") + "\n";
  return out;
}

int conclude(Call& call, const std::string& strategy, const prove::Shrunk& small,
             const std::vector<prove::Findings>& all) {
  std::optional<Error> error;
  double seconds = 0;
  for (const prove::Findings& found : all) {
    seconds += found.seconds;
    if (found.ok() || error) continue;
    std::vector<std::string> wrong;
    for (const prove::Row& row : found.rows)
      if (row.not_compared.empty() && !row.ok()) wrong.push_back(row.what);
    error.emplace(ErrorCode::plugin_nonconforming,
                  found.problems.empty()
                      ? "in " + found.dtypes +
                            " the ranks differ from one process: " + text::join(wrong, ", ")
                      : "the ranks did not come to an end: " + found.problems.front());
    for (const prove::Fault& fault : found.faults)
      if (!fault.mend.empty()) error->help(fault.what + ": " + fault.mend);
    if (found.timed_out)
      error->help("--timeout SECONDS gives the runs more time, where the machine is slow or busy");
    if (error->helps().empty() || found.timed_out)
      error->help("meshwright plugins check " + strategy + " tries the strategy alone");
  }
  if (call.json) {
    json::array runs;
    for (const prove::Findings& found : all) runs.push_back(found.json());
    json::object axes;
    for (const auto& [name, size] : small.axes) axes[name] = std::stoll(size);
    json::object out{{"model", small.model},
                     {"ranks", small.ranks},
                     {"axes", std::move(axes)},
                     {"cut", json::array(small.sizes.begin(), small.sizes.end())},
                     {"not_proven", json::array(small.not_proven.begin(), small.not_proven.end())},
                     {"proven", !error},
                     {"seconds", seconds},
                     {"runs", std::move(runs)}};
    if (error)
      for (const auto& member : report::errors_json({&*error, 1}))
        out[member.key()] = member.value();
    call.print_json(out);
    return error ? exit_status(error->code()) : 0;
  }
  std::string out = "\n";
  for (const std::string& line : small.not_proven)
    out += report::paint(call.out_style, report::Tone::yellow, "not proven: ") + line + "\n";
  if (!error)
    out += report::paint(call.out_style, report::Tone::green, "proven") +
           text::format(" in %.1f s: these ranks compute what one process computes\n", seconds);
  call.out.write(out);
  call.out.flush();
  return error ? call.fail({&*error, 1}) : 0;
}

int run_prove(Call& call) {
  if (call.has("child")) return prove_here(call);
  const int64_t ranks = wanted_world(call);
  if (ranks > prove::kMostRanks)
    throw Error(ErrorCode::usage, "--world-size " + std::to_string(ranks) + ": at most " +
                                      std::to_string(prove::kMostRanks) + " ranks are threads")
        .help("leave it out: the fewest ranks that have every axis of the job");
  call.number("steps", 1);  // refused before anything is printed
  const auto seconds = static_cast<double>(call.number("timeout", 1).value_or(600));
  launch::check_current_folder();
  int status = 0;
  const std::optional<plan::Job> job = load_job(call, status);
  if (!job) return status;
  prove::Shrunk small = prove::shrink(*job, ranks);
  const base::TemporaryFolder folder("meshwright_prove");  // for checkpoints
  if (!folder.why().empty()) small.not_proven.push_back("checkpoints: " + folder.why());
  if (!call.json) {
    call.out.write(what_is_proven(small));
    call.out.flush();
  }
  std::vector<std::string> command = {
      program_path().string(), "prove", call.positional(0), "--child", "--folder",
      folder.path().string()};
  for (const char* flag : {"world-size", "steps"})
    if (call.has(flag)) command.insert(command.end(), {"--" + std::string(flag), call.value(flag)});
  for (const std::string& set : call.values("set")) command.insert(command.end(), {"--set", set});
  std::vector<prove::Findings> all;
  report::WorkProgress progress(
      call.err, call.err_style, ::isatty(2) == 1, report::WorkProgress::Unit::steps, kDtypes[0],
      prove::work_of(small, call.number("steps", 1).value_or(kProofSteps)));
  const conf::ChildResult child =
      conf::run_child(command, seconds, [&](const conf::Fields::value_type& field) {
        if (field.first == kProgress) progress.add(std::atoll(field.second.c_str()));
        if (field.first != kFound) return;
        all.push_back(prove::Findings::of(json::parse(field.second).as_object()));
        progress.begin(kDtypes[1]);  // takes the line away
        if (call.json) return;
        call.out.write(report::screened(all.back().text(call.out_style)));
        call.out.flush();
      });
  progress.begin("");
  for (const std::string& text : conf::values_of(child.fields, kRefused))
    if (std::optional<Error> refused = base::error_in(text)) throw *refused;
  const size_t runs = small.one_dtype ? 1 : 2;
  if (all.size() < runs && (all.empty() || all.back().ok())) {
    all.push_back(cut_short(child, kDtypes[all.size()], seconds));
    if (!call.json) {
      call.out.write(report::screened(all.back().text(call.out_style)));
      call.out.flush();
    }
  }
  return conclude(call, job->strategy.info->name, small, all);
}

}  // namespace

Verb prove_verb() {
  Verb verb = declare(run_prove, R"(
prove FILE
Show on this machine that a layout computes what one process computes

Cuts the model of FILE to the smallest that keeps the arithmetic of its axes, trains it for some
steps on ranks that are threads, and compares with one process: losses, gradients, their norm,
clipping, updates, replicas, and a checkpoint that one process loads, and the ranks from it. Once in
float64, where only what is wrong differs, and once in the job's dtypes. What differs is told with
the first module in which it does. Nothing of the job is read but its configuration, and nothing is
written but checkpoints to a temporary folder.
Exit status 2 when numbers differ.

  meshwright prove job.toml
  meshwright prove job.toml --set distributed.tp_size=4 --steps 3

--world-size N     Ranks of the small job, at most 64. Default: the fewest that have every axis.
--steps K          Steps to train. Default: 2.
--timeout SECONDS  Limit of all runs together. Default: 600.
--set
--json
)");
  // Prove in this process, with checkpoints in that folder, and answer on a pipe.
  verb.flags.push_back({.name = "child", .hidden = true});
  verb.flags.push_back({.name = "folder", .argument = "PATH", .hidden = true});
  return verb;
}

}  // namespace meshwright::cli
