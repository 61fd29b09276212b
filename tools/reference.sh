#!/usr/bin/env bash
# The reference of the SDK from its headers, in BUILD_DIR/sdk_reference/html; what Doxygen warns of, and dead links there and in the documents,
# fail.   tools/reference.sh BUILD_DIR
set -euo pipefail
build=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rm -rf "$build/sdk_reference"
{ cat docs/Doxyfile; echo "OUTPUT_DIRECTORY = $build/sdk_reference"; } | doxygen -
python3 tools/dead_links.py README.md CONTRIBUTING.md docs "$build/sdk_reference/html"
