// Help of a refused plan, tried before it is given: a size that the mesh takes may still not divide
// the model's heads, its layers or the batch.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/job/plan.h"

namespace meshwright::plan {

// What a help that begins with "set " says, as --set takes it: of "set distributed.tp_size = 2: all
// fit" {"distributed.tp_size=2"}. Empty: it says something else.
std::vector<std::string> settings_in(const std::string& help);
// Of "use a world size of 8", 8.
std::optional<int64_t> world_in(const std::string& help);

// Whether there is a plan of the job with these settings beside its own, on so many ranks.
using IsPlanned = std::function<bool(const std::vector<std::string>& sets, int64_t world)>;

// The error without the help that leads to no plan. Where all that can be tried is in vain, other
// values of the size that it is about are; where these are, too, each is a step of several, and the
// error stays as it is.
Error with_tried_help(const Error& error, const ParallelSizes& sizes, int64_t world,
                      const IsPlanned& is_planned);

}  // namespace meshwright::plan
