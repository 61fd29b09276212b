"""Checkpoints beside PyTorch and transformers, on folders made here: check_checkpoints.py [--build build]

1. A Hugging Face folder that is loaded and exported again after no step is the same folder: every tensor to the byte, config.json and all
   other files too; from float32 storage on 1 to 4 ranks, with and without tensor parallelism, for float32 and bfloat16 files.
2. What `checkpoint export` makes of a trained checkpoint loads in transformers, whole and in shards, and has there the loss that the next
   step of the run prints.
3. A run on 4 ranks goes on on 1, 2 and 3 under the other strategy, and under tensor parallelism, as PyTorch's unbroken curve does.
"""
import forks  # before torch

import argparse, filecmp, json, os, shutil, subprocess, sys, tempfile

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM
from transformers.utils import logging

import make_fixture
import peer_train
from job_text import job_text, rows, tokens

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
BATCH, LENGTH = 12, 64


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr[-3000:]}")
    return done.stdout


def tensors_of(folder):
    out = {}
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            with safe_open(os.path.join(folder, name), "pt") as f:
                out.update({key: f.get_tensor(key) for key in f.keys()})
    return out


def same_bytes(x, y):
    return x.dtype == y.dtype and x.shape == y.shape and torch.equal(x.contiguous().view(-1).view(torch.uint8), y.contiguous().view(-1).view(torch.uint8))


class Checks:
    failed = False

    def check(self, good, what):
        self.failed |= not good
        print(f"{what}{'' if good else '   WRONG'}", flush=True)


def train(a, folder, **values):
    path = f"{folder}/job.toml"
    ranks, tp = values.pop("ranks"), values.pop("tp", 1)
    distributed = f'strategy = "{values["strategy"]}"\ntp_size = {tp}\nsequence_parallel = {str(tp > 1).lower()}'
    with open(path, "w") as f:
        f.write(job_text(folder, values["name"], f'pretrained = "{values["model"]}"', distributed, 12, 1, values["steps"], tokens(f"{folder}/train.bin", 64),
                         'every_steps = 4\nkeep = 9\nexport = "final"'))
    run(os.path.join(a.build, "bin/meshwright"), "train", path, "--nproc", str(ranks))
    return rows(f"{folder}/runs/{values['name']}/metrics.jsonl")


def round_trip(a, folder, checks):
    # Half, unless all layouts are asked for: each folder on every second layout, each layout with every second folder.
    folders = [("llama", torch.float32), ("qwen3", torch.bfloat16), ("gemma3", torch.bfloat16), ("phi3", torch.float32), ("phi3", torch.bfloat16)]
    for number, (family, dtype) in enumerate(folders):
        source = f"{folder}/{family}_{str(dtype)[6:]}"
        AutoModelForCausalLM.from_pretrained(f"{folder}/{family}").to(dtype).save_pretrained(source)
        os.makedirs(f"{source}/extra")
        for name, text in [("tokenizer.json", "{}"), ("generation_config.json", '{"max_new_tokens": 3}'), ("README.md", "what it is\n"), ("extra/notes.txt", "x")]:
            open(f"{source}/{name}", "w").write(text)
        for turn, (strategy, ranks, tp) in enumerate([("fsdp2", 1, 1), ("fsdp2", 3, 1), ("ddp", 2, 1), ("fsdp2", 2, 2), ("fsdp2", 4, 2)]):
            if (number + turn) % 2 and os.environ.get("MESHWRIGHT_ALL_LAYOUTS") != "1":
                continue
            name = f"same_{family}_{str(dtype)[6:]}_{strategy}_{ranks}_{tp}"
            train(a, folder, name=name, model=source, strategy=strategy, ranks=ranks, tp=tp, steps=0)
            made = f"{folder}/runs/{name}/hf"
            before, after = tensors_of(source), tensors_of(made)
            good = before.keys() == after.keys() and all(same_bytes(before[k], after[k]) for k in before)
            files = ["config.json", "tokenizer.json", "generation_config.json", "README.md", "extra/notes.txt"]
            good &= not filecmp.cmpfiles(source, made, files, shallow=False)[1:][0] and not filecmp.cmpfiles(source, made, files, shallow=False)[2]
            checks.check(good, f"{family} {str(dtype)[6:]}, {strategy} on {ranks}, tp {tp}: {len(before)} tensors and {len(files)} files are the same after load and export")


