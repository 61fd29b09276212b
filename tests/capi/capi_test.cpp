// The C interface beside the program: the same plans, losses, checkpoints and texts, to the bit;
// and what leaves its library.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/contents.h"
#include "tests/fixtures/folder.h"
#include "tests/fixtures/free_port.h"

namespace {

namespace fs = std::filesystem;

struct Ran {
  int status = 0;
  std::string out;
};

const std::string kBin = MESHWRIGHT_BUILD_DIR "/bin/";

// A folder with job.toml in it: a model of bytes, on the bytes of a text.
struct Folder : TemporaryFolder {
  Folder() {
    std::ofstream text(path / "text");
    for (int i = 0; i < 4000; ++i) text << "static int number_" << i * 7919 % 1000 << ";\n";
    std::ofstream(path / "job.toml")
        << "schema = 1\n[run]\nname = \"job\"\ndir = \"" << (path / "runs").string()
        << "\"\nthreads = 1\n[model]\nconfig = \"configs/models/llama-tiny.json\"\n[dist_env]\n"
           "device = \"cpu\"\ntimeout_minutes = 0.5\n[distributed]\nstrategy = \"fsdp2\"\n"
           "[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = \"float32\"\n"
           "[step_scheduler]\nglobal_batch_size = 8\nlocal_batch_size = 2\nmax_steps = 6\n"
           "[optimizer]\nlr = 1e-3\n[lr_scheduler]\nlr_warmup_steps = 2\n"
           "[checkpoint]\nevery_steps = 4\n[dataset]\nkind = \"text\"\npath = \""
        << (path / "text").string()
        << "\"\nseq_len = 32\n[validation_dataset]\nkind = \"text\"\nevery_steps = 3\nnum_batches "
           "= "
           "2\npath = \""
        << (path / "text").string() << "\"\nseq_len = 32\n";
  }
  std::string job() const { return (path / "job.toml").string(); }
  fs::path run(const std::string& name) const { return path / "runs" / name; }

  // Both streams, of what went to standard output the first.
  Ran shell(const std::string& command) const {
    const std::string errors = (path / "errors").string();
    const std::string whole =
        "cd '" MESHWRIGHT_SOURCE_DIR
        "' && unset RANK WORLD_SIZE MESHWRIGHT_PLUGIN_PATH; export NO_COLOR=1 LC_ALL=C; { " +
        command + "; } 2>'" + errors + "' </dev/null";
    std::FILE* pipe = popen(whole.c_str(), "r");
    REQUIRE(pipe != nullptr);
    Ran ran;
    std::array<char, 4096> buffer;
    for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
      ran.out.append(buffer.data(), n);
    int raw = pclose(pipe);
    ran.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
    return ran;
  }
  std::string errors() const { return contents(path / "errors"); }

  Ran client(const std::string& arguments) const {
    return shell("timeout 120 " + kBin + "capi_client " + arguments);
  }
  // The same on two ranks, which end alike unless it is said how rank 1 ends; the status of rank 0,
  // and what each said in `rank_0` and `rank_1`.
  Ran two(const std::string& arguments, const std::string& more_of_one = "",
          std::optional<int> status_of_one = {}) const {
    const std::string port = std::to_string(free_port());
    auto rank = [&](int r) {
      return "RANK=" + std::to_string(r) + " WORLD_SIZE=2 LOCAL_RANK=" + std::to_string(r) +
             " MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port + " timeout 120 " + kBin +
             "capi_client " + arguments + (r == 1 ? " " + more_of_one : "") + " >'" +
             (path / ("rank_" + std::to_string(r))).string() + "'";
    };
    Ran ran = shell(rank(1) + " & " + rank(0) + "; s=$?; wait $!; echo $?; exit $s");
    REQUIRE(ran.out == std::to_string(status_of_one.value_or(ran.status)) + "\n");
    ran.out = contents(path / "rank_0");
    return ran;
  }
  Ran program(const std::string& arguments) const {
    return shell("timeout 120 " + kBin + "meshwright " + arguments);
  }
};

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

// metrics.jsonl without what depends on the clock and on the process.
std::vector<std::string> numbers(const fs::path& run) {
  std::vector<std::string> out = lines_of(contents(run / "metrics.jsonl"));
  const std::regex own(
      R"re(, "(step_ms|tokens_per_second(_per_rank)?|memory_bytes|data_ms|mfu|exposed_comm_ms|slowest_rank|slowest_ms|rank_work_ms(_least|_most)?)": ([0-9.e+]+|null))re");
  for (std::string& line : out) line = std::regex_replace(line, own, "");
  return out;
}

// A number as metrics.jsonl has it.
std::string as_written(const std::string& number) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", std::stod(number));
  return text;
}

