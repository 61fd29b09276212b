"""The GPT-2 of examples/gpt2 beside transformers' own: check_gpt2.py [--build build]

A folder of random weights is made by transformers. 20 steps of 12 samples of 64 tokens: losses within 1e-5 of transformers' float32 curve, the first of which is
the loss of the untrained folder, and gradient norms as check_training.py holds them, under ddp, fsdp2, megatron_fsdp and moe_ep, and with tensor, sequence, context and pipeline
parallelism. The export of a run that trained nothing equals the folder tensor by tensor, that of a trained one equals transformers' parameters within 1e-5,
and greedy tokens are transformers'.
"""
import argparse, os, subprocess, sys, tempfile

from check_training import distance, peer
from job_text import job_text, rows, tokens

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))

LAYOUTS = [("ddp", 1, 12, ""), ("ddp", 2, 2, ""), ("fsdp2", 3, 4, ""), ("megatron_fsdp", 2, 6, ""), ("moe_ep", 2, 6, ""), ("fsdp2", 2, 12, "tp_size = 2"),
           ("fsdp2", 2, 6, "tp_size = 2\nsequence_parallel = true"), ("fsdp2", 2, 12, "cp_size = 2"),
           ("fsdp2", 2, 6, "pp_size = 2"), ("fsdp2", 4, 6, "tp_size = 2\nsequence_parallel = true\npp_size = 2")]


def make_folder(folder):
    import numpy as np, torch, transformers as hf
    hf.utils.logging.disable_progress_bar()  # whose thread a fork would lose
    torch.manual_seed(1234)
    config = hf.GPT2Config(vocab_size=256, n_positions=96, n_embd=64, n_layer=4, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = hf.GPT2LMHeadModel(config)
    for p in model.parameters():  # biases and norms that do something
        if p.dim() == 1:
            p.data.add_(torch.randn(p.shape) * 0.1)
    model.save_pretrained(f"{folder}/gpt2")
    rng = np.random.default_rng(7)
    table = rng.integers(0, 256, (997,), dtype=np.uint16)
    table[(np.arange(40_000) * 31 + rng.integers(0, 5, 40_000)) % 997].tofile(f"{folder}/train.bin")


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr + done.stdout)
    return done.stdout


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(root, "build"))
    a = p.parse_args()
    program, plugin = os.path.join(a.build, "bin/meshwright"), os.path.join(a.build, "fixtures/gpt2/libmeshwright_gpt2.so")
    load = ["--set", f'plugins.load=["{plugin}"]']
    failed = False

    def judge(good, text):
        nonlocal failed
        failed |= not good
        print(f"gpt2: {text}{'' if good else '   TOO FAR'}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        import torch, transformers as hf
        from safetensors.torch import load_file
        make_folder(folder)

        def train(strategy, ranks, local, more, steps=20, sets=()):
            with open(f"{folder}/job.toml", "w") as f:
                f.write(job_text(folder, "job", f'plugin = "gpt2"\npretrained = "{folder}/gpt2"', f'strategy = "{strategy}"\n{more}', 12, local, steps,
                                 tokens(f"{folder}/train.bin", 64), 'resume = "none"', "eps = 1e-5"))
            run(program, "train", f"{folder}/job.toml", "--nproc", str(ranks), *load, *[w for s in sets for w in ("--set", s)])
            return rows(f"{folder}/runs/job/metrics.jsonl")

        # Transformers' own curve, its rounding, and its parameters.
        exact = peer(folder, "gpt2", f"{folder}/float64.jsonl", "none", 1, "--storage-dtype", "float64", "--eps", "1e-5")
        theirs = peer(folder, "gpt2", f"{folder}/none.jsonl", "none", 1, "--eps", "1e-5", "--save", f"{folder}/trained")
        own = distance(theirs, exact, "grad_norm")
        for strategy, ranks, local, more in LAYOUTS:
            sets = ["checkpoint.export=final"] if "sequence" in more or ranks == 3 else []
            ours = train(strategy, ranks, local, more, sets=sets)
            loss, norm = distance(ours, theirs, "loss"), distance(ours, theirs, "grad_norm")
            judge(len(ours) == 20 and loss < 1e-5 and norm < 1e-5 + 4 * own,
                  f"{strategy} on {ranks} {more.split()} beside transformers: loss {loss:.1e}, norm {norm:.1e} (PyTorch's own rounding {own:.1e})")
            if sets:
                mine, trained = load_file(f"{folder}/runs/job/hf/model.safetensors"), load_file(f"{folder}/trained/model.safetensors")
                far = max((mine[n] - trained[n]).abs().max().item() for n in trained) if mine.keys() == trained.keys() else float("inf")
                judge(far < 1e-5, f"{len(trained)} parameters after 20 steps on {ranks} ranks beside transformers: {far:.1e}")

        train("fsdp2", 2, 6, "tp_size = 1", steps=0, sets=["checkpoint.export=final"])
        mine, first = load_file(f"{folder}/runs/job/hf/model.safetensors"), load_file(f"{folder}/gpt2/model.safetensors")
        judge(mine.keys() == first.keys() and all(torch.equal(mine[n], first[n]) for n in first), "a folder in and out is the same, tensor by tensor")

        prompt = [7, 11, 200, 3]
        model = hf.GPT2LMHeadModel.from_pretrained(f"{folder}/gpt2").eval()
        wanted = model.generate(torch.tensor([prompt]), max_new_tokens=32, do_sample=False, pad_token_id=0)[0, len(prompt):].tolist()
        import json
        for source in (f"{folder}/gpt2", f"{folder}/runs/job"):
            named = ["--set", 'model.plugin="gpt2"'] if source.endswith("gpt2") else []
            for ranks, sets in [("1", []), ("2", ["--set", 'distributed.strategy="fsdp2"', "--set", "distributed.tp_size=2"])]:
                text = run(program, "generate", source, "--tokens", ",".join(map(str, prompt)), "--max-new", "32", "--temperature", "0", "--stop", "none", "--json", "--nproc", ranks,
                           *load, *named, *sets)
                judge(json.loads(text)["new_ids"] == wanted, f"32 greedy tokens of {os.path.basename(source)} on {ranks} ranks are transformers'")
    sys.exit(failed)


if __name__ == "__main__":
    main()
