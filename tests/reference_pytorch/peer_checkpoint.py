"""Save and load of PyTorch's distributed checkpoint, timed: FSDP2 over a Llama of the given config.json, AdamW's state after one step.

    torchrun --nproc-per-node 2 peer_checkpoint.py --config config.json --out FOLDER --times 5

Rank 0 prints a line of JSON: seconds of every save, of the pause of an asynchronous one, and of every load, state dicts included;
bytes of one checkpoint on the disk.
"""
import argparse, json, os, shutil, time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--config", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--times", type=int, default=5)
    a = p.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(a.config), dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.zeros(1, 8, dtype=torch.long)).logits.square().mean().backward()
    optimizer.step()

    def timed(body):
        dist.barrier()
        begin = time.perf_counter()
        body()
        dist.barrier()
        return time.perf_counter() - begin

    def state():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    def load():
        into = state()
        dcp.load(into, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=into["model"], optim_state_dict=into["optimizer"])

    saves, pauses, loads = [], [], []
    folder = os.path.join(a.out, "dcp")
    for _ in range(a.times):
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        saves.append(timed(lambda: dcp.save(state(), checkpoint_id=folder)))
        loads.append(timed(load))
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        pending = []
        pauses.append(timed(lambda: pending.append(dcp.async_save(state(), checkpoint_id=folder))))
        pending[0].result()
    if rank == 0:
        size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
        print(json.dumps({"save": saves, "pause": pauses, "load": loads, "bytes": size}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
