#include "apps/observe/prometheus/prometheus_part.h"

#include <netdb.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "meshwright/export.h"

namespace meshwright::prometheus {

namespace {

namespace lib = ::prometheus;

class Collected final : public lib::Collectable {
 public:
  explicit Collected(std::function<std::vector<Reading>()> read) : read_(std::move(read)) {}
  std::vector<lib::MetricFamily> Collect() const override {
    std::vector<lib::MetricFamily> out;
    for (const Reading& reading : read_()) {
      lib::ClientMetric metric;
      for (const auto& [name, value] : reading.labels) metric.label.push_back({name, value});
      lib::MetricType type = lib::MetricType::Gauge;
      if (reading.counter) {
        type = lib::MetricType::Counter;
        metric.counter.value = reading.value;
      } else {
        metric.gauge.value = reading.value;
      }
      out.push_back({reading.name, reading.help, type, {std::move(metric)}});
    }
    return out;
  }

 private:
  std::function<std::vector<Reading>()> read_;
};

// Connects, and goes away again.
void connect_once(std::string host, int port) {
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *at = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &at) != 0) return;
  if (const int fd = ::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      fd >= 0) {
    const int reached = ::connect(fd, at->ai_addr, at->ai_addrlen);
    static_cast<void>(reached);  // it need not be: nobody may listen any more
    ::close(fd);
  }
  ::freeaddrinfo(at);
}

class Listening final : public Endpoint {
 public:
  // Two threads: one that is slow to take its answer leaves room for another.
  Listening(const std::string& address, std::function<std::vector<Reading>()> read)
      : host_(address.substr(0, address.rfind(':'))),
        collected_(std::make_shared<Collected>(std::move(read))),
        exposer_(std::in_place, address, 2) {
    exposer_->RegisterCollectable(collected_);
    const std::vector<int> ports = exposer_->GetListeningPorts();
    if (ports.empty()) throw std::runtime_error("nothing listens at " + address);
    port_ = ports.front();
  }
  // civetweb looks every two seconds whether it is to end, and whenever somebody comes.
  ~Listening() override {
    std::atomic<bool> gone = false;
    std::thread own_connections;
    try {
      own_connections = std::thread([&] {
        while (!gone) {
          connect_once(host_, port_);
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
      });
    } catch (const std::system_error&) {  // no thread is to be had: it takes its two seconds
    }
    exposer_.reset();
    gone = true;
    if (own_connections.joinable()) own_connections.join();
  }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;
  int port() const override { return port_; }

 private:
  std::string host_;
  std::shared_ptr<Collected> collected_;
  std::optional<lib::Exposer> exposer_;
  int port_ = 0;
};

// Threads that begin meanwhile hear of no signal: the process' own threads take them. What civetweb
// makes of SIGPIPE for all of the process is undone: its threads hear of that neither.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
    ::sigaction(SIGPIPE, nullptr, &pipe_);
  }
  ~NoSignals() {
    ::sigaction(SIGPIPE, &pipe_, nullptr);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_{};
  struct sigaction pipe_{};
};

std::unique_ptr<Endpoint> listen(const std::string& address,
                                 std::function<std::vector<Reading>()> read) {
  const NoSignals quiet;
  return std::make_unique<Listening>(address, std::move(read));
}

}  // namespace

}  // namespace meshwright::prometheus

extern "C" MESHWRIGHT_API const meshwright::prometheus::PrometheusPart*
meshwright_prometheus_part() {
  static const meshwright::prometheus::PrometheusPart part{meshwright::prometheus::listen};
  return &part;
}
