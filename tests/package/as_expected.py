#!/usr/bin/env python3
"""Whether a recipe printed what its expected.txt says: as_expected.py expected.txt printed.txt

"..." stands for anything within a line, and alone on a line for any lines. Losses may differ by 0.5%, gradient norms by 5%: sums are rounded otherwise
by other kernels, and what is trained on them drifts apart.
"""
import pathlib
import re
import sys

TOLERANCES = {"loss": 0.005, "->": 0.005, "grad norm": 0.05}
expected, printed = (pathlib.Path(file).read_text(encoding="utf-8") for file in sys.argv[1:])

measured = re.compile(r"(loss|->|grad norm) ([0-9]+\.[0-9]+)")
wanted = []  # (what, number), one for each group of the pattern
pattern = ""
for line in expected.splitlines():
    if line == "...":
        pattern += r"(?:.*\n)*?"
        continue
    at = 0
    for found in measured.finditer(line):
        pattern += re.escape(line[at:found.start(2)]).replace(r"\.\.\.", ".*?") + "([0-9.]+)"
        wanted.append((found[1], float(found[2])))
        at = found.end()
    pattern += re.escape(line[at:]).replace(r"\.\.\.", ".*?") + "\n"

match = re.fullmatch(pattern, printed)
if not match:
    sys.exit(f"{sys.argv[1]} has other lines than were printed:\n{printed}")
wrong = [f"{what} {number} where {sys.argv[1]} has {want}" for (what, want), number in zip(wanted, map(float, match.groups()))
         if abs(number - want) > TOLERANCES[what] * want]
if wrong:
    sys.exit("\n".join(wrong))
if not wanted:
    sys.exit(f"{sys.argv[1]} has no loss")