// The tensors of a checkpoint are the same bytes.
void same_tensors(const fs::path& a, const fs::path& b, int step) {
  char name[40];
  std::snprintf(name, sizeof name, "checkpoints/step_%08d", step);
  int files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(a / name)) {
    const std::string file = entry.path().filename().string();
    if (entry.path().extension() != ".safetensors") continue;
    CHECK_MESSAGE(contents(entry.path()) == contents(b / name / file), file);
    ++files;
  }
  CHECK(files >= 2);
}

// What a client's lines "id text" add up to: the ids, and the text, which may hold line breaks. The
// last line may be "-1 text", of bytes that were held back.
struct Written {
  std::string ids, text;
};
Written written(const std::string& out) {
  Written all;
  const std::regex token("(^|\n)(-?[0-9]+) ");
  size_t begin = std::string::npos;
  for (std::sregex_iterator it(out.begin(), out.end(), token), end; it != end; ++it) {
    const auto at = static_cast<size_t>(it->position(0));
    if (begin != std::string::npos) all.text += out.substr(begin, at - begin);
    begin = at + it->str().size();
    if ((*it)[2] != "-1") all.ids += (all.ids.empty() ? "" : ",") + (*it)[2].str();
  }
  if (begin < out.size()) all.text += out.substr(begin, out.size() - 1 - begin);
  return all;
}

const std::string kName = " --set run.name=";

}  // namespace

TEST_CASE("a run from C is a run of the program, to the bit, on one rank and on two") {
  Folder folder;
  for (int ranks : {1, 2}) {
    CAPTURE(ranks);
    const std::string n = std::to_string(ranks), theirs = "program" + n, ours = "c" + n;
    REQUIRE(folder.program("train " + folder.job() + kName + theirs + " --nproc " + n).status == 0);
    const std::string arguments = "train " + folder.job() + " -1 -1 none run.name=" + ours;
    const Ran ran = ranks == 1 ? folder.client(arguments) : folder.two(arguments);
    REQUIRE_MESSAGE(ran.status == 0, folder.errors());
    CHECK(numbers(folder.run(ours)) == numbers(folder.run(theirs)));
    CHECK(numbers(folder.run(ours)).size() == 8);  // six steps, validated twice
    same_tensors(folder.run(ours), folder.run(theirs), 6);
    CHECK(ran.out.find("steps 6 of 6, validation ") != std::string::npos);
    CHECK(ran.out.find("ranks " + n + "\n") != std::string::npos);
    CHECK(ran.out.find("folder " + folder.run(ours).string() + "\n") != std::string::npos);
    // What a step's callback hears is what metrics.jsonl has, and evaluate() gives what training
    // found at its end.
    const std::vector<std::string> heard = lines_of(ran.out);
    const std::vector<std::string> rows = numbers(folder.run(ours));
    const std::regex row(
        R"re(.*"loss": (\S+), "grad_norm": (\S+), "lr": (\S+), "tokens": (\d+).*)re");
    size_t step = 0;
    std::string validation;
    for (const std::string& line : rows) {
      std::smatch told;
      if (!std::regex_match(line, told, row)) {
        validation = line.substr(line.rfind(' ') + 1);
        continue;
      }
      std::smatch said;
      const std::regex callback(R"(step (\d+) loss (\S+) norm (\S+) lr (\S+) tokens (\d+))");
      REQUIRE(std::regex_match(heard[step], said, callback));
      CHECK(std::stoul(said[1]) == step);
      for (size_t i = 1; i <= 4; ++i) CHECK(as_written(said[i + 1]) == told[i].str());
      ++step;
    }
    CHECK(step == 6);
    const size_t at = ran.out.find("validation ") + 11;
    CHECK(as_written(ran.out.substr(at)) + "}" == validation);
    // The program's lines, none of which it prints by itself.
    CHECK(folder.errors().find("said: done: 6 steps in ") != std::string::npos);
    for (const std::string& line : lines_of(folder.errors()))
      CHECK_MESSAGE(line.starts_with("said: "), line);
  }
}

