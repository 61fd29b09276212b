// What the sources of the runtime share, and the fault handler that tells which access was wrong.
#include "runtime.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdlib>
#include <string>
#include <utility>

#include "counters.h"
#include "delays.h"
#include "graphs.h"
#include "waits.h"

namespace fake_device {

namespace {

int number_of(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value != nullptr && *value != 0 ? atoi(value) : otherwise;
}

// Of those that CUDA 13 compiles for. A process that has another one ends: nothing else would tell
// that it has not got what it asked for.
int capability_of(const char* name, int otherwise) {
  const char* value = getenv(name);
  if (value == nullptr || *value == 0) return otherwise;
  for (const int known : {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121})
    if (std::to_string(known / 10) + "." + std::to_string(known % 10) == value) return known;
  fprintf(stderr, "fake device: %s=%s is no capability of a device, such as 9.0\n", name, value);
  _exit(2);
}

std::atomic<bool> hung{false};
thread_local bool launched = false;

struct sigaction before;
void on_fault(int signal, siginfo_t* info, void* context) {
  auto* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (is_device(info->si_addr)) {
    fprintf(log_file(), "fake device: HOST ACCESS to device memory at %p\n", info->si_addr);
    log_stack();
  } else if (tell_pinned(info->si_addr, (registers[REG_ERR] & 2) != 0)) {
    return;  // it goes on
  } else {
    char name[32] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    fprintf(log_file(), "fake device: fault at %p in thread %s\n", info->si_addr, name);
    log_stack();
  }
  sigaction(signal, &before, nullptr);
}

void at_end() {
  {
    Lock lock;
    write_counters();
    tell_waits();
  }
  if (!settings().summary) return;
  const Counts& all = counts();
  fprintf(log_file(),
          "fake device: process %d: %ld operations, %ld copies, %ld stray kernels, %zu streams, "
          "%ld races (%zu kinds)\n",
          getpid(), all.operations, all.copies, all.kernels, all_streams().size(), all.races,
          kinds_of_races());
}

// The library of the operators needs LibTorch's, which are not all there when this one is loaded.
void load_operators() {
  const char* path = getenv("FAKE_DEVICE_OPERATORS");
  if (path == nullptr || *path == 0) return;
  if (dlopen(path, RTLD_NOW | RTLD_LOCAL) == nullptr)
    fprintf(stderr, "fake device: %s\n", dlerror());
}

}  // namespace

const Settings& settings() {
  static const Settings made = [] {
    Settings out;
    out.count = std::clamp(number_of("FAKE_DEVICE_COUNT", out.count), 0, kMostDevices);
    for (int i = 0; i < kMostDevices; ++i) out.number[i] = i;
    if (const char* visible = getenv("CUDA_VISIBLE_DEVICES")) {
      const int all = std::exchange(out.count, 0);
      for (char* end = nullptr; out.count < all; visible = end + (*end == ',')) {
        const long number = strtol(visible, &end, 10);
        if (end == visible || number < 0 || number >= all) break;
        out.number[out.count++] = static_cast<int>(number);
      }
    }
    if (const char* memory = getenv("FAKE_DEVICE_MEMORY"); memory != nullptr && *memory != 0)
      out.memory = std::min<size_t>(strtoull(memory, nullptr, 10), kDeviceBytes);
    out.instances = std::max(1, number_of("FAKE_DEVICE_INSTANCES", out.instances));
    out.capability = capability_of("FAKE_DEVICE_CAPABILITY", out.capability);
    out.microseconds = number_of("FAKE_DEVICE_MICROSECONDS", out.microseconds);
    auto flag = [](bool& value, const char* name) { value = number_of(name, value) != 0; };
    flag(out.verbose, "FAKE_DEVICE_VERBOSE");
    flag(out.races, "FAKE_DEVICE_RACES");
    flag(out.poison, "FAKE_DEVICE_POISON");
    flag(out.arithmetic, "FAKE_DEVICE_ARITHMETIC");
    if (!out.arithmetic) out.races = out.poison = false;
    flag(out.stacks, "FAKE_DEVICE_STACKS");
    flag(out.summary, "FAKE_DEVICE_SUMMARY");
    flag(out.ignore_waits, "FAKE_DEVICE_IGNORE_WAITS");
    flag(out.ignore_syncs, "FAKE_DEVICE_IGNORE_SYNCS");
    return out;
  }();
  return made;
}

std::recursive_mutex& mutex() {
  static auto* only = new std::recursive_mutex;
  return *only;
}
Counts& counts() {
  static Counts all;
  return all;
}

FILE* log_file() {
  static FILE* file = [] {
    const char* path = getenv("FAKE_DEVICE_LOG");
    if (path == nullptr || *path == 0) return stderr;
    FILE* opened = fopen((std::string(path) + "." + std::to_string(getpid())).c_str(), "ae");
    if (opened == nullptr) return stderr;
    setvbuf(opened, nullptr, _IOLBF, 0);
    return opened;
  }();
  return file;
}

void log_stack() {
  if (!settings().stacks) return;
  void* frames[48];
  const int count = backtrace(frames, 48);
  fflush(log_file());
  backtrace_symbols_fd(frames, count, fileno(log_file()));
}

void set_up() {
  static std::once_flag handler, operators;
  std::call_once(handler, [] {
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &before);
    atexit(at_end);
  });
  std::call_once(operators, load_operators);
}

