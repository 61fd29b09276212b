#!/usr/bin/env python3
"""Chats beside transformers and tokenizers, one thread each, in turns: bench/chats.py [--build build] [--rows 20000] [--turns 5]

Rendering: chats a second of apply_chat_template(tokenize=False), and of the same template here (bench_chat_render, with origins and spans).
Preparing: rows of messages to ids and masks, MB of rendered text a second: apply_chat_template(tokenize=True) row by row, tokenizers' encode_batch
over texts that are rendered already, and `dataset stats` of a data set that is not in the cache less one that is.
A million rows from the cache, by `dataset stats`, the whole program: with packing = "none" (a mapped start alone: the files hashed, the cache mapped and checked),
and with "bfd". How long a million lengths take to pack is measured alone, by bench_packing.
"""
import argparse, json, os, re, statistics, subprocess, tempfile, time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
JOB = """schema = 1
[run]
name = "chats"
[model]
config = "{folder}/model.json"
[distributed]
strategy = "ddp"
[step_scheduler]
max_steps = 1
[dataset]
plugin = "jsonl"
path = "{path}"
seq_len = {seq_len}
[dataset.jsonl]
tokenizer = "{folder}"
cache = "{folder}/cache"
threads = {threads}
packing = "{packing}"
"""
# What is asked, in seconds.
MOST_MAPPED, MOST_PACKING = 0.2, 2.0


def verdict(took, most):
    return f"{most:g} s are asked: {'met' if took < most else 'not met'}"


