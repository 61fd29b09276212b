#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "apps/observe/monitors/numbers.h"
#include "apps/observe/monitors/sinks.h"
#include "apps/observe/monitors/tests/folder.h"

namespace prometheus_test {

using namespace meshwright::monitor;
using monitor_tests::Folder;
using monitor_tests::has;
using monitor_tests::step_row;

namespace {

const RunFacts kFacts{.run = "a \"b\"\\c\nd",
                      .strategy = "fsdp2",
                      .version = "0.1.0",
                      .ranks = 2,
                      .max_steps = 10,
                      .completed = 4};

double value_of(const Numbers& numbers, const std::string& name) {
  for (const auto& reading : numbers.readings())
    if (reading.name == name) return reading.value;
  return std::nan("");
}

}  // namespace

TEST_CASE("names are Prometheus' own: a prefix, base units, _total for counters alone") {
  for (const char* field : {"loss",
                            "grad_norm",
                            "lr",
                            "tokens",
                            "step_ms",
                            "tokens_per_second",
                            "memory_bytes",
                            "data_ms",
                            "validation_loss",
                            "mfu",
                            "exposed_comm_ms",
                            "expert_imbalance",
                            "dropped_tokens",
                            "loss_z",
                            "skipped",
                            "slowest_ms",
                            "host_wait_ms",
                            "odd-name.x",
                            "rows_total",
                            "rank_work_ms",
                            "rank_work_ms_least",
                            "rank_work_ms_most",
                            "new_ms_least"}) {
    const Name name = name_of(field);
    CAPTURE(name.prometheus);
    CHECK(name.prometheus.starts_with("meshwright_"));
    CHECK(name.prometheus.find_first_not_of(
              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") ==
          std::string::npos);
    CHECK(name.prometheus.ends_with("_total") == name.counter);
    CHECK(!has(name.prometheus + "_", "_ms_"));
    CHECK((name.divisor == 1000) == has(std::string(field) + "_", "_ms_"));
    CHECK((name.divisor == 1000) == name.prometheus.ends_with("_seconds"));
    CHECK(name.help.ends_with("."));
    CHECK(has(name.tag, "/"));
  }
  CHECK(name_of("host_wait_ms").prometheus == "meshwright_host_wait_seconds");
  CHECK(name_of("host_wait_ms").tag == "speed/host_wait_ms");
  CHECK(name_of("new_ms_least").prometheus == "meshwright_new_least_seconds");
}

TEST_CASE("the text format: help, type, escaped labels, and numbers that are none") {
  CHECK(prometheus_text({{"a_total", "Back\\slash\nand \"line\".", true, {}, 3},
                         {"b",
                          "B.",
                          false,
                          {{"run", "a \"b\"\\c\nd"}, {"n", "1"}},
                          std::numeric_limits<double>::infinity()},
                         {"c", "C.", false, {}, std::nan("")}}) ==
        "# HELP a_total Back\\\\slash\\nand \"line\".\n# TYPE a_total counter\na_total 3\n"
        "# HELP b B.\n# TYPE b gauge\nb{run=\"a \\\"b\\\"\\\\c\\nd\",n=\"1\"} +Inf\n"
        "# HELP c C.\n# TYPE c gauge\nc NaN\n");
}

TEST_CASE("numbers follow the rows: counters add up, seconds are seconds, the end is told") {
  Numbers numbers(kFacts);
  CHECK(value_of(numbers, "meshwright_run_info") == 1);
  CHECK(value_of(numbers, "meshwright_completed_steps") == 4);
  CHECK(value_of(numbers, "meshwright_run_training") == 1);
  for (int64_t step : {4, 5}) numbers.row(*parse_row(step_row(step, ", \"mfu\": null")));
  numbers.row(*parse_row(monitor_tests::validation_row(5, "2.25")));
  CHECK(value_of(numbers, "meshwright_completed_steps") == 6);
  CHECK(value_of(numbers, "meshwright_steps_total") == 2);
  CHECK(value_of(numbers, "meshwright_tokens_total") == 4096);
  CHECK(value_of(numbers, "meshwright_step_seconds") == doctest::Approx(0.250125));
  CHECK(value_of(numbers, "meshwright_training_loss") == 1.75);
  CHECK(value_of(numbers, "meshwright_validation_loss") == 2.25);
  CHECK(value_of(numbers, "meshwright_last_step_timestamp_seconds") > 1.7e9);
  for (const auto& reading : numbers.readings()) CHECK(reading.name != "meshwright_mfu_ratio");
  numbers.saved(6, true);
  numbers.saved(8, false);
  CHECK(value_of(numbers, "meshwright_checkpoint_steps") == 6);
  CHECK(value_of(numbers, "meshwright_checkpoint_failures_total") == 1);
  CHECK(value_of(numbers, "meshwright_run_finished") == 0);
  numbers.end(true);
  CHECK(value_of(numbers, "meshwright_run_finished") == 1);
  CHECK(value_of(numbers, "meshwright_run_training") == 0);
}

TEST_CASE("whoever reads sees whole rows, and the last one in the end") {
  Numbers numbers(kFacts);
  std::atomic<bool> done = false;
  std::atomic<int64_t> mixed = 0, reads = 0;
  std::thread reader([&] {
    while (!done) {
      const double steps = value_of(numbers, "meshwright_completed_steps"),
                   tokens = value_of(numbers, "meshwright_tokens_total");
      // Read after the steps: no fewer rows than they had.
      if (!std::isnan(tokens) && tokens < (steps - 4) * 2048) ++mixed;
      ++reads;
    }
  });
  for (int64_t step = 4; step < 2000 || reads < 20; ++step) numbers.row(*parse_row(step_row(step)));
  numbers.end(false);
  done = true;
  reader.join();
  CHECK(mixed == 0);
  CHECK(value_of(numbers, "meshwright_tokens_total") ==
        (value_of(numbers, "meshwright_completed_steps") - 4) * 2048);
}

TEST_CASE("report.prometheus_file: a file, or a folder for one, whole at any time") {
  Folder folder;
  const auto numbers = std::make_shared<Numbers>(kFacts);
  const std::unique_ptr<Sink> file = prometheus_file(folder.path / "x.prom", "r", numbers),
                              inside = prometheus_file(folder.path / "new", "my/run", numbers);
  file->open();
  inside->open();
  CHECK(has(folder.read("x.prom"), "meshwright_run_finished{run=\"a \\\"b\\\"\\\\c\\nd\","));
  CHECK(folder.read("new/meshwright_my_run.prom") == folder.read("x.prom"));
  numbers->row(*parse_row(step_row(4)));
  file->row(*parse_row(step_row(4)), step_row(4));  // within the same second
  CHECK(!has(folder.read("x.prom"), "meshwright_training_loss"));
  numbers->end(true);
  file->end(true);
  CHECK(has(folder.read("x.prom"), "meshwright_training_loss"));
  CHECK(has(folder.read("x.prom"), "meshwright_run_finished"));
  for (const auto& entry : std::filesystem::directory_iterator(folder.path))
    CHECK(!entry.path().string().ends_with(".tmp"));
  // A folder that was removed is made again.
  std::filesystem::remove_all(folder.path / "new");
  inside->end(true);
  CHECK(folder.read("new/meshwright_my_run.prom") == folder.read("x.prom"));
}

}  // namespace prometheus_test
