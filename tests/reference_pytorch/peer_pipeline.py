"""Train a Hugging Face causal LM through PyTorch's own pipelines, as the reference of pp_size: torch.distributed.pipelining over gloo, a process a rank.

    torchrun --nproc-per-node 2 peer_pipeline.py --model fixture/llama --tokens fixture/train.bin --schedules 1F1B GPipe --out folder

Each schedule trains afresh and writes folder/SCHEDULE.jsonl: loss, gradient norm and milliseconds a step, as peer_train.py does with the same data,
loss and optimizer. Sample i is tokens [i*seq_len, i*seq_len + seq_len]; step s reads samples s*batch on, cut into equal micro-batches.
"""
import argparse, json, os, sys, time

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import pipelining
from transformers import AutoModelForCausalLM

SCHEDULES = ["GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]


class Part(torch.nn.Module):
    """Some layers of the model, with what stands before the first and behind the last of all."""

    def __init__(self, path, index, stages):
        super().__init__()
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
        layers, self.inner = model.model.layers, model.model
        first, end = len(layers) * index // stages, len(layers) * (index + 1) // stages
        self.embed = self.inner.embed_tokens if index == 0 else None
        self.head = model.lm_head if index == stages - 1 else None
        self.inner.layers, self.inner.embed_tokens = layers[first:end], None
        self.inner.config.num_hidden_layers = end - first
        if self.head is None:
            self.inner.norm = torch.nn.Identity()

    def forward(self, x):
        x = x if self.embed is None else self.embed(x)
        x = self.inner(inputs_embeds=x, use_cache=False).last_hidden_state
        return x if self.head is None else self.head(x)


class LeanPart(torch.nn.Module):
    """The same of lean_llama.py."""

    def __init__(self, path, index, stages):
        super().__init__()
        from lean_llama import LeanLlama
        model = LeanLlama.from_hf(path)
        first, end = len(model.layers) * index // stages, len(model.layers) * (index + 1) // stages
        model.layers = model.layers[first:end]
        if index > 0:
            model.embed_tokens = torch.nn.Identity()
        if index + 1 < stages:
            model.norm = model.lm_head = torch.nn.Identity()
        self.model = model

    def forward(self, x):
        return self.model(x)


class Stage(pipelining.PipelineStage):
    """Without the first messages to all neighbours, which NCCL needs and gloo refuses where a neighbour is a stage of the same rank."""

    def _get_init_p2p_neighbors_ops(self):
        return []


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(a, name, rank, world):
    several = name not in ("GPipe", "1F1B")
    stages = 2 * world if several else world
    mine = [rank, stages - 1 - rank] if name in ("ZBVZeroBubble", "DualPipeV") else range(rank, stages, world)
    parts = [(LeanPart if a.impl == "lean" else Part)(a.model, index, stages) for index in mine]
    made = [Stage(part, index, stages, torch.device("cpu")) for part, index in zip(parts, mine)]
    schedule = getattr(pipelining, "Schedule" + name)(made if several else made[0], a.micro_batches, loss_fn=loss_of)
    parameters = [p for part in parts for p in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=a.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    tokens = np.memmap(a.tokens, dtype=np.uint16, mode="r")
    rows = []
    for step in range(a.steps):
        began = time.perf_counter()
        chunk = np.stack([tokens[i * a.seq_len:(i + 1) * a.seq_len + 1] for i in range(step * a.batch, (step + 1) * a.batch)]).astype(np.int64)
        chunk = torch.from_numpy(chunk)
        ids, targets, losses = (chunk[:, :-1].contiguous(),), chunk[:, 1:].contiguous(), []
        last = stages - 1 in mine
        schedule.step(*(ids if rank == 0 else ()), **(dict(target=targets, losses=losses) if last else {}))
        # lean: the quickest way, which adds squares up in float32.
        squares = torch.stack(torch._foreach_norm([p.grad for p in parameters])).double().pow(2).sum() if a.impl == "lean" else sum(
            p.grad.double().pow(2).sum() for p in parameters)
        sums = torch.stack([torch.stack(losses).double().mean() if last else torch.zeros((), dtype=torch.float64), squares])
        dist.all_reduce(sums)
        loss, norm = sums[0].item(), sums[1].sqrt().item()
        torch._foreach_mul_([p.grad for p in parameters], min(1.0, 1.0 / (norm + 1e-6)))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        rows.append({"step": step, "loss": loss, "grad_norm": norm, "step_ms": (time.perf_counter() - began) * 1e3})
    if rank == 0:
        with open(os.path.join(a.out, name + ".jsonl"), "w") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)


def main(arguments=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--tokens", required=True)
    p.add_argument("--schedules", nargs="+", default=["1F1B"], choices=SCHEDULES)
    p.add_argument("--impl", choices=["hf", "lean"], default="hf")
    p.add_argument("--seq-len", type=int, default=64)
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--micro-batches", type=int, default=6)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--out", required=True)
    a = p.parse_args(arguments)
    torch.set_num_threads(a.threads)
    dist.init_process_group("gloo")
    for name in a.schedules:
        train(a, name, dist.get_rank(), dist.get_world_size())
    # All is written. Taking gloo's threads down with the interpreter aborts the process now and then.
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
