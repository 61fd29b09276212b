// What a thread does while it waits for other ranks, for the messages of errors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "meshwright/export.h"

namespace meshwright::detail {

struct Doing {
  std::string text;    // "attention of model.layers.3.self_attn.core, forward"; empty: nobody said
  int64_t order = -1;  // of the step around it among what all ranks do; -1: there is no such order
  std::string step;    // that step: "3F5 of the pipeline, which computes"
};

// Says, while it lives, what the collectives of this thread are for. `what` is not copied and must
// outlive it. `order`: its place among what all ranks do; -1: that of the activity around it.
class MESHWRIGHT_API Activity {
 public:
  Activity(const std::string& what, const char* direction, int64_t order = -1)
      : what_(what),
        direction_(direction),
        outer_(std::exchange(innermost(), this)),
        order_(order) {}
  ~Activity() { innermost() = outer_; }
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  // Of this thread.
  static Doing now() {
    Doing out;
    const Activity* mine = innermost();
    if (mine != nullptr) out.text = mine->text();
    while (mine != nullptr && mine->order_ < 0) mine = mine->outer_;
    if (mine != nullptr) out.order = mine->order_, out.step = mine->text();
    return out;
  }
  // The text of now(), without memory for it: as much as there is room for. Gives its length.
  static size_t write_now(char* out, size_t room);

 private:
  std::string text() const { return what_ + ", " + direction_; }
  static const Activity*& innermost() {
    static thread_local const Activity* of_thread = nullptr;
    return of_thread;
  }
  const std::string& what_;
  const char* direction_;
  const Activity* outer_;
  int64_t order_;
};

// The same for the record of collectives alone, where errors say enough without: what a unit's are
// for. Comes before the activity around it.
class MESHWRIGHT_API Purpose {
 public:
  Purpose(const char* what, const std::string& unit)
      : what_(what), unit_(unit), outer_(std::exchange(innermost(), this)) {}
  ~Purpose() { innermost() = outer_; }
  Purpose(const Purpose&) = delete;
  Purpose& operator=(const Purpose&) = delete;
  // "gathers parameters of layers.0", else the activity's.
  static size_t write_now(char* out, size_t room) {
    const Purpose* mine = innermost();
    if (mine == nullptr) return Activity::write_now(out, room);
    return put_all(out, room,
                   {mine->what_, mine->unit_.empty() ? "the root" : std::string_view(mine->unit_)});
  }
  static size_t put_all(char* out, size_t room, std::initializer_list<std::string_view> parts) {
    size_t length = 0;
    for (std::string_view part : parts) {
      const size_t more = std::min(part.size(), room - length);
      std::memcpy(out + length, part.data(), more);
      length += more;
    }
    return length;
  }

 private:
  static const Purpose*& innermost() {
    static thread_local const Purpose* of_thread = nullptr;
    return of_thread;
  }
  const char* what_;
  const std::string& unit_;
  const Purpose* outer_;
};

inline size_t Activity::write_now(char* out, size_t room) {
  const Activity* mine = innermost();
  return mine == nullptr ? 0 : Purpose::put_all(out, room, {mine->what_, ", ", mine->direction_});
}

}  // namespace meshwright::detail
