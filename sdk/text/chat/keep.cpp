// What outlives the turn of a loop: namespaces hold it. It moves to an arena of its own, and texts
// and lists that grow there grow in place, so that adding to them turn by turn is linear.
#include <algorithm>

#include "sdk/text/chat/renderer.h"

namespace meshwright::chat {

namespace {

constexpr size_t kFewBytes = 1024;  // are copied

}  // namespace

template <class T>
T* Renderer::grown(const T* values, size_t size, size_t more) {
  if (size * sizeof(T) < kFewBytes) return nullptr;
  const auto found = room_.find(values + size);
  if (found == room_.end()) return nullptr;
  T* out = const_cast<T*>(values);  // of ours, with nothing behind them
  size_t room = found->second;
  if (room >= more * sizeof(T)) {
    room_.erase(found);
  } else {
    const size_t wanted = 2 * (size + more);
    out = take_from<T>(kept_, wanted);
    std::copy_n(values, size, out);
    spend(size);
    room = (wanted - size) * sizeof(T);
  }
  room_.insert_or_assign(out + size + more, room - more * sizeof(T));
  return out;
}

template char* Renderer::grown<char>(const char*, size_t, size_t);
template Run* Renderer::grown<Run>(const Run*, size_t, size_t);
template Datum* Renderer::grown<Datum>(const Datum*, size_t, size_t);

Datum Renderer::keep(const Datum& value, int depth) {
  if (turns_open_.empty() || pinned_) return value;
  auto copy = [&]<class T>(const T* from, size_t size) {
    T* out = take_from<T>(kept_, size);
    std::copy_n(from, size, out);
    spend(size);
    if (size * sizeof(T) >= kFewBytes) room_.try_emplace(out + size, 0);
    return out;
  };
  auto copy_values = [&](const Datum* from, size_t size) {
    Datum* out = copy(from, size);
    for (size_t i = 0; i < size; ++i) out[i] = keep(out[i], depth + 1);
    return out;
  };
  Datum out = value;
  switch (value.kind) {
    case Kind::missing:
    case Kind::none:
    case Kind::boolean:
    case Kind::integer:
    case Kind::real:
      return value;
    case Kind::string:
      if (value.mixed) {
        if (!is_young(value.parts)) return value;
        Mixed parts = *value.parts;
        if (is_young(parts.text)) parts.text = copy(parts.text, value.size);
        if (is_young(parts.runs)) parts.runs = copy(parts.runs, parts.count);
        out.parts = new (take_from<Mixed>(kept_, 1)) Mixed(parts);
        return out;
      }
      [[fallthrough]];
    case Kind::big:
    case Kind::undefined:
      if (value.size > 0 && is_young(value.text)) out.text = copy(value.text, value.size);
      return out;
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::view:
    case Kind::dict: {
      const size_t before = value.kind == Kind::range ? 3 : 0,
                   size = (value.kind == Kind::dict ? 2 : 1) * size_t{value.size} + before;
      if (size == 0 || !is_young(value.items - before)) return value;
      if (depth > kDeepestValue) break;
      out.items = copy_values(value.items - before, size) + before;
      return out;
    }
    case Kind::iterator:
    case Kind::space:
    case Kind::loop:
    case Kind::callable:
      break;
  }
  // These hold on to frames, or are changed by whoever has them.
  pinned_ = pinned_ || is_young(value.stream);
  return value;
}

}  // namespace meshwright::chat
