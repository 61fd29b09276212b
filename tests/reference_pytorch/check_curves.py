"""Make a committed curve anew with PyTorch and compare: check_curves.py [FAMILY ...] (default: qwen3)."""
import forks  # before torch

import json, os, sys, tempfile

import peer_train
from transformers import AutoModelForCausalLM  # noqa: F401  (before the forks)

here = os.path.dirname(os.path.abspath(__file__))
data = os.path.join(here, "..", "data", "parity")
for family in sys.argv[1:] or ["qwen3"]:
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "curve.jsonl")
        forks.run_ranks(peer_train.main, ["--model", os.path.join(data, family), "--tokens", os.path.join(data, "train.bin"), "--strategy", "none",
                                          "--seq-len", "40", "--micro-batch", "12", "--steps", "20", "--out", out])
        fresh = [json.loads(line) for line in open(out)]
        committed = [json.loads(line) for line in open(os.path.join(data, family, "curve.jsonl"))]
    worst = max(abs(a[key] / b[key] - 1) for a, b in zip(fresh, committed) for key in ("loss", "grad_norm"))
    print(f"curve of {family}: {len(committed)} steps, largest difference {worst:.1e}")
    if len(fresh) != len(committed) or worst > 2e-6:
        sys.exit(1)
