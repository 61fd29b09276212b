// quickstart as a newcomer meets it: in an empty folder, with a text of the program's or of one's
// own.
#include "ran.h"

namespace quickstart_test {

// The program in that folder.
Ran start(const fs::path& folder, const std::string& arguments,
          const std::string& environment = "") {
  return shell("cd " + quoted(folder) +
               " && env -u WORLD_SIZE -u RANK NO_COLOR=1 COLUMNS=400 OMP_NUM_THREADS=1 " +
               environment + " '" MESHWRIGHT_BUILD_DIR "/bin/meshwright' " + arguments +
               " 2>&1 </dev/null");
}

TEST_CASE("quickstart trains, and each command that it tells to try works as it stands there") {
  const Folder folder;
  const Ran ran = start(folder.path, "quickstart --steps 10 --nproc 2");
  INFO(ran.out);
  REQUIRE(ran.status == 0);
  for (const char* part : {"fsdp2 on 2 ranks", "step 10/10  loss", "a sample", "at the first step",
                           "that it has not seen", "The guide is /"})
    CHECK_MESSAGE(ran.says(part), part);
  const fs::path made = folder.path / "quickstart";
  for (const char* name : {"job.toml", "model.json", "text.txt", "held_out.txt",
                           "run/metrics.jsonl", "run/sample.txt", "run/checkpoints"})
    CHECK_MESSAGE(fs::exists(made / name), name);
  CHECK(fs::file_size(made / "held_out.txt") * 8 < fs::file_size(made / "text.txt"));

  int tried = 0;
  const std::string program = "  " MESHWRIGHT_BUILD_DIR "/bin/meshwright ";
  for (size_t at = 0; (at = ran.out.find(program, at)) != std::string::npos; ++tried) {
    at += program.size();
    const std::string command = ran.out.substr(at, ran.out.find('\n', at) - at);
    const Ran next = start(folder.path, command);
    CHECK_MESSAGE(next.status == 0, command, "\n", next.out);
    if (command.find("max_steps=20") != std::string::npos) CHECK(next.says("step 11/20"));
    CHECK_MESSAGE(!next.says("warning"), command, "\n", next.out);
  }
  CHECK(tried == 5);
  CHECK(fs::exists(made / "report.html"));
}

TEST_CASE("quickstart reads a folder of texts, and leaves what is there alone") {
  const Folder folder;
  folder.put("notes/a.txt", std::string(3000, 'a') + "\n");
  folder.put("notes/deep/b.txt", std::string(3000, 'b') + "\n");
  folder.put("notes/.git/c", std::string(3000, 'c'));
  folder.put("notes/a_picture",
             std::string(size_t{5} << 20, '\0'));  // larger than all that is taken
  folder.put("quickstart/mine", "kept");
  const Ran ran = start(folder.path, "quickstart notes/ --steps 10 --nproc 3");
  INFO(ran.out);
  REQUIRE(ran.status == 0);
  CHECK(fs::exists(folder.path / "quickstart/mine"));
  std::string read;
  for (const char* name : {"text.txt", "held_out.txt"}) {
    std::ifstream in(folder.path / "quickstart_2" / name);
    read.append(std::istreambuf_iterator<char>(in), {});
  }
  CHECK(read == std::string(3000, 'a') + "\n" + std::string(3000, 'b') + "\n");
}

TEST_CASE("two quickstarts that start at once take a folder each") {
  const Folder folder;
  const std::string one =
      "'" MESHWRIGHT_BUILD_DIR "/bin/meshwright' quickstart --steps 10 --nproc 1";
  const Ran ran = shell("cd " + quoted(folder.path) + " && export OMP_NUM_THREADS=1 && (" + one +
                        " & first=$!; " + one + " && wait $first) 2>&1 </dev/null");
  INFO(ran.out);
  CHECK(ran.status == 0);
  for (const char* made : {"quickstart", "quickstart_2"})
    CHECK(fs::exists(folder.path / made / "run/metrics.jsonl"));
}

TEST_CASE("what quickstart cannot train is refused, and nothing is left") {
  const Folder folder;
  folder.put("empty", "");
  folder.put("small", "a few words");
  folder.put("binary", std::string(9000, '\0'));
  fs::create_directory(folder.path / "nothing");
  struct Row {
    const char* arguments;
    int status;
    const char *part, *environment = "";
  };
  for (const Row& row : {Row{"nowhere.txt", 7, "nowhere.txt"},
                         {"empty", 7, "empty"},
                         {"small", 7, "11 bytes of text"},
                         {"binary", 7, "is no text"},
                         {"nothing", 7, "nothing"},
                         {"", 2, "a launcher started it",
                          "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29999"},
                         {"--nproc 1025", 2, "a host has 1 to"},
                         {"--steps none", 2, "--steps wants"}}) {
    const Ran ran = start(folder.path, std::string("quickstart ") + row.arguments, row.environment);
    INFO(row.arguments, "\n", ran.out);
    CHECK(ran.status == row.status);
    CHECK(ran.says(row.part));
    CHECK(ran.says("help: "));
    int left = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder.path))
      left += entry.path().filename().string().find("quickstart") != std::string::npos;
    CHECK(left == 0);
  }
  const Ran refused = start("/proc", "quickstart");
  CHECK(refused.status == 7);
  CHECK(refused.says("help: start it in a folder that you may write to"));
}

}  // namespace quickstart_test
