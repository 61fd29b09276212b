// checkpoint now, and the file that it makes.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "ran.h"
#include "tests/contents.h"

namespace checkpoint_now_test {

namespace {

// A run of two ranks that trains until it is told to end.
struct Training {
  fs::path folder = fs::temp_directory_path() / ("meshwright_now_" + std::to_string(::getpid()));
  pid_t pid = 0;
  Training() {
    fs::remove_all(folder);
    fs::create_directories(folder);
    const std::string out = "run.dir=" + folder.string();
    pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      if (::chdir(MESHWRIGHT_SOURCE_DIR) != 0 ||
          std::freopen((folder / "out").c_str(), "w", stdout) == nullptr || ::dup2(1, 2) < 0)
        ::_exit(99);
      ::execl(MESHWRIGHT_BUILD_DIR "/bin/meshwright", "meshwright", "train",
              "configs/first_fsdp2_cpu.toml", "--nproc", "2", "--set", out.c_str(), "--set",
              "step_scheduler.max_steps=1000000", "--set", "checkpoint.every_steps=0", nullptr);
      ::_exit(98);
    }
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;
  ~Training() {
    end();
    fs::remove_all(folder);
  }
  fs::path run() const { return folder / "first"; }
  int end() {
    if (pid == 0) return 0;
    ::kill(pid, SIGTERM);
    int status = 0;
    ::waitpid(pid, &status, 0);
    pid = 0;
    return WEXITSTATUS(status);
  }
  bool wait_for(const auto& there) const {
    for (int i = 0; i < 1200; ++i) {
      if (there()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  }
};

}  // namespace

TEST_CASE("a run saves when it is asked to, by the verb or by a file, and once for each") {
  Training training;
  std::error_code failed;
  REQUIRE(training.wait_for(
      [&] { return fs::file_size(training.run() / "metrics.jsonl", failed) > 100 && !failed; }));
  const fs::path checkpoints = training.run() / "checkpoints";
  CHECK(!fs::exists(checkpoints / "latest"));
  const Ran asked = run("checkpoint now '" + training.run().string() + "' --wait 120", "2>&1");
  INFO(asked.out);
  CHECK(asked.status == 0);
  CHECK(asked.says("saved "));
  REQUIRE(fs::exists(checkpoints / "latest/meta.json"));
  CHECK(!fs::exists(training.run() / "checkpoint_now"));
  const fs::path first = fs::read_symlink(checkpoints / "latest");
  // Once: without another request no other checkpoint comes.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  CHECK(fs::read_symlink(checkpoints / "latest") == first);
  std::ofstream(training.run() / "checkpoint_now") << "";
  CHECK(training.wait_for([&] { return fs::read_symlink(checkpoints / "latest") != first; }));
  CHECK(contents(training.run() / "run.log").find("as it was asked to") != std::string::npos);
  const Ran late = run("checkpoint now '" + training.run().string() + "' --json");
  CHECK(late.status == 0);
  CHECK(late.says("\"checkpoint\": null"));
  CHECK(training.wait_for([&] { return !fs::exists(training.run() / "checkpoint_now"); }));
  CHECK(training.end() == 75);

  const Ran over = run("checkpoint now '" + training.run().string() + "'", "2>&1");
  CHECK(over.status == 2);
  CHECK(over.says("no run trains in"));
  CHECK(!fs::exists(training.run() / "checkpoint_now"));
  const Ran nowhere = run("checkpoint now no/such/run", "2>&1");
  CHECK(nowhere.status == 2);
}

}  // namespace checkpoint_now_test
