// A machine file as read_machine() reads it.
#pragma once

#include <map>
#include <string>

#include "apps/performance/steptime/machine.h"

namespace meshwright::steptime {

// `sources`: where each figure comes from, by its key ("network.bus"). A figure that a file need
// not have is written where it has a source. `comment`: its first lines, without the #. Throws
// Error(internal) for a needed figure without a source.
std::string machine_text(const Machine& machine, const std::map<std::string, std::string>& sources,
                         const std::string& comment);

}  // namespace meshwright::steptime