TEST_CASE("a callback stops and saves on all ranks, whichever asks; what follows is the same run") {
  Folder folder;
  REQUIRE(folder.program("train " + folder.job() + kName + "whole --nproc 2").status == 0);
  const std::vector<std::string> whole = numbers(folder.run("whole"));

  // Rank 1 stops after step number 2 without a save; a checkpoint of it is nowhere.
  REQUIRE_MESSAGE(folder.two("train " + folder.job() + " 1 2 stop run.name=stopped").status == 0,
                  folder.errors());
  CHECK(numbers(folder.run("stopped")).size() == 4);
  CHECK(!fs::exists(folder.run("stopped") / "checkpoints" / "step_00000003"));
  // It stops, saves, and is continued by the program.
  REQUIRE(folder.two("train " + folder.job() + " 1 2 stop_and_save run.name=saved").status == 0);
  CHECK(fs::exists(folder.run("saved") / "checkpoints" / "step_00000003" / "meta.json"));
  REQUIRE(folder.program("train " + folder.job() + kName + "saved --nproc 2").status == 0);
  CHECK(numbers(folder.run("saved")) == whole);
  same_tensors(folder.run("saved"), folder.run("whole"), 6);
  // It stops and goes on in the same process.
  const Ran again = folder.two("train " + folder.job() + " 0 2 again run.name=again");
  REQUIRE(again.status == 0);
  CHECK(again.out.find("stopped after 3\n") != std::string::npos);
  CHECK(numbers(folder.run("again")) == whole);
  // The program is stopped by a step count that C then raises, and C continues what it saved.
  REQUIRE(folder.client("save " + folder.job() + " run.name=early").status == 0);
  REQUIRE(fs::exists(folder.run("early") / "checkpoints" / "step_00000002" / "meta.json"));
  REQUIRE(folder.two("train " + folder.job() + " -1 -1 none run.name=early").status == 0);
  CHECK(folder.errors().find("continues after step 2") != std::string::npos);
  CHECK(numbers(folder.run("early")).size() == whole.size());
}

TEST_CASE("a save that a callback asks for does not stop") {
  Folder folder;
  REQUIRE(folder.client("train " + folder.job() + " -1 1 save").status == 0);
  CHECK(numbers(folder.run("job")).size() == 8);
  CHECK(folder.errors().find("done: 6 steps") != std::string::npos);
  CHECK(contents(folder.run("job") / "run.log").find("step_00000002") != std::string::npos);
  // All of its steps are done; it can still be asked.
  const Ran ran = folder.client("train " + folder.job() + " -1 -1 none");
  REQUIRE_MESSAGE(ran.status == 0, folder.errors());
  CHECK(ran.out.starts_with("steps 6 of 6, validation "));
}