def loss_of(model, tokens, step):
    rows = np.stack([tokens[i * LENGTH:i * LENGTH + LENGTH + 1] for i in range(step * BATCH, (step + 1) * BATCH)]).astype(np.int64)
    with torch.no_grad():
        logits = model(torch.from_numpy(rows[:, :-1])).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(rows[:, 1:]).flatten()).item()


def exported_families(a, folder, checks):
    tokens = np.fromfile(f"{folder}/train.bin", dtype=np.uint16)
    for family in ("gemma3", "phi3"):
        train(a, folder, name=f"eight_{family}", model=f"{folder}/{family}", strategy="fsdp2", ranks=3, steps=8)
        ours = train(a, folder, name=f"nine_{family}", model=f"{folder}/{family}", strategy="ddp", ranks=2, steps=9)[8]["loss"]
        theirs = loss_of(AutoModelForCausalLM.from_pretrained(f"{folder}/runs/eight_{family}/hf", dtype=torch.float32), tokens, 8)
        checks.check(abs(theirs / ours - 1) < 1e-6, f"{family}: transformers has the loss {theirs:.9f} on the export, the next step of the run {ours:.9f}")


def peer_losses(folder):
    out = f"{folder}/peer.jsonl"
    forks.run_ranks(peer_train.main, ["--model", f"{folder}/llama", "--tokens", f"{folder}/train.bin", "--strategy", "none", "--seq-len", str(LENGTH), "--micro-batch", str(BATCH),
                                      "--steps", "18", "--out", out])
    return [row["loss"] for row in rows(out)]


def exported(a, folder, peer, checks):
    tokens = np.fromfile(f"{folder}/train.bin", dtype=np.uint16)
    train(a, folder, name="four", model=f"{folder}/llama", strategy="fsdp2", ranks=4, steps=8)
    unbroken = train(a, folder, name="unbroken", model=f"{folder}/llama", strategy="fsdp2", ranks=4, steps=19)
    checkpoint = f"{folder}/runs/four/checkpoints/step_00000008"
    for name, more in [("whole", []), ("sharded", ["--shard-size", "200KB"])]:
        out = f"{folder}/{name}"
        run(os.path.join(a.build, "bin/meshwright"), "checkpoint", "export", checkpoint, "--out", out, *more)
        files = [f for f in os.listdir(out) if f.endswith(".safetensors")]
        model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        theirs, ours = loss_of(model, tokens, 8), unbroken[8]["loss"]
        checks.check(abs(theirs / ours - 1) < 1e-6 and (len(files) > 1) == bool(more),
                     f"exported in {len(files)} file(s), transformers has the loss {theirs:.9f} where the run's next step has {ours:.9f}")
    for strategy, ranks, tp in [("ddp", 1, 1), ("ddp", 2, 1), ("fsdp2", 3, 1), ("ddp", 3, 1), ("fsdp2", 2, 2), ("fsdp2", 4, 2)]:
        shutil.copytree(f"{folder}/runs/four", f"{folder}/runs/to_{strategy}_{ranks}_{tp}", symlinks=True)
        ours = train(a, folder, name=f"to_{strategy}_{ranks}_{tp}", model=f"{folder}/llama", strategy=strategy, ranks=ranks, tp=tp, steps=18)
        ten = list(range(8, 18))
        own = max(abs(ours[s]["loss"] / unbroken[s]["loss"] - 1) for s in ten)
        far = max(abs(ours[s]["loss"] / peer[s] - 1) for s in ten)
        checks.check(len(ours) == 18 and own < 1e-6 and far < 1e-5,
                     f"fsdp2 on 4, then {strategy} on {ranks}, tp {tp}: the next ten losses within {own:.1e} of the unbroken run and {far:.1e} of PyTorch")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(root, "build"))
    a = p.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        make_fixture.main(["--out", folder, "--only", "llama", "qwen3", "gemma3", "phi3"])
        losses = peer_losses(folder)  # before transformers has threads
        round_trip(a, folder, checks)
        exported(a, folder, losses, checks)
        exported_families(a, folder, checks)
    sys.exit(checks.failed)


if __name__ == "__main__":
    main()
