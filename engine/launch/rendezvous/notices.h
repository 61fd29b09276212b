// Texts that one rank publishes for all others in a store.
#pragma once

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "engine/launch/store_bytes.h"
#include "meshwright/error.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/wait.h"

namespace meshwright::rendezvous {

using Milliseconds = std::chrono::milliseconds;

using base::bytes_of, base::text_of;

// A key of the ranks' store: rank 0 listens on every interface.
inline const std::string kEverywhere = "everywhere";

// "3.0 s"
inline std::string seconds(Milliseconds time) {
  const std::string out = text::format("%f", static_cast<double>(time.count()) / 1000);
  return out.substr(0, out.find('.') + 2) + " s";
}

inline Milliseconds left_until(std::chrono::steady_clock::time_point end) {
  return std::max(std::chrono::duration_cast<Milliseconds>(end - std::chrono::steady_clock::now()),
                  Milliseconds(1));
}

// "1, 4, 5"; of many the first eight.
inline std::string some_of(const std::vector<int64_t>& ranks) {
  std::string out;
  for (size_t i = 0; i < ranks.size() && i < 8; ++i)
    out += (i ? ", " : "") + std::to_string(ranks[i]);
  return ranks.size() > 8 ? out + " and " + std::to_string(ranks.size() - 8) + " more" : out;
}
// The same with the word before them: "rank 3", "ranks 3, 4".
inline std::string named_ranks(const std::vector<int64_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + some_of(ranks);
}

// What `who` ("rank 3") left in the store under that key is from somebody else, or from another
// version of the program.
inline Error not_from_a_rank(const std::string& text, const std::string& key,
                             const std::string& who, const std::string& what) {
  return Error(ErrorCode::rendezvous_failed, "what " + who + " left in the store under \"" + key +
                                                 "\" " + what + ": \"" + text.substr(0, 40) + "\"")
      .help("start all ranks with the same installation")
      .help("set MESHWRIGHT_JOB_SECRET, on all ranks, so that nobody else can write there");
}

// A number there. Throws that error.
inline int64_t number_of(const std::string& text, const std::string& key, const std::string& who) {
  int64_t out = 0;
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (failed == std::errc() && end == text.data() + text.size()) return out;
  throw not_from_a_rank(text, key, who, "is no number");
}

// Publishes the text and gives so many others a moment to read it: the store may end with this
// process.
inline void publish(c10d::Store& store, const std::string& key, const std::string& text,
                    int64_t readers) {
  store.set(key, bytes_of(text));
  base::wait_until(std::chrono::steady_clock::now() + Milliseconds(1000), Milliseconds(1),
                   [&] { return store.add(key + "/read", 0) >= readers; });
}

inline std::string hear(c10d::Store& store, const std::string& key, Milliseconds timeout) {
  store.wait({key}, timeout);
  std::string text = text_of(store.get(key));
  store.add(key + "/read", 1);
  return text;
}

}  // namespace meshwright::rendezvous
