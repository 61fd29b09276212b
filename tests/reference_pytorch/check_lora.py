"""Adapters beside peft, on the folders of tests/data/parity: check_lora.py [--build build] [--only llama phi3 mixtral] [--share]

Both sides begin with one folder that peft wrote (B is not zero in it) and train 20 steps of 12 samples of 16 tokens with AdamW, in float32. Losses and gradient norms agree within
1e-6, A and B within 2e-4 of their norm after the last step (where a gradient is nearly zero AdamW divides noise by noise, so elements are not compared). Then peft reads what the
engine exports: its losses are those that `evaluate` gives for the run within 1e-6 (the engine shows no logits), its logits those of peft's own model within 1e-6 of the largest. The
merged folder's are those of transformers with peft's merge; merged in bfloat16, each element is the nearest one to the sum in float64, which two roundings would not always give. And what
goes in and out without a step is the same bits.
"""
import argparse, json, os, subprocess, sys, tempfile

import numpy as np
import torch

from job_text import job_text, rows, tokens

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
LENGTH, BATCH, STEPS = 16, 12, 20
TARGETS = {"llama": ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"], "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
           "mixtral": ["q_proj", "k_proj", "v_proj", "o_proj"], "qwen3": "all-linear", "gemma3": ["q_proj", "down_proj"]}
# Every model runs all of them but those that MIXTRAL_LACKS and those of experts. The family: the one that runs it under --share.
LAYOUTS = [("llama", "ddp", 1, []), ("phi3", "ddp", 2, []), ("mixtral", "fsdp2", 2, []), ("phi3", "fsdp2", 4, ["distributed.dp_replicate_size=2"]),
           ("phi3", "fsdp2", 1, []), ("llama", "fsdp2", 3, []), ("mixtral", "fsdp2", 4, []),
           ("llama", "megatron_fsdp", 2, []), ("llama", "fsdp2", 2, ["distributed.pp_size=2"]), ("phi3", "fsdp2", 2, ["distributed.tp_size=2"]),
           ("llama", "fsdp2", 4, ["distributed.tp_size=2", "distributed.sequence_parallel=true"]), ("llama", "fsdp2", 2, ["distributed.cp_size=2"]),
           ("phi3", "fsdp2", 2, ["distributed.activation_checkpointing=full"]),
           *((family, "megatron_fsdp", 2, [f"distributed.megatron_fsdp.zero_dp_strategy={level}"])  # 3 is the default
             for level, family in enumerate(("mixtral", "phi3", "mixtral")))]
MIXTRAL_LACKS = "distributed.sequence_parallel=true"
# Of models with experts, before the others.
EXPERT_LAYOUTS = [("mixtral", "moe_ep", 2, ["distributed.ep_size=2"]), ("mixtral", "fsdp2", 4, ["distributed.ep_size=2"])]


def layouts_of(family, share):
    """(strategy, ranks, settings) of what a family trains on."""
    all_of_them = LAYOUTS
    if family == "mixtral":
        all_of_them = EXPERT_LAYOUTS + [layout for layout in LAYOUTS if MIXTRAL_LACKS not in layout[3]]
    return [tuple(layout) for runs_it, *layout in all_of_them if not share or runs_it == family]


def load(base):
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="sdpa")


def make_adapter(base, family, out, rslora):
    from peft import LoraConfig, get_peft_model
    torch.manual_seed(3)
    model = get_peft_model(load(base), LoraConfig(r=4, lora_alpha=6, target_modules=TARGETS[family], use_rslora=rslora, task_type="CAUSAL_LM"))
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.05)
    model.save_pretrained(out)


def samples(file, step):
    ids = np.memmap(file, dtype=np.uint16, mode="r")
    return torch.from_numpy(np.stack([ids[i * LENGTH:(i + 1) * LENGTH + 1] for i in range(step * BATCH, (step + 1) * BATCH)]).astype(np.int64))


