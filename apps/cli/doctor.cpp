// doctor: reads the configuration, if there is one, then starts the ranks, or looks as one of them.
#include <sys/utsname.h>
#include <unistd.h>

#include <boost/json/array.hpp>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <thread>

#include "apps/cli/common.h"
#include "apps/doctor/finding.h"
#include "engine/launch/spawn.h"
#include "meshwright/abi.h"
#include "sdk/base/beside.h"
#include "sdk/base/host_facts.h"

namespace meshwright::cli {

namespace {

doctor::Request read_doctor_request(const Call& call, const Screen& screen) {
  doctor::Request request;
  request.file = call.positional(0);
  request.sets = call.values("set");
  request.run_folder = call.value("run-folder");
  if (call.has("run-folder") && request.run_folder.empty())
    throw Error(ErrorCode::usage, "--run-folder is empty").help("--run-folder runs");
  request.json = call.json;
  request.width = screen.width;
  request.colour = screen.colour;
  request.unicode = screen.unicode;
  return request;
}

// A file that cannot be planned for these ranks is refused as by all other verbs.
int check(Call& call, const Ranks& ranks, int64_t wanted) {
  if (call.positional(0).empty()) return 0;
  int status = 0;
  std::optional<plan::Job> job = load_job(call, status);
  if (!job) return status;
  const plan::JobPlan plan = before::plan_to_start(reload_of(call), *job, ranks, wanted);
  const Diagnostics found = before::check_files(*job, plan, /*data=*/false);
  return found.ok() ? 0 : call.fail(found.errors());
}

int start_doctor(Call& call, const Ranks& ranks) {
  const int64_t wanted = count_of_ranks(call, ranks);
  const Screen screen = screen_of(call, started_by_us(ranks));
  const doctor::Request request = read_doctor_request(call, screen);
  if (started_by_us(ranks)) {
    // The parent has checked everything; when it dies, so do its ranks.
    if (!launch::end_with_parent()) return 1;
  } else if (int status = check(call, ranks, wanted); status != 0) {
    return status;  // every rank asks, so that all of them refuse alike and at once
  }
  if (ranks || wanted == 1) return run_rank(call, ranks, "meshwright_doctor_rank", &request);
  launch::LocalJob local = local_ranks(call, "doctor", {"run-folder", "json"}, wanted, screen);
  if (request.file.empty()) local.argv.erase(local.argv.begin() + 2);
  local.any_status = true;
  call.out.flush();
  return launch::run_local_ranks(local);
}

int run_doctor(Call& call) { return refuse_together(call, start_doctor); }

}  // namespace

Verb doctor_verb() {
  return declare(run_doctor, R"(
doctor [FILE]
Look at what runs depend on, and say what to repair

Starts N local ranks, or looks as one rank of a launcher (torchrun, RANK and WORLD_SIZE, Slurm, Open
MPI), in seconds, and changes nothing.
Each line of the table is one finding: ok, note, warning or fault, and after FIX what to do. With
several ranks latency and bandwidth between all pairs of hosts (of ranks, on one host) follow, and
each collective on each axis of the mesh of FILE; without one all ranks are one group.
Exit status: 0 without a fault, else that of the worst, in this order: 4 ranks or devices, 6 a
collective failed, 3 memory for the plan, 7 the run folder, 2 usage or configuration.

  meshwright doctor
  meshwright doctor job.toml --nproc 4
  srun meshwright doctor job.toml
  torchrun --nnodes 2 --nproc-per-node 8 --no-python meshwright doctor job.toml

--nproc N         Look with N local ranks. Default: 1, in this process.
--run-folder DIR  The folder of runs, whose disk is tried. Default: run.dir of the file, else runs.
--set
--json
)");
}

namespace {

namespace fs = std::filesystem;
using EnvRow = std::pair<std::string, std::string>;

int64_t memory_bytes() {
  std::ifstream in("/proc/meminfo");
  std::string name;
  int64_t kib = 0;
  if (in >> name >> kib && name == "MemTotal:") return kib * 1024;
  return 0;
}

// NVIDIA devices as the driver lists them; no CUDA library is loaded for it.
std::string cuda_devices() {
  std::string out;
  std::error_code failed;
  for (fs::directory_iterator it("/proc/driver/nvidia/gpus", failed), end; !failed && it != end;
       it.increment(failed)) {
    std::ifstream in(it->path() / "information");
    for (std::string line; std::getline(in, line);)
      if (line.starts_with("Model:"))
        out += (out.empty() ? "" : ", ") + line.substr(line.find_first_not_of(" \t", 6));
  }
  return out.empty() ? "none" : out;
}

std::vector<EnvRow> rows_of() {
  const auto& facts = loader::engine_facts();
  auto fact = [&](const char* key) {
    auto it = facts.find(key);
    return it == facts.end() ? std::string("-") : it->second;
  };
  struct utsname system{};
  ::uname(&system);
  // A wheel of LibTorch for CPUs or for another CUDA may have been installed since.
  const std::string built = fact("torch.version");
  const auto libtorch = launch::find_libtorch();
  const bool same = !libtorch || libtorch->version.empty() || libtorch->version == built;
  return {
      {"meshwright", MESHWRIGHT_VERSION},
      {"sdk", std::to_string(MESHWRIGHT_SDK_MAJOR) + "." + std::to_string(MESHWRIGHT_SDK_MINOR) +
                  ", C++ epoch " + std::to_string(MESHWRIGHT_CXX_EPOCH)},
      {"libtorch", (same ? built + " (" : libtorch->version + " (built with " + built + ", ") +
                       "CUDA " + fact("torch.cuda") + ", c10d " + fact("torch.c10d") + ")"},
      {"compiler", fact("info.compiler") + ", " + fact("info.build_type")},
      {"sanitizers", fact("sanitizers")},
      {"system", std::string(system.sysname) + " " + system.release + " " + system.machine},
      {"cpu cores", std::to_string(std::thread::hardware_concurrency())},
      {"memory", report::human_bytes(memory_bytes())},
      {"cuda devices", cuda_devices()}};
}

// Where all of it lies.
std::vector<EnvRow> places_of() {
  const auto libtorch = launch::find_libtorch();
  std::vector<EnvRow> out = {
      {"installation", installation().string()},
      {"torch folder",
       libtorch ? libtorch->folder.string() + " (" + libtorch->version + ")"
                : "where it lay when this was built; else " + launch::how_to_get_libtorch()}};
  for (const auto& [name, path] : {std::pair("libraries", beside_sdk("")),
                                   {"cmake package", beside_sdk("cmake/Meshwright")},
                                   {"headers", installation() / "include/meshwright"},
                                   {"configurations", installation() / "share/meshwright/configs"},
                                   {"documents", installation() / "share/doc/meshwright/docs"},
                                   {"examples", installation() / "share/doc/meshwright/examples"}})
    if (std::error_code failed; fs::exists(path, failed))
      out.emplace_back(name, path.lexically_normal().string());
  return out;
}

int run_env(Call& call) {
  std::vector<EnvRow> variables;
  for (const char* name :
       {"MESHWRIGHT_PLUGIN_PATH", "MESHWRIGHT_DEPS", "XDG_DATA_HOME", "NO_COLOR", "OMP_NUM_THREADS",
        "WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"})
    if (const char* value = std::getenv(name))
      variables.emplace_back(name, report::printable(value));
  loader::Registry registry({});
  if (call.json) {
    boost::json::object out, environment;
    for (const auto& rows : {rows_of(), places_of()})
      for (const auto& [key, value] : rows) out[key] = value;
    for (const auto& [key, value] : variables) environment[key] = value;
    boost::json::array places;
    for (const auto& [place, path] : registry.places())
      places.push_back(boost::json::object{{"place", place}, {"path", path.string()}});
    out["plugin_places"] = places;
    out["environment"] = environment;
    call.print_json(out);
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {{"", ""}};
  for (const auto& part : {rows_of(), places_of()})
    for (const auto& [key, value] : part) rows.push_back({key, value});
  for (const auto& [place, path] : registry.places()) {
    std::error_code failed;
    rows.push_back({"plugins: " + place,
                    path.string() + (fs::is_directory(path, failed) ? "" : " (no such folder)")});
  }
  for (const auto& [key, value] : variables) rows.push_back({"$" + key, value});
  report::Style whole = call.out_style;  // a path that is broken cannot be copied
  whole.width = std::numeric_limits<int>::max();
  call.out.write(report::table(whole, rows));
  return 0;
}

}  // namespace

Verb env_verb() {
  return declare(run_env, R"(
env
Show versions, machine, and where all of it lies

What to put into a bug report.

--json
)");
}

namespace {

int run_cmake_dir(Call& call) {
  const fs::path config = beside_sdk("cmake/Meshwright/MeshwrightConfig.cmake");
  if (!fs::exists(config))
    throw Error(ErrorCode::file_unreadable,
                config.string() + " is not there: the part for developers is not installed")
        .help("Debian: apt install meshwright-dev; a build: cmake --install build --component dev");
  call.out.write(installation().string() + "\n");
  return 0;
}

}  // namespace

Verb cmake_dir_verb() {
  return declare(run_cmake_dir, R"(
cmake-dir
Print what CMAKE_PREFIX_PATH wants, to build against this installation

  cmake -B build -DCMAKE_PREFIX_PATH=$(meshwright cmake-dir)
)");
}

}  // namespace meshwright::cli
