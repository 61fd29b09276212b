// Fits the constants of the step-time model to the `fit` rows of tests/data/published, and to no
// others: coordinate descent on the squared logarithms of predicted over measured seconds, with a
// weak pull to where each constant starts, which decides what the few rows leave open. None may be
// above 1. Prints the constants; with --write it puts them into configs/machines.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "apps/performance/steptime/tests/published.h"

namespace {

using namespace meshwright::steptime;

struct Constant {
  const char* key;  // of a machine file
  std::vector<const char*> files;
  double start;  // from a public measurement where there is one
  std::function<double&(Machine&)> of;
  double value = 0;
};

const std::vector<const char*> kA100{"a100-40", "a100-80"},
    kHopper{"h100", "h100-2024", "h100-500w", "h200"},
    kAll{"a100-40", "a100-80", "h100", "h100-2024", "h100-500w", "h200", "b200", "l40s"};

std::vector<Constant> constants() {
  auto product = [](Machine& m) -> double& { return m.rate.product; };
  auto fa2 = [](Machine& m) -> double& { return m.rate.attention_fa2; };
  auto triton = [](Machine& m) -> double& { return m.rate.attention_triton; };
  return {
      {"product", kA100, 0.766, product},
      {"product", {"h100-2024"}, 0.625, product},
      {"product", {"h100", "h200"}, 0.759, product},
      {"product", {"h100-500w"}, 0.574, product},
      {"product_fp8", kHopper, 0.864, [](Machine& m) -> double& { return m.rate.product_fp8; }},
      {"attention", kHopper, 0.53, [](Machine& m) -> double& { return m.rate.attention; }},
      {"attention_fa2", kHopper, 0.30, fa2},
      {"attention_triton", kHopper, 0.21, triton},
      {"attention_triton", kA100, 0.38, triton},
      {"unfused", kAll, 0.53, [](Machine& m) -> double& { return m.rate.unfused; }},
      {"nic_attained", kAll, 0.95, [](Machine& m) -> double& { return m.network.nic_attained; }},
      {"step_outside", kAll, 6e-6, [](Machine& m) -> double& { return m.network.step_outside; }},
      {"kappa", kAll, 0.19, [](Machine& m) -> double& { return m.overlap.kappa; }},
      {"async_tp", kAll, 0.58, [](Machine& m) -> double& { return m.overlap.async_tp; }},
      {"async_tp_buffers", kAll, 0.40,
       [](Machine& m) -> double& { return m.overlap.async_tp_buffers; }},
      {"jitter", kAll, 0.004, [](Machine& m) -> double& { return m.overlap.jitter; }},
  };
}

const char* file_of(const std::string& gpu) {
  if (gpu == "A100-40") return "a100-40";
  if (gpu == "A100-80") return "a100-80";
  if (gpu == "H100") return "h100-2024";
  if (gpu == "H100-25") return "h100";
  if (gpu == "H100-500") return "h100-500w";
  return gpu == "H200" ? "h200" : "b200";
}

void apply(const std::vector<Constant>& values, published::Machines& machines) {
  for (auto& [gpu, machine] : machines)
    for (const Constant& c : values)
      for (const char* file : c.files)
        if (std::strcmp(file, file_of(gpu)) == 0) c.of(machine) = c.value;
}

double loss(const std::vector<Constant>& values, const std::vector<published::Row>& rows,
            published::Machines machines) {
  apply(values, machines);
  double sum = 0;
  for (const published::Row& row : rows) {
    const Machine machine = published::machine_of(row, machines);
    const double error = std::log(predict(machine, row.shape, row.job).seconds / row.seconds);
    sum += error * error;
  }
  // A constant that is off by a fifth weighs as much as a row that is off by two hundredths.
  for (const Constant& c : values) {
    const double pull = 0.1 * std::log(c.value / c.start);
    sum += pull * pull;
  }
  return sum;
}

void write(const Constant& c, const std::string& folder) {
  for (const char* file : c.files) {
    if (std::strcmp(file, "b200") == 0 || std::strcmp(file, "l40s") == 0)
      if (std::strcmp(c.key, "product_fp8") == 0) continue;
    const std::string path = folder + "/" + file + ".toml";
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    char line[64];
    std::snprintf(line, sizeof line, "\n%s = %.4g\n", c.key, c.value);
    const std::regex old("\n" + std::string(c.key) + " = [-+.0-9e]+\n");
    std::ofstream(path) << std::regex_replace(text.str(), old, line);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::string data = "tests/data/published", folder = "configs/machines";
  const published::Machines machines = published::machines(folder);
  std::vector<published::Row> rows;
  for (published::Row& row : published::runs(data))
    if (row.set == "fit") rows.push_back(std::move(row));
  std::vector<Constant> values = constants();
  for (Constant& c : values) c.value = c.start;
  double best = loss(values, rows, machines);
  std::printf("%zu rows, loss %.5f at the start\n", rows.size(), best);
  constexpr int kSteps = 15;  // of 8% to 0.05%
  double step = 0.08;
  for (int i = 0; i < kSteps; ++i, step *= 0.7)
    for (int round = 0; round < 20; ++round) {
      const double before = best;
      for (Constant& c : values)
        for (const double factor : {1 + step, 1 / (1 + step)}) {
          const double old = c.value;
          c.value = old * factor;
          const double now = c.value > 1 ? best : loss(values, rows, machines);
          if (now < best)
            best = now;
          else
            c.value = old;
        }
      if (best == before) break;
    }
  std::printf("loss %.5f at the end\n", best);
  // What is within the last step of 1 would go on if it could: its source in the files says so.
  auto capped = [](const Constant& c) { return c.value > 1 / 1.001; };
  const bool writes = count > 1 && std::strcmp(arguments[1], "--write") == 0;
  for (const Constant& c : values) {
    std::printf("  %-17s %-10s %.4g (from %.4g%s)\n", c.key, c.files.front(), c.value, c.start,
                capped(c) ? ", at its cap of 1" : "");
    if (writes) write(c, folder);
  }
  return 0;
}
