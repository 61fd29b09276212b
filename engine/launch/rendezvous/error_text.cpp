#include "engine/launch/rendezvous/error_text.h"

#include "sdk/base/files/error_text.h"
#include "sdk/base/host_facts.h"

namespace meshwright::rendezvous {

std::string encode_error(const Error& error) { return base::error_text(error); }

Error decode_error(const std::string& text) {
  return base::error_in(text).value_or(Error(
      ErrorCode::rank_failed,
      "another rank refused the job in words that this one cannot read: " + text.substr(0, 200)));
}

std::string name_here(int64_t rank) {
  return "rank " + std::to_string(rank) + " (" + host_name() + ")";
}

}  // namespace meshwright::rendezvous
