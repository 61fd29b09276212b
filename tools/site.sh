#!/usr/bin/env bash
# The documents as a site that is searched and read without a network, in BUILD_DIR/site: the Markdown by Sphinx, the reference of the SDK from its
# headers by Doxygen. What either warns of fails: dead links, to places in pages too, and pages that docs/index.md does not name.
#   tools/site.sh BUILD_DIR         then open BUILD_DIR/site/index.html
#   tools/site.sh --links FOLDER    looks at the links of documents that were installed, and makes nothing
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
ensure_docs
# sphinx BUILDER FROM TO: its record of the pages goes with the call.
sphinx() {
  local record
  record=$(mktemp -d)
  PYTHONPATH=$docs_dir python3 -m sphinx --fail-on-warning --keep-going --quiet -j 2 -b "$1" -c "$root/tools/site" -d "$record" "$2" "$3" || { rm -rf "$record"; return 1; }
  rm -rf "$record"
}
if [ "$1" = --links ]; then
  unused=$(mktemp -d)
  sphinx dummy "$2" "$unused"
  rmdir "$unused"
else
  site=$(realpath "$1")/site
  rm -rf "$site" && mkdir -p "$site"
  (cd "$root" && { cat docs/Doxyfile; echo "OUTPUT_DIRECTORY = $site"; } | doxygen -)
  sphinx html "$root" "$site"
  echo '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html"><a href="docs/index.html">Documentation</a>' >"$site/index.html"
  echo "$(find "$site" -name '*.html' | wc -l) pages in $site"
fi
