// What needs prometheus-cpp, in a shared object of its own: a run that is not asked to listen never
// loads it. apps/observe/monitors does, when report.prometheus names an address.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace meshwright::prometheus {

// A metric with one value.
struct Reading {
  std::string name, help;
  bool counter = false;  // else a gauge
  std::vector<std::pair<std::string, std::string>> labels;
  double value = 0;
};

// Listens for as long as it lives.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual int port() const = 0;
};

struct PrometheusPart {
  // Answers at http://ADDRESS/metrics, on threads of its own. "127.0.0.1:9400", "[::1]:0" for a
  // port that is free. Throws std::exception.
  std::unique_ptr<Endpoint> (*listen)(const std::string& address,
                                      std::function<std::vector<Reading>()> read);
};

}  // namespace meshwright::prometheus

extern "C" const meshwright::prometheus::PrometheusPart* meshwright_prometheus_part();
