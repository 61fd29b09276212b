// Numbers that are not finite, files that are damaged, and places that cannot be written to.
#include <doctest/doctest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstring>
#include <fstream>
#include <functional>

#include "program.h"
#include "sdk/comm/tests/sampled.h"

using namespace faults;
namespace fs = std::filesystem;
namespace json = boost::json;

namespace {

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A safetensors file as its header and its data.
struct Parts {
  json::object header;
  std::string data;
  explicit Parts(const std::string& file) {
    uint64_t length = 0;
    std::memcpy(&length, file.data(), 8);
    header = json::parse(file.substr(8, length)).as_object();
    data = file.substr(8 + length);
  }
  std::string file() const {
    std::string text = json::serialize(header);
    uint64_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + text + data;
  }
  json::object& operator[](const char* tensor) { return header.at(tensor).as_object(); }
};

const char* const kNorm = "model.norm.weight";

void check_refused(const Ended& ended, int code, const std::string& error,
                   const std::string& words) {
  CAPTURE(ended.err);
  check_ended(ended, code, {"error[" + error + "]: ", words, "help: "});
  CHECK(ended.seconds < 30);
}

}  // namespace

TEST_CASE(
    "weights that are not finite end the run before the first update: the tensor is named, exit "
    "status 5" *
    doctest::test_suite("whole")) {
  Program program;
  fs::path model = program.copy_model() / "model.safetensors";
  Parts parts(read_file(model));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(parts.data.data() + parts[kNorm].at("data_offsets").as_array()[0].as_int64(), &nan,
              4);
  write_file(model, parts.file());
  Words sets = {"model.pretrained=" + model.parent_path().string()};
  Ended ended = program.run(job_words(2, sets));
  check_refused(ended, 5, "E0801",
                "step 0: the loss is nan (loss nan, gradient norm nan, lr 0.001)");
  CHECK(ended.says("note: the weight model.norm.weight already holds values that are not finite"));
  CHECK(ended.says(
      "help: the weights were so before the first step: look at the files of model.pretrained"));
  CHECK(read_file(program.run_folder() / "metrics.jsonl").empty());
  // Who asks for it may go on.
  sets.insert(sets.end(), {"run.stop_on_nonfinite=false", "step_scheduler.max_steps=2"});
  CHECK(program.run(job_words(2, sets)).code == 0);
  CHECK(read_file(program.run_folder() / "metrics.jsonl")
            .find("{\"step\": 1, \"completed_steps\": 2, \"loss\": null, \"grad_norm\": null") !=
        std::string::npos);
}

TEST_CASE(
    "an absurd learning rate ends the run at the step whose loss is not finite, exit status 5") {
  Program program;
  Ended ended = program.run(job_words(2, {"optimizer.lr=1e30"}));
  check_refused(ended, 5, "E0801", "step 1: the ");
  CHECK(ended.says(" lr 1e+30); the optimizer has not used it"));
  CHECK(ended.says("help: lower optimizer.lr"));
  std::string rows = read_file(program.run_folder() / "metrics.jsonl");
  CHECK(std::count(rows.begin(), rows.end(), '\n') == 1);
}

// Every kind of damage: engine/checkpoint/weights/tests/safetensors_test.cpp.
TEST_CASE("damaged safetensors: the place is named, nothing is trained, exit status 7") {
  struct Row {
    const char *error, *words;
    std::function<std::string(Parts parts, const std::string& whole)> damage;
  };
  auto set = [](const char* tensor, const char* key, const char* value) {
    return [=](Parts parts, const std::string&) {
      parts[tensor][key] = json::parse(value);
      return parts.file();
    };
  };
  const std::vector<Row> rows = {
      {"E0703", "is empty", [](const Parts&, const std::string&) { return std::string(); }},
      {"E0703", "byte 0: the file ends within the length of its header",
       [](const Parts&, const std::string& whole) { return whole.substr(0, 5); }},
      {"E0703", "byte 0: the header claims ",
       [](const Parts&, const std::string& whole) { return whole.substr(0, 500); }},
      {"E0703", "lies at [",
       [](const Parts&, const std::string& whole) { return whole.substr(0, whole.size() / 2); }},
      {"E0704", "has no tensor \"model.norm.weight\", which the model of its config.json needs",
       [](Parts parts, const std::string&) {
         json::value about = parts.header.at(kNorm);
         parts.header.erase(kNorm);
         parts.header["model.other.weight"] = about;
         return parts.file();
       }},
      {"E0704", "\"model.norm.weight\" has the shape [9, 4], the model of config.json [36]",
       set(kNorm, "shape", "[9, 4]")},
      {"E0704", "\"model.norm.weight\" is int32, wanted is a floating-point dtype",
       set(kNorm, "dtype", "\"I32\"")},
  };
  Program program;
  fs::path model = program.copy_model() / "model.safetensors";
  std::string whole = read_file(model);
  for (const Row& row : rows) {
    INFO(std::string(row.words));
    write_file(model, row.damage(Parts(whole), whole));
    Ended ended = program.run(job_words(2, {"model.pretrained=" + model.parent_path().string()}));
    check_refused(ended, 7, row.error, row.words);
    CHECK(!fs::exists(program.run_folder() / "metrics.jsonl"));
  }
}

