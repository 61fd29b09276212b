// An address to listen at, as a key holds it.
#pragma once

#include <string>
#include <string_view>

#include "meshwright/error.h"

namespace meshwright::config {

struct ListenAddress {
  std::string host;  // "127.0.0.1", "::1", "localhost"
  int port = 0;      // 0: one that is free
};

// "127.0.0.1:9400", "[::1]:9400", "name:9400"; ":9400" and "9400" are 127.0.0.1's. Only
// "0.0.0.0:9400" and "[::]:9400" are all interfaces. Throws Error(out_of_range) with `key`.
ListenAddress parse_listen_address(std::string_view text, const std::string& key);

}  // namespace meshwright::config
