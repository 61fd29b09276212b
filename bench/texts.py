#!/usr/bin/env python3
"""How fast text becomes tokens, what memory that takes at several sizes, and whether training waits for what is read.

    bench/texts.py [--build build] [--mb 200 1000 2000] [--kinds txt jsonl] [--no-training]

The texts are the project's own pages over and over, with words exchanged at random, as .txt files of 50 MB or as rows of JSON Lines; the tokenizer is a
byte-level one of 8,000 tokens that is trained on the pages. Preparing is `meshwright dataset stats` with an empty cache: MB a second of wall time and of
processor time, the most memory that lay in the process at once, and of it what is its own (without pages of files that are mapped). Training is a Llama of 8
columns and 300 tokens, one rank, so that reading counts: tokens a second, and the part of them that steps waited for data (data_ms of metrics.jsonl), read from the
cache, and with the tokens in memory, made by the run itself (cache = "none"); without reading ahead that is the reader's own time.
"""
import argparse, glob, json, os, random, re, shutil, subprocess, sys, tempfile, time

PAGES = sorted(glob.glob("docs/*.md") + glob.glob("configs/texts/*.txt") + ["README.md", "CHANGELOG.md"])


def write_texts(folder, kind, megabytes):
    chance = random.Random(7)
    pages = [open(page, encoding="utf-8").read() for page in PAGES]
    words = sorted({word for page in pages for word in re.findall(r"[A-Za-z]{4,}", page)})
    parts = [re.split(r"([A-Za-z]{4,})", page) for page in pages]
    os.makedirs(folder)
    left, number = megabytes * 10**6, 0
    while left > 0:
        room = min(left, 50 * 10**6)
        left -= room
        with open(f"{folder}/{number:03}.{kind}", "w", encoding="utf-8") as out:
            while room > 0:
                page = list(chance.choice(parts))
                for _ in range(len(page) // 20):
                    page[chance.randrange(len(page) // 2) * 2 + 1 if len(page) > 1 else 0] = chance.choice(words)
                text = "".join(page)
                text = json.dumps({"text": text}, ensure_ascii=False) + "\n" if kind == "jsonl" else text + "\n\n"
                out.write(text)
                room -= len(text.encode())
        number += 1
    return sum(os.path.getsize(file) for file in glob.glob(f"{folder}/*")) / 1e6


def job(a, work, path, cache, steps=0, tokens=8000):
    settings = {
        "model.config": f"{work}/{tokens}/config.json", "dist_env.device": "cpu", "dataset.kind": "text", "dataset.path": path,
        "dataset.tokenizer": f"{work}/{tokens}", "dataset.seq_len": 256, "dataset.text.cache": cache, "run.dir": f"{work}/runs",
        "run.name": f"run{cache == 'none'}", "checkpoint.export": "none", "step_scheduler.max_steps": steps or 1,
        "step_scheduler.global_batch_size": 32, "step_scheduler.local_batch_size": 32, "distributed.strategy": "ddp"}
    open(f"{work}/job.toml", "w").write("schema = 1\n")
    return [f"{work}/job.toml"] + [x for key, value in settings.items() for x in ("--set", f"{key}={value}")]


def run(a, arguments):
    """Wall and processor seconds, peak MiB, peak MiB of its own."""
    begin, own = time.time(), 0
    with open(f"{a.log}", "w") as log:
        child = subprocess.Popen([f"{a.build}/bin/meshwright", *arguments], stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            try:
                own = max(own, int(re.search(r"RssAnon:\s+(\d+)", open(f"/proc/{child.pid}/status").read()).group(1)))
            except (OSError, AttributeError):
                pass
            time.sleep(0.02)
    if status:
        sys.exit(open(a.log).read())
    return time.time() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, own / 1024


def prepare(a, work, kind, megabytes):
    folder, cache = f"{work}/{kind}", f"{work}/cache"
    size = write_texts(folder, kind, megabytes)
    wall, processor, peak, own = run(a, ["dataset", "stats", *job(a, work, f"{folder}/*.{kind}", cache)])
    said = open(a.log).read()
    tokens = int(re.search(r"documents?, ([\d,]+) tokens?", said).group(1).replace(",", ""))
    print(f"{kind:6} {size:7.0f} MB {tokens / 1e6:8.1f} M tokens {wall:8.1f} s {size / wall:6.1f} MB/s {size / processor:6.1f} MB/s of a core "
          f"{peak:7.0f} MiB peak {own:6.0f} MiB own", flush=True)
    return folder, cache


def train(a, work, path, cache, what, ahead):
    shutil.rmtree(f"{work}/runs", ignore_errors=True)
    run(a, ["train", *job(a, work, path, cache, steps=24, tokens=300), "--nproc", "1", "--set", f"dataset.workers={1 if ahead else 0}"])
    rows = [json.loads(line) for line in open(f"{work}/runs/run{cache == 'none'}/metrics.jsonl")]
    rows = [row for row in rows if "loss" in row][4:]
    step, waited = sum(row["step_ms"] for row in rows), sum(row["data_ms"] for row in rows)
    tokens = len(rows) * 32 * 256 * 1000
    print(f"train, {what}: {tokens / step:,.0f} tokens/s, waits for data {waited / step:.2%} of the time, most in a step "
          f"{max(row['data_ms'] for row in rows):.2f} ms" if ahead else
          f"train, {what}, nothing read ahead: the reader alone gives {tokens / waited / 1e6:,.1f} M tokens/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--mb", type=int, nargs="+", default=[200, 1000, 2000])
    parser.add_argument("--kinds", nargs="+", default=["txt", "jsonl"])
    parser.add_argument("--no-training", action="store_true")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        a.log = f"{work}/log"
        for tokens in (300, 8000):
            subprocess.run([f"{a.build}/bin/meshwright", "tokenizer", "train", *PAGES, "--vocab-size", str(tokens), "--out", f"{work}/{tokens}"],
                           check=True, stdout=subprocess.DEVNULL)
            shape = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
                     "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": tokens, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
                     "tie_word_embeddings": True}
            json.dump(shape, open(f"{work}/{tokens}/config.json", "w"))
        for kind in a.kinds:
            for megabytes in a.mb:
                folder, cache = prepare(a, work, kind, megabytes)
                if not a.no_training and megabytes == a.mb[0]:
                    for place, what in ((cache, "from the cache"), ("none", "in memory")):
                        for ahead in (True, False):
                            train(a, work, f"{folder}/*.{kind}", place, what, ahead)
                shutil.rmtree(folder), shutil.rmtree(cache)


if __name__ == "__main__":
    main()
