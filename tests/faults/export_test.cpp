// A disk that fails at any file operation of `checkpoint export`: the old export or the new one is
// there, whole, and the next one clears up.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "engine/checkpoint/tests/make_checkpoint.h"
#include "runs.h"

using namespace faults;
namespace fs = std::filesystem;

namespace {

using Contents = std::map<std::string, std::string>;

Contents contents(const fs::path& folder) {
  Contents out;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_directory()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    out[entry.path().lexically_relative(folder).generic_string()] = {
        std::istreambuf_iterator<char>(in), {}};
  }
  return out;
}

struct Export {
  fs::path folder = fs::canonical(fs::temp_directory_path()) /
                    ("meshwright_export_faults_" + std::to_string(::getpid()));
  fs::path disk = folder / "disk", target = disk / "hf";
  Export() {
    using namespace meshwright;
    using namespace meshwright::checkpoint;
    fs::remove_all(folder);
    fs::create_directories(disk);
    std::vector<float> values(3000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    make_checkpoint(folder / "saved", 2,
                    {made("", "a", DType::float32, {60, 50}, values),
                     made("", "b", DType::float32, {3000}, values),
                     made("", "c", DType::float32, {3000}, values)},
                    meshwright::checkpoint::Layout::rows,
                    {{"config.json", "{}"}, {"source/sub/tokenizer.json", "{}"}});
  }
  ~Export() { fs::remove_all(folder); }
  // Exit status.
  int run(const std::string& flags, const std::string& environment = "") const {
    std::string command = "env " + environment +
                          " '" MESHWRIGHT_BUILD_DIR "/bin/meshwright' checkpoint export '" +
                          (folder / "saved").string() + "' --out '" + target.string() + "' " +
                          flags + " >'" + (folder / "said").string() + "' 2>&1 </dev/null";
    int raw = std::system(command.c_str());
    return WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  }
  std::string said() const { return contents(folder)["said"]; }
};

const char* const kNew = "--dtype float16 --shard-size 8KB";

}  // namespace

TEST_CASE(
    "every file operation of an export fails once: path and reason are named, the old export or "
    "the new one is there") {
  Record record;
  Export exported;
  REQUIRE(exported.run(kNew) == 0);
  const Contents fresh = contents(exported.target);
  fs::remove_all(exported.target);
  REQUIRE(exported.run("") == 0);
  const Contents old = contents(exported.target);
  CHECK(fresh.size() == old.size() + 3);
  int64_t failed = 0, kept = 0;
  for (auto [call, fault, sample] :
       std::vector<std::tuple<std::string, std::string, std::vector<int>>>{
           {"write", "EIO", {1, 3}},
           {"write", "full", {4}},
           {"write", "short", {2}},
           {"fsync", "EIO", {2}},
           {"rename", "EIO", {1, 2}},
           {"mkdir", "ENOSPC", {1, 2}},
           {"open", "ENOSPC", {3}},
           {"close", "EIO", {1}},
           {"remove", "EIO", {1, 3}}})
    for (int i = 1; i < 100; ++i) {
      if (!record.full() && std::find(sample.begin(), sample.end(), i) == sample.end()) continue;
      fs::path log = exported.folder / "log";
      fs::remove(log);
      int status = exported.run(
          kNew, "LD_PRELOAD='" MESHWRIGHT_FILE_SHIM "' FILE_SHIM_UNDER='" + exported.disk.string() +
                    "' FILE_SHIM_CALL=" + call + " FILE_SHIM_NTH=" + std::to_string(i) +
                    " FILE_SHIM_FAULT=" + fault + " FILE_SHIM_LOG='" + log.string() + "'");
      std::string text = call + " " + std::to_string(i) + " " + fault;
      INFO(text, "\n", exported.said());
      if (!fs::exists(log)) {
        CHECK(record.full());
        CHECK(status == 0);
        exported.run("");
        break;
      }
      ++failed;
      Contents found = contents(exported.target);
      if (status == 0)
        CHECK((found == fresh));
      else
        CHECK((found == old || found == fresh));
      if (status != 0) {
        CHECK(status == 7);
        CHECK(exported.said().find("error[E0705]: cannot ") != std::string::npos);
        CHECK(exported.said().find(exported.disk.string()) != std::string::npos);
        CHECK(exported.said().find(fault == "EIO"
                                       ? "Input/output error (EIO)"
                                       : "No space left on device (ENOSPC)") != std::string::npos);
      }
      if (found == old) ++kept;
      record.say("export: " + text + ": exit " + std::to_string(status) + ", " +
                 (found == old ? "the old export" : "the new export"));
      // The next one finds its way, whatever is left.
      CHECK(exported.run("") == 0);
      CHECK((contents(exported.target) == old));
      CHECK(std::distance(fs::directory_iterator(exported.disk), {}) == 1);
    }
  MESSAGE(failed, " operations failed; after ", kept,
          " the old export was there, else the new one");
  CHECK(kept > 5);
}
