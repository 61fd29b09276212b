#include "apps/observe/monitors/sinks.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

#include "meshwright/error.h"
#include "sdk/base/beside.h"
#include "sdk/base/files/durable.h"

namespace meshwright::monitor {

namespace {

std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (char c : text) {
    if (c == '\\' || (c == '"' && quotes)) out += '\\';
    out += c == '\n' ? "\\n" : std::string(1, c);
  }
  return out;
}

std::string value_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[40];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace

std::string prometheus_text(const std::vector<prometheus::Reading>& readings) {
  std::string out;
  for (const prometheus::Reading& reading : readings) {
    out += "# HELP " + reading.name + " " + escaped(reading.help, /*quotes=*/false) + "\n# TYPE " +
           reading.name + (reading.counter ? " counter\n" : " gauge\n") + reading.name;
    std::string labels;
    for (const auto& [name, value] : reading.labels)
      labels += (labels.empty() ? "" : ",") + name + "=\"" + escaped(value, /*quotes=*/true) + "\"";
    out += (labels.empty() ? "" : "{" + labels + "}") + " " + value_text(reading.value) + "\n";
  }
  return out;
}

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

fs::path file_in(const fs::path& path, const std::string& run) {
  if (path.extension() == ".prom") return path;
  std::string name = run;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '/' || c == '.' || c == ' '; }, '_');
  return path / ("meshwright_" + name + ".prom");
}

class PrometheusFile final : public Sink {
 public:
  PrometheusFile(const fs::path& path, const std::string& run,
                 std::shared_ptr<const Numbers> numbers)
      : path_(file_in(path, run)), numbers_(std::move(numbers)) {}
  std::string place() const override { return path_.string(); }
  std::string key() const override { return "report.prometheus_file"; }
  void open() override { write(); }
  void row(const Row&, std::string_view) override {
    if (Clock::now() - written_ >= std::chrono::seconds(1)) write();
  }
  void end(bool) override { write(); }

 private:
  // Whole, beside, and renamed: the collector sees the old one or the new one. Nothing waits for
  // the disk: after a crash of the machine there is no run to watch.
  void write() {
    const fs::path beside = path_.parent_path() / ("." + path_.filename().string() + ".tmp");
    try {
      // Also one that was removed meanwhile.
      if (!fs::exists(path_.parent_path())) base::make_folders(path_.parent_path());
      const int reason = base::AppendFile(beside, base::AppendFile::Old::emptied)
                             .append(prometheus_text(numbers_->readings()));
      if (reason != 0) throw base::unwritable(path_, reason);
      if (::rename(beside.c_str(), path_.c_str()) != 0)
        throw base::unwritable(path_, errno, "rename");
    } catch (const Error&) {
      ::unlink(beside.c_str());
      throw;
    }
    written_ = Clock::now();
  }

  fs::path path_;
  std::shared_ptr<const Numbers> numbers_;
  Clock::time_point written_{};
};

}  // namespace

std::unique_ptr<Sink> prometheus_file(const fs::path& path, const std::string& run,
                                      std::shared_ptr<const Numbers> numbers) {
  return std::make_unique<PrometheusFile>(path, run, std::move(numbers));
}

