// Facts that were made up, and what doctor makes of them.
#include <doctest/doctest.h>

#include "apps/doctor/finding.h"
#include "sdk/base/tests/scratch.h"

using namespace meshwright::doctor;
using meshwright::ErrorCode;
namespace fs = std::filesystem;

namespace {

using meshwright::scratch::has;

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;

}  // namespace

TEST_CASE("threads are held against the cores that a rank can have") {
  struct Row {
    Cores facts;
    Level level;
    const char *says, *fix;
  };
  for (const Row& row : {
           Row{{8, 8, {}, 4, 2}, Level::ok, "8 cores; 4 ranks here x 2 threads", ""},
           Row{{8, 8, {}, 4, 8}, Level::warning, "want 32 cores", "OMP_NUM_THREADS=2"},
           Row{{8, 2, {}, 2, 2}, Level::warning, "may use 2 (affinity)", "OMP_NUM_THREADS=1"},
           Row{{8, 8, 1.5, 1, 8},
               Level::warning,
               "the cgroup allows the time of 1.5",
               "OMP_NUM_THREADS=1"},
           Row{{2, 2, {}, 4, 1}, Level::warning, "more ranks than cores", "at most 2 ranks"},
           Row{{8, 8, {}, 1, 1}, Level::note, "leave 7 of 8 idle", "OMP_NUM_THREADS=8"},
       }) {
    CAPTURE(row.says);
    const Finding found = judge(row.facts);
    CAPTURE(found.text);
    CHECK(found.level == row.level);
    CHECK(has(found.text, row.says));
    CHECK(has(found.fix, row.fix));
    CHECK(found.fix.empty() == (row.level == Level::ok));
  }
}

