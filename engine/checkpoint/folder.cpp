#include "engine/checkpoint/folder.h"

#include <fcntl.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "engine/checkpoint/checkpoint.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "step_", kTemporary = ".tmp", kReplaced = ".old";

void look_into(Found& found) {
  try {
    const Checkpoint opened(found.path);
    if (const std::optional<Error> wrong = misnamed(found.path, opened.meta())) {
      found.problem = wrong->message();
      found.holds = opened.meta().step;
    }
  } catch (const Error& error) {
    found.problem = error.message();
  }
}

bool is_whole(const fs::path& path) {
  Found found{path, 0, ""};
  look_into(found);
  return found.problem.empty();
}

// What cannot be read must not get a checkpoint's name: older ones are removed for it.
void check_reads_back(const std::string& text, const fs::path& path) {
  try {
    parse_meta(text, path.string());
  } catch (const Error& error) {
    throw Error(ErrorCode::internal, "the new checkpoint could not be read: " + error.message())
        .help("the checkpoints before it are kept; report this with the configuration");
  }
}

bool is_leftover(const std::string& name) {
  return (name.starts_with("." + std::string(kPrefix)) || name.starts_with(".latest.") ||
          name.starts_with(".best.")) &&
         (name.ends_with(kTemporary) || name.ends_with(kReplaced));
}

// What lies in a folder, in no order; up to where it cannot be listed.
std::vector<fs::path> entries_of(const fs::path& folder, std::error_code& failed) {
  std::vector<fs::path> out;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed))
    out.push_back(at->path());
  return out;
}

void remove_leftovers(const fs::path& checkpoints) {
  std::error_code failed;
  for (const fs::path& path : entries_of(checkpoints, failed))
    if (is_leftover(path.filename().string())) base::remove_tree(path);
}

// What bears a checkpoint's name, by step.
std::vector<std::pair<int64_t, fs::path>> steps_in(const fs::path& checkpoints,
                                                   std::error_code& failed) {
  std::vector<std::pair<int64_t, fs::path>> out;
  for (const fs::path& path : entries_of(checkpoints, failed))
    if (const std::optional<int64_t> step = step_of(path.filename().string()))
      out.emplace_back(*step, path);
  std::sort(out.begin(), out.end());
  return out;
}

// The checkpoint that a link names, when it is there.
std::optional<fs::path> target_of(const fs::path& link) {
  std::error_code failed;
  std::string name;
  if (fs::is_symlink(fs::symlink_status(link, failed))) {
    name = fs::read_symlink(link, failed).string();
  } else {
    name = base::read_file(link, 4096);
    name.resize(std::min(name.find('\n'), name.size()));
  }
  fs::path found = link.parent_path() / name;
  if (!step_of(name) || !fs::is_directory(found, failed)) return std::nullopt;
  return found;
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

std::string step_name(int64_t step) {
  return std::string(kPrefix) + text::format("%08" PRId64, step);
}

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto step = text::to_number(std::string_view(name).substr(kPrefix.size()));
  return step && *step >= 0 && step_name(*step) == name ? step : std::nullopt;
}

std::optional<Error> misnamed(const fs::path& folder, const Meta& meta) {
  const std::optional<int64_t> named = step_of(folder.filename().string());
  if (!named || *named == meta.step) return std::nullopt;
  Error error(ErrorCode::bad_checkpoint, folder.string() + ": its name says step " +
                                             std::to_string(*named) + ", its meta.json step " +
                                             std::to_string(meta.step));
  const fs::path own = folder.parent_path() / step_name(meta.step);
  std::error_code failed;
  return fs::exists(fs::symlink_status(own, failed))
             ? error.help("move it out of " + parent_of(folder).string() + ": " + own.string() +
                          " is there already")
             : error.help("give it its own name: mv " + folder.string() + " " + own.string());
}

