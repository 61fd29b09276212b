// Sockets of the rendezvous: where rank 0 listens, and whether it can be reached.
#pragma once

#include <chrono>
#include <string>

namespace meshwright::rendezvous {

// A listening socket on 127.0.0.1, or on every interface. LibTorch's own server would always take every interface; a socket handed over
// is honoured. Throws Error(rendezvous_failed) that says what to do when the port is taken.
int listen_on(int port, bool loopback_only);

// Tries until `end` to connect to host:port, and hangs up again. Empty, or why it could not ("Connection refused").
std::string reach(const std::string& host, int port, std::chrono::steady_clock::time_point end);

}  // namespace meshwright::rendezvous