TEST_CASE(
    "a process whose numbers have a comma writes the files and plans of one that has a point") {
  Folder folder;
  if (folder.shell("localedef -i de_DE -f UTF-8 '" + (folder.path / "de_DE.UTF-8").string() + "'")
          .status != 0) {
    MESSAGE("not tried: localedef and the sources of locales are not here");
    return;
  }
  const std::string comma = "LOCPATH='" + folder.path.string() +
                            "' LC_ALL=de_DE.UTF-8 timeout 120 " + kBin + "capi_client ";
  const std::string settings = " checkpoint.keep=1 report.csv=true";
  const Ran ours =
      folder.shell(comma + "train " + folder.job() + " -1 -1 none run.name=comma" + settings);
  REQUIRE_MESSAGE(ours.status == 0, folder.errors());
  REQUIRE_MESSAGE(ours.out.find("loss 5,") != std::string::npos, ours.out);  // it has a comma
  REQUIRE(folder.client("train " + folder.job() + " -1 -1 none run.name=point" + settings).status ==
          0);
  const fs::path a = folder.run("comma"), b = folder.run("point");
  CHECK(numbers(a) == numbers(b));
  const std::vector<std::string> rows = lines_of(contents(a / "metrics.csv"));
  REQUIRE(rows.size() > 6);
  for (const std::string& row : rows)
    CHECK(std::ranges::count(row, ',') == std::ranges::count(rows[0], ','));
  CHECK(folder.program("checkpoint verify " + (a / "checkpoints/latest").string()).status == 0);
  CHECK(folder
            .program("train " + folder.job() +
                     " --set run.name=comma --set step_scheduler.max_steps=7")
            .status == 0);
  CHECK(folder.shell(comma + "plan " + folder.job() + " 4 3").out ==
        folder.client("plan " + folder.job() + " 4 3").out);
}

TEST_CASE("a plan is that of plan --json, byte for byte") {
  Folder folder;
  for (const char* key : {"distributed.strategy=fsdp2", "distributed.strategy=ddp",
                          "distributed.tp_size=2", "dataset.path=/no/such"}) {
    const Ran program =
        folder.program("plan " + folder.job() + " --world-size 4 --rank 3 --json --set " + key);
    const Ran client = folder.client("plan " + folder.job() + " 4 3 " + key);
    CHECK(program.status == 0);
    CHECK(client.status == 0);
    CHECK(client.out == program.out);
  }
  CHECK(
      folder.shell("WORLD_SIZE=4 " + kBin + "capi_client plan " + folder.job() + " 0 1").out ==
      folder.shell("WORLD_SIZE=4 " + kBin + "meshwright plan " + folder.job() + " --rank 1 --json")
          .out);
  const Ran bad = folder.client("plan " + folder.job() + " 4 0 distributed.tp_size=3");
  CHECK(bad.status == 3);
  const std::string said = folder.errors();
  CHECK(folder.program("plan " + folder.job() + " --world-size 4 --set distributed.tp_size=3")
            .status == 3);
  CHECK(said == folder.errors());
}

TEST_CASE("texts are those of generate: of a folder, of a checkpoint, and of a run as it trains") {
  Folder folder;
  const Ran trained = folder.client("train " + folder.job() + " -1 -1 none");
  REQUIRE_MESSAGE(trained.status == 0, folder.errors());
  const std::string live =
      trained.out.substr(trained.out.find('\n', trained.out.find("folder ")) + 1);

  auto compare = [&](const std::string& where, const std::string& prompt, int most, double heat) {
    const bool text = !prompt.empty() && !std::isdigit(prompt[0]);
    const std::string numbers = std::to_string(most) + " " + std::to_string(heat);
    const Ran ours = folder.client(
        "generate " + where + (text ? " '" + prompt + "' 0 " : " - " + prompt + " ") + numbers);
    REQUIRE_MESSAGE(ours.status == 0, folder.errors());
    CHECK(folder.errors().empty());
    const std::string flags =
        where + (text ? " --prompt '" + prompt + "'" : " --tokens " + prompt) + " --max-new " +
        std::to_string(most) + " --temperature " + std::to_string(heat);
    const Ran theirs = folder.program("generate " + flags + " --json");
    REQUIRE(theirs.status == 0);
    std::string json = std::regex_replace(theirs.out, std::regex(R"(\s)"), "");
    const Written all = written(ours.out);
    CHECK(json.find("\"new_ids\":[" + all.ids + "]") != std::string::npos);
    if (text) {
      std::string printed = folder.program("generate " + flags).out;
      CHECK(printed == prompt + all.text + "\n");
    }
    return all;
  };
  const std::string run = folder.run("job").string();
  compare(run, "static", 40, 0);
  const Written checkpoint = compare(run, "static int ", 24, 0.7);
  CHECK(written(live).ids == checkpoint.ids);
  CHECK(written(live).text == checkpoint.text);
  compare("tests/data/nets/qwen3", "1,2,3", 12, 0.9);
}

