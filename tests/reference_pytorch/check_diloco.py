"""The example plugin diloco beside a loop by hand on PyTorch, its optimizers and transformers' Llama: check_diloco.py [--build build]

Replicas one after the other in one process: AdamW within them, torch.optim.SGD with nesterov = true between them. Losses of every step and all parameters at the
end within 1e-5, for 2 replicas of one and of two ranks. Then a run that is taken up again from the middle of a round: equal to the bit. What is sent between the
replicas: of the bytes that fsdp2's replicas send, the part that the length of a round says.
"""
import forks  # noqa: F401  (one thread, as for the others)

import argparse, copy, json, os, subprocess, sys, tempfile

import numpy as np
import torch

import make_fixture
from job_text import job_text, rows, tokens

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
STEPS, EVERY, BATCH, LENGTH, OUTER_LR, MOMENTUM = 10, 4, 8, 64, 0.7, 0.9


def by_hand(folder, replicas, ranks):
    """Losses, and the model at the end, where the replicas meet whatever is left of the round."""
    from transformers import AutoModelForCausalLM
    text = np.fromfile(f"{folder}/train.bin", dtype=np.uint16).astype(np.int64)
    outer = AutoModelForCausalLM.from_pretrained(f"{folder}/llama", dtype=torch.float32)
    nets = [copy.deepcopy(outer) for _ in range(replicas)]
    inner = [torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1) for net in nets]
    meet = torch.optim.SGD(outer.parameters(), lr=OUTER_LR, momentum=MOMENTUM, nesterov=True)
    losses = []
    for step in range(STEPS):
        loss = 0.0
        for r, net in enumerate(nets):
            mine = range(step * BATCH + r * BATCH // replicas, step * BATCH + (r + 1) * BATCH // replicas)
            ids = torch.from_numpy(np.stack([text[i * LENGTH:i * LENGTH + LENGTH + 1] for i in mine]))
            logits = net(ids[:, :-1]).logits
            own = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            net.zero_grad()
            own.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            inner[r].step()
            loss += own.item() / replicas
        losses.append(loss)
        if (step + 1) % EVERY and step + 1 < STEPS:
            continue
        with torch.no_grad():
            for whole, *parts in zip(outer.parameters(), *(net.parameters() for net in nets)):
                whole.grad = whole - sum(parts) / replicas
            meet.step()
            for net in nets:
                for part, whole in zip(net.parameters(), outer.parameters()):
                    part.copy_(whole)
    return losses, outer.state_dict()


def train(a, folder, name, ranks, strategy, checkpoint, *more):
    distributed = f'strategy = "{strategy}"\ndp_replicate_size = 2'
    if strategy == "diloco":
        distributed += f"\n[distributed.diloco]\nsync_every = {EVERY}\nouter_lr = {OUTER_LR}\nouter_momentum = {MOMENTUM}"
    text = job_text(folder, name, f'pretrained = "{folder}/llama"', distributed, BATCH, BATCH // ranks, STEPS, tokens(f"{folder}/train.bin", LENGTH), checkpoint,
                    optimizer="eps = 1e-5")
    with open(f"{folder}/job.toml", "w") as f:
        f.write(text + f'[plugins]\nload = ["{os.path.abspath(a.build)}/fixtures/diloco/libmeshwright_diloco.so"]\n')
    done = subprocess.run([os.path.join(a.build, "bin/meshwright"), "train", f"{folder}/job.toml", "--nproc", str(ranks), *more], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return rows(f"{folder}/runs/{name}/metrics.jsonl")


def between(a, folder, *more):
    """Bytes that a rank plans to send between replicas, of one time, and every how many steps."""
    done = subprocess.run([os.path.join(a.build, "bin/meshwright"), "plan", f"{folder}/job.toml", "--world-size", "4", "--json", *more], capture_output=True, text=True, check=True)
    (row,) = [r for r in json.loads(done.stdout)["wire"] if r["axis"] == "dp_replicate"]
    return row["bytes"], row.get("every", 1)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(root, "build"))
    a = p.parse_args()
    from safetensors.torch import load_file
    torch.set_num_threads(1)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        make_fixture.main(["--out", folder, "--only", "llama", "--size", "little"])
        for ranks in (2, 4):
            losses, expected = by_hand(folder, 2, ranks)
            ours = train(a, folder, f"d{ranks}", ranks, "diloco", 'resume = "none"\nexport = "final"\nevery_steps = 1\nkeep = 20')
            found = load_file(f"{folder}/runs/d{ranks}/hf/model.safetensors")
            loss = max(abs(x["loss"] / y - 1) for x, y in zip(ours, losses))
            far = max((found[name] - expected[name]).abs().max().item() for name in found)
            good = len(ours) == STEPS and loss < 1e-5 and far < 1e-5
            failed |= not good
            print(f"diloco on {ranks} ranks, 2 replicas, rounds of {EVERY}, beside a loop by hand: loss {loss:.1e}, parameters after {STEPS} steps {far:.1e}{'' if good else '   TOO FAR'}", flush=True)
            for cut in (4, 7):  # a round's end, and within the last one that ends
                again = train(a, folder, "again", ranks, "diloco", f'resume = "{folder}/runs/d{ranks}/checkpoints/step_{cut:08}"\nexport = "final"')
                taken = load_file(f"{folder}/runs/again/hf/model.safetensors")
                same = all(torch.equal(found[name], taken[name]) for name in found) and [r["loss"] for r in again] == [r["loss"] for r in ours[cut:]]
                failed |= not same
                print(f"diloco on {ranks} ranks, taken up again at step {cut}: {'equal to the bit' if same else 'DIFFERENT'}", flush=True)
        (bytes_, every), (each, one) = between(a, folder, "--set", "distributed.diloco.sync_every=10"), between(a, folder, "--set", "distributed.strategy=fsdp2")
        good = every == 10 and one == 1 and abs(bytes_ / each - 1) < 1e-9
        failed |= not good
        print(f"between replicas, rounds of 10: {bytes_} bytes every {every} steps, fsdp2 {each} in each{'' if good else '   WRONG'}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