def by_peft(base, adapter, file):
    """Curve, and the model after the last step."""
    from peft import PeftModel
    model = PeftModel.from_pretrained(load(base), adapter, is_trainable=True)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1)
    curve = []
    for step in range(STEPS):
        chunk = samples(file, step)
        loss = torch.nn.functional.cross_entropy(model(chunk[:, :-1]).logits.flatten(0, 1), chunk[:, 1:].flatten())
        loss.backward()
        norm = torch.stack([p.grad.double().norm() for p in trained]).norm()
        for p in trained:
            p.grad.mul_(torch.clamp(1 / (norm + 1e-6), max=1.0).float())
        optimizer.step()
        optimizer.zero_grad()
        curve.append({"loss": loss.item(), "grad_norm": norm.item()})
    return curve, model.eval()


def train(build, folder, base, adapter, strategy, ranks, sets, steps, rslora, targets, family):
    dp = ranks // (2 if any("tp_size=2" in s or "cp_size=2" in s or "pp_size=2" in s for s in sets) else 1)
    with open(f"{folder}/job.toml", "w") as f:
        f.write(job_text(folder, "job", f'pretrained = "{base}"', f'strategy = "{strategy}"', BATCH, BATCH // dp // 2, steps, tokens(f"{root}/tests/data/parity/train.bin", LENGTH),
                         'resume = "none"\nexport = "final"', "eps = 1e-5"))
        f.write(f'[lora]\nr = 4\nalpha = 6\nadapter = "{adapter}"\ntarget_modules = {json.dumps(targets)}\nrslora = {str(rslora).lower()}\n')
    flags = [word for s in sets for word in ("--set", s)]
    done = subprocess.run([os.path.join(build, "bin/meshwright"), "train", f"{folder}/job.toml", "--nproc", str(ranks), *flags], capture_output=True, text=True, cwd=root)
    if done.returncode:
        sys.exit(f"{family} {strategy} {sets}:\n" + done.stderr[-3000:] + done.stdout[-1000:])
    return rows(f"{folder}/runs/job/metrics.jsonl"), f"{folder}/runs/job"


def loss_of(model, file, count):
    """Mean over the targets of the first samples."""
    chunk = samples(file, 0)[:count]
    return torch.nn.functional.cross_entropy(model(chunk[:, :-1]).logits.flatten(0, 1).double(), chunk[:, 1:].flatten()).item()


def evaluated(build, run, file, count):
    """The same by the engine."""
    done = subprocess.run([os.path.join(build, "bin/meshwright"), "evaluate", run, "--data", file, "--kind", "tokens", "--samples", str(count), "--json"], check=True,
                          capture_output=True, text=True, cwd=root)
    return json.loads(done.stdout)["evaluations"][0]["loss"]


