#include "peer_names.h"

#include <charconv>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "meshwright/parallel/transport.h"

namespace meshwright::detail {

namespace {

using Key = std::pair<std::string, int>;

std::mutex& mutex() {
  static std::mutex one;
  return one;
}

std::map<Key, std::string>& names() {
  static std::map<Key, std::string> all;
  return all;
}

const std::string* find(const std::string& address, int port) {
  auto found = names().find({address, port});
  return found == names().end() ? nullptr : &found->second;
}

// gloo prints some ports in the order of the network's bytes.
int swapped(int port) { return ((port & 0xff) << 8) | (port >> 8); }

}  // namespace

std::string with_peer_names(std::string text) {
  // "[/somewhere/gloo/transport/tcp/pair.cc:538] Read error ...": where LibTorch was built says
  // nothing to its user.
  if (size_t end = text.find("] "); text.starts_with("[/") && end != std::string::npos)
    text.erase(0, end + 2);
  std::lock_guard lock(mutex());
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t open = text.find('[', at),
           close = open == std::string::npos ? open : text.find("]:", open);
    if (close == std::string::npos) return out + text.substr(at);
    int port = 0;
    const char* digits = text.data() + close + 2;
    const char* stop = std::from_chars(digits, text.data() + text.size(), port).ptr;
    std::string address = text.substr(open + 1, close - open - 1);
    const std::string* name = port > 0 && port <= UINT16_MAX ? find(address, port) : nullptr;
    if (name == nullptr && port > 0 && port <= UINT16_MAX) name = find(address, swapped(port));
    out += text.substr(at, open - at);
    if (name == nullptr) {
      out += '[';
      at = open + 1;
      continue;
    }
    // "Read error, rank 1 on gpu004 (10.70.0.2): Connection reset by peer"
    if (out.ends_with(' ')) out.replace(out.size() - 1, 1, ", ");
    out += *name + " (" + address + ")";
    at = static_cast<size_t>(stop - text.data());
  }
  return out;
}

std::string peer_of_rank(int64_t rank) {
  const std::string plain = "rank " + std::to_string(rank);
  std::lock_guard lock(mutex());
  for (const auto& [key, name] : names())
    if (name.starts_with(plain + " on ") && !key.first.starts_with("127.") && key.first != "::1")
      return name + " (" + key.first + ")";
  return plain;
}

}  // namespace meshwright::detail

namespace meshwright {

void name_peer(const std::string& address, int port, const std::string& name) {
  if (port <= 0) return;
  std::lock_guard lock(detail::mutex());
  detail::names()[{address, port}] = name;
}

}  // namespace meshwright
