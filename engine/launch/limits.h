// Limits of the process.
#pragma once

namespace meshwright::launch {

// Raises the soft limit of open files to the hard one, at most a million. The usual soft limit of
// 1024 is soon reached: rank 0 keeps a connection for every rank of the job, each group one for
// every member, and whoever else connects to rank 0's port takes one too.
void raise_descriptor_limit();

}  // namespace meshwright::launch
