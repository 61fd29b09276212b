"""Remake the golden outlines with PyTorch and transformers and compare: check_goldens.py [--sample].

All of them, or with --sample every sixth one. Says what differs; the exit status is 1 when something does.
"""
import glob, json, os, sys

import dump_outline


def differences(old, new):
    """Lines that say where the committed outline and the fresh one part, at most three a section."""
    for section in sorted(old.keys() | new.keys()):
        a, b = old.get(section), new.get(section)
        if a == b:
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            a, b = sorted(a.items()), sorted(b.items())
        if not (isinstance(a, list) and isinstance(b, list)):
            yield f"{section}: committed {a}, transformers {b}"
            continue
        rows = [(i, x, y) for i, (x, y) in enumerate(zip(a, b)) if x != y][:3]
        for i, x, y in rows:
            yield f"{section}[{i}]: committed {x}, transformers {y}"
        if len(a) != len(b):
            yield f"{section}: committed {len(a)} rows, transformers {len(b)}"


paths = sorted(glob.glob(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "models", "*", "config.json")))
if "--sample" in sys.argv[1:]:
    paths = paths[::6]
wrong = 0
for path in paths:
    name = os.path.basename(os.path.dirname(path))
    try:
        with open(os.path.join(os.path.dirname(path), "outline.golden.json")) as f:
            committed = json.load(f)
    except (OSError, ValueError) as error:
        found = [f"the golden cannot be read: {error}"]
    else:
        found = list(differences(committed, json.loads(dump_outline.text(path))))
    wrong += bool(found)
    for line in found:
        print(f"{name}: {line}")
if wrong:
    print(f"{wrong} of {len(paths)} goldens differ; remake them with dump_outline.py")
else:
    print(f"{len(paths)} goldens agree" if paths else "there are no goldens")
sys.exit(1 if wrong or not paths else 0)
