#include "engine/train/run/first_attempt.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/launch/supervisor.h"
#include "meshwright/error.h"
#include "sdk/base/files/json_codec.h"

namespace meshwright::train {

void hold_to_first_attempt(int memory, const MadeOf& made_of) {
  const std::string now = base::json_text(made_of);
  const std::string then = launch::bytes_of(memory, "what the first attempt left");
  if (then.empty()) {
    if (::pwrite(memory, now.data(), now.size(), 0) != static_cast<ssize_t>(now.size()))
      throw Error(ErrorCode::internal,
                  std::string("what the run is made of cannot be kept for later attempts: ") +
                      std::strerror(errno));
    return;
  }
  const auto known = base::read_json_text<MadeOf>(then);
  for (const auto& one : made_of) {
    if (std::find(known.begin(), known.end(), one) != known.end()) continue;
    throw Error(ErrorCode::checkpoint_mismatch,
                one.first +
                    " changed since the first attempt of this run, of which nothing was saved: "
                    "starting again would train another run")
        .help("put it back, or start the run again as it is now")
        .help("set checkpoint.every_steps to save earlier");
  }
}

}  // namespace meshwright::train