TEST_CASE("cores and memory are those that the cgroup of the process allows") {
  const meshwright::scratch::Folder folder;
  const fs::path& root = folder.path;
  folder.put("proc/self/cgroup", "0::/a/b\n");
  folder.put("proc/meminfo", "MemTotal: 4096 kB\nMemAvailable: 2048 kB\n");
  folder.put("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  folder.put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  folder.put("sys/fs/cgroup/a/b/memory.max", "1048576\n");
  folder.put("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
  CHECK(look_at_cores(1, 1, root).quota == 1.5);
  const Memory memory = look_at_memory(1, nullptr, "no model", root);
  CHECK(memory.bytes == kMiB);
  CHECK(memory.available == kMiB);
  CHECK(has(judge(memory).text, "n/a: no model"));
  CHECK(look_at_ports(root).last == 60999);
  CHECK(look_at_ports(root / "nowhere").first == 0);
  CHECK(has(judge(look_at_ports(root / "nowhere")).text, "n/a"));
}

TEST_CASE("memory that a plan's ranks outgrow is a fault with its code") {
  Memory facts{4 * kGiB, "this machine has", 3 * kGiB, 2};
  facts.kept = kGiB;
  facts.peak = kGiB + kGiB / 4;
  CHECK(judge(facts).level == Level::ok);
  facts.peak = 2 * kGiB;
  CHECK(judge(facts).level == Level::warning);
  facts.local_ranks = 5;
  CHECK(judge(facts).level == Level::fault);
  CHECK(judge(facts).code == ErrorCode::memory_exceeded);
  CHECK(has(judge(Memory{}).text, "n/a"));
}

TEST_CASE("shared memory that is too small is told with the room that ranks want") {
  SharedMemory facts{"", 64 * kMiB, 60 * kMiB, false, 2};
  facts.no_need = "no model";
  CHECK(judge(facts).level == Level::warning);  // as containers have it
  CHECK(has(judge(facts).fix, "--shm-size"));
  facts.local_ranks = 1;
  CHECK(judge(facts).level == Level::ok);
  facts.local_ranks = 2;
  facts.need = shared_memory_need(32 * kMiB, 2);
  CHECK(facts.need == 6 * 32 * kMiB);
  CHECK(judge(facts).level == Level::warning);
  CHECK(has(judge(facts).text, "192.0 MiB"));
  facts.need = shared_memory_need(8 * kMiB, 2);
  CHECK(judge(facts).level == Level::ok);
  facts.off = true;
  CHECK(judge(facts).level == Level::note);
  facts.problem = "Permission denied";
  CHECK(judge(facts).level == Level::warning);
  CHECK(shared_memory_need(kMiB, 1) == 0);
}

TEST_CASE("groups over hosts want shared memory and open files of their own") {
  std::vector<int64_t> host(8, 0), all(8);
  for (size_t r = 0; r < 8; ++r) {
    host[r] = r < 4 ? 0 : 4;
    all[r] = static_cast<int64_t>(r);
  }
  const std::vector<HostedGroup> found =
      hosted_groups({all, {0, 1}, {0, 4}, {0, 2, 4, 6}, {0, 1, 4}}, host);
  REQUIRE(found.size() == 2);
  CHECK(found[0].hosts == 2);
  CHECK(found[0].each == 4);
  CHECK(found[1].each == 2);
  std::vector<int64_t> many(72), hosts_of_many(72);
  for (size_t r = 0; r < 72; ++r) {
    many[r] = static_cast<int64_t>(r);
    hosts_of_many[r] = static_cast<int64_t>(r / 8);
  }
  CHECK(hosted_groups({many}, hosts_of_many).empty());
  CHECK(hosted_groups_need({}, 4) == 0);
  CHECK(hosted_groups_need({{2, 4}}, 4) == 12 * kMiB);
  CHECK(hosted_groups_need({{4, 8}, {2, 2}}, 8) == (36 + 24) * kMiB);
  SharedMemory facts{"", 64 * kMiB, 60 * kMiB, false, 8};
  facts.no_need = "no model";
  facts.hosted = 36 * kMiB;
  CHECK(judge(facts).level == Level::ok);
  CHECK(has(judge(facts).text, "36.0 MiB of it for groups over hosts"));
  facts.need = 30 * kMiB;
  CHECK(judge(facts).level == Level::warning);
  CHECK(has(judge(facts).text, "want about 66.0 MiB, 36.0 MiB of it"));
  CHECK(has(judge(OpenFiles{1024, 8, 1}).text, "need about 80"));
  CHECK(has(judge(OpenFiles{1024, 8, 1, {{2, 4}}}).text, "need about 92"));
}

TEST_CASE("a limit of open files below what rank 0 needs is a fault") {
  CHECK(judge(OpenFiles{1024, 64, 3}).level == Level::ok);
  const Finding found = judge(OpenFiles{1024, 1024, 3});
  CHECK(found.level == Level::fault);
  CHECK(found.code == ErrorCode::rendezvous_failed);
  CHECK(has(found.fix, "ulimit"));
}

TEST_CASE("the disk of the run folder: full, slow, not writable, not there yet") {
  Disk facts{"runs", "runs", "", 32 * kMiB, 0.1, 100 * kGiB};
  CHECK(judge(facts).level == Level::ok);
  CHECK(has(judge(facts).text, "320.0 MiB/s"));
  facts.seconds = 10;
  CHECK(judge(facts).level == Level::warning);
  facts.seconds = 0.1;
  facts.free = 10 * kMiB;
  CHECK(judge(facts).level == Level::warning);
  facts.problem = "Permission denied";
  CHECK(judge(facts).level == Level::fault);
  CHECK(judge(facts).code == ErrorCode::output_unwritable);
}

TEST_CASE("looking at a disk leaves nothing behind, and makes no folder") {
  const meshwright::scratch::Folder own;
  const fs::path& folder = own.path;
  Disk facts = look_at_disk(folder, std::chrono::milliseconds(300));
  CHECK(facts.problem == "");
  CHECK(facts.written > 0);
  CHECK(facts.free.value_or(0) > 0);
  facts = look_at_disk(folder / "runs" / "deep", std::chrono::milliseconds(100));
  CHECK(facts.tried == folder.string());
  CHECK(fs::is_empty(folder));
  own.put("file", "x");
  CHECK(has(look_at_disk(folder / "file", std::chrono::milliseconds(100)).problem,
            "is not a folder"));
}

TEST_CASE("the interface that is used, with why; none is n/a and not a guess") {
  Network facts{"a", "lo (127.0.0.1), eth0 (10.0.0.1)", false, "10.0.0.1", "eth0", "X says", 1500};
  CHECK(judge(facts).level == Level::ok);
  CHECK(has(judge(facts).text, "eth0 (10.0.0.1), as X says; MTU 1500"));
  facts.mtu = 1280;
  CHECK(judge(facts).level == Level::warning);
  facts.address.clear();
  facts.no_address = "nobody listens";
  CHECK(has(judge(facts).text, "n/a: nobody listens; there are: lo"));
}

TEST_CASE("a host name without an address matters to other hosts, a slow one to all") {
  HostName facts{"node7", "", "Name or service not known", 0.1, true};
  CHECK(judge(facts).level == Level::ok);
  facts.one_host = false;
  CHECK(judge(facts).level == Level::note);
  CHECK(judge(HostName{"node7", "10.0.0.1", "", 3, true}).level == Level::warning);
  CHECK(judge(HostName{"node7", "127.0.1.1", "", 0.001, false}).level == Level::ok);
}

TEST_CASE("ports: taken, or where the kernel may take them") {
  Ports facts{"", 29500, true, false, "", 32768, 60999};
  CHECK(judge(facts).level == Level::ok);
  facts.problem = "port 29500: Address already in use";
  CHECK(judge(facts).level == Level::note);
  CHECK(has(judge(facts).fix, "MASTER_PORT"));
  facts = {"hosta:40000", 40000, false, false, "", 32768, 60999};
  CHECK(judge(facts).level == Level::note);
  CHECK(has(judge(facts).text, "firewalls"));
  facts.local = true;
  CHECK(judge(facts).level == Level::ok);
}

TEST_CASE("ports: the range that was asked for, and rank 0's own store beside a launcher's") {
  Ports facts{"hosta:20000", 20000, false, false, "", 32768, 60999};
  CHECK(!has(judge(facts).text, "MESHWRIGHT_PORT_RANGE"));
  facts.range_first = 21000;
  facts.range_last = 21009;
  facts.own_store = true;
  CHECK(has(judge(facts).text, "met at hosta:20000, and then at a port of rank 0's own"));
  CHECK(has(judge(facts).text,
            "own ports are of 21000-21009 (MESHWRIGHT_PORT_RANGE), those of gloo and NCCL of "
            "32768-60999, which firewalls"));
}

TEST_CASE("ports of several hosts: whether the job has a secret") {
  Ports facts{"hosta:20000", 20000, false, false, "", 32768, 60999, false};
  CHECK(judge(facts).level == Level::note);
  CHECK(has(judge(facts).text, "whoever reaches hosta:20000 can read the configuration"));
  CHECK(has(judge(facts).fix, "MESHWRIGHT_JOB_SECRET"));
  facts.port = 40000;
  CHECK(has(judge(facts).fix, "below 32768; export MESHWRIGHT_JOB_SECRET"));
  facts.port = 20000;
  facts.secret = true;
  CHECK(judge(facts).level == Level::ok);
  CHECK(has(judge(facts).text, "know the job's secret"));
  facts.secret = false;
  facts.one_host = true;
  CHECK(judge(facts).level == Level::ok);
}

TEST_CASE("clocks that differ are told, with drift where it can be seen") {
  Clock facts{true, false, {{"hostb", 0.0001, 0.0002, 1e-6, 1e-4}}};
  CHECK(judge(facts).level == Level::ok);
  CHECK(has(judge(facts).text, "drift n/a: below the 100 ppm"));
  facts.offsets[0] = {"hostb", -0.3, 0.0002, -5e-4, 1e-4};
  CHECK(judge(facts).level == Level::note);
  CHECK(has(judge(facts).text, "hostb is -300 ms"));
  CHECK(has(judge(facts).text, "drifts -500 ppm"));
  facts.offsets[0].seconds = 4;
  CHECK(judge(facts).level == Level::warning);
  CHECK(judge(Clock{false, true, {}}).level == Level::ok);
  CHECK(judge(Clock{false, false, {}}).level == Level::note);
  CHECK(has(judge(Clock{}).text, "n/a"));
}

TEST_CASE("devices: none, without the part that uses them, too few, apart") {
  CHECK(has(judge(Devices{}).text, "none"));
  Devices facts{true, "no libmeshwright_cuda.so", {}, 2};
  CHECK(judge(facts).level == Level::warning);
  CHECK(has(judge(facts).fix, "CUDA"));
  facts.no_part.clear();
  CHECK(has(judge(facts).fix, "CUDA_VISIBLE_DEVICES"));
  facts.names = {"0: X", "1: X"};
  CHECK(judge(facts).level == Level::ok);
  facts.apart = {{0, 1}};
  CHECK(judge(facts).level == Level::note);
  facts.local_ranks = 3;
  CHECK(judge(facts).level == Level::warning);
  CHECK(judge(Nccl{"2.28.9", ""}).text == "2.28.9");
  CHECK(judge(Nccl{"", "no device"}).text == "n/a: no device");
}
