#include "engine/train/run/first_attempt.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "engine/launch/rendezvous/separators.h"
#include "engine/launch/supervisor.h"
#include "meshwright/error.h"

namespace meshwright::train {

void hold_to_first_attempt(int memory, const MadeOf& made_of) {
  std::string now;
  for (const auto& [what, checksum] : made_of)
    now += what + rendezvous::kUnitSeparator + checksum + rendezvous::kRecordSeparator;
  const std::string then = launch::bytes_of(memory, "what the first attempt left");
  if (then.empty()) {
    if (::pwrite(memory, now.data(), now.size(), 0) != static_cast<ssize_t>(now.size()))
      throw Error(ErrorCode::internal,
                  std::string("what the run is made of cannot be kept for later attempts: ") +
                      std::strerror(errno));
    return;
  }
  std::map<std::string, std::string> known;
  for (size_t at = 0, end; (end = then.find(rendezvous::kRecordSeparator, at)) != std::string::npos;
       at = end + 1) {
    const std::string line = then.substr(at, end - at);
    const size_t middle = line.find(rendezvous::kUnitSeparator);
    known[line.substr(0, middle)] = line.substr(middle + 1);
  }
  for (const auto& [what, checksum] : made_of) {
    const auto found = known.find(what);
    if (found != known.end() && found->second == checksum) continue;
    throw Error(ErrorCode::checkpoint_mismatch,
                what +
                    " changed since the first attempt of this run, of which nothing was saved: "
                    "starting again would train another run")
        .help("put it back, or start the run again as it is now")
        .help("set checkpoint.every_steps to save earlier");
  }
}

}  // namespace meshwright::train
