#!/usr/bin/env python3
"""What the program says and computes, recorded before a change of the inside and compared after it.

    tools/goldens.py record OUT [--build build] [--only plans words runs]
    tools/goldens.py compare BEFORE AFTER [--expected tools/goldens_expected.txt]

plans: `plan --json` of every configuration, strategy and {1, 2, 4, 8, 16} ranks, refusals too. words: what the program says of itself (help, schema,
the explanation of every key, manual pages, completions). runs: small trainings of two to four ranks: losses and norms to the bit, the order of what
each rank exchanges, the bytes of every tensor of the checkpoint, its meta.json. Both recordings are made on one machine, since kernels differ between
processors. --expected has a line for each file or field that may differ: a pattern of names, a blank, the reason; a pattern that fits nothing is an
error, too, so that the list stays true.
"""
import argparse, fnmatch, hashlib, json, os, re, shutil, struct, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STRATEGIES = ["ddp", "fsdp2", "megatron_fsdp", "moe_ep"]
WORLDS = [1, 2, 4, 8, 16]
# Name: configuration, ranks, settings. Every strategy, axis, dtype and option that has an arithmetic of its own.
RUNS = {
    "ddp": ("ddp_cpu", 2, []), "fsdp2": ("first_fsdp2_cpu", 2, []), "hsdp": ("hsdp_cpu", 4, []), "zero2": ("megatron_fsdp_cpu", 2, []),
    "zero1": ("megatron_fsdp_cpu", 2, ["distributed.megatron_fsdp.zero_dp_strategy=1"]),
    "zero3": ("megatron_fsdp_cpu", 2, ["distributed.megatron_fsdp.zero_dp_strategy=3"]),
    "tp": ("tp_cpu", 2, []), "cp": ("context_cpu", 2, []), "pp": ("pipeline_cpu", 2, []), "pp_v": ("pipeline_v_cpu", 4, []),
    "experts": ("experts_cpu", 2, []), "lora": ("lora_cpu", 2, []), "float16": ("float16_cpu", 2, []),
    "bfloat16": ("first_fsdp2_cpu", 2, ["model.torch_dtype=bfloat16"]), "sgd": ("ddp_cpu", 2, ["optimizer.name=sgd"]),
    "mixed": ("first_fsdp2_cpu", 2, ["distributed.mp_policy.param_dtype=bfloat16"]),
    "chats": ("chat_tuning_cpu", 2, []),
}


class Program:
    def __init__(self, build, home):
        self.file = os.path.join(os.path.abspath(build), "bin", "meshwright")
        self.home = home
        # The libraries of the build, also where it was copied to another place.
        self.environment = {"PATH": os.environ["PATH"], "HOME": home, "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "COLUMNS": "100", "OMP_NUM_THREADS": "1",
                            "LD_LIBRARY_PATH": os.path.join(os.path.abspath(build), "lib")}
        self.build = os.path.abspath(build)

    def __call__(self, *words, cwd=ROOT):
        done = subprocess.run([self.file, *words], cwd=cwd, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        out = done.stdout
        if "--json" in words:  # lines are broken by their length, which paths have a part in; numbers stay as they are written
            out = json.dumps(json.loads(out, parse_int=str, parse_float=str), indent=1) + "\n"
        return f"exit {done.returncode}\n--- out\n{self.neutral(out)}--- error\n{self.neutral(done.stderr)}", done.returncode

    def neutral(self, text):
        for path, name in ((self.home, "<home>"), (self.build, "<build>"), (os.path.join(ROOT, "build"), "<build>"), (ROOT, "<root>")):
            text = text.replace(path, name)
        return text


def put(out, name, text):
    path = os.path.join(out, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def record_plans(program, out):
    jobs = []
    for file in sorted(os.listdir(os.path.join(ROOT, "configs"))):
        if file.endswith(".toml"):
            jobs += [(file, strategy, world) for strategy in STRATEGIES for world in WORLDS]

    def one(job):
        file, strategy, world = job
        text, _ = program("plan", f"configs/{file}", "--json", "--world-size", str(world), "--set", f"distributed.strategy={strategy}",
                          "--set", "dist_env.device=cpu")
        put(out, f"plans/{file[:-5]}.{strategy}.{world}.txt", text)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, jobs))


def record_words(program, out):
    put(out, "words/schema.txt", program("config", "schema")[0])
    reference = program("config", "explain", "--reference")[0]
    put(out, "words/reference.txt", reference)
    table = ""
    for line in reference.splitlines():
        if heading := re.match(r"## \[+([a-z0-9_.]+)\]+", line):
            table = heading[1] + "."
        elif line.startswith("#"):
            table = ""
        elif key := re.match(r"\| `([a-z0-9_.]+)`", line):
            put(out, f"words/explain/{table}{key[1]}.txt", program("config", "explain", table + key[1])[0])
        elif code := re.match(r"\| (E[0-9]+) ", line):
            put(out, f"words/explain/{code[1]}.txt", program("config", "explain", code[1])[0])
    put(out, "words/help/meshwright.txt", program("-h")[0])
    man = os.path.join(program.home, "man")
    program("man", "--dir", man)
    for page in sorted(os.listdir(man)):
        with open(os.path.join(man, page)) as file:
            put(out, f"words/man/{page}", file.read())
        if verb := re.match(r"meshwright-(.+)\.1$", page):  # "config-schema": of a group, but for verbs whose own name has a dash
            words = [verb[1]] if program(verb[1], "-h")[1] == 0 else verb[1].split("-", 1)
            put(out, f"words/help/{verb[1]}.txt", program(*words, "-h")[0])
    for shell in ("bash", "zsh"):
        put(out, f"words/completion/{shell}.txt", program("completion", shell)[0])


