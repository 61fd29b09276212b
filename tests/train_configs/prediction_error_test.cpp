// What a run says at its end of what was predicted of it.
#include <algorithm>
#include <sstream>

#include "trained.h"

namespace prediction_error_test {
namespace {

json::object plan_of(const std::string& name) {
  return json::parse(contents(kRuns + "/" + name + "/plan.json")).as_object();
}

std::string line_of(const std::string& out) {
  std::istringstream in(out);
  std::string found;
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("measured beside predicted: ")) {
      CHECK_MESSAGE(found.empty(), "told twice: " << line);
      found = line;
    }
  return found;
}

double number(const json::object& at, const char* key) { return at.at(key).to_number<double>(); }

std::vector<double> step_times(const std::string& name) {
  std::vector<double> out;
  std::ifstream rows(kRuns + "/" + name + "/metrics.jsonl");
  for (std::string line; std::getline(rows, line);) {
    const json::object row = json::parse(line).as_object();
    if (row.contains("step_ms")) out.push_back(number(row, "step_ms"));
  }
  return out;
}

}  // namespace

TEST_CASE(
    "a run on a named machine compares time and memory at its end, in a line and in plan.json") {
  const Trained run = train(
      "configs/first_fsdp2_cpu.toml --nproc 2 --set step_scheduler.max_steps=9 "
      "--set report.machine=cpu --set checkpoint.every_steps=5",
      "prediction");
  INFO(run.out);
  REQUIRE(run.status == 0);
  const json::object plan = plan_of("prediction");
  const json::object &predicted = plan.at("predicted").as_object(),
                     &measured = plan.at("measured").as_object(),
                     &ratio = plan.at("ratio").as_object();
  // Steps 4, 5, 7, 8 and 9: not the first three, nor the one after the checkpoint.
  CHECK(number(measured, "steps") == 5);
  std::vector<double> times = step_times("prediction");
  REQUIRE(times.size() == 9);
  std::vector<double> counted{times[3], times[4], times[6], times[7], times[8]};
  std::sort(counted.begin(), counted.end());
  CHECK(number(measured, "seconds") == doctest::Approx(counted[2] / 1000).epsilon(1e-3));
  // All of what rank 0 waited lies within its steps.
  CHECK(number(measured, "exposed_comm_seconds") > 0);
  CHECK(number(measured, "exposed_comm_seconds") < number(measured, "seconds"));
  CHECK(number(predicted, "seconds") > 0);
  CHECK(number(predicted, "ranks_per_host") == 8);  // as cpu.toml says
  double parts = 0;
  for (const auto& part : predicted.at("parts").as_object())
    parts += part.value().to_number<double>();
  CHECK(parts == doctest::Approx(number(predicted, "seconds")));
  CHECK(number(ratio, "seconds") ==
        doctest::Approx(number(measured, "seconds") / number(predicted, "seconds")));
  CHECK(std::string(predicted.at("machine").as_string()) == "CPU core of a cloud Xeon");
  CHECK(!predicted.at("rough").as_array().empty());  // its figures are guessed
  // Memory is what the plan sums up, and the most that a step took.
  double bytes = 0;
  for (const auto& part : plan.at("bytes").as_object()) bytes += part.value().to_number<double>();
  CHECK(number(predicted, "memory_bytes") == bytes);
  CHECK(number(measured, "memory_bytes") ==
        static_cast<double>(*std::max_element(run.memory.begin(), run.memory.end())));
  CHECK(number(ratio, "memory") == doctest::Approx(number(measured, "memory_bytes") / bytes));
  CHECK(number(ratio, "memory") == doctest::Approx(1).epsilon(0.1));
  const std::string line = line_of(run.out);
  CHECK(line.find(" a step took ") != std::string::npos);
  CHECK(line.find(" on CPU core of a cloud Xeon (") != std::string::npos);
  CHECK(line.find("; memory ") != std::string::npos);
  CHECK(contents(kRuns + "/prediction/run.log").find(line) != std::string::npos);
  // The plan of the same file says the same time, by the same key.
  const std::string shown =
      said("plan configs/first_fsdp2_cpu.toml --world-size 2 --json --set report.machine=cpu");
  REQUIRE(shown.find("\n}") != std::string::npos);
  const json::object planned =
      json::parse(shown.substr(shown.find('{'))).as_object();  // notices stand before it
  CHECK(number(planned.at("time").as_object(), "seconds") ==
        doctest::Approx(number(predicted, "seconds")));
}

TEST_CASE("without a machine a run on CPUs compares memory alone, and a wrong name ends none") {
  const std::string job =
      "configs/first_fsdp2_cpu.toml --nproc 2 --set step_scheduler.max_steps=5 ";
  const Trained plain = train(job, "prediction_plain");
  INFO(plain.out);
  REQUIRE(plain.status == 0);
  const json::object plan = plan_of("prediction_plain");
  CHECK(plan.at("predicted").as_object().at("seconds").is_null());
  CHECK(plan.at("predicted").as_object().at("machine").is_null());
  CHECK(plan.at("predicted").as_object().at("parts").is_null());
  // For calibrate --from, which may be told of the machine later.
  const json::object& measured = plan.at("measured").as_object();
  std::vector<double> times = step_times("prediction_plain");
  REQUIRE(times.size() == 5);
  CHECK(number(measured, "steps") == 2);
  CHECK(number(measured, "seconds") == doctest::Approx((times[3] + times[4]) / 2000).epsilon(1e-3));
  CHECK(plan.at("ratio").as_object().at("seconds").is_null());
  CHECK(number(plan.at("ratio").as_object(), "memory") > 0);
  CHECK(line_of(plain.out).starts_with("measured beside predicted: memory "));

  const Trained wrong = train(job + "--set report.machine=h1000", "prediction_wrong");
  INFO(wrong.out);
  CHECK(wrong.status == 0);
  CHECK(wrong.out.find("warning: no step time is predicted: no machine is called h1000") !=
        std::string::npos);
  CHECK(plan_of("prediction_wrong").at("ratio").as_object().at("seconds").is_null());
}

TEST_CASE("under --trace no step is timed") {
  const Trained traced = train(
      "configs/first_fsdp2_cpu.toml --nproc 2 --set step_scheduler.max_steps=5 --trace "
      "--set report.machine=cpu",
      "prediction_traced");
  INFO(traced.out);
  REQUIRE(traced.status == 0);
  const json::object plan = plan_of("prediction_traced");
  CHECK(number(plan.at("predicted").as_object(), "seconds") > 0);
  CHECK(plan.at("measured").as_object().at("seconds").is_null());
  CHECK(line_of(traced.out).starts_with("measured beside predicted: memory "));
}

}  // namespace prediction_error_test
