// The lock of a run folder, held by the launcher for its local ranks or by rank 0 for itself.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "engine/launch/ranks.h"
#include "sdk/base/host/run_lock.h"

namespace meshwright::launch {

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
