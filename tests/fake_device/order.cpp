#include "order.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "delays.h"
#include "runtime.h"

namespace fake_device {

namespace {

struct Access {
  bool there = false;
  size_t stream = 0;
  uint64_t time = 0;
  const char* what = "";
};
// A range of memory whose bytes were all touched alike.
struct Piece {
  uintptr_t end = 0;
  Access write;
  std::vector<Access> reads;  // since that write, one a stream
};
using Pieces = std::map<uintptr_t, Piece>;  // by where they begin

struct State {
  std::vector<Stream*> streams;
  Stream* defaults[kMostDevices] = {};
  Clock host;
  Pieces history;
  std::map<uintptr_t, std::pair<uintptr_t, const char*>> owners;  // by where: until where, what
  std::set<std::string> names, said;
  size_t kinds = 0;
};
State& state() {
  static auto* all = new State;  // never destroyed: other libraries end later
  return *all;
}

void tell(const char* kind, const Access& before, const Stream& stream, const char* what,
          uintptr_t where, size_t bytes) {
  ++counts().races;
  if (!is_new(std::string(kind) + before.what + "|" + what)) return;
  ++state().kinds;
  fprintf(log_file(),
          "fake device: RACE %s: [%s] on stream %zu, then [%s] on stream %zu, %zu bytes at %#zx%s; "
          "stream %zu should have waited for stream %zu\n",
          kind, before.what, before.stream, what, stream.number, bytes, size_t{where},
          name_at(where).c_str(), stream.number, before.stream);
  log_stack();
}

// Makes a piece begin there, if one goes across.
void cut(Pieces& pieces, uintptr_t where) {
  auto it = pieces.upper_bound(where);
  if (it == pieces.begin()) return;
  --it;
  if (it->first == where || it->second.end <= where) return;
  Piece right = it->second;
  it->second.end = where;
  pieces.emplace(where, std::move(right));
}

bool unordered(const Access& before, const Stream& stream) {
  return before.there && before.stream != stream.number &&
         at(stream.clock, before.stream) < before.time;
}

void visit(uintptr_t from, Piece& piece, const Stream& stream, const Access& now, bool write) {
  const size_t bytes = piece.end - from;
  if (unordered(piece.write, stream))
    tell(write ? "write after write" : "read after write", piece.write, stream, now.what, from,
         bytes);
  if (write) {
    for (const Access& read : piece.reads)
      if (unordered(read, stream)) tell("write after read", read, stream, now.what, from, bytes);
    piece.write = now;
    piece.reads.clear();
    return;
  }
  auto same = std::find_if(piece.reads.begin(), piece.reads.end(),
                           [&](const Access& read) { return read.stream == now.stream; });
  if (same == piece.reads.end())
    piece.reads.push_back(now);
  else
    *same = now;
}

}  // namespace

void join(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}
uint64_t at(const Clock& clock, size_t stream) { return stream < clock.size() ? clock[stream] : 0; }

Stream* make_stream(int device) {
  auto* stream = new Stream;  // for good: its number stays in the history
  stream->device = device;
  stream->number = state().streams.size();
  state().streams.push_back(stream);
  return stream;
}
const std::vector<Stream*>& all_streams() { return state().streams; }

Stream* stream_of(cudaStream_t handle, int device) {
  if (handle != nullptr && handle != cudaStreamLegacy && handle != cudaStreamPerThread)
    return reinterpret_cast<Stream*>(handle);
  Stream*& made = state().defaults[device < 0 ? current_device() : device];
  if (made == nullptr) {
    made = make_stream(device < 0 ? current_device() : device);
    made->legacy = true;
  }
  return made;
}

void start(Stream& stream) {
  join(stream.clock, state().host);
  if (stream.clock.size() <= stream.number) stream.clock.resize(stream.number + 1);
  ++stream.clock[stream.number];
}

void touch(const Stream& stream, uintptr_t from, size_t bytes, bool write, const char* what) {
  if (bytes == 0) return;
  settle(stream.clock, from, bytes);
  if (write) put_aside(stream, from, bytes);
  if (!settings().races) return;
  const Access now{true, stream.number, at(stream.clock, stream.number), what};
  const uintptr_t to = from + bytes;
  Pieces& pieces = state().history;
  cut(pieces, from);
  cut(pieces, to);
  // What nobody has touched becomes a piece too.
  auto fill = [&](uintptr_t begin, uintptr_t end) {
    if (begin == end) return;
    Piece piece;
    piece.end = end;
    visit(begin, piece, stream, now, write);
    pieces.emplace(begin, std::move(piece));
  };
  uintptr_t done = from;
  for (auto it = pieces.lower_bound(from); it != pieces.end() && it->first < to; ++it) {
    fill(done, it->first);
    visit(it->first, it->second, stream, now, write);
    done = it->second.end;
  }
  fill(done, to);
}

void name(uintptr_t from, size_t bytes, const char* what) {
  auto& owners = state().owners;
  auto it = owners.lower_bound(from);
  if (it != owners.begin() && std::prev(it)->second.first > from) --it;
  while (it != owners.end() && it->first < from + bytes) {
    const auto [begin, other] = *it;
    it = owners.erase(it);
    if (begin < from) owners.emplace(begin, std::pair(from, other.second));
    if (other.first > from + bytes) owners.emplace(from + bytes, other);
  }
  if (what != nullptr) owners.emplace(from, std::pair(from + bytes, what));
}
std::string name_at(uintptr_t where) {
  auto it = state().owners.upper_bound(where);
  if (it == state().owners.begin() || (--it)->second.first <= where) return "";
  return std::string(" of the ") + it->second.second;
}

void forget(uintptr_t from, size_t bytes) {
  drop_writes(from, bytes);
  name(from, bytes, nullptr);
  Pieces& pieces = state().history;
  cut(pieces, from);
  cut(pieces, from + bytes);
  pieces.erase(pieces.lower_bound(from), pieces.lower_bound(from + bytes));
}

void learn(const Clock& clock) {
  if (settings().ignore_syncs) return;
  join(state().host, clock);
  settle_all(state().host);
  land();
}
bool is_known(const Clock& clock) {
  for (size_t i = 0; i < clock.size(); ++i)
    if (at(state().host, i) < clock[i]) return false;
  return true;
}
const Clock& host_clock() { return state().host; }

const char* keep(const char* what) { return state().names.insert(what).first->c_str(); }
bool is_new(const std::string& line) { return state().said.insert(line).second; }
size_t kinds_of_races() { return state().kinds; }

}  // namespace fake_device
