#include "engine/config/listen_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

namespace meshwright::config {

namespace {

bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }
bool is_letter(unsigned char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
}

// Empty, or what is wrong with a name or an IPv4 address. What looks like an address must be one:
// the system takes "0" and "127.1" for addresses, too.
std::string wrong_host(const std::string& host) {
  in_addr address{};
  if (::inet_pton(AF_INET, host.c_str(), &address) == 1) return {};
  if (host == "*") return "* is no address: all interfaces are 0.0.0.0";
  const std::string last = host.substr(host.rfind('.') + 1);  // the whole, where there is no dot
  if (all_digits(last) || host.starts_with("0x") || host.starts_with("0X"))
    return "\"" + host + "\" is no IPv4 address of four numbers";
  const bool named = std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return is_letter(c) || is_digit(c) || c == '-' || c == '.' || c == '_';
  });
  if (!named || host.size() > 253 || host.starts_with('.') || host.starts_with('-'))
    return "\"" + host + "\" is no name of a host";
  return {};
}

}  // namespace

ListenAddress parse_listen_address(std::string_view text, const std::string& key) {
  auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::out_of_range,
                 key + " = \"" + std::string(text) + "\" is no address to listen at: " + why)
        .key(key)
        .help("set " + key + " = \"127.0.0.1:9400\", which this machine alone can reach")
        .help("set " + key + " = \"0.0.0.0:9400\", which others can reach, too");
  };
  ListenAddress out{"127.0.0.1", 0};
  std::string_view port = text;
  if (text.starts_with('[')) {
    const size_t end = text.find("]:");
    if (end == std::string_view::npos) throw refuse("after [ADDRESS] comes :PORT");
    out.host = text.substr(1, end - 1);
    port = text.substr(end + 2);
    in6_addr address{};
    if (::inet_pton(AF_INET6, out.host.c_str(), &address) != 1)
      throw refuse("\"" + out.host + "\" is no IPv6 address");
    if (IN6_IS_ADDR_UNSPECIFIED(&address) && out.host != "::")
      throw refuse("all interfaces are written [::]");
  } else if (const size_t colon = text.rfind(':'); colon != std::string_view::npos) {
    port = text.substr(colon + 1);
    const std::string host(text.substr(0, colon));
    if (host.find(':') != std::string::npos)
      throw refuse("an IPv6 address stands in brackets, [::1]:9400");
    if (const std::string why = host.empty() ? "" : wrong_host(host); !why.empty())
      throw refuse(why);
    if (!host.empty()) out.host = host;
  } else if (!all_digits(text)) {
    throw refuse("it wants HOST:PORT");
  }
  if (!all_digits(port)) throw refuse("after the colon comes the number of a port");
  const auto read = std::from_chars(port.data(), port.data() + port.size(), out.port);
  if (read.ec != std::errc() || out.port > 65535)
    throw refuse("ports go up to 65535; 0 takes one that is free");
  return out;
}

}  // namespace meshwright::config
