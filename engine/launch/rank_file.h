#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/launch/ranks.h"
#include "sdk/base/collective_log.h"
#include "sdk/base/host/run_lock.h"

namespace meshwright::base {

// A file of this name in a run's folder asks the run to save at its next step.
inline constexpr const char* kSaveRequestFile = "checkpoint_now";

}  // namespace meshwright::base

namespace meshwright::launch {

// The lock of a run folder, held by the launcher for its local ranks or by rank 0 for itself.

// Says that the wait for another host's sign of life has begun.
using Say = std::function<void(const std::string&)>;

// Takes the folder for this process, until the object goes. Throws as RunLock does; when another
// process has the folder and the environment has variables of a launcher that is not recognised,
// Error(unknown_launcher) that names them: then this job was started several times, and each
// process trains alone. When the owner before died, run.log says so. `lost`: hears, in a thread of
// its own, that another host has taken the folder over while this process was stopped; without it
// the process ends then, with exit status 7.
std::unique_ptr<base::RunLock> own_run_folder(const std::filesystem::path& folder,
                                              const Lookup& environment, const Say& waiting,
                                              const std::function<void(const Error&)>& lost = {});

// A local rank's: the launcher holds this folder's lock, and this process with it.
bool launcher_owns_run_folder(const std::filesystem::path& folder);

}  // namespace meshwright::launch

namespace meshwright::postmortem {

// comm_traces/rank_N.json: the last collectives of a rank whose run ended in an error.

inline constexpr std::string_view kFolder = "comm_traces";  // in the run's

struct RankFile {
  int64_t rank = 0, world = 1;
  std::string host;
  int64_t process = 0, attempt = 0;
  std::string why;     // what ended the rank: a line of its error, or who told it to end
  bool error = false;  // it was an error of its own
  detail::CollectiveRecord record;
};

std::string file_name(int64_t rank);
std::string to_text(const RankFile& file);
// Throws Error(file_unreadable), which says what is wrong with the text.
RankFile parse(std::string_view text);

// The files of a folder, by rank, and what is wrong with others, a sentence each. A folder that is
// not there has none. Of several attempts only the newest counts.
struct Folder {
  std::vector<RankFile> files;
  std::vector<int64_t> stopped;  // by a signal or a debugger, as the launcher saw
  std::vector<std::string> problems;
};
Folder read_folder(const std::filesystem::path& folder);
// What the launcher saw, beside the ranks' files. Throws Error(output_unwritable).
void write_stopped(const std::filesystem::path& folder, const std::vector<int64_t>& ranks);

}  // namespace meshwright::postmortem
