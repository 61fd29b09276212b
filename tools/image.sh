#!/usr/bin/env bash
# Builds tools/Containerfile without a daemon and without a registry (buildah): a small Debian by debootstrap, and the wheel on it. Needs root.
#   tools/image.sh [BUILD_DIR [TAG [BUILDAH_OPTION...]]]     default: build, meshwright:VERSION; --build-arg PIP=... as tools/Containerfile says
# MESHWRIGHT_IMAGES is where images are stored instead of the host's own place.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(realpath "${1:-$root/build}")
tag=${2:-meshwright:$(sed -n 's/^CMAKE_PROJECT_VERSION:[A-Z]*=//p' "$build/CMakeCache.txt")}
shift "$(($# < 2 ? $# : 2))"
for tool in buildah debootstrap; do command -v $tool >/dev/null || { echo "error: $tool is missing: apt-get install buildah debootstrap" >&2; exit 1; }; done
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
quiet() { "$@" >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }; }
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $suite" | head -1)  # from where this machine has its packages
quiet debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$work/root" "${mirror:-http://deb.debian.org/debian}"
rm -rf "$work"/root/var/cache/apt/* "$work"/root/var/lib/apt/lists/* "$work"/root/etc/apt/sources.list "$work"/root/usr/share/{doc,man,locale}/*
mkdir "$work/context"
tar -C "$work/root" --sort=name -cf "$work/context/root.tar" .
rm -rf --one-file-system "$work/root"
quiet "$root/tools/wheel.sh" "$build" "$work/context"
store=()
if [ -n "${MESHWRIGHT_IMAGES:-}" ]; then store=(--root "$MESHWRIGHT_IMAGES/storage" --runroot "$MESHWRIGHT_IMAGES/run"); fi
quiet buildah --storage-driver vfs "${store[@]}" build --isolation chroot "$@" -t "$tag" -f "$root/tools/Containerfile" "$work/context"
buildah --storage-driver vfs "${store[@]}" images "$tag"