def half_steps(found, exact):
    """How far bfloat16 numbers lie from those in float64, in halves of the distance between two neighbours there: at most 1 where these were rounded once. Less what a sum in float32 may
    move."""
    half = torch.exp2(torch.frexp(exact).exponent.double() - 9)
    return (((found.double() - exact).abs() - 3e-7 * exact.abs().max()).clamp(min=0) / half).max().item()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(root, "build"))
    p.add_argument("--only", nargs="*", default=["llama", "phi3"])
    p.add_argument("--share", action="store_true", help="each layout under one of llama, phi3 and mixtral, which all have to be there")
    a = p.parse_args()
    if a.share:
        ran = [layout for family in dict.fromkeys(a.only) for layout in layouts_of(family, True)]
        left = [layout for _, *layout in LAYOUTS + EXPERT_LAYOUTS if tuple(layout) not in ran]
        if left or any(not layouts_of(family, True) for family in a.only):
            p.error(f"--share is for --only llama phi3 mixtral; without a family: {left}")
    from peft import PeftModel
    from safetensors.torch import load_file
    torch.set_num_threads(1)
    failed = False

    def held(what, far, limit):
        nonlocal failed
        failed |= not far < limit
        print(f"{what}: {far:.1e}{'' if far < limit else '   TOO FAR'}", flush=True)

    for family in a.only:
        rslora = family == "phi3"
        base = f"{root}/tests/data/parity/{family}"
        with tempfile.TemporaryDirectory() as folder:
            adapter = f"{folder}/adapter"
            make_adapter(base, family, adapter, rslora)
            truth, model = by_peft(base, adapter, f"{root}/tests/data/parity/train.bin")
            targets = TARGETS[family]
            theirs = {name.replace(".default.", "."): p.detach() for name, p in model.named_parameters() if "lora_" in name}
            check = samples(f"{root}/tests/data/parity/train.bin", STEPS)[:, :-1]
            for strategy, ranks, sets in layouts_of(family, a.share):
                curve, run = train(a.build, folder, base, adapter, strategy, ranks, sets, STEPS, rslora, targets, family)
                name = f"{family}, {strategy} on {ranks} {' '.join(sets)}"
                for key in ("loss", "grad_norm"):
                    held(f"{name}: {key}", max(abs(x[key] / y[key] - 1) for x, y in zip(curve, truth)), 1e-6)
                ours = load_file(f"{run}/hf/adapter_model.safetensors")
                if ours.keys() != theirs.keys():
                    sys.exit(f"{name}: other tensors: {sorted(ours.keys() ^ theirs.keys())[:4]}")
                held(f"{name}: A and B", max(((ours[k] - theirs[k]).norm() / theirs[k].norm()).item() for k in theirs), 2e-4)
            with torch.no_grad():
                read = PeftModel.from_pretrained(load(base), f"{run}/hf").eval()
                file = f"{root}/tests/data/parity/train.bin"
                for count in (1, 2, 5, BATCH):
                    held(f"{family}: loss of {count} samples by our export in peft", abs(loss_of(read, file, count) / evaluated(a.build, run, file, count) - 1), 1e-6)
                wanted = model(check).logits
                held(f"{family}: logits of our export in peft beside peft's own", ((read(check).logits - wanted).abs().max() / wanted.abs().max()).item(), 1e-6)
                exact = PeftModel.from_pretrained(load(base), f"{run}/hf").double().merge_and_unload().state_dict()
                for form in ("float32", "bfloat16"):
                    subprocess.run([os.path.join(a.build, "bin/meshwright"), "checkpoint", "export", run, "--out", f"{folder}/merged", "--merged", "--dtype", form], check=True,
                                   capture_output=True)
                    # transformers holds experts, which have no adapters, under names of its own.
                    mine = {k: v for k, v in load_file(f"{folder}/merged/model.safetensors").items() if ".experts." not in k and ".block_sparse_moe.gate." not in k}
                    if form == "bfloat16":
                        held(f"{family}: merged weights in bfloat16, half steps from peft's in float64", max(half_steps(mine[k], exact[k]) for k in mine), 1.0001)
                    else:
                        far = max(((mine[k].double() - exact[k]).abs().max() / exact[k].abs().max()).item() for k in mine)
                        held(f"{family}: merged weights in float32 beside peft's", far, 1e-6)
                        held(f"{family}: logits of the merged folder in transformers", (load(f"{folder}/merged").eval()(check).logits - read(check).logits).abs().max().item(), 1e-6)
            _, run = train(a.build, folder, base, adapter, "fsdp2", 2, [], 0, rslora, targets, family)
            back, begun = load_file(f"{run}/hf/adapter_model.safetensors"), load_file(f"{adapter}/adapter_model.safetensors")
            same = back.keys() == begun.keys() and all(torch.equal(back[k], begun[k]) for k in begun)
            failed |= not same
            print(f"{family}: in and out again, without a step: {'the same bits' if same else 'DIFFERENT'}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