namespace {

Error cannot_listen(const std::string& why, const std::string& help) {
  return Error(ErrorCode::output_unwritable, why + "; " + help);
}

// An address in numbers. A name with several: IPv4 before IPv6, so that it is always the same.
struct Numeric {
  sockaddr_storage address{};
  socklen_t size = 0;
  std::string text;  // "127.0.0.1:9400", "[::1]:9400"
};

bool everywhere(const addrinfo& one) {
  if (one.ai_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(one.ai_addr)->sin_addr.s_addr == INADDR_ANY;
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(one.ai_addr)->sin6_addr);
}

std::string numbers_of(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  ::getnameinfo(address, size, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
  return (address->sa_family == AF_INET6 ? "[" + std::string(host) + "]" : std::string(host)) +
         ":" + port;
}

Numeric resolve(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  if (int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      failed != 0)
    throw cannot_listen("the host " + host + " is not known: " + ::gai_strerror(failed),
                        "an address in numbers (127.0.0.1) needs no name");
  std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  const addrinfo* best = found;
  for (const addrinfo* one = found; one != nullptr && best->ai_family != AF_INET;
       one = one->ai_next)
    if (one->ai_family == AF_INET) best = one;
  if (everywhere(*best) && host != "0.0.0.0" && host != "::")
    throw cannot_listen("the host " + host + " is all interfaces, which it does not say",
                        "all interfaces are written 0.0.0.0 or [::]");
  Numeric out;
  std::memcpy(&out.address, best->ai_addr, best->ai_addrlen);
  out.size = best->ai_addrlen;
  out.text = numbers_of(best->ai_addr, best->ai_addrlen);
  return out;
}

// Why nobody can listen there; 0: it is not known.
int reason_of(const Numeric& at) {
  const int fd = ::socket(at.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool good = ::bind(fd, reinterpret_cast<const sockaddr*>(&at.address), at.size) == 0 &&
                    ::listen(fd, 1) == 0;
  const int reason = good ? 0 : errno;
  ::close(fd);
  return reason;
}

// civetweb as Debian 12 builds it listens at IPv4 addresses alone.
bool without_ipv6(const Numeric& at, int reason) {
  return reason == 0 && at.address.ss_family == AF_INET6;
}

const char* remedy(const Numeric& at, int reason) {
  if (without_ipv6(at, reason)) return "127.0.0.1:PORT and 0.0.0.0:PORT work";
  switch (reason) {
    case EADDRINUSE:
      return "another port may be free, and port 0 takes one that is";
    case EADDRNOTAVAIL:
      return "the address is not this machine's; 127.0.0.1 always is";
    case EACCES:
      return "ports from 1024 on are for everybody";
    default:
      return "report.prometheus_file writes the same numbers into a file";
  }
}

const prometheus::PrometheusPart& part() {
  const std::string path = beside_sdk("libmeshwright_prometheus.so").string();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* told = ::dlerror();
    throw cannot_listen(
        "the part that listens cannot be loaded: " + std::string(told ? told : path),
        "it comes with libprometheus-cpp-pull1.0; to build it, prometheus-cpp-dev");
  }
  using Function = const prometheus::PrometheusPart* (*)();
  auto function = reinterpret_cast<Function>(::dlsym(library, "meshwright_prometheus_part"));
  if (function == nullptr) throw Error(ErrorCode::internal, path + " is not the engine's library");
  return *function();
}

class PrometheusEndpoint final : public Sink {
 public:
  PrometheusEndpoint(std::string host, int port, std::shared_ptr<const Numbers> numbers,
                     std::function<void(const std::string&)> listens)
      : host_(std::move(host)),
        port_(port),
        numbers_(std::move(numbers)),
        listens_(std::move(listens)) {}
  std::string place() const override {
    return (host_.find(':') == std::string::npos ? host_ : "[" + host_ + "]") + ":" +
           std::to_string(port_);
  }
  std::string key() const override { return "report.prometheus"; }
  void open() override {
    if (!at_) at_ = resolve(host_, port_);
    const Numeric& at = *at_;
    try {
      endpoint_ = part().listen(at.text, [numbers = numbers_] { return numbers->readings(); });
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      const int reason = reason_of(at);
      never_ = without_ipv6(at, reason);
      const std::string why = never_        ? "the civetweb of this system is built without IPv6"
                              : reason == 0 ? std::string(error.what())
                                            : std::string(std::strerror(reason));
      throw cannot_listen("cannot listen at " + at.text + ": " + why, remedy(at, reason));
    }
    port_ = endpoint_->port();
    listens_("http://" + at.text.substr(0, at.text.rfind(':') + 1) + std::to_string(port_) +
             "/metrics");
  }
  // Names are asked for once: the answer may take long, and steps wait for it.
  bool may_try_again() const override { return at_.has_value() && !never_; }
  // It reads the numbers when it is asked.
  void row(const Row&, std::string_view) override {}
  void end(bool) override {}

 private:
  std::string host_;
  int port_;
  std::shared_ptr<const Numbers> numbers_;
  std::function<void(const std::string&)> listens_;
  std::optional<Numeric> at_;
  bool never_ = false;
  std::unique_ptr<prometheus::Endpoint> endpoint_;
};

}  // namespace

std::unique_ptr<Sink> prometheus_endpoint(std::string host, int port,
                                          std::shared_ptr<const Numbers> numbers,
                                          std::function<void(const std::string&)> listens) {
  return std::make_unique<PrometheusEndpoint>(std::move(host), port, std::move(numbers),
                                              std::move(listens));
}

}  // namespace meshwright::monitor
