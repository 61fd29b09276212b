#include "counters.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graphs.h"
#include "runtime.h"

namespace fake_device {

namespace {

struct Launches {
  long calls = 0, kernels = 0;
  size_t read = 0, written = 0;
};
struct Copies {
  long calls = 0;
  size_t bytes = 0;
};
// Forward is what the program's first thread launches before autograd's begin, backward what those
// launch; with several micro-batches all but the first one's forward is of the rest.
constexpr const char* kPhases[] = {"forward", "backward", "rest"};
struct Step {
  std::map<std::string, Launches> operators, phases[3];
  std::map<std::string, Copies> copies;
  std::map<std::string, long> waits;
  std::set<size_t> streams;
  size_t peak = 0, least = SIZE_MAX;  // bytes allocated
};
std::vector<Step>& steps() {
  static auto* all = new std::vector<Step>(1);  // never destroyed: other libraries end later
  return *all;
}
Step& now() { return steps().back(); }

// "name": {members}, ... of a map.
template <class Map, class Members>
void write_map(FILE* file, const char* name, const Map& map, Members members) {
  fprintf(file, "\"%s\": {", name);
  const char* between = "";
  for (const auto& [key, value] : map) {
    fprintf(file, "%s\n    \"%s\": ", between, key.c_str());
    members(value);
    between = ",";
  }
  fprintf(file, "}");
}

void write(FILE* file, const Step& step) {
  Launches all;
  for (const auto& [_, one] : step.operators) {
    all.kernels += one.kernels;
    all.read += one.read;
    all.written += one.written;
  }
  long waits = 0;
  for (const auto& [_, count] : step.waits) waits += count;
  fprintf(file,
          "  {\"kernels\": %ld, \"read\": %zu, \"written\": %zu, \"host_waits\": %ld, \"streams\": "
          "%zu, \"peak_bytes\": %zu, \"least_bytes\": %zu,\n   ",
          all.kernels, all.read, all.written, waits, step.streams.size(), step.peak,
          std::min(step.least, step.peak));
  write_map(file, "waits", step.waits, [&](long count) { fprintf(file, "%ld", count); });
  fprintf(file, ",\n   ");
  write_map(file, "copies", step.copies, [&](const Copies& one) {
    fprintf(file, "{\"calls\": %ld, \"bytes\": %zu}", one.calls, one.bytes);
  });
  fprintf(file, ",\n   ");
  auto write_launches = [&](const Launches& one) {
    fprintf(file, "{\"calls\": %ld, \"kernels\": %ld, \"read\": %zu, \"written\": %zu}", one.calls,
            one.kernels, one.read, one.written);
  };
  write_map(file, "operators", step.operators, write_launches);
  fprintf(file, ",\n   \"phases\": {");
  for (size_t i = 0; i < std::size(kPhases); ++i) {
    if (i > 0) fprintf(file, ",\n   ");
    write_map(file, kPhases[i], step.phases[i], write_launches);
  }
  fprintf(file, "}}");
}

const char* path() {
  static const char* given = getenv("FAKE_DEVICE_COUNTERS");
  return given != nullptr && *given != 0 ? given : nullptr;
}

}  // namespace

bool counts_steps() { return path() != nullptr; }

void count_copy(const char* kind, bool pageable, size_t bytes) {
  if (!counts_steps()) return;
  Copies& copies = now().copies[std::string(kind) + (pageable ? ", pageable" : "")];
  ++copies.calls;
  copies.bytes += bytes;
}
void count_wait(const char* what) {
  // A thread that only looks on (a watchdog) keeps nobody waiting.
  if (counts_steps() && has_launched()) ++now().waits[what];
}
void count_stream(size_t number) {
  if (counts_steps()) now().streams.insert(number);
}

void write_counters() {
  if (!counts_steps()) return;
  bool used = false;
  for (const Step& step : steps()) used = used || !step.operators.empty();
  if (!used) return;  // a launcher
  FILE* file = fopen((std::string(path()) + "." + std::to_string(getpid())).c_str(), "we");
  if (file == nullptr) return;
  const char* rank = getenv("RANK");
  fprintf(file, "{\"process\": %d, \"rank\": %d, \"steps\": [\n", getpid(),
          rank != nullptr ? atoi(rank) : 0);
  for (size_t i = 0; i < steps().size(); ++i) {
    if (i > 0) fprintf(file, ",\n");
    write(file, steps()[i]);
  }
  fprintf(file, "\n]}\n");
  fclose(file);
}

}  // namespace fake_device

using namespace fake_device;

extern "C" {

int fake_device_counts() { return counts_steps() ? 1 : 0; }
void fake_device_launched(const char* what, long kernels, size_t read, size_t written) {
  if (!counts_steps()) return;
  if (Costs* graph = costs_of_graph()) {
    graph->read += read;
    graph->written += written;
    return;
  }
  Lock lock;
  Step& step = now();
  const size_t phase = gettid() != getpid() ? 1 : step.phases[1].empty() ? 0 : 2;
  for (Launches* launches : {&step.operators[what], &step.phases[phase][what]}) {
    ++launches->calls;
    launches->kernels += kernels;
    launches->read += read;
    launches->written += written;
  }
}
void fake_device_allocated(size_t bytes) {
  Lock lock;
  now().peak = std::max(now().peak, bytes);
  now().least = std::min(now().least, bytes);
}
void fake_device_step() {
  Lock lock;
  steps().emplace_back();
  write_counters();  // a program may end without its last words, as Python's os._exit does
}
}
