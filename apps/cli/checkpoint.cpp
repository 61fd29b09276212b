// checkpoint ls and checkpoint verify.
#include <unistd.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <chrono>

#include "apps/cli/verb.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/inspect.h"
#include "engine/checkpoint/source.h"
#include "engine/launch/rank_file.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/host/run_lock.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/progress.h"
#include "sdk/base/wait.h"

namespace meshwright::cli {

namespace {

namespace json = boost::json;
namespace fs = std::filesystem;
using checkpoint::Group;
using checkpoint::Listed;
using checkpoint::Meta;
using report::Tone;

// "2026-11-21T12:00:00Z" -> "2026-11-21 12:00"
std::string when(const Meta& meta) {
  std::string out = meta.created;
  if (out.size() == 20 && out[10] == 'T' && out[19] == 'Z') {
    out[10] = ' ';
    out.resize(16);
  }
  return out;
}

// "2: dp_shard 2"
std::string ranks_text(const Meta& meta) {
  std::string out;
  for (size_t i = 0; i < meta.axes.size(); ++i)
    if (meta.mesh_shape[i] > 1)
      out += (out.empty() ? "" : " x ") + meta.axes[i] + " " + std::to_string(meta.mesh_shape[i]);
  return std::to_string(meta.world_size) + (out.empty() ? "" : ": " + out);
}

// 12,264 -> "12.3 K"
std::string short_count(int64_t count) {
  constexpr std::string_view kUnits[] = {"", " K", " M", " B", " T"};
  auto value = static_cast<double>(count);
  size_t unit = 0;
  for (; value >= 999.95 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  return text::format(unit == 0 ? "%.0f" : "%.1f", value) + std::string(kUnits[unit]);
}

json::object listed_json(const Listed& listed) {
  json::object row{{"path", listed.found.path.string()},
                   {"step", listed.found.step},
                   {"latest", listed.latest},
                   {"best", listed.best},
                   {"complete", listed.found.problem.empty()}};
  if (!listed.meta) {
    row["problem"] = listed.found.problem;
    return row;
  }
  const Meta& meta = *listed.meta;
  row["problem"] = nullptr;
  row["created"] = meta.created;
  row["strategy"] = meta.strategy;
  row["world_size"] = meta.world_size;
  row["mesh"] =
      json::object{{"axes", json::array(meta.axes.begin(), meta.axes.end())},
                   {"shape", json::array(meta.mesh_shape.begin(), meta.mesh_shape.end())}};
  row["architecture"] = meta.architecture;
  row["parameters"] = checkpoint::parameters_of(meta);
  row["bytes"] = listed.bytes;
  if (meta.base) row["base"] = meta.base->path;
  return row;
}

int run_ls(Call& call) {
  std::vector<Group> groups =
      checkpoint::list_checkpoints(call.positionals.empty() ? "runs" : call.positional(0));
  if (call.json) {
    json::array rows;
    for (const Group& group : groups)
      for (const Listed& listed : group.checkpoints) rows.push_back(listed_json(listed));
    call.print_json(json::object{{"checkpoints", rows}});
    return 0;
  }
  const report::Style& style = call.out_style;
  for (const Group& group : groups) {
    call.out.write((&group == groups.data() ? "" : "\n") +
                   report::paint(style, Tone::bold, report::printable(group.folder.string())) +
                   "\n");
    std::vector<std::vector<std::string>> rows = {
        {"step", "saved (UTC)", "strategy", "ranks", "weights", "size", "state"}};
    std::string problems;
    for (const Listed& listed : group.checkpoints) {
      std::string state = listed.meta ? report::paint(style, Tone::green, "complete")
                                      : report::paint(style, Tone::red, "damaged");
      if (listed.latest) state += ", latest";
      if (listed.best) state += ", best";
      std::string step = std::to_string(listed.found.step);
      if (listed.meta) {
        const Meta& m = *listed.meta;
        rows.push_back({step, report::printable(when(m)), report::printable(m.strategy),
                        report::printable(ranks_text(m)), short_count(checkpoint::parameters_of(m)),
                        report::human_bytes(listed.bytes), state});
      } else {
        rows.push_back({step, "-", "-", "-", "-", "-", state});
        problems += report::paint(style, Tone::red, "damaged") + " " +
                    report::printable(listed.found.problem) + "\n";
      }
    }
    constexpr size_t kRight[] = {0, 4, 5};
    call.out.write(report::table(style, rows, kRight) + problems);
  }
  return 0;
}

int run_verify(Call& call) {
  fs::path path = call.positional(0);
  std::vector<checkpoint::Verified> all;
  if (checkpoint::is_weights(path)) {
    all.push_back(checkpoint::verify_weights(path));
  } else {
    std::vector<fs::path> folders;
    for (const Group& group : checkpoint::list_checkpoints(path))
      for (const Listed& listed : group.checkpoints) folders.push_back(listed.found.path);
    int64_t total = 0;
    for (const fs::path& folder : folders) total += checkpoint::verify_bytes(folder);
    report::ByteProgress progress(call.err, call.err_style, ::isatty(2) == 1, "verifying", total);
    for (const fs::path& folder : folders)
      all.push_back(
          checkpoint::verify_checkpoint(folder, [&](int64_t bytes) { progress.add(bytes); }));
  }
  std::vector<Error> damage;
  json::array rows;
  Diagnostics said;
  for (const checkpoint::Verified& one : all) {
    damage.insert(damage.end(), one.damage.begin(), one.damage.end());
    for (const std::string& name : one.not_covered)
      said.warning((one.path / name).string() +
                   " is not listed in meta.json, so nothing is known about it");
    if (!one.damage.empty()) continue;
    if (!one.base_problem.empty()) said.warning(one.base_problem);
    json::object row{{"path", one.path.string()},
                     {"checksums", one.checksums},
                     {"files", one.files},
                     {"bytes", one.bytes},
                     {"tensors", one.tensors}};
    if (!one.base.empty())
      row["base"] = json::object{{"path", one.base}, {"usable", one.base_problem.empty()}};
    rows.push_back(std::move(row));
    if (call.json) continue;
    std::string what = one.checksums ? "every byte matches its checksum, every tensor is there once"
                                     : "headers and index hold together (a Hugging Face folder has "
                                       "no checksums of its contents)";
    if (!one.base.empty())
      what += "; the weights that did not train are in " + report::printable(one.base);
    call.out.write(report::paint(call.out_style, Tone::green, "ok") + " " +
                   report::printable(one.path.string()) + ": " +
                   report::counted(one.files, "file", "files") + ", " +
                   report::human_bytes(one.bytes) + ", " +
                   report::counted(one.tensors, "tensor", "tensors") + ": " + what + "\n");
  }
  call.out.flush();
  call.say(said);
  if (!damage.empty()) return call.fail(damage);
  if (call.json) call.print_json(json::object{{"verified", rows}});
  return 0;
}

}  // namespace

Verb checkpoint_ls_verb() {
  return declare(run_ls, R"(
checkpoint ls [FOLDER]
List checkpoints: step, layout, size, and which of them are whole

FOLDER is a run's folder, a folder of runs (runs, when none is named), a folder of checkpoints or
one checkpoint. A checkpoint is whole when meta.json matches its own checksum and every file it
names is there in its size; checkpoint verify reads the contents too.
  meshwright checkpoint ls
  meshwright checkpoint ls runs/first

--json
)");
}

Verb checkpoint_verify_verb() {
  return declare(run_verify, R"(
checkpoint verify FOLDER
Read every byte of checkpoints and compare it with its checksum

FOLDER is one checkpoint, or a folder that holds some, which are all verified. Also checks that the
headers of the files say what meta.json says and that every tensor is covered exactly once. All
damage is told, with file and bytes; the exit status is 7 then. Of a Hugging Face folder, which has
no checksums, headers and index are checked. Where a checkpoint holds adapters alone, a folder of
their model that is gone or has other weights by now is a warning.
  meshwright checkpoint verify runs/first/checkpoints/latest

--json
)");
}

// checkpoint now: asks a run that trains to save.

namespace {

using Clock = std::chrono::steady_clock;

// Throws Error(usage) unless a run has the folder, as far as this host can know.
void check_alive(const fs::path& run) {
  std::error_code failed;
  if (!fs::is_directory(run, failed))
    throw Error(ErrorCode::file_unreadable, run.string() + " is not the folder of a run")
        .help("the folder of a run is <run.dir>/<run.name>: runs/first, for example");
  if (base::owner_of(run)) return;
  const std::optional<base::LockOwner> dead = base::parse_lock(base::read_file(run / "lock"));
  throw Error(ErrorCode::usage, "no run trains in " + run.string() +
                                    " at the moment, so none would save" +
                                    (dead ? ": process " + std::to_string(dead->pid) +
                                                ", which had it, is dead, or has another folder"
                                          : ""))
      .help("meshwright checkpoint ls " + run.string() + " shows what it has saved");
}

// What tells one checkpoint from the next, also where a step is saved twice.
struct Newest {
  std::optional<fs::path> path;
  fs::file_time_type time{};
  bool operator==(const Newest&) const = default;
};

Newest newest_of(const fs::path& run) {
  Newest out;
  out.path = checkpoint::latest_of(run / "checkpoints");
  std::error_code failed;
  if (out.path) out.time = fs::last_write_time(*out.path / "meta.json", failed);
  return out;
}

std::optional<fs::path> wait_for_checkpoint(const fs::path& run, const fs::path& request,
                                            const Newest& before, int64_t seconds) {
  std::error_code failed;
  Newest now;
  auto written = [&] {
    now = newest_of(run);
    return !fs::exists(request, failed) && now.path && now != before;
  };
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  return base::wait_until(end, std::chrono::milliseconds(50), written) ? now.path : std::nullopt;
}

int run_now(Call& call) {
  const fs::path run = call.positional(0), request = run / base::kSaveRequestFile;
  const std::optional<int64_t> seconds = call.number("wait", 1);
  check_alive(run);
  const Newest before = newest_of(run);
  base::write_durably(request, "");
  std::optional<fs::path> saved;
  if (seconds) {
    saved = wait_for_checkpoint(run, request, before, *seconds);
    if (!saved)
      throw Error(ErrorCode::no_checkpoint, "no checkpoint of " + run.string() +
                                                " appeared within " +
                                                report::counted(*seconds, "second", "seconds"))
          .help("its step may take longer: --wait " + std::to_string(*seconds * 10))
          .help(run.string() + "/run.log says what the run does");
  }
  if (call.json)
    call.print_json(boost::json::object{
        {"asked", request.string()},
        {"checkpoint", saved ? boost::json::value(saved->string()) : boost::json::value(nullptr)}});
  else
    call.out.write(saved ? "saved " + report::printable(saved->string()) + "\n"
                         : "asked: " + report::printable(run.string()) +
                               " saves after the step that it is at\n");
  return 0;
}

}  // namespace

Verb checkpoint_now_verb() {
  return declare(run_now, R"(
checkpoint now RUN
Ask a run that trains to save a checkpoint after its step

RUN is the folder of a run: runs/first. It may train on another host that shares the folder.
The same without this program: touch runs/first/checkpoint_now. The file is gone once the run saves.

  meshwright checkpoint now runs/first
  meshwright checkpoint now runs/first --wait 60

--wait SECONDS  Until the checkpoint is there, and print its path; exit status 7 if it is not then.
--json
)");
}

}  // namespace meshwright::cli
