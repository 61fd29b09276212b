#include "engine/launch/rendezvous/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "meshwright/error.h"

namespace meshwright::rendezvous {

namespace {

bool is_v6(const std::string& address) { return address.find(':') != std::string::npos; }

}  // namespace

std::string numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
                sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    // A socket for both families sees IPv4 addresses inside IPv6's.
    if (IN6_IS_ADDR_V4MAPPED(&six))
      ::inet_ntop(AF_INET, &six.s6_addr[12], text, sizeof text);
    else
      ::inet_ntop(AF_INET6, &six, text, sizeof text);
  }
  return text;
}

int port_of(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
  return address->sa_family == AF_INET6
             ? ntohs(reinterpret_cast<const sockaddr_in6*>(address)->sin6_port)
             : 0;
}

int bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0
             ? port_of(reinterpret_cast<sockaddr*>(&address))
             : 0;
}

std::optional<SocketAddress> socket_address(const std::string& numeric_address, int port) {
  SocketAddress out;
  sockaddr_in four{};
  sockaddr_in6 six{};
  if (::inet_pton(AF_INET, numeric_address.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(static_cast<uint16_t>(port));
    *reinterpret_cast<sockaddr_in*>(&out.storage) = four;
    out.size = sizeof four;
  } else if (::inet_pton(AF_INET6, numeric_address.c_str(), &six.sin6_addr) == 1) {
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(static_cast<uint16_t>(port));
    *reinterpret_cast<sockaddr_in6*>(&out.storage) = six;
    out.size = sizeof six;
  } else {
    return std::nullopt;
  }
  return out;
}

bool is_loopback_address(const std::string& numeric_address) {
  return numeric_address.starts_with("127.") || numeric_address == "::1";
}

bool is_of_this_host(const std::string& numeric_address) {
  const std::vector<Interface> all = interfaces();
  return std::any_of(all.begin(), all.end(),
                     [&](const Interface& i) { return i.address == numeric_address; });
}

std::vector<Interface> interfaces() {
  std::vector<Interface> out;
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return out;
  std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(found, ::freeifaddrs);
  for (const ifaddrs* i = all.get(); i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    std::string address = numeric(i->ifa_addr);
    if (address.empty()) continue;
    bool link_local =
        i->ifa_addr->sa_family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr);
    out.push_back({i->ifa_name, address, (i->ifa_flags & IFF_LOOPBACK) != 0, link_local});
  }
  std::stable_sort(out.begin(), out.end(), [](const Interface& a, const Interface& b) {
    return !is_v6(a.address) && is_v6(b.address);
  });
  return out;
}

std::string list_of(const std::vector<Interface>& all) {
  std::vector<std::pair<std::string, std::string>> names;
  for (const Interface& i : all) {
    auto known =
        std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.first == i.name; });
    if (known == names.end())
      names.emplace_back(i.name, i.address);
    else
      known->second += ", " + i.address;
  }
  std::string out;
  for (const auto& [name, addresses] : names) {
    out += out.empty() ? "" : ", ";
    out += name;
    out += " (" + addresses + ")";
  }
  return out.empty() ? "none that is up" : out;
}

std::string address_of(const std::string& name, const std::string& named_by,
                       const std::vector<Interface>& all) {
  const Interface* useless = nullptr;
  for (const Interface& i : all) {
    if (i.name != name) continue;
    if (!i.link_local) return i.address;
    useless = &i;
  }
  std::string what = useless ? "has no address but the link-local " + useless->address +
                                   ", which is of no use to other hosts"
                             : "is not an interface of this host that is up and has an address";
  throw Error(ErrorCode::bad_interface,
              named_by + " = \"" + name + "\" " + what + "; there are: " + list_of(all))
      .key("dist_env.interface")
      .help(
          "set it to the interface that leads to the other hosts; GLOO_SOCKET_IFNAME can differ "
          "from host to host")
      .help(
          "set dist_env.interface = \"auto\" and leave GLOO_SOCKET_IFNAME unset: the route to "
          "MASTER_ADDR decides");
}

std::string source_for(const std::string& numeric_address) {
  std::optional<SocketAddress> there = socket_address(numeric_address, 9);  // nothing is sent
  if (!there) return "";
  int fd = ::socket(there->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  std::string out;
  if (::connect(fd, there->get(), there->size) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0)
    out = numeric(reinterpret_cast<sockaddr*>(&local));
  ::close(fd);
  return out;
}

std::vector<OwnSocket> own_sockets() {
  std::vector<OwnSocket> out;
  std::error_code failed;
  for (std::filesystem::directory_iterator file("/proc/self/fd", failed), none;
       !failed && file != none; file.increment(failed)) {
    int fd = std::atoi(file->path().filename().c_str()), type = 0, listens = 0;
    sockaddr_storage local{}, remote{};
    socklen_t type_size = sizeof type, listens_size = sizeof listens, local_size = sizeof local,
              remote_size = sizeof remote;
    if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size) != 0 || type != SOCK_STREAM)
      continue;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_size) != 0) continue;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_size) != 0) continue;
    OwnSocket own;
    own.fd = fd;
    own.local = numeric(reinterpret_cast<sockaddr*>(&local));
    own.local_port = port_of(reinterpret_cast<sockaddr*>(&local));
    if (listens == 0) {
      if (::getpeername(fd, reinterpret_cast<sockaddr*>(&remote), &remote_size) != 0) continue;
      own.remote = numeric(reinterpret_cast<sockaddr*>(&remote));
      own.remote_port = port_of(reinterpret_cast<sockaddr*>(&remote));
      if (own.remote.empty()) continue;
    }
    if (!own.local.empty()) out.push_back(std::move(own));
  }
  return out;
}

bool shut(const std::string& address, int port) {
  // A filter of packets that lets none pass: a listening socket's sees what opens connections, and
  // not what goes over those that were accepted before (man 7 socket, SO_ATTACH_FILTER).
  sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &nothing};
  bool found = false;
  for (const OwnSocket& own : own_sockets()) {
    if (!own.listens() || own.local != address || own.local_port != port) continue;
    if (::setsockopt(own.fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0)
      return false;
    found = true;
  }
  return found;
}

}  // namespace meshwright::rendezvous
