// meshwright doctor, as a user runs it: alone, with ranks, under a launcher's variables, and on
// what is wrong.
#include <unistd.h>

#include <chrono>
#include <set>

#include "ran.h"

namespace doctor_test {

namespace {

json::object doctor(const std::string& arguments, int status,
                    const std::string& environment = "OMP_NUM_THREADS=1") {
  const Ran ran = run("doctor --json " + arguments, "2>/dev/null", environment);
  INFO(ran.out);
  REQUIRE(ran.status == status);
  json::object out = json::parse(ran.out).as_object();
  CHECK(out.at("exit").to_number<int>() == status);
  return out;
}

json::object finding(const json::object& all, const char* topic) {
  for (const json::value& one : all.at("findings").as_array())
    if (one.at("topic") == topic) return one.as_object();
  FAIL("no finding of ", topic);
  return {};
}

}  // namespace

TEST_CASE("one rank: every topic has its line, nothing is measured, and nothing stays behind") {
  const Folder folder;
  const json::object all = doctor("--run-folder " + folder.quoted(""), 0);
  std::set<std::string> topics;
  for (const json::value& one : all.at("findings").as_array())
    topics.insert(std::string(one.at("topic").as_string()));
  for (const char* topic : {"versions", "cores", "memory", "/dev/shm", "open files", "run folder",
                            "host name", "interface", "ports", "clocks", "devices", "NCCL"}) {
    CAPTURE(topic);
    CHECK(topics.contains(topic));
  }
  CHECK(all.at("links").as_array().empty());
  CHECK(all.at("collectives").as_array().empty());
  CHECK(fs::is_empty(folder.path));
  const Ran table = run("doctor --run-folder " + folder.quoted(""));
  CHECK(table.status == 0);
  CHECK(table.says("LibTorch"));
  CHECK(table.says("0 faults"));
}

TEST_CASE("two ranks: the link between them and each collective, without a file and on its axes") {
  const auto begin = std::chrono::steady_clock::now();
  json::object all = doctor("--nproc 2", 0);
  CHECK(all.at("world_size").to_number<int>() == 2);
  REQUIRE(all.at("links").as_array().size() == 1);
  CHECK(all.at("slowest_link").at("bytes_per_second").to_number<double>() > 0);
  // A machine that is too busy leaves out the last ones, and says so.
  REQUIRE(!all.at("collectives").as_array().empty());
  CHECK(all.at("unmeasured").is_null() == (all.at("collectives").as_array().size() == 5));
  for (const json::value& one : all.at("collectives").as_array()) {
    CHECK(one.at("axis") == "dp");
    CHECK(one.at("seconds").to_number<double>() > 0);
    CHECK(one.at("bytes").to_number<int64_t>() > 0);
  }
  all = doctor("configs/first_fsdp2_cpu.toml --set distributed.tp_size=2 --nproc 2", 0);
  CHECK(all.at("collectives").at(0).at("axis") == "tp");
  CHECK(finding(all, "memory").at("text").as_string().find("by the plan") != std::string::npos);
  // For both, on a machine that is busy with other things.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(120));
}

TEST_CASE("ranks of a launcher end alike, each with the status of the fault") {
  const Folder folder;
  folder.put("file", "x");
  const std::string variables =
      "WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(20000 + ::getpid() % 9000);
  const std::string arguments = "doctor --run-folder " + folder.quoted("file");
  const Ran both =
      run(arguments,
          "2>/dev/null & one=$!; env RANK=1 LOCAL_RANK=1 " + variables + " OMP_NUM_THREADS=1 '" +
              MESHWRIGHT_BUILD_DIR "/bin/meshwright' " + arguments +
              " > /dev/null 2>&1; echo \"rank 1: $?\"; wait $one; echo \"rank 0: $?\"; true",
          "RANK=0 LOCAL_RANK=0 OMP_NUM_THREADS=1 " + variables);
  INFO(both.out);
  CHECK(both.says("rank 1: 7"));
  CHECK(both.says("rank 0: 7"));
  CHECK(both.says("is not a folder [E0705]"));
}

TEST_CASE("a run folder that cannot be written to is a fault, of local ranks too") {
  const Folder folder;
  folder.put("file", "x");
  const std::string arguments = "--run-folder " + folder.quoted("file");
  const json::object one = finding(doctor(arguments, 7), "run folder");
  CHECK(one.at("level") == "fault");
  CHECK(one.at("code") == "E0705");
  CHECK(one.at("fix").as_string().find("--run-folder") != std::string::npos);
  CHECK(finding(doctor(arguments + " --nproc 2", 7), "run folder").at("level") == "fault");
  // The table says it; nobody calls it a rank that failed.
  const Ran said = run("doctor --nproc 2 " + arguments, "2>&1 >/dev/null", "OMP_NUM_THREADS=1");
  CHECK(said.status == 7);
  CHECK(said.out == "");
}

TEST_CASE("ranks that do not meet: what is known is printed, with the reason and its status") {
  const std::string variables =
      "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 OMP_NUM_THREADS=1 MASTER_PORT=" +
      std::to_string(30000 + ::getpid() % 2000);
  const json::object all =
      doctor("configs/first_fsdp2_cpu.toml --set dist_env.timeout_minutes=0.02", 4, variables);
  CHECK(finding(all, "ranks").at("code") == "E0502");
  CHECK(finding(all, "ranks").at("text").as_string().find("no rank 1") != std::string::npos);
  CHECK(finding(all, "run folder").at("text").is_string());
  CHECK(finding(all, "interface").at("text").as_string().find("n/a") != std::string::npos);
}

TEST_CASE("what is wrong on the command line or in the file is refused before anything starts") {
  check_said("doctor ", {{"--nproc 0", 2, "E0101"},
                         {"--world-size 2", 2, "no flag"},
                         {"nowhere.toml", 2, "E0209"},
                         {"a b", 2, "has no use for"},
                         {"--run-folder=", 2, "E0101"},
                         {"configs/first_fsdp2_cpu.toml --set distributed.tp_size=3", 3, "E0301"}});
}

}  // namespace doctor_test
