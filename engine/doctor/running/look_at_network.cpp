#include "engine/doctor/running/look_at_network.h"

#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "engine/device/device.h"
#include "engine/doctor/look.h"
#include "engine/launch/devices.h"
#include "engine/launch/spawn.h"
#include "engine/rendezvous/connectivity.h"
#include "engine/rendezvous/interfaces.h"
#include "engine/rendezvous/seats.h"
#include "meshwright/error.h"

namespace meshwright::doctor {

namespace {

constexpr int kTorchrunPort = 29500;

int mtu_of(const std::string& name) {
  const launch::Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), sizeof request.ifr_name - 1);
  return socket.get() >= 0 && ::ioctl(socket.get(), SIOCGIFMTU, &request) == 0 ? request.ifr_mtu
                                                                               : 0;
}

// The address at which most sockets of this process listen: each group has one. "": none does, or
// only those that hear every interface.
std::string listening_address() {
  std::map<std::string, int> counts;
  for (const rendezvous::OwnSocket& own : rendezvous::own_sockets())
    if (own.listens() && own.local != "::" && own.local != "0.0.0.0") ++counts[own.local];
  auto most = std::max_element(counts.begin(), counts.end(),
                               [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == counts.end() ? "" : most->first;
}

std::string name_of(const std::string& address) {
  for (const rendezvous::Interface& i : rendezvous::interfaces())
    if (i.address == address) return i.name;
  return rendezvous::is_loopback_address(address) ? "lo" : "";
}

std::string host_name() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return host;
}

}  // namespace

Network network_before(const launch::RankEnvironment& ranks, const std::string& wanted,
                       const std::string& why) {
  Network out{host_name(), rendezvous::list_of(rendezvous::interfaces()), ranks.one_host()};
  const rendezvous::WantedInterface asked = rendezvous::wanted_interface(wanted);
  out.no_address = why;
  if (!asked.name.empty()) out.no_address += " (" + asked.named_by + " = " + asked.name + ")";
  return out;
}

Network look_at_network(const launch::RankEnvironment& ranks, bool one_host,
                        const std::string& wanted, bool nccl) {
  Network out = network_before(ranks, wanted, "no group listens at an address of its own");
  out.one_host = one_host;
  const rendezvous::WantedInterface asked = rendezvous::wanted_interface(wanted);
  out.address = listening_address();
  if (out.address.empty()) return out;
  out.interface = name_of(out.address);
  out.because =
      !asked.name.empty() ? asked.named_by + " says"
      : nccl              ? "NCCL chose"
      : rendezvous::is_loopback_address(out.address)
          ? "all ranks are on this host"
          : "the route between this host and MASTER_ADDR = " + ranks.master_addr + " says";
  if (!out.interface.empty()) out.mtu = mtu_of(out.interface);
  return out;
}

Ports look_at_rendezvous(const launch::RankEnvironment& ranks, bool one_host) {
  Ports out = look_at_ports();
  out.one_host = one_host;
  out.local = ranks.source == launch::RankEnvironment::Source::local;
  out.port = ranks.master_port;
  out.secret = !ranks.secret.empty();
  out.range_first = ranks.ports.first;
  out.range_last = ranks.ports.last;
  out.own_store = ranks.agent_store && out.secret;
  if (ranks.world_size > 1) {
    out.place = ranks.master_addr + ":" + std::to_string(ranks.master_port);
    return out;
  }
  out.port = kTorchrunPort;
  try {
    ::close(rendezvous::listen_on(out.port, /*loopback_only=*/false));
  } catch (const Error& error) {
    out.problem = "torchrun's default port: " + error.message();
  }
  return out;
}

Devices look_at_devices(const Options& table, const launch::RankEnvironment& ranks) {
  Devices out;
  out.listed = launch::driver_lists_devices();
  out.local_ranks = ranks.local_world_size;
  if (!out.listed && table.get_string("device") != "cuda") return out;
  const cuda::CudaPart* part = device::cuda_part(&out.no_part);
  if (part == nullptr) return out;
  out.no_part.clear();
  const int64_t count = part->device_count();
  for (int64_t i = 0; i < count; ++i)
    out.names.push_back(std::to_string(i) + ": " + part->device_name(i));
  for (int64_t a = 0; a < count; ++a)
    for (int64_t b = a + 1; b < count; ++b)
      if (!part->reaches(a, b) || !part->reaches(b, a)) out.apart.emplace_back(a, b);
  return out;
}

Nccl look_at_nccl(const Devices& devices) {
  if (devices.names.empty()) return {"", "there is no CUDA device, and runs use gloo"};
  return {device::cuda_part()->nccl_version(), "the CUDA part does not say"};
}

}  // namespace meshwright::doctor
