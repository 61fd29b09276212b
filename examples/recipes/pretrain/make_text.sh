#!/usr/bin/env bash
# Writes a small text to learn from, sums in words: make_text.sh FOLDER
set -euo pipefail
mkdir -p "$1/train" "$1/held_out"
sums() {  # FIRST LAST
  awk -v first="$1" -v last="$2" '
    function word(n) { return n < 20 ? small[n + 1] : tens[int(n / 10)] (n % 10 ? "-" small[n % 10 + 1] : "") }
    BEGIN {
      split("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen " \
            "seventeen eighteen nineteen", small, " ")
      split("ten twenty thirty forty fifty sixty seventy eighty ninety", tens, " ")
      for (i = first; i <= last; ++i) {
        a = i * 37 % 50; b = i * i % 47
        print word(a) " plus " word(b) " is " word(a + b) "."
      }
    }'
}
for part in 0 1 2 3; do sums $((part * 500)) $((part * 500 + 499)) >"$1/train/sums_$part.txt"; done
sums 2100 2299 >"$1/held_out/sums.txt"
