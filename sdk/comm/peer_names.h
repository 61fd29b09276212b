// The names of peers: a transport that loses a connection knows socket addresses only, and its user
// wants to know rank and host.
#pragma once

#include <cstdint>
#include <string>

#include "meshwright/export.h"

namespace meshwright::detail {

// The text with each "[10.70.0.2]:35123" that is known replaced by "rank 1 on gpu004 (10.70.0.2)",
// and without the place in gloo's source that it begins with.
std::string with_peer_names(std::string text);
// "rank 1 on gpu004 (10.70.0.2)", where name_peer() told so of another host; else "rank 1".
std::string peer_of_rank(int64_t rank);

}  // namespace meshwright::detail
