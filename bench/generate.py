#!/usr/bin/env python3
"""Tokens a second of `meshwright generate` beside transformers' generate() with its cache, in turns in one run, same threads.

    bench/generate.py [--build build] [--deps .deps] [--rounds 3] [--threads 2] [--new 64] [--dtypes float32 bfloat16] [--batches 1 8]

A Llama of SmolLM2's shape (135 M parameters, 30 layers of 576, 9 heads over 3, vocabulary 49,152) with random weights, greedy, no token ends a text. Ours: the rows of
`generate --prompts`, prompts of 16 tokens each, and for a batch of 1 also one prompt of 512. transformers: generate() on the same ids in one padded batch. A figure is new
tokens over the whole time of writing, reading the prompts included, loading the weights not; rounds take turns, the best of each counts. Both greedy ids are compared
(random weights have near ties: how many rows agree is told). Beside it: how often a second all weights can be read by the same threads (a sum over a buffer of their
size), which bounds a batch of 1.
"""
import argparse, json, os, re, subprocess, sys, tempfile, time



def peer(folder):
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(int(os.environ["THREADS"]))
    ask = json.loads(sys.stdin.read())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, ask["dtype"]))
    ids = torch.tensor(ask["prompts"])
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, min_new_tokens=2, do_sample=False, eos_token_id=None, pad_token_id=0)  # what a first call sets up
    begin = time.time()
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=ask["new"], min_new_tokens=ask["new"], do_sample=False, eos_token_id=None, pad_token_id=0)
    seconds = time.time() - begin
    print(json.dumps({"seconds": seconds, "ids": out[:, ids.shape[1]:].tolist()}))


def make(folder):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, vocab_size=49152,
                                 max_position_embeddings=8192, rope_theta=100000, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None)).save_pretrained(folder)


def bandwidth():
    import torch
    torch.set_num_threads(int(os.environ["THREADS"]))
    x = torch.ones(134_515_008)
    best = 9e9
    for _ in range(5):
        begin = time.time()
        x.sum()
        best = min(best, time.time() - begin)
    print(1 / best)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--deps", default=".deps")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--new", type=int, default=64)
    p.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    p.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    a = p.parse_args()
    environment = dict(os.environ, PYTHONPATH=os.path.join(a.deps, "python"), THREADS=str(a.threads), OMP_NUM_THREADS=str(a.threads))

    def python(*arguments, **more):
        done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, env=environment, **more)
        if done.returncode:
            sys.exit(done.stderr)
        return done.stdout

    with tempfile.TemporaryDirectory() as work:
        python("--make", f"{work}/model")
        reads = float(python("--bandwidth"))
        print(f"{a.threads} threads read 134.5 M float32 {reads:.1f} times a second")
        for dtype in a.dtypes:
            for batch, length in [(b, 16) for b in a.batches] + [(1, 512)] * (1 in a.batches):
                prompts = [[(row * 7919 + i * 31) % 49152 for i in range(length)] for row in range(batch)]
                with open(f"{work}/prompts.jsonl", "w") as out:
                    out.writelines(json.dumps({"tokens": row}) + "\n" for row in prompts)
                ours, theirs, alike = [], [], 0
                for _ in range(a.rounds):
                    if os.path.exists(f"{work}/out.jsonl"):
                        os.remove(f"{work}/out.jsonl")
                    done = subprocess.run([os.path.join(a.build, "bin/meshwright"), "generate", f"{work}/model", "--prompts", f"{work}/prompts.jsonl", "--out", f"{work}/out.jsonl",
                                           "--batch", str(batch), "--max-new", str(a.new), "--temperature", "0", "--stop", "none", "--set", f"model.torch_dtype={dtype}"],
                                          capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS=str(a.threads)))
                    if done.returncode:
                        sys.exit(done.stderr)
                    ours.append(batch * a.new / float(re.search(r" in ([0-9.]+) s", done.stderr).group(1)))
                    found = [json.loads(line)["new_ids"] for line in open(f"{work}/out.jsonl")]
                    said = json.loads(python("--peer", f"{work}/model", input=json.dumps({"dtype": dtype, "prompts": prompts, "new": a.new})))
                    theirs.append(batch * a.new / said["seconds"])
                    alike = sum(x == y for x, y in zip(found, said["ids"]))
                print(f"{dtype:8}  batch {batch}  prompts of {length:3}: {max(ours):7.1f} tokens/s, transformers {max(theirs):7.1f}: {max(ours) / max(theirs):.2f} times;  {alike} of {batch} rows alike", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        peer(sys.argv[2])
    elif sys.argv[1:2] == ["--make"]:
        make(sys.argv[2])
    elif sys.argv[1:2] == ["--bandwidth"]:
        bandwidth()
    else:
        main()
