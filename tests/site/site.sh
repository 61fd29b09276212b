#!/usr/bin/env bash
# The site is made without a warning, is whole without a network, and what leads nowhere is a warning: site.sh BUILD_DIR
set -euo pipefail
tools=$(cd "$(dirname "$0")/../../tools" && pwd)
fail() { echo "FAILED: $*" >&2; exit 1; }

"$tools/site.sh" "$1"
site=$1/site
for page in index docs/index docs/guide docs/reference README plugins/fsdp2/README sdk/index search; do
  [ -s "$site/$page.html" ] || fail "no page $page.html"
done
grep -q reshard_after_forward "$site/searchindex.js" || fail "the search does not know a key"
grep -q '<p class="caption".*Fine-tune' "$site/docs/guide.html" || fail "the menu has no tasks"
if grep -rnoE '<(script|img|link)[^>]*(src|href)="(https?:)?//[^"]*"' "$site" --include='*.html'; then fail "pages that load something from the network"; fi

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
mkdir -p "$made/docs" "$made/examples/one"
cat >"$made/docs/index.md" <<'END'
# Pages
## Start
[a page](page.md), [a place](page.md#a-place-here), [its folder](../examples/one), [a file](file.txt)
END
touch "$made/docs/file.txt"
echo '# One' >"$made/examples/one/README.md"
dead="page.md#elsewhere nowhere.md #nowhere ../examples/two ../examples/one#there nofile.txt"
{ printf '# Page\n## A place, here\n'; for link in $dead; do echo "[dead]($link)"; done; } >"$made/docs/page.md"
if "$tools/site.sh" --links "$made" 2>"$made/told"; then fail "dead links and a page that the index does not name were not told"; fi
for link in $dead; do
  grep -q "docs/page.md:3: WARNING:.*${link##*[#/]}" "$made/told" || { cat "$made/told" >&2; fail "the dead link $link was not told"; }
done
grep -q "one/README.md: WARNING: document isn't included in any toctree" "$made/told" || { cat "$made/told" >&2; fail "a page that the index does not name was not told"; }
[ "$(grep -c WARNING "$made/told")" = 7 ] || { cat "$made/told" >&2; fail "links that lead somewhere were told, too"; }
