#!/usr/bin/env bash
# The archive's bin/meshwright: says in words what the loader would say in its own, and becomes the program.
file=$(readlink -f "${BASH_SOURCE[0]}")
program=${file%/bin/*}/libexec/meshwright
no() { echo "error: this build $*" >&2; exit 1; }
machine=$(uname -m) libc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
[ "$machine" = x86_64 ] || no "is for x86_64 processors, and this machine is $machine: build from source here (docs/install.md)"
needs="needs glibc @GLIBC@ or newer, and this system has"
[ -n "$libc" ] || no "$needs another C library: use Debian, Ubuntu, RHEL or an image of them"
[ "$(printf '%s\n' "glibc @GLIBC@" "$libc" | sort -V | head -1)" = "glibc @GLIBC@" ] ||
  no "$needs $libc: use Debian 12, Ubuntu 22.04, RHEL 9 or newer, or an image of them"
exec -a "$0" "$program" "$@"