def stats(build, folder, path, threads=1, seq_len=2048, packing="bfd"):
    job = os.path.join(folder, "job.toml")
    with open(job, "w", encoding="utf-8") as f:
        f.write(JOB.format(folder=folder, path=path, threads=threads, seq_len=seq_len, packing=packing))
    begin = time.perf_counter()
    done = subprocess.run([os.path.join(build, "bin", "meshwright"), "dataset", "stats", job, "--json"], capture_output=True, text=True, cwd=root)
    took = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return took, json.loads(done.stdout)["dataset"]


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--build", default=os.path.join(root, "build"))
    a.add_argument("--rows", type=int, default=20000)
    a.add_argument("--turns", type=int, default=5)
    a = a.parse_args()
    with open(os.path.join(root, "sdk", "text", "chat", "tests", "chat-golden.json"), encoding="utf-8") as f:
        golden = json.load(f)
    file = os.path.join(root, "configs", "models", "chat-tiny", "tokenizer.json")

    print(f"{'rendering':<22}{'transformers':>14}{'here':>12}{'with spans':>12}{'times':>8}")
    ours = subprocess.run([os.path.join(a.build, "bin", "bench_chat_render"), os.path.join(root, "sdk", "text", "chat", "tests", "chat-golden.json"), "0.5"],
                          capture_output=True, text=True, check=True).stdout
    ratios = []
    for line in ours.splitlines():
        found = re.match(r"(\S+)\s+(chat|think)\s+(\d+)\s+(\d+)$", line)
        if not found:
            continue
        template = golden["templates"][found[1]]
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=file)
        for key in ("bos_token", "eos_token"):
            if template.get(key):
                setattr(tokenizer, key, template[key])
        messages = golden["conversations"][found[2]]
        rates = []
        for _ in range(3):
            begin, count = time.perf_counter(), 0
            while time.perf_counter() - begin < 0.3:
                tokenizer.apply_chat_template(messages, chat_template=template["source"], tokenize=False)
                count += 1
            rates.append(count / (time.perf_counter() - begin))
        theirs = statistics.median(rates)
        ratios.append(int(found[4]) / theirs)
        print(f"{found[1] + ' ' + found[2]:<22}{theirs:>14,.0f}{int(found[3]):>12,}{int(found[4]):>12,}{ratios[-1]:>8.1f}")
    print(f"least {min(ratios):.1f}, median {statistics.median(ratios):.1f} times transformers, spans and origins included (3 is asked)\n")

    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(root, "tests", "data", "tokenizers", "qwen2.json"), encoding="utf-8") as f:
            text = f.read()
        with open(os.path.join(root, "configs", "models", "chat-tiny", "config.json"), encoding="utf-8") as f:
            model_json = json.dumps({**json.load(f), "vocab_size": 2048})
        for name, content in (("tokenizer.json", text), ("chat_template.jinja", golden["templates"]["qwen2.5"]["source"]),
                              ("tokenizer_config.json", json.dumps({"eos_token": "<|im_end|>"})), ("model.json", model_json)):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(content)
        with open(os.path.join(root, "docs", "guide.md"), encoding="utf-8") as f:
            words = f.read().split()
        rows = os.path.join(folder, "rows.jsonl")
        chats = []
        for i in range(a.rows):
            cut = lambda n, at: " ".join(words[(i * 37 + at) % (len(words) - 200):][:n])
            chats.append([{"role": "user", "content": cut(20 + i % 60, 0)}, {"role": "assistant", "content": cut(40 + i * 7 % 150, 91)}])
        with open(rows, "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"messages": chat}, ensure_ascii=False) + "\n" for chat in chats)
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"))
        tokenizer.chat_template = golden["templates"]["qwen2.5"]["source"]
        texts = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats]
        megabytes = sum(len(t.encode()) for t in texts) / 1e6
        bare = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        whole, batch, here = [], [], []
        for turn in range(a.turns):
            begin = time.perf_counter()
            for chat in chats[: a.rows // 10]:
                tokenizer.apply_chat_template(chat, tokenize=True)
            whole.append(megabytes / 10 / (time.perf_counter() - begin))
            begin = time.perf_counter()
            bare.encode_batch(texts, add_special_tokens=False)
            batch.append(megabytes / (time.perf_counter() - begin))
            subprocess.run(["rm", "-rf", os.path.join(folder, "cache")], check=True)
            made, _ = stats(a.build, folder, rows)
            mapped, seen = stats(a.build, folder, rows)
            here.append(megabytes / (made - mapped))
        print(f"preparing {a.rows:,} chats, {megabytes:.1f} MB of text, one thread, MB/s: median (least to most) of {a.turns} turns")
        for name, rates in (("apply_chat_template(tokenize=True)", whole), ("encode_batch of rendered texts", batch), ("dataset.plugin = jsonl", here)):
            print(f"  {name:<38}{statistics.median(rates):8.2f} ({min(rates):.2f} to {max(rates):.2f})")
        print(f"  {seen['samples']:,} packs, {100 * seen['positions'] / (seen['samples'] * seen['seq_len']):.1f}% filled\n")

        million = os.path.join(folder, "million.jsonl")
        with open(million, "w", encoding="utf-8") as f:
            f.writelines('{"text": "%s"}\n' % ("x " * (1 + i * 7919 % 60)) for i in range(1_000_000))
        first, seen = stats(a.build, folder, million, threads=0, seq_len=128)
        packed, mapped = [], []
        for _ in range(a.turns):
            packed.append(stats(a.build, folder, million, seq_len=128)[0])
            mapped.append(stats(a.build, folder, million, seq_len=128, packing="none")[0])
        small = os.path.join(folder, "small.jsonl")
        with open(small, "w", encoding="utf-8") as f:
            f.write('{"text": "x"}\n')
        stats(a.build, folder, small)
        bare_start = [stats(a.build, folder, small)[0] for _ in range(3)]
        print(f"a million documents ({os.path.getsize(million) / 1e6:.0f} MB of rows): made in {first:.1f} s by two threads; from the cache, median (least to most) of "
              f"{a.turns} turns,\nof which {statistics.median(bare_start):.2f} s are the program's start:")
        for name, times, more in (("a mapped start, packing = none", mapped, f"; {verdict(statistics.median(mapped), MOST_MAPPED)}"),
                                  ("the same, packing = bfd", packed, "")):
            print(f"  {name:<32}{statistics.median(times):.3f} s ({min(times):.3f} to {max(times):.3f}){more}")
        print(f"  {seen['samples']:,} packs, {100 * seen['positions'] / (seen['samples'] * seen['seq_len']):.2f}% filled\n")

    alone = subprocess.run([os.path.join(a.build, "bin", "bench_packing")], capture_output=True, text=True, check=True).stdout
    slowest = max(float(line.split()[1]) for line in alone.splitlines()[1:])
    print(f"a million lengths alone, put in their seeded order and packed\n{alone}the slowest {slowest:.2f} s; {verdict(slowest, MOST_PACKING)}")


main()