def tensors_of(path):
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        for name, entry in sorted(header.items()):
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            file.seek(8 + size + begin)
            yield name, f"{entry['dtype']} {entry['shape']} {hashlib.sha256(file.read(end - begin)).hexdigest()}"


def record_run(program, out, name):
    config, ranks, settings = RUNS[name]
    runs = os.path.join(program.home, "runs")
    words = ["train", f"configs/{config}.toml", "--nproc", str(ranks), "--trace"]
    for setting in ["step_scheduler.max_steps=3", "run.seed=11", f"run.dir={runs}", f"run.name={name}", *settings]:
        words += ["--set", setting]
    text, status = program(*words)
    if status != 0:
        put(out, f"runs/{name}/failed.txt", text)
        return
    folder = os.path.join(runs, name)
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        rows = [json.loads(line) for line in file]
    kept = ("step", "loss", "grad_norm", "lr", "tokens", "validation_loss", "auxiliary_loss")
    lines = [f"{key} {value.hex() if isinstance(value, float) else value}" for row in rows for key, value in row.items() if key in kept]
    put(out, f"runs/{name}/steps.txt", "\n".join(lines) + "\n")
    for rank in range(ranks):
        with open(os.path.join(folder, "trace", f"rank_{rank}.json")) as file:
            spans = [span for span in json.load(file) if span["ph"] == "X"]
        lanes = {}
        for span in sorted(spans, key=lambda s: s["ts"]):
            lanes.setdefault(span["tid"], []).append(span["name"])
        put(out, f"runs/{name}/exchanged_{rank}.txt", "\n".join(f"{lane}: {what}" for lane in (1, 2) for what in lanes.get(lane, [])) + "\n")
    checkpoints = os.path.join(folder, "checkpoints")
    newest = os.path.join(checkpoints, max(d for d in os.listdir(checkpoints) if d.startswith("step_")))
    lines = []
    for place, _, files in sorted(os.walk(newest)):
        for file in sorted(files):
            path = os.path.join(place, file)
            short = os.path.relpath(path, newest)
            if file.endswith(".safetensors"):
                lines += [f"{short} {tensor} {digest}" for tensor, digest in tensors_of(path)]
            elif file == "meta.json":
                with open(path) as meta:
                    fields = json.load(meta)
                # When, by which program, and sums of what is listed here tensor by tensor.
                for volatile in ("created", "program", "checksum", "checksums", "blocks"):
                    fields.pop(volatile, None)
                for listed in fields.get("files", []):
                    listed.pop("blocks", None)
                put(out, f"runs/{name}/meta.json", program.neutral(json.dumps(fields, indent=1, sort_keys=True)) + "\n")
            elif file not in ("config.resolved.toml", "config.toml"):  # the folder of this recording is in them
                with open(path, "rb") as bytes_:
                    lines.append(f"{short} {hashlib.sha256(bytes_.read()).hexdigest()}")
    put(out, f"runs/{name}/checkpoint.txt", "\n".join(lines) + "\n")


def record(a):
    shutil.rmtree(a.out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as home:
        program = Program(a.build, home)
        if "plans" in a.only:
            record_plans(program, a.out)
        if "words" in a.only:
            record_words(program, a.out)
        if "runs" in a.only:
            for name in RUNS:
                record_run(program, a.out, name)
    count = sum(len(files) for _, _, files in os.walk(a.out))
    failed = [name for name in RUNS if os.path.exists(os.path.join(a.out, "runs", name, "failed.txt"))]
    print(f"{count} files in {a.out}" + (f"; runs that failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def read_all(folder):
    out = {}
    for place, _, files in os.walk(folder):
        for file in files:
            path = os.path.join(place, file)
            with open(path) as text:
                out[os.path.relpath(path, folder)] = text.read()
    return out


def compare(a):
    before, after = read_all(a.before), read_all(a.after)
    expected = []
    if os.path.exists(a.expected):
        with open(a.expected) as file:
            for line in file:
                if line.strip() and not line.startswith("#"):
                    pattern, _, reason = line.strip().partition(" ")
                    if not reason:
                        sys.exit(f"{a.expected}: {pattern} has no reason")
                    expected.append(pattern)
    used, stale, wrong, differ = set(), 0, 0, 0
    for name in sorted(set(before) | set(after)):
        if before.get(name) == after.get(name):
            continue
        differ += 1
        found = [pattern for pattern in expected if fnmatch.fnmatchcase(name, pattern)]
        used.update(found)
        if found:
            continue
        wrong += 1
        if wrong <= 20:
            print(f"{name}: " + ("gone" if name not in after else "new" if name not in before else "differs"))
            one, two = before.get(name, "").splitlines(), after.get(name, "").splitlines()
            for x, y in [pair for pair in zip(one, two) if pair[0] != pair[1]][:3]:
                print(f"  - {x[:200]}\n  + {y[:200]}")
    for pattern in expected:
        if pattern not in used:
            stale += 1
            print(f"{a.expected}: {pattern} fits nothing that differs")
    print(f"{len(set(before) | set(after))} files, {differ} differ, {differ - wrong} of them as expected")
    return 1 if wrong or stale or not before else 0


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = p.add_subparsers(required=True)
    r = verbs.add_parser("record")
    r.add_argument("out")
    r.add_argument("--build", default=os.path.join(ROOT, "build"))
    r.add_argument("--only", nargs="*", default=["plans", "words", "runs"])
    r.set_defaults(verb=record)
    c = verbs.add_parser("compare")
    c.add_argument("before")
    c.add_argument("after")
    c.add_argument("--expected", default=os.path.join(ROOT, "tools", "goldens_expected.txt"))
    c.set_defaults(verb=compare)
    a = p.parse_args()
    sys.exit(a.verb(a))
