#include <sys/utsname.h>
#include <unistd.h>

#include <boost/json/array.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "apps/cli/common.h"
#include "meshwright/abi.h"

namespace meshwright::cli {
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
  return {
      {"meshwright", MESHWRIGHT_VERSION},
      {"sdk", std::to_string(MESHWRIGHT_SDK_MAJOR) + "." + std::to_string(MESHWRIGHT_SDK_MINOR) +
                  ", C++ epoch " + std::to_string(MESHWRIGHT_CXX_EPOCH)},
      {"libtorch", fact("torch.version") + " (CUDA " + fact("torch.cuda") + ", c10d " +
                       fact("torch.c10d") + ")"},
      {"compiler", fact("info.compiler") + ", " + fact("info.build_type")},
      {"sanitizers", fact("sanitizers")},
      {"system", std::string(system.sysname) + " " + system.release + " " + system.machine},
      {"cpu cores", std::to_string(std::thread::hardware_concurrency())},
      {"memory", report::human_bytes(memory_bytes())},
      {"cuda devices", cuda_devices()}};
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
    for (const auto& [key, value] : rows_of()) out[key] = value;
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
  for (const auto& [key, value] : rows_of()) rows.push_back({key, value});
  for (const auto& [place, path] : registry.places()) {
    std::error_code failed;
    rows.push_back({"plugins: " + place,
                    path.string() + (fs::is_directory(path, failed) ? "" : " (no such folder)")});
  }
  for (const auto& [key, value] : variables) rows.push_back({"$" + key, value});
  call.out.write(report::table(call.out_style, rows));
  return 0;
}

}  // namespace

Verb env_verb() {
  return declare(run_env, R"(
env
Show versions, machine and plugin places

What to put into a bug report.

--json
)");
}

}  // namespace meshwright::cli