std::vector<Found> find_all(const fs::path& checkpoints, For use) {
  std::vector<Found> out;
  std::error_code failed;
  if (!fs::exists(checkpoints, failed) && !failed) return out;
  for (const auto& [step, path] : steps_in(checkpoints, failed))
    if (std::error_code ignored; fs::is_directory(fs::symlink_status(path, ignored)))
      out.push_back({path, step, ""});
  if (failed)
    throw Error(ErrorCode::no_checkpoint,
                "cannot list " + checkpoints.string() + ": " + failed.message())
        .help(use == For::reading
                  ? "name a checkpoint itself (runs/first/checkpoints/step_00000050), or a folder "
                    "that can be listed"
                  : "move what stands there out of the way, or choose another run.name or run.dir");
  for (Found& found : out) look_into(found);
  return out;
}

std::optional<fs::path> latest_of(const fs::path& checkpoints) {
  return target_of(checkpoints / "latest");
}

std::optional<fs::path> best_of(const fs::path& checkpoints) {
  return target_of(checkpoints / "best");
}

std::optional<Found> newest(const fs::path& checkpoints, For use,
                            const std::function<void(const std::string&)>& tell) {
  std::vector<Found> all = find_all(checkpoints, use), wrong;
  std::erase_if(all, [&](const Found& one) {
    if (one.holds) wrong.push_back(one);
    return one.holds.has_value();
  });
  const auto furthest = std::ranges::max_element(wrong, {}, &Found::holds);
  const bool hides =
      furthest != wrong.end() && *furthest->holds > (all.empty() ? -1 : all.back().step);
  if (all.empty() && !hides) return std::nullopt;
  if (!hides && all.back().problem.empty()) {
    for (const Found& one : wrong)
      if (tell) tell(one.problem + "; it is passed over");
    return all.back();
  }
  Error error = hides ? *misnamed(furthest->path, read_meta(furthest->path))
                      : Error(ErrorCode::bad_checkpoint, all.back().problem);
  const auto whole =
      std::find_if(all.rbegin(), all.rend(), [](const Found& one) { return one.problem.empty(); });
  if (use == For::reading) {
    if (whole != all.rend())
      error.help("name the newest one that is whole: " + whole->path.string());
    throw error.help("meshwright checkpoint ls " + checkpoints.string() + " shows what is there");
  }
  error.key("checkpoint.resume");
  if (whole != all.rend())
    error.help("set checkpoint.resume = \"" + whole->path.string() +
               "\" to continue the newest one that is whole");
  throw error.help(
      "set checkpoint.resume = \"none\" to start afresh; what is there is kept under another name");
}

std::string next_start(const fs::path& checkpoints) {
  const std::vector<Found> all = find_all(checkpoints);
  const auto last =
      std::find_if(all.rbegin(), all.rend(), [](const Found& one) { return !one.holds; });
  return last == all.rend() ? "the start" : last->path.filename().string();
}

fs::path resolve(const fs::path& path) {
  std::error_code failed;
  auto none = [&](const std::string& what) {
    return Error(ErrorCode::no_checkpoint, path.string() + what)
        .help(
            "name a checkpoint (runs/first/checkpoints/step_00000050) or the folder of a run that "
            "has some")
        .help("meshwright checkpoint ls FOLDER shows what is there");
  };
  if (!fs::exists(path, failed)) throw none(" does not exist");
  if (!fs::is_directory(path, failed)) throw none(" is not a folder");
  // `latest` and other links to a folder: what they point to.
  if (fs::exists(path / "meta.json", failed)) return fs::canonical(path, failed);
  for (const fs::path& folder : {path, path / "checkpoints"}) {
    if (std::optional<fs::path> latest = latest_of(folder); latest && is_whole(*latest))
      return *latest;
    if (std::optional<Found> found = newest(folder, For::reading)) return found->path;
  }
  throw none(" holds no checkpoint");
}

fs::path temporary_folder(const fs::path& checkpoints, int64_t step) {
  return checkpoints / ("." + step_name(step) + std::string(kTemporary));
}

void tidy(const fs::path& checkpoints) {
  remove_leftovers(checkpoints);
  std::error_code failed;
  const auto all = steps_in(checkpoints, failed);
  if (!all.empty() && latest_of(checkpoints) != checkpoints / step_name(all.back().first))
    base::link_durably(step_name(all.back().first), checkpoints / "latest");
}

