// ncclCommSplit(): ranks that name the same color have a communicator of their own from then on.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "nccl_shared.h"

namespace fake_device {

namespace {

// What a rank asks for, and the file of its new communicator if it is the first one there.
struct Member {
  int color = 0, key = 0, rank = 0;
  char path[64] = "";
};

}  // namespace

ncclResult_t split(const ncclComm& parent, int color, int key, Part& part) {
  const Said mine{.kind = static_cast<uint32_t>(Kind::split)};
  if (const ncclResult_t result = agree(parent, mine); result != ncclSuccess) return result;
  Member member{color, key, parent.rank, ""};
  snprintf(member.path, sizeof member.path, "%s", new_path().c_str());
  memcpy(parent.slot(parent.rank), &member, sizeof member);
  if (!parent.barrier()) return ncclRemoteError;
  std::vector<Member> members;
  for (int rank = 0; rank < parent.size; ++rank) {
    memcpy(&member, parent.slot(rank), sizeof member);
    if (member.color == color) members.push_back(member);
  }
  if (!parent.barrier()) return ncclRemoteError;
  part = {};
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  // Ranks of the same key stay in the parent's order.
  std::stable_sort(members.begin(), members.end(),
                   [](const Member& a, const Member& b) { return a.key < b.key; });
  const auto here = std::find_if(members.begin(), members.end(),
                                 [&](const Member& one) { return one.rank == parent.rank; });
  part.path = members.front().path;
  part.rank = static_cast<int>(here - members.begin());
  part.size = static_cast<int>(members.size());
  return ncclSuccess;
}

}  // namespace fake_device
