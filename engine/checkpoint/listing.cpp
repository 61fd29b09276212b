#include "engine/checkpoint/listing.h"

#include <algorithm>

#include "engine/checkpoint/checkpoint.h"

namespace meshwright::checkpoint {

namespace fs = std::filesystem;

namespace {

Listed look_at(Found found) {
  Listed out;
  out.found = std::move(found);
  if (!out.found.problem.empty()) return out;
  try {
    Checkpoint opened(out.found.path);
    if (const std::optional<Error> wrong = misnamed(out.found.path, opened.meta())) throw *wrong;
    out.bytes = opened.bytes();
    out.meta = opened.meta();
  } catch (const Error& error) {
    out.found.problem = error.message();
  }
  return out;
}

std::optional<Group> group_of(const fs::path& folder) {
  Group group{folder, {}};
  for (Found& found : find_all(folder, For::reading))
    group.checkpoints.push_back(look_at(std::move(found)));
  if (group.checkpoints.empty()) return std::nullopt;
  std::optional<fs::path> latest = latest_of(folder);
  std::optional<fs::path> best = best_of(folder);
  for (Listed& listed : group.checkpoints) {
    listed.latest = listed.found.path == latest;
    listed.best = listed.found.path == best;
  }
  return group;
}

}  // namespace

std::vector<Group> list_checkpoints(const fs::path& path) {
  auto none = [&](const std::string& what) {
    return Error(ErrorCode::no_checkpoint, path.string() + what)
        .help("name a checkpoint, the folder of a run (runs/first), or a folder of runs (runs)")
        .help("[checkpoint] every_steps = 50 saves one every 50 steps of a run");
  };
  std::error_code failed;
  if (!fs::exists(path, failed)) throw none(" does not exist");
  if (!fs::is_directory(path, failed)) throw none(" is not a folder");
  if (fs::exists(path / "meta.json", failed)) {
    fs::path real = fs::canonical(path, failed);  // `latest` is a link
    Group group{real.parent_path(),
                {look_at({fs::is_symlink(fs::symlink_status(path, failed)) ? real : path,
                          step_of(real.filename().string()).value_or(0), ""})}};
    if (group.checkpoints[0].meta)
      group.checkpoints[0].found.step = group.checkpoints[0].meta->step;
    std::optional<fs::path> latest = latest_of(real.parent_path());
    group.checkpoints[0].latest = latest && fs::canonical(*latest, failed) == real;
    std::optional<fs::path> best = best_of(real.parent_path());
    group.checkpoints[0].best = best && fs::canonical(*best, failed) == real;
    return {group};
  }
  std::vector<Group> out;
  for (const fs::path& folder : {path, path / "checkpoints"})
    if (std::optional<Group> group = group_of(folder)) return {*group};
  std::vector<fs::path> runs;
  for (fs::directory_iterator at(path, failed), end; !failed && at != end; at.increment(failed))
    runs.push_back(at->path());
  std::sort(runs.begin(), runs.end());
  for (const fs::path& run : runs)
    if (std::error_code ignored; fs::is_directory(run / "checkpoints", ignored))
      if (std::optional<Group> group = group_of(run / "checkpoints"))
        out.push_back(std::move(*group));
  if (out.empty()) throw none(" holds no checkpoint");
  return out;
}

int64_t parameters_of(const Meta& meta) {
  int64_t out = 0;
  for (const TensorRecord& tensor : meta.tensors) {
    if (!tensor.state.empty()) continue;
    int64_t elements = 1;
    for (int64_t size : tensor.shape) elements *= size;
    out += elements;
  }
  return out;
}

}  // namespace meshwright::checkpoint