// Every kind of damage: engine/data/tests/damage_test.cpp.
TEST_CASE("damaged token files: file and offset are named, nothing is trained, exit status 7") {
  struct Row {
    const char *kind, *dtype, *error, *words;
    std::function<void(const fs::path& bin)> damage;
  };
  auto index = [](const fs::path& bin, const std::string& bytes) {
    write_file(fs::path(bin).replace_extension(".idx"), bytes);
  };
  const std::vector<Row> rows = {
      {"tokens", "uint16", "E0701", "20 tokens",
       [](const fs::path& bin) { fs::resize_file(bin, 40); }},
      {"tokens", "auto", "E0701", "dtype", [](const fs::path&) {}},
      {"tokens", "uint32", "E0702", ".bin: the token at byte ",
       [](const fs::path& bin) { fs::resize_file(bin, 40000); }},
      {"megatron", "auto", "E0701", "train.idx",
       [&](const fs::path& bin) { index(bin, "MMIDIDX"); }},
  };
  for (const Row& row : rows) {
    INFO(std::string(row.words));
    Program program;
    fs::path bin = program.copy_tokens();
    row.damage(bin);
    std::string path = bin.string();
    if (std::strcmp(row.kind, "megatron") == 0) path.resize(path.size() - 4);
    Ended ended = program.run(
        job_words(2, {std::string("dataset.kind=") + row.kind,
                      std::string("dataset.dtype=") + row.dtype, "dataset.path=" + path}));
    check_refused(ended, 7, row.error, row.words);
  }
}

TEST_CASE("a run folder that cannot be made or written to: path and reason, exit status 7") {
  for (bool alone : {false, true}) {
    CAPTURE(alone);
    Program program;
    const Words arguments = job_words(alone ? 0 : 2);
    auto with = [&](const std::string& set) { return job_words(alone ? 0 : 2, {set}); };
    check_refused(program.run(with("run.dir=/proc/nowhere")), 7, "E0705", "/proc/nowhere");
    write_file(program.folder() / "file", "");
    check_refused(program.run(with("run.dir=" + (program.folder() / "file").string())), 7, "E0705",
                  "Not a directory");
    fs::create_directories(program.run_folder() / "metrics.jsonl");
    check_refused(program.run(arguments), 7, "E0705", "metrics.jsonl: Is a directory");
    fs::remove_all(program.run_folder());
    for (const char* file : {"metrics.jsonl", "run.log"}) {
      fs::create_directories(program.run_folder());
      fs::create_symlink("/dev/full", program.run_folder() / file);
      check_refused(program.run(arguments), 7, "E0705",
                    std::string("cannot write ") + (program.run_folder() / file).string() +
                        ": No space left on device (ENOSPC)\n");
      fs::remove_all(program.run_folder());
    }
    fs::create_directories(program.run_folder() / "plan.json");
    check_refused(program.run(arguments), 7, "E0705", "plan.json: Is a directory");
  }
}

TEST_CASE("a full disk behind standard output costs the words there, not the training") {
  for (bool alone : {false, true}) {
    CAPTURE(alone);
    Program program;
    const Words arguments = job_words(alone ? 0 : 2, {"step_scheduler.max_steps=3"});
    program.start(arguments, {}, "/dev/full");
    Ended ended = program.wait();
    CAPTURE(ended.err);
    check_ended(ended, 0, {"warning: cannot write to standard output: No space left on device"});
    std::string rows = read_file(program.run_folder() / "metrics.jsonl");
    CHECK(std::count(rows.begin(), rows.end(), '\n') == 3);
    CHECK(read_file(program.run_folder() / "run.log").find("done: 3 steps") != std::string::npos);
  }
}

TEST_CASE("standard streams that are closed: the run is the same, alone and with local ranks") {
  size_t number = 0;  // half: each alone or with ranks, in turns
  for (const char* closed : {">&-", "2>&-", "<&-", "<&- >&- 2>&-"}) {
    size_t turn = number++;
    for (const char* ranks : {"1", "2"}) {
      if (!meshwright::sampled(turn++, 2)) continue;
      CAPTURE(closed);
      CAPTURE(ranks);
      Program program;
      program.launcher({"sh", "-c", std::string("exec \"$@\" ") + closed, "sh"});
      Ended ended = program.run({"--nproc", ranks, "--set", "step_scheduler.max_steps=3"});
      CAPTURE(ended.err);
      CHECK(ended.code == 0);
      CHECK(fs::exists(program.run_folder() / "checkpoints/step_00000003"));
    }
  }
}

TEST_CASE("run.log knows of failures and restarts, and the logs of a run that failed stay") {
  Program program;
  for (int64_t ranks : {2, 0}) {
    const Words arguments = job_words(ranks, {"optimizer.lr=1e30", "step_scheduler.max_steps=50"});
    Ended ended = program.run(arguments);
    CHECK(ended.code == 5);
    std::string log = read_file(program.run_folder() / "run.log");
    CAPTURE(log);
    size_t at = log.rfind("error[E0801]: ");
    REQUIRE(at != std::string::npos);
    if (ranks > 1)
      CHECK(log.find(" failed first; the other is ended\n", at) != std::string::npos);
    else
      CHECK(log.find("rank 0 failed with exit status 5\n", at) != std::string::npos);
  }
  Ended ended = program.run({"--nproc", "2", "--set", "step_scheduler.max_steps=2"});
  CHECK(ended.code == 0);
  std::string kept = read_file(program.run_folder() / "rank_logs/rank_0.log");
  size_t failed = kept.find("error[E0801]"), again = kept.find(": another start ===");
  CHECK(failed != std::string::npos);
  CHECK(again > failed);
}
