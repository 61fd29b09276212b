// How tokens reach experts on other ranks.
#pragma once

#include <memory>

#include "meshwright/nn/moe.h"
#include "meshwright/parallel/group.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::detail {

// The dispatcher over the ranks of `ep`; each rank holds an equal part of the experts, in order.
// Every rank of the group must call forward and backward through it equally often, with or without
// tokens.
std::shared_ptr<ExpertDispatcher> make_dispatcher(TokenDispatcher kind, std::shared_ptr<Group> ep);

}  // namespace meshwright::detail