TEST_CASE("every refusal has a status, a code and a text, and leaves the caller its process") {
  Folder folder;
  const Ran ran = folder.shell("timeout 300 " + kBin + "capi_refusals " + folder.path.string());
  CHECK_MESSAGE(ran.status == 0, folder.errors());
  CHECK(ran.out.empty());
  CHECK(folder.errors().empty());
}

TEST_CASE("what one rank refuses or loses, both are told of, and both processes go on") {
  Folder folder;
  // Only rank 1 has no model: its error is that of rank 0, too.
  CHECK(folder.two("train " + folder.job() + " -1 -1 none", "model.config=/no/such").status == 2);
  CHECK(folder.errors().find("on rank 1") != std::string::npos);
  CHECK(folder.two("train " + folder.job() + " -1 -1 none", "optimizer.lr=0.5").status == 4);
  CHECK(folder.errors().find("optimizer.lr") != std::string::npos);
  CHECK(folder
            .two("train " + folder.job() +
                 " -1 -1 none optimizer.lr=1e30 "
                 "optimizer.max_grad_norm=1e30")
            .status == 5);
}

TEST_CASE("a rank that dies is an error of the other, whose process ends as it likes") {
  Folder folder;
  for (const char* strategy : {"fsdp2", "ddp"}) {
    const Ran ran =
        folder.two("train " + folder.job() + " 1 2 die distributed.strategy=" + strategy +
                       " run.name=" + strategy,
                   "", 128 + SIGTERM);
    CHECK(ran.status == 6);
    CHECK(folder.errors().find("rank 1") != std::string::npos);
    CHECK(contents(folder.run(strategy) / "run.log").find("rank 1") != std::string::npos);
  }
}

TEST_CASE("a run whose folder another host takes over ends by an error, not with the process") {
  Folder folder;
  const std::string lock = (folder.run("job") / "lock").string();
  const Ran ran = folder.shell(
      "timeout 60 " + kBin + "capi_client train " + folder.job() +
      " -1 -1 none step_scheduler.max_steps=1000000 checkpoint.every_steps=0 >/dev/null & "
      "while ! grep -q . " +
      lock + "; do sleep 0.1; done; sed -i \"s/$(uname -n)/faraway/\" " + lock + "; wait $!");
  CHECK(ran.status == 7);
  const std::string errors = folder.errors();
  CHECK_MESSAGE(errors.find("error[E0707]") != std::string::npos, errors);
  CHECK(errors.find("took the folder over") != std::string::npos);
}

TEST_CASE("the library exports what meshwright.h declares, all of version 1.0, and nothing else") {
  const std::string header =
      contents(MESHWRIGHT_SOURCE_DIR "/apps/capi/include/meshwright/meshwright.h");
  std::set<std::string> declared, exported;
  const std::regex declaration(R"(MESHWRIGHT_C_API [^;(]*?(meshwright_\w+)\()");
  for (std::sregex_iterator it(header.begin(), header.end(), declaration), end; it != end; ++it)
    declared.insert((*it)[1]);
  CHECK(declared.size() == 26);
  Folder folder;
  const Ran ran =
      folder.shell("nm -D --defined-only " MESHWRIGHT_BUILD_DIR "/lib/libmeshwright_c.so");
  for (const std::string& line : lines_of(ran.out)) {
    const std::string name = line.substr(line.rfind(' ') + 1);
    if (name.starts_with("MESHWRIGHT_1.0")) continue;  // the version itself
    REQUIRE_MESSAGE(name.ends_with("@@MESHWRIGHT_1.0"), line);
    exported.insert(name.substr(0, name.find('@')));
  }
  CHECK(exported == declared);
}

TEST_CASE("planning from C needs no LibTorch") {
  Folder folder;
  const Ran ran = folder.shell("ldd " MESHWRIGHT_BUILD_DIR "/lib/libmeshwright_c.so");
  CHECK(ran.out.find("libmeshwright_sdk") != std::string::npos);
  CHECK(ran.out.find("libtorch") == std::string::npos);
  CHECK(ran.out.find("not found") == std::string::npos);
}
