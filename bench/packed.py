#!/usr/bin/env python3
"""A step over packed chats beside one over documents of one length with the same work, in turns in one run.

    bench/packed.py [--build build] [--rounds 5] [--packs 24] [--length 1024] [--documents 4] [--hidden 256 --layers 8 --ffn 688 --heads 8]

One rank of one thread, float32, a Llama of a vocabulary of 320, a pack a step. "chats": rows of user and assistant whose lengths are drawn (log-normal),
packed by best fit. "fixed": tokens whose documents all have length / documents tokens (dataset.packing). Both fill the same samples with as many tokens, attention
keeps documents apart in both, and the chats' lengths are drawn so that the squares of the lengths sum to the same: the work of attention. "whole": the same tokens
as documents of `length`. A round runs one after the other; its figure is the mean step over all packs once (after three steps that do not count), since
packs differ in their work; the ratio is taken round by round.
"""
import argparse, json, os, random, statistics, subprocess, sys, tempfile

import jobs

END = 258  # <|im_end|> of configs/models/chat-tiny, whose other tokens are bytes
AROUND = 20  # positions of a chat beside its two contents: what the template writes, less the token that is no input


def drawn(a, scale):
    """Positions of documents that fill a.packs packs, the last one of each cut to fit."""
    chance, out = random.Random(5), []
    for _ in range(a.packs):
        room = a.length
        while room > 0:
            one = min(max(round(scale * chance.lognormvariate(0, 0.7)), 2 * AROUND), room)
            one += room - one if room - one < 2 * AROUND else 0  # none is shorter than that
            out.append(one)
            room -= one
    return out


def lengths_of(a):
    """Documents whose squares sum to those of fixed ones, as nearly as a scale gives it."""
    wanted = a.length / a.documents  # sum of squares over sum, of the fixed ones
    return min((drawn(a, wanted * part / 1000) for part in range(200, 1201)),
               key=lambda lengths: abs(sum(n * n for n in lengths) / sum(lengths) - wanted))


def write_data(a, folder, lengths):
    chance = random.Random(6)
    letters = lambda count: "".join(chr(chance.randrange(97, 123)) for _ in range(count))
    with open(f"{folder}/chats.jsonl", "w") as f:
        for length in chance.sample(lengths, len(lengths)):
            question = (length - AROUND) * 2 // 5
            chat = [("user", letters(question)), ("assistant", letters(length - AROUND - question))]
            f.write(json.dumps({"messages": [{"role": role, "content": text} for role, text in chat]}) + "\n")
    fixed = a.length // a.documents
    tokens = [END if i % fixed == fixed - 1 else chance.randrange(64, 90) for i in range(a.packs * a.length + 1)]
    with open(f"{folder}/tokens.bin", "wb") as f:
        f.write(b"".join(token.to_bytes(2, "little") for token in tokens))
    with open(f"{folder}/model.json", "w") as f:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 320, "hidden_size": a.hidden, "intermediate_size": a.ffn,
                   "num_hidden_layers": a.layers, "num_attention_heads": a.heads, "num_key_value_heads": a.heads, "max_position_embeddings": a.length,
                   "rms_norm_eps": 1e-6, "tie_word_embeddings": False}, f)


def write_job(a, folder, name, packs):
    tokenizer = os.path.join(jobs.ROOT, "configs/models/chat-tiny")
    data = {"chats": f'plugin = "jsonl"\npath = "{folder}/chats.jsonl"\nseq_len = {a.length}\nshuffle = false\n'
                     f'[dataset.jsonl]\ntokenizer = "{tokenizer}"\ncache = "{folder}/cache"',
            "fixed": jobs.tokens(f"{folder}/tokens.bin", a.length) + f"\npacking = true\ndocument_end = {END}",
            "whole": jobs.tokens(f"{folder}/tokens.bin", a.length)}
    return jobs.write(folder, f'config = "{folder}/model.json"', 'strategy = "fsdp2"', 1, 1, 3 + packs, data[name])


def packs_of(a, folder, lengths):
    """How many packs the chats make; they must have the lengths that they were written with."""
    done = subprocess.run([os.path.join(a.build, "bin/meshwright"), "dataset", "stats", write_job(a, folder, "chats", a.packs), "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr + done.stdout)
    seen = json.loads(done.stdout)["dataset"]
    if seen["positions"] != sum(lengths):
        sys.exit(f"the chats have {seen['positions']} positions, not {sum(lengths)}")
    return seen["samples"]


def mean_step(a, folder, name, packs):
    """Milliseconds, over all packs once."""
    return statistics.mean(r["step_ms"] for r in jobs.run(a.build, folder, write_job(a, folder, name, packs), 1)[3:])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(jobs.ROOT, "build"))
    for name, default in (("rounds", 5), ("packs", 24), ("length", 1024), ("documents", 4), ("hidden", 256), ("layers", 8), ("ffn", 688), ("heads", 8)):
        p.add_argument(f"--{name}", type=int, default=default)
    a = p.parse_args()
    if a.length % a.documents != 0:
        sys.exit("--documents must divide --length")
    lengths = lengths_of(a)
    with tempfile.TemporaryDirectory() as folder:
        write_data(a, folder, lengths)
        packs = packs_of(a, folder, lengths)
        fixed = a.length // a.documents
        print(f"{len(lengths)} chats of {min(lengths)} to {max(lengths)} positions, median {statistics.median(lengths):.0f}, in {packs} packs of {a.length}, "
              f"{100 * sum(lengths) / (packs * a.length):.1f}% filled;\nsum of squares a pack {sum(n * n for n in lengths) / packs:,.0f}, of {a.documents} documents of {fixed}: "
              f"{a.documents * fixed * fixed:,}, of one of {a.length}: {a.length * a.length:,}\n")
        print(f"{'round':>6}{'chats ms':>10}{'fixed ms':>10}{'whole ms':>10}{'chats of fixed':>16}{'chats of whole':>16}")
        of_fixed, of_whole = [], []
        for n in range(a.rounds):
            chats, fixed_ms, whole = (mean_step(a, folder, name, packs) for name in ("chats", "fixed", "whole"))
            of_fixed.append(chats / fixed_ms), of_whole.append(chats / whole)
            print(f"{n + 1:6}{chats:10.1f}{fixed_ms:10.1f}{whole:10.1f}{of_fixed[-1]:16.3f}{of_whole[-1]:16.3f}", flush=True)
        print(f"{'median':>6}{'':30}{statistics.median(of_fixed):16.3f}{statistics.median(of_whole):16.3f}\n{'asked':>6}{'':30}{'1.05 or less':>16}")


if __name__ == "__main__":
    main()
