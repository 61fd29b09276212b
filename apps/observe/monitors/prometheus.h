// Prometheus' text format, for node_exporter's textfile collector.
#pragma once

#include <string>
#include <vector>

#include "apps/observe/prometheus/prometheus_part.h"

namespace meshwright::monitor {

std::string prometheus_text(const std::vector<prometheus::Reading>& readings);

}  // namespace meshwright::monitor
