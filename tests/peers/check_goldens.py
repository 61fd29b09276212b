"""Remake the golden outlines with PyTorch and transformers and compare: check_goldens.py [--sample]."""
import glob, os, sys

import dump_outline

paths = sorted(glob.glob(os.path.join(os.path.dirname(__file__), "..", "data", "models", "*", "config.json")))
if "--sample" in sys.argv:
    paths = paths[::2]
wrong = 0
for path in paths:
    with open(os.path.join(os.path.dirname(path), "outline.golden.json")) as f:
        if f.read() != dump_outline.text(path):
            wrong += 1
            print(f"{os.path.basename(os.path.dirname(path))}: the golden outline differs; remake it with dump_outline.py")
print(f"{len(paths) - wrong} of {len(paths)} goldens agree")
sys.exit(1 if wrong or not paths else 0)
