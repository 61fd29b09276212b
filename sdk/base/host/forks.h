// What a child by fork() without exec must not have: it may outlive what it came from.
#pragma once

namespace meshwright::base {

// The descriptor is closed in every such child from now on, until it is let go of.
void close_in_forks(int fd);
void let_go_in_forks(int fd);

}  // namespace meshwright::base
