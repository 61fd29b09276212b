// The names of peers: a transport that loses a connection knows socket addresses only, and its user wants to know rank and host.
#pragma once

#include <string>

#include "meshwright/export.h"

namespace meshwright::detail {

// From now on errors call a socket address ("10.70.0.2", 35123) so: "rank 1 on gpu004". The latest name of an address counts; port 0 is
// none. Thread-safe.
MESHWRIGHT_API void name_peer(const std::string& address, int port, const std::string& name);

// The text with each "[10.70.0.2]:35123" that is known replaced by "rank 1 on gpu004 (10.70.0.2)", and without the place
// in gloo's source that it begins with.
std::string with_peer_names(std::string text);

}  // namespace meshwright::detail
