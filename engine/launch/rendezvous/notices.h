// What ranks tell each other in a store, where anybody may have written it, and limits for calls
// that have none. Only for .cpp files, as json_codec.h.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "meshwright/error.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/wait.h"
#include "sdk/base/words.h"

namespace meshwright::rendezvous {

using Milliseconds = std::chrono::milliseconds;

// The call did not come back.
struct NoAnswer {};

// What `call` returns or throws; NoAnswer when it takes longer. LibTorch's store waits for ever
// where its server is there and silent (a stopped process, another program on the port), and
// nothing wakes it up: such a call stays behind in its thread until the process ends. So `call`
// must own all that it uses.
//
// `meanwhile` is called after every half second, until the limit is over; what it throws ends the
// wait in the same way.
template <class F, class G>
auto bounded(Milliseconds limit, F call, G meanwhile) -> std::invoke_result_t<F> {
  auto task = std::make_shared<std::packaged_task<std::invoke_result_t<F>()>>(std::move(call));
  auto result = task->get_future();
  std::thread thread([task] { (*task)(); });
  auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    // From now on: the last call may have taken long.
    const auto next = std::min(end, std::chrono::steady_clock::now() + Milliseconds(500));
    if (result.wait_until(next) == std::future_status::ready) break;
    try {
      if (next == end) throw NoAnswer();
      meanwhile();
    } catch (...) {
      thread.detach();
      throw;
    }
  }
  thread.join();
  return result.get();
}

template <class F>
auto bounded(Milliseconds limit, F call) -> std::invoke_result_t<F> {
  return bounded(limit, std::move(call), [] {});
}

// nullopt: no answer in time. What the call throws goes on: a limit of the host, say.
template <class F>
auto in_time(Milliseconds limit, F call) -> std::optional<std::invoke_result_t<F>> {
  try {
    return bounded(limit, std::move(call));
  } catch (const NoAnswer&) {
    return std::nullopt;
  }
}

// The same of a call whose failure says no more than its silence.
template <class F>
auto attempt(Milliseconds limit, F call) -> std::optional<std::invoke_result_t<F>> {
  try {
    return in_time(limit, std::move(call));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// Text as the values of a store.
inline std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
inline std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

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
  if (const std::optional<int64_t> out = text::to_number(text)) return *out;
  throw not_from_a_rank(text, key, who, "is no number");
}

// json_text() of a T that `who` ("rank 3") left under that key. Throws Error(rendezvous_failed)
// that names both where it is none.
template <class T>
T told(const std::string& text, const std::string& key, const std::string& who) {
  try {
    return base::read_json_text<T>(text);
  } catch (const base::JsonProblem&) {
    throw not_from_a_rank(text, key, who, "is nothing that a rank says");
  }
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

// What a rank does together with all others over the store of rank 0.

// How the error reads when the others cannot be reached.
struct WithOthers {
  int64_t rank;
  Milliseconds timeout;
  const char* aim;      // "compare itself with the others"
  const char* no_word;  // "rank 0 gave no verdict": where the store answered, but not in time
};

// What `work` returns, in at most `limit`. An Error that it throws goes on as it is; all else
// becomes Error(rendezvous_failed).
template <class F>
auto with_others(const WithOthers& words, Milliseconds limit, F work) -> std::invoke_result_t<F> {
  auto lost = [&](const std::string& what) {
    return Error(ErrorCode::rendezvous_failed,
                 "rank " + std::to_string(words.rank) + " could not " + words.aim + ": " + what)
        .key("dist_env.timeout_minutes")
        .help(
            "look at the logs of the other ranks: one of them ended, hangs or is stopped, or the "
            "network between hosts is broken");
  };
  try {
    return bounded(limit, std::move(work));
  } catch (const Error&) {
    throw;
  } catch (const NoAnswer&) {
    throw lost("the store of rank 0 did not answer within " + seconds(words.timeout) +
               ": rank 0 hangs or is stopped");
  } catch (const std::exception&) {
    throw lost(std::string(words.no_word) + " within " + seconds(words.timeout) + ", or ended");
  }
}

}  // namespace meshwright::rendezvous
