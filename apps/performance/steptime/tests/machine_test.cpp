#include "apps/performance/steptime/machine.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"

namespace meshwright::steptime {
namespace {

const std::string kMachines = MESHWRIGHT_SOURCE_DIR "/configs/machines";

struct Scratch {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("machine_" + std::to_string(::getpid()) + ".toml");
  ~Scratch() { std::filesystem::remove(path); }

  // The shipped h100 with one text replaced.
  std::string with(const std::string& from, const std::string& to) const {
    std::string text = base::read_file(kMachines + "/h100.toml");
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    std::ofstream(path) << text.replace(at, from.size(), to);
    return path.string();
  }
};

// Of a file, or of the name of a shipped machine.
Error error_of(const std::string& machine) {
  try {
    find_machine(machine, kMachines);
  } catch (const Error& error) {
    return error;
  }
  FAIL("no error");
  return {ErrorCode::internal, ""};
}

const std::vector<const char*> kDevices = {"a100-40",   "a100-80", "h100", "h100-2024",
                                           "h100-500w", "h200",    "b200", "l40s"};

TEST_CASE("every shipped machine can be read, by its name and with its ranks a host") {
  std::vector<const char*> all = kDevices;
  all.push_back("cpu");
  std::vector<std::string> reported;
  for (const std::string name : all) {
    CAPTURE(name);
    const Machine machine = find_machine(name, kMachines);
    CHECK(machine.memory > 0);
    CHECK(machine.network.ranks_per_host == 8);
    CHECK(find_machine(name + "x4", kMachines).network.ranks_per_host == 4);
    for (const std::string& one : machine.reported) {  // by one machine alone
      CHECK(std::ranges::count(reported, one) == 0);
      reported.push_back(one);
    }
    if (name == "cpu") continue;
    CHECK(machine.peak_of_float32(false) == machine.peak_fp32);
    CHECK(machine.peak_of_float32(true) > machine.peak_fp32);
    CHECK(machine.peak_of_float32(true) < machine.peak_bf16);
  }
  CHECK(reported.size() >= 6);
  CHECK(find_machine("h100", kMachines).guessed.empty());
  CHECK(!find_machine("b200", kMachines).guessed.empty());
}

TEST_CASE("what no fit row is of is guessed, and what the fit left at its cap says so") {
  for (const char* name : {"b200", "l40s"}) {
    CAPTURE(name);
    const Machine machine = find_machine(name, kMachines);
    for (const char* key : {"network.nic_attained", "network.step_outside", "overlap.kappa",
                            "overlap.async_tp", "overlap.async_tp_buffers", "overlap.jitter"}) {
      CAPTURE(key);
      CHECK(machine.sources.at(key) == "guessed: as fitted on A100 and H100");
      CHECK(std::ranges::find(machine.guessed, key) != machine.guessed.end());
    }
    for (const auto& entry : machine.sources) {
      CAPTURE(entry.first);
      CHECK(!entry.second.starts_with("fitted"));
    }
  }
  for (const std::string name : kDevices) {
    if (name == "b200" || name == "l40s") continue;
    CAPTURE(name);
    const Machine machine = find_machine(name, kMachines);
    CHECK(machine.network.nic_attained > 0.999);
    CHECK(machine.sources.at("network.nic_attained").ends_with(", at its cap of 1"));
    CHECK(machine.at_bound.empty());  // of calibrate's, which make forecasts rough
  }
}

TEST_CASE("a file that does not say the peak of TF32 is read, and has float32's") {
  const Scratch scratch;
  const Machine machine = read_machine(scratch.with(", tf32 = 494.7e12", ""));
  CHECK(machine.peak_tf32 == 0);
  CHECK(machine.peak_of_float32(true) == machine.peak_fp32);
}

TEST_CASE(
    "a device is found by the name that its driver reports, whatever else lies in the folder") {
  const auto found = machine_reported("NVIDIA H100 80GB HBM3", kMachines);
  REQUIRE(found.has_value());
  CHECK(found->name == "NVIDIA H100 SXM 700 W");
  CHECK(found->peak_bf16 == find_machine("h100", kMachines).peak_bf16);
  const auto large = machine_reported("NVIDIA A100-SXM4-80GB", kMachines);
  REQUIRE(large.has_value());
  CHECK(large->memory > 80e9);
  // Cards of another peak, memory or network than the boards that there are files of.
  for (const char* card :
       {"NVIDIA H100 PCIe", "NVIDIA A100 80GB PCIe", "NVIDIA A100-PCIE-40GB", "NVIDIA H200 NVL"}) {
    CAPTURE(card);
    CHECK(!machine_reported(card, kMachines).has_value());
  }
  CHECK(!machine_reported("", kMachines).has_value());
  CHECK(!machine_reported("NVIDIA H100 80GB HBM3", "/nowhere").has_value());
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("machines_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "a.toml") << "schema = 1\nbroken";
  std::filesystem::copy_file(kMachines + "/h100.toml", folder / "h100.toml");
  CHECK(machine_reported("NVIDIA H100 80GB HBM3", folder).has_value());
  std::filesystem::remove_all(folder);
}

TEST_CASE("a name that no machine has is answered with a near one, or those that begin so") {
  struct Row {
    const char* typed;
    std::vector<std::string> helps;
  };
  for (const Row& row :
       {Row{"h1000x8", {"--machine h100"}}, Row{"a100", {"--machine a100-40", "--machine a100-80"}},
        Row{"A100x8", {"--machine a100-40x8", "--machine a100-80x8"}},
        Row{"a100x9999", {"--machine a100-40", "--machine a100-80"}}, Row{"b", {"--machine b200"}},
        Row{"h", {"--machine h100", "--machine h100-2024", "--machine h100-500w"}}}) {
    CAPTURE(row.typed);
    const Error error = error_of(row.typed);
    CHECK(error.code() == ErrorCode::bad_choice);
    CHECK(error.message().find("a100-80") != std::string::npos);
    REQUIRE(error.helps().size() == row.helps.size() + 2);
    CHECK(std::equal(row.helps.begin(), row.helps.end(), error.helps().begin()));
  }
}

TEST_CASE("a host has 1 to 1024 ranks, in a name as in a file") {
  CHECK(find_machine("h100x1", kMachines).network.ranks_per_host == 1);
  CHECK(find_machine("h100x1024", kMachines).network.ranks_per_host == 1024);
  for (const char* name : {"h100x0", "h100x1025", "h100x9999", "h100x99999999999"}) {
    CAPTURE(name);
    const Error error = error_of(name);
    CHECK(error.code() == ErrorCode::out_of_range);
    CHECK(error.message().find("1 to 1024 ranks") != std::string::npos);
    CHECK(error.helps() == std::vector<std::string>{"--machine h100x8"});
  }
}

TEST_CASE("what is missing or absurd in a machine file is said with its key and place") {
  struct Row {
    const char *from, *to;
    ErrorCode code;
    const char* key;
  };
  const Row table[] = {
      {"bus = 362e9\n", "", ErrorCode::missing_key, "network.bus"},
      {"name = \"NVIDIA H100 SXM 700 W\", ", "", ErrorCode::missing_key, "device.name"},
      {"bus = 362e9\n", "bus = 362\n", ErrorCode::out_of_range, "network.bus"},
      {"nic = 50e9\n", "nic = -1.0\n", ErrorCode::out_of_range, "network.nic"},
      {"nic = 50e9\n", "nic = 50e9\nsend_inside = 362\n", ErrorCode::out_of_range,
       "network.send_inside"},
      {"nic = 50e9\n", "nic = 50e9\nsend_outside = 0.0\n", ErrorCode::out_of_range,
       "network.send_outside"},
      {"nic = 50e9\n", "nic = 50e9\nsend_latency_outside = 15.0\n", ErrorCode::out_of_range,
       "network.send_latency_outside"},
      {"nic = 50e9\n", "nic = 50e9\nsend_in = 50e9\n", ErrorCode::unknown_key, "network.send_in"},
      {"nic = 50e9\n", "nic = 50e9\nsend_inside = 362e9\n", ErrorCode::missing_key,
       "source.\"network.send_inside\""},
      {"elementwise = 0.80\n", "elementwise = 1.4\n", ErrorCode::out_of_range, "rate.elementwise"},
      {"elementwise = 0.80\n", "elementwise = nan\n", ErrorCode::out_of_range, "rate.elementwise"},
      {"reported = [\"NVIDIA H100 80GB HBM3\"]", "reported = \"NVIDIA H100 80GB HBM3\"",
       ErrorCode::wrong_type, "device.reported"},
      {"bus = 362e9\n", "bus = \"fast\"\n", ErrorCode::wrong_type, "network.bus"},
      {"bus = 362e9\n", "bus = 362e9\nbuss = 1.0\n", ErrorCode::unknown_key, "network.buss"},
      {"ranks_per_host = 8", "ranks_per_host = 7.5", ErrorCode::out_of_range,
       "network.ranks_per_host"},
      {"ranks_per_host = 8", "ranks_per_host = 1025", ErrorCode::out_of_range,
       "network.ranks_per_host"},
      {"units = 132", "units = 132.5", ErrorCode::out_of_range, "device.units"},
      {"outside = 2.7e9", "outside = 99e9", ErrorCode::out_of_range, "device.outside"},
      {"schema = 1", "schema = 2", ErrorCode::schema_version, ""},
      {"schema = 1", "schema = 1\n\"network.bus\" = 362e9", ErrorCode::unknown_key,
       "\"network.bus\""},
      {"peak = \"published: NVIDIA, data sheet\"\n", "", ErrorCode::missing_key,
       "source.\"peak.bf16\""},
      {"peak = \"", "peak_ = \"", ErrorCode::unknown_key, "source.peak_"},
      {"\"network.nic\" = ", "\"network.nics\" = ", ErrorCode::unknown_key,
       "source.\"network.nics\""},
      {"name = \"NVIDIA H100 SXM 700 W\"", "name = \" \"", ErrorCode::out_of_range, "device.name"},
      {"fp8 = 1979e12", "fp8 = 988e12", ErrorCode::out_of_range, "peak.fp8"},
      {"tf32 = 494.7e12", "tf32 = 66e12", ErrorCode::out_of_range, "peak.tf32"},
      {"overlap = \"fitted: bench/step_time_fit\"", "overlap = \"\"", ErrorCode::out_of_range,
       "source.overlap"},
      {"\"network.nic\" = \"published: the usual network of such hosts\"",
       "\"network.nic\" = \" \"", ErrorCode::out_of_range, "source.\"network.nic\""},
  };
  const Scratch scratch;
  for (const Row& row : table) {
    CAPTURE(row.to);
    const Error error = error_of(scratch.with(row.from, row.to));
    CHECK(error.code() == row.code);
    CHECK(error.key() == row.key);
    CHECK(!error.helps().empty());
    CHECK(error.origin().line > 0);
  }
  CHECK(read_machine(scratch.with("fp8 = 1979e12", "fp8 = 989e12")).peak_fp8 == 989e12);
  // The next smaller one is what is offered.
  CHECK(error_of(scratch.with("ranks_per_host = 8", "ranks_per_host = 7.5")).helps() ==
        std::vector<std::string>{"set network.ranks_per_host = 7"});
  CHECK(read_machine(scratch.with("ranks_per_host = 8", "ranks_per_host = 4.0"))
            .network.ranks_per_host == 4);
  CHECK(error_of("/nowhere/x.toml").code() == ErrorCode::file_unreadable);
}

TEST_CASE("what is offered where device.outside leaves nothing leaves something") {
  struct Row {
    const char *memory, *outside, *mended;
    bool small;
  };
  const std::string sizes = ", units = 132, bandwidth = 3.35e12",
                    from = "memory = 85.9e9" + sizes + ", outside = 2.7e9";
  const Scratch scratch;
  for (const Row& row :
       {Row{"2e9", ", outside = 2.7e9", "2e+08", true}, Row{"2e9", "", "2e+08", true},
        Row{"40e9", ", outside = 40e9", "4e+09", false}}) {
    CAPTURE(row.memory);
    const std::string begin = "memory = " + std::string(row.memory) + sizes;
    const Error error = error_of(scratch.with(from, begin + row.outside));
    CHECK(error.code() == ErrorCode::out_of_range);
    CHECK(error.origin().line == 3);
    REQUIRE(error.helps().size() == (row.small ? size_t{2} : size_t{1}));
    CHECK(error.helps().front() == std::string("set device.outside = ") + row.mended);
    if (row.small) CHECK(error.helps().back().find("device.memory") != std::string::npos);
    const Machine read = read_machine(scratch.with(from, begin + ", outside = " + row.mended));
    CHECK(read.outside < read.memory);
  }
}

TEST_CASE("peaks and a bandwidth a slip of the unit apart are refused, with what is likely") {
  struct Row {
    const char *from, *to, *mended, *key, *help;
  };
  const Row table[] = {
      {"bf16 = 989e12, fp8 = 1979e12", "bf16 = 989e9, fp8 = 1979e9",
       "bf16 = 9.89e+14, fp8 = 1.979e+15", "peak.bf16",
       "set peak.bf16 = 9.89e+14 and peak.fp8 = 1.979e+15"},
      {"bf16 = 989e12, fp8 = 1979e12", "bf16 = 1e17, fp8 = 1e17", "bf16 = 1e+14, fp8 = 1e+14",
       "peak.bf16", "set peak.bf16 = 1e+14 and peak.fp8 = 1e+14"},
      {"bf16 = 989e12, fp8 = 1979e12", "bf16 = 989e6, fp8 = 1979e12",
       "bf16 = 9.89e+14, fp8 = 1979e12", "peak.bf16", "set peak.bf16 = 9.89e+14"},
      {"fp32 = 67e12", "fp32 = 67e9", "fp32 = 6.7e+13", "peak.fp32", "set peak.fp32 = 6.7e+13"},
      {"bandwidth = 3.35e12", "bandwidth = 3.35e9", "bandwidth = 3.35e+12", "device.bandwidth",
       "set device.bandwidth = 3.35e+12"},
      // The memory of no device is as slow as would fit to these.
      {"bf16 = 989e12, fp8 = 1979e12, fp32 = 67e12, tf32 = 494.7e12",
       "bf16 = 989e9, fp8 = 1979e9, fp32 = 67e9, tf32 = 494.7e9",
       "bf16 = 9.89e+14, fp8 = 1.979e+15, fp32 = 6.7e+13, tf32 = 4.947e+14", "peak.bf16",
       "set peak.bf16 = 9.89e+14 and peak.fp8 = 1.979e+15 and peak.fp32 = 6.7e+13 and "
       "peak.tf32 = 4.947e+14"},
  };
  const Scratch scratch;
  for (const Row& row : table) {
    CAPTURE(row.to);
    const Error error = error_of(scratch.with(row.from, row.to));
    CHECK(error.code() == ErrorCode::out_of_range);
    CHECK(error.key() == row.key);
    CHECK(error.origin().line == (error.key() == "device.bandwidth" ? 3 : 4));
    CHECK(error.message().find("(line 3)") != std::string::npos);
    CHECK(error.message().find("(line 4)") != std::string::npos);
    REQUIRE(!error.helps().empty());
    CHECK(error.helps().front() == row.help);
    CHECK(read_machine(scratch.with(row.from, row.mended)).bandwidth == 3.35e12);
  }
}

TEST_CASE("figures that no device has are refused, with what they are in another unit") {
  struct Row {
    const char *from, *to, *key, *help;
  };
  const Row table[] = {
      {"memory = 85.9e9", "memory = 85.9e12", "device.memory",
       "set device.memory = 8.59e+10: in bytes"},
      {"nic = 50e9\n", "nic = 400e9\n", "network.nic",
       "set network.nic = 5e+10: in bytes, not bits"},
      {"step_inside = 3.3e-6", "step_inside = 3.3e-3", "network.step_inside",
       "set network.step_inside = 3.3e-06: in seconds, not milliseconds"},
      {"step_outside = 6.151e-06", "step_outside = 6.151e-03", "network.step_outside",
       "set network.step_outside = 6.151e-06: "},
      {"layer_forward = 0.35e-3", "layer_forward = 0.35", "host.layer_forward",
       "set host.layer_forward = 0.00035: "},
      {"layer_backward = 0.45e-3", "layer_backward = 0.45", "host.layer_backward",
       "set host.layer_backward = 0.00045: "},
      {"fixed = 8e-3", "fixed = 8", "host.fixed", "set host.fixed = 0.008: "},
      {"bus = 362e9\n", "bus = 2896e9\n", "network.bus", "set network.bus = 3.62e+11: in bytes"},
      {"bus = 362e9\n", "bus = 362e6\n", "network.bus",
       "give network.bus in bytes, 1e9 a gigabyte"},
      {"nic = 50e9\n", "nic = 50e5\n", "network.nic", "give network.nic in bytes, 1e9 a gigabyte"},
      {"units = 132", "units = 16896", "device.units",
       "count streaming multiprocessors, not CUDA cores"},
  };
  const Scratch scratch;
  for (const Row& row : table) {
    CAPTURE(row.to);
    const Error error = error_of(scratch.with(row.from, row.to));
    CHECK(error.code() == ErrorCode::out_of_range);
    CHECK(error.key() == row.key);
    CHECK(error.origin().line > 0);
    REQUIRE(!error.helps().empty());
    CAPTURE(error.helps().front());
    CHECK(error.helps().front().starts_with(row.help));
  }
  CHECK(read_machine(scratch.with("nic = 50e9\n", "nic = 200e9\n")).network.nic == 200e9);
  // What was measured is so, and processors and their networks may be slow.
  Machine slow = find_machine("h100", kMachines);
  slow.host.layer_forward = 0.35;
  for (const char* source : {"measured by meshwright calibrate, 2026-11-27, host",
                             "measured at a bound by meshwright calibrate", "from a run: first"}) {
    CAPTURE(source);
    slow.sources["host.layer_forward"] = source;
    const std::string text = machine_text(slow, slow.sources, "");
    CHECK(parse_machine(text, "x.toml").host.layer_forward == 0.35);
  }
  Machine processor = find_machine("cpu", kMachines);
  processor.host.layer_forward = 0.35;
  const std::string text = machine_text(processor, processor.sources, "");
  CHECK(parse_machine(text, "x.toml").host.layer_forward == 0.35);
}

TEST_CASE("a processor's peaks may be few operations for a byte, and those of one type fewer") {
  auto with = [](double bf16, double fp32, double bandwidth) {
    Machine machine = find_machine("cpu", kMachines);
    machine.peak_bf16 = bf16;
    machine.peak_fp32 = fp32;
    machine.bandwidth = bandwidth;
    return machine_text(machine, machine.sources, "");
  };
  struct Row {
    double bf16, fp32, bandwidth;
  };
  // As calibrate found them, or would: bfloat16 as float32, without instructions, and in tiles.
  for (const Row& row : {Row{90e9, 90e9, 17e9}, Row{45e9, 45e9, 8e9}, Row{0.9e9, 90e9, 17e9},
                         Row{0.45e9, 45e9, 8e9}, Row{2e12, 90e9, 17e9}, Row{45e9, 45e9, 2e11}}) {
    CAPTURE(row.bf16);
    CAPTURE(row.bandwidth);
    const std::string text = with(row.bf16, row.fp32, row.bandwidth);
    CHECK(parse_machine(text, "x.toml").peak_fp32 == row.fp32);
  }
  auto help_of = [](const std::string& text) {
    try {
      parse_machine(text, "x.toml");
    } catch (const Error& error) {
      return error.helps().front();
    }
    return std::string();
  };
  CHECK(help_of(with(45e9, 90e12, 17e9)) == "set peak.fp32 = 9e+10");
  CHECK(help_of(with(90e9, 90e9, 17e12)) == "set device.bandwidth = 1.7e+10");
}

TEST_CASE("what a pipeline's messages take is read as it was written, and need not be there") {
  const Machine without = find_machine("h100", kMachines);
  CHECK(without.network.send_inside == 0);
  CHECK(without.network.send_latency_outside == 15e-6);
  Machine with = without;
  with.network.send_inside = 250e9;
  with.network.send_outside = 20e9;
  with.network.send_latency_inside = 4e-6;
  with.network.send_latency_outside = 0;
  for (const char* key :
       {"send_inside", "send_outside", "send_latency_inside", "send_latency_outside"})
    with.sources[std::string("network.") + key] = "measured";
  const Machine read = parse_machine(machine_text(with, with.sources, ""), "x.toml");
  CHECK(read.network.send_inside == 250e9);
  CHECK(read.network.send_outside == 20e9);
  CHECK(read.network.send_latency_inside == 4e-6);
  CHECK(read.network.send_latency_outside == 0);
  CHECK(read.sources.at("network.send_outside") == "measured");
  // A figure without a source is not written.
  const std::string text = machine_text(without, without.sources, "");
  CHECK(text.find("send_") == std::string::npos);
  CHECK(parse_machine(text, "x.toml").network.send_inside == 0);
}

}  // namespace
}  // namespace meshwright::steptime
