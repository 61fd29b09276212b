// Which way a group's messages take, for whoever measures them.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "meshwright/export.h"
#include "meshwright/parallel/group.h"

namespace meshwright {

class Group;

namespace detail {

// Whether a message of that size goes through shared memory: then all_gather() takes an undefined
// `whole`, pairwise_exchange() of what stage() gave an undefined `received`, and peer() has what
// came.
MESHWRIGHT_API bool maps_gather(const Group& group, int64_t bytes);
// Collective. From now on large sums of the group, for which reserve() has no room, go through
// shared memory too, if its ranks are on one host: 1.5 MiB a rank.
MESHWRIGHT_API void expect_large_sums(Group& group);

// Messages between two ranks of one host in shared memory, as pipelines send them and for whoever
// measures that.

// Room for messages between this rank and another of the group, each way.
struct MailboxNeed {
  int64_t peer = 0;   // its place in the group
  int64_t bytes = 0;  // of a message at most; larger ones take the sockets
  int64_t slots = 0;  // messages that were sent and not waited for at most; the next one makes its
                      // sender wait
};
// Collective over the two ranks of each need, which ask for the same; a group's ranks go through
// their needs in one order of pairs. From then on send_receive() puts messages that fit straight
// into the memory of the other rank's host, with no thread in between. No room, or another host:
// they take the sockets. What is large enough already stays as it is; replaced room must be empty.
MESHWRIGHT_API void open_mailboxes(Group& group, std::vector<MailboxNeed> needs);
// Whether a message of that size to or from that rank takes its mailbox.
MESHWRIGHT_API bool maps_message(const Group& group, int64_t peer, int64_t bytes);
// A receive of such a message that copies nothing: peer() has it, flat. It takes one of the slots
// until the work goes.
MESHWRIGHT_API Work receive_in_place(Group& group, int64_t peer, int64_t count,
                                     at::ScalarType type);

}  // namespace detail

}  // namespace meshwright
