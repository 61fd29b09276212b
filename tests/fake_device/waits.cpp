#include "waits.h"

#include <execinfo.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime.h"
#include "symbols.h"

namespace fake_device {

namespace {

// A place is its two innermost callers, of LibTorch as a rule, and so many of the program's.
constexpr size_t kCallers = 2, kOfProgram = 4;
constexpr int kFrames = 96;

struct Waits {
  const char* what = "";
  long count = 0;
  size_t number = 0;  // by when the first was
  std::vector<void*> frames;
};
std::map<uint32_t, Waits>& all() {
  static auto* made = new std::map<uint32_t, Waits>;
  return *made;
}

const Place& known_place(void* frame) {
  static auto* places = new std::unordered_map<void*, Place>;
  auto it = places->find(frame);
  if (it == places->end()) it = places->emplace(frame, place_of_code(frame)).first;
  return it->second;
}

std::vector<void*> frames_of_place() {
  void* frames[kFrames];
  const int count = backtrace(frames, kFrames);
  std::vector<void*> out;
  size_t of_program = 0;
  for (int i = 0; i < count && of_program < kOfProgram; ++i) {
    const Place& place = known_place(frames[i]);
    if (place.owner == Owner::fake) continue;
    if (place.owner == Owner::program) ++of_program;
    if (place.owner == Owner::program || out.size() < kCallers) out.push_back(frames[i]);
  }
  return out;
}

uint32_t hash_of(const std::vector<void*>& frames) {
  uint32_t out = 2166136261;
  for (void* frame : frames) {
    const size_t offset = known_place(frame).offset;
    for (size_t bits = 0; bits < 32; bits += 8)
      out = (out ^ static_cast<uint32_t>(offset >> bits & 0xff)) * 16777619;
  }
  return out;
}

}  // namespace

bool drops_wait(const char* what) {
  static const char* list = getenv("FAKE_DEVICE_WAITS");
  static const char* dropped = getenv("FAKE_DEVICE_DROP_WAIT");
  if (list == nullptr && dropped == nullptr) return false;
  Lock lock;
  const std::vector<void*> frames = frames_of_place();
  const uint32_t place = hash_of(frames);
  Waits& waits = all()[place];
  if (waits.count++ == 0) {
    waits.what = what;
    waits.number = all().size();
    waits.frames = frames;
  }
  return dropped != nullptr && place == strtoul(dropped, nullptr, 16);
}

void tell_waits() {
  if (getenv("FAKE_DEVICE_WAITS") == nullptr) return;
  std::vector<std::pair<uint32_t, const Waits*>> in_order;
  for (const auto& [place, waits] : all()) in_order.emplace_back(place, &waits);
  std::sort(in_order.begin(), in_order.end(),
            [](const auto& a, const auto& b) { return a.second->number < b.second->number; });
  for (const auto& [place, waits] : in_order) {
    std::string callers;
    for (void* frame : waits->frames)
      callers += (callers.empty() ? "" : " < ") + name_of_code(static_cast<char*>(frame) - 1);
    fprintf(log_file(), "fake device: wait %08x: %s, %ld times: %s\n", place, waits->what,
            waits->count, callers.c_str());
  }
}

}  // namespace fake_device