Publication::Publication(fs::path checkpoints, int64_t step)
    : checkpoints_(std::move(checkpoints)),
      temporary_(temporary_folder(checkpoints_, step)),
      step_(step) {
  bool fresh = !fs::exists(checkpoints_);
  base::make_folders(checkpoints_);
  if (fresh) base::sync_folder(parent_of(checkpoints_));
  remove_leftovers(checkpoints_);
  base::make_folder(temporary_);
}

Publication::~Publication() {
  if (!published_) base::remove_tree(temporary_);
}

fs::path Publication::publish(const Meta& meta, Retention keep) {
  fs::path final_path = checkpoints_ / step_name(step_),
           replaced = checkpoints_ / ("." + step_name(step_) + std::string(kReplaced));
  const std::string text = to_json(meta);
  check_reads_back(text, temporary_ / "meta.json");
  base::NewFile file(temporary_ / "meta.json");
  file.append(text);
  file.finish();
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(temporary_))
    if (entry.is_directory()) base::sync_folder(entry.path());
  base::sync_folder(temporary_);
  std::error_code failed;
  // One of the same step changes places with it in one go, where the file system can.
  bool replaces = fs::exists(fs::symlink_status(final_path, failed));
  if (replaces && ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, final_path.c_str(),
                              RENAME_EXCHANGE) == 0) {
    published_ = true;
    replaced = temporary_;
    base::sync_folder(checkpoints_);
  } else {
    if (replaces) base::rename_durably(final_path, replaced);
    try {
      base::rename_durably(temporary_, final_path);
    } catch (const Error&) {
      // The new one may be there, with only its folder's entry not synced; else the old one comes
      // back.
      if (replaces && !fs::exists(final_path, failed)) fs::rename(replaced, final_path, failed);
      throw;
    }
    published_ = true;
  }
  base::link_durably(step_name(step_), checkpoints_ / "latest");
  // That of an earlier step, too: a run that goes on from an older checkpoint has its best again.
  if (const fs::path best = meta.best ? checkpoints_ / step_name(meta.best->step) : fs::path();
      meta.best && fs::is_directory(best, failed) && best_of(checkpoints_) != best)
    base::link_durably(best.filename().string(), checkpoints_ / "best");
  if (replaces) base::remove_tree(replaced);
  std::vector<std::pair<int64_t, fs::path>> all = steps_in(checkpoints_, failed);
  std::erase_if(all, [&](const auto& one) { return one.first > step_; });
  const std::optional<fs::path> best = best_of(checkpoints_);
  // Renamed first: half of a checkpoint never bears a checkpoint's name.
  for (size_t i = 0; i + static_cast<size_t>(keep.newest) < all.size(); ++i) {
    if (all[i].second == best || (keep.every > 0 && all[i].first % keep.every == 0)) continue;
    fs::path trash =
        checkpoints_ / ("." + all[i].second.filename().string() + std::string(kReplaced));
    fs::rename(all[i].second, trash, failed);
    if (!failed) base::remove_tree(trash);
  }
  return final_path;
}

std::string set_aside(const fs::path& checkpoints, int64_t step) {
  std::error_code failed;
  std::vector<fs::path> names;
  for (const auto& [found, path] : steps_in(checkpoints, failed))
    if (found > step) names.push_back(path);
  if (names.empty()) return "";
  int n = 1;
  while (fs::exists(checkpoints.string() + "." + std::to_string(n), failed)) ++n;
  fs::path aside = checkpoints.string() + "." + std::to_string(n);
  base::make_folder(aside);
  // The links first, so that they never point to nothing.
  std::vector<std::pair<fs::path, fs::path>> links;  // where to make one, and to what
  for (const char* link : {"latest", "best"})
    if (std::optional<fs::path> target = target_of(checkpoints / link);
        target && std::find(names.begin(), names.end(), *target) != names.end()) {
      fs::remove(checkpoints / link, failed);
      links.emplace_back(aside / link, target->filename());
    }
  for (const fs::path& name : names) base::rename_durably(name, aside / name.filename());
  base::sync_folder(checkpoints);
  for (const auto& [link, target] : links) base::link_durably(target.string(), link);
  return aside.string();
}

}  // namespace meshwright::checkpoint
