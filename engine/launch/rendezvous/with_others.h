// What a rank does together with all others over the store of rank 0.
#pragma once

#include <string>
#include <utility>

#include "engine/launch/rendezvous/bounded.h"
#include "engine/launch/rendezvous/notices.h"
#include "meshwright/error.h"

namespace meshwright::rendezvous {

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