double time_on(const Stream& stream) {
  using Microseconds = std::chrono::duration<double, std::micro>;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::max(stream.time, std::chrono::duration_cast<Microseconds>(now).count());
}

bool has_launched() { return launched; }
bool is_hung() { return hung; }
void wait_while_stuck(const bool& stuck) {
  while (stuck && hung) usleep(5000);
}

}  // namespace fake_device

using namespace fake_device;

extern "C" {

void fake_device_begin(void* stream, int device, const char* what) {
  Lock lock;
  launched = true;
  if (what != nullptr) ++counts().operations;  // a copy or an event has its own count, or none
  Stream& on = *stream_of(static_cast<cudaStream_t>(stream), device);
  if (on.capture != nullptr) spoil(on, what);
  start(on);
  if (what != nullptr) on.time = time_on(on) + settings().microseconds;
  count_stream(on.number);
  if (what != nullptr && settings().verbose)
    fprintf(log_file(), "fake device: stream %zu %s\n", on.number, what);
}
void fake_device_access(void* stream, int device, const void* p, size_t bytes, int write,
                        const char* what) {
  if (!is_device(p) || bytes == 0 || !settings().arithmetic) return;
  Lock lock;
  touch(*stream_of(static_cast<cudaStream_t>(stream), device), reinterpret_cast<uintptr_t>(p),
        bytes, write != 0, keep(what));
}
int fake_device_follows(void* stream, int device, FakeDevicePlace* place) {
  if (!settings().races) return 1;
  Lock lock;
  const Stream& on = *stream_of(static_cast<cudaStream_t>(stream), device);
  const bool follows = at(on.clock, place->stream) >= place->time;
  *place = {on.number, at(on.clock, on.number)};
  return follows ? 1 : 0;
}
void fake_device_name(const void* p, size_t bytes, const char* what) {
  if (!settings().arithmetic) return;
  Lock lock;
  name(reinterpret_cast<uintptr_t>(p), bytes, keep(what));
}
void fake_device_end() {
  Lock lock;
  end_operation();
}
int fake_device_capability() { return settings().capability; }
int fake_device_computes() { return settings().arithmetic ? 1 : 0; }
void fake_device_hang(void* stream, int device) {
  hung = true;
  Lock lock;
  stream_of(static_cast<cudaStream_t>(stream), device)->stuck = true;
}
void fake_device_release() { hung = false; }
void fake_device_note(const char* format, ...) {
  va_list values;
  va_start(values, format);
  vfprintf(log_file(), format, values);
  va_end(values);
}
}
