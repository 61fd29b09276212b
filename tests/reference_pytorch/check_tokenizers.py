"""The engine's tokenizer beside the installed `tokenizers` library: check_tokenizers.py [--build build] [--texts 3000] [--seed 1] [FILE ...]

Committed fixtures against their goldens (make_tokenizers.py --check), then thousands of random texts, and random lists of ids, through the fixtures and
through tokenizers made here: every behavior of Split, inverted too, patterns of well-known models, Digits, prefixes, added tokens of every kind.
FILE: further tokenizer.json files to compare.

Characters are those that Python's Unicode tables know: the libraries disagree with each other about younger ones.
"""
import argparse, array, json, os, random, subprocess, sys, tempfile, unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
data = os.path.join(root, "tests", "data", "tokenizers")
LARGE = 60000 if os.environ.get("MESHWRIGHT_ALL_LAYOUTS") == "1" else 30000  # two megabytes, of which a thread takes one at a time

PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "cjk": r"[一-龥぀-ゟ゠-ヿ]+",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",  # a class in a class: refused
    "words": r"\w+|[^\w\s]+", "edges": r"\b|\B-", "not words": r"\W+", "spaces": r"\s+", "digits": r"\d{2,3}|\D", "lines": r"^.+$", "hex": r"\h{2}|[\h]|\H",
    "empty": r"x*", "lookbehind": r"(?<=[aeiou])\s|(?<!\p{L})\p{N}", "case": r"(?i)straße|k|ſ", "dot": r"(?m:a.b)|.", "named": r"(?<q>['\"]).*?\k<q>", "possessive": r"\p{L}++|\s*+\n",
    "number words": r"\b\d+\b|\w+\b|[\w']+", "no edges": r"\B\w|\W\b",
    "scripts": r"\p{Han}+|\p{Greek}+|\p{^Latin}", "numbers": r"\x{1F600}|\x41|\u00e9|\t",
}


def variants():
    with open(os.path.join(data, "qwen2.json"), encoding="utf-8") as f:
        base = f.read()
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def one(name, pre, normalizer=None, post=None, added=()):
        t = Tokenizer.from_str(base)
        t.normalizer = normalizer if normalizer is not None else normalizers.Sequence([])
        t.pre_tokenizer = pre
        if post is not None:
            t.post_processor = post
        t.add_tokens(list(added))
        return name, t

    for name, pattern in PATTERNS.items():
        yield one(name, pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_only]), normalizers.NFC())
    for behavior in ["removed", "merged_with_previous", "merged_with_next", "contiguous", "isolated"]:
        for invert in [False, True]:
            for key in ["spaces", "words", "empty"]:
                yield one(f"{behavior} {key} {invert}", pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERNS[key]), behavior, invert=invert), bytes_only]))
            yield one(f"{behavior} literal {invert}", pre_tokenizers.Sequence([pre_tokenizers.Split("e.", behavior, invert=invert), bytes_only]))
    for individual in [False, True]:
        yield one(f"digits {individual}", pre_tokenizers.Sequence([pre_tokenizers.Digits(individual), pre_tokenizers.ByteLevel(add_prefix_space=True)]), normalizers.Sequence([normalizers.NFC()]))
    yield one("nested", pre_tokenizers.Sequence([pre_tokenizers.Sequence([pre_tokenizers.Digits(True)]), pre_tokenizers.Split(Regex(r"\s"), "merged_with_next"), bytes_only]))
    template = processors.TemplateProcessing(single="<|im_start|> $A <|im_end|>:1 $A", pair="$A $B", special_tokens=[("<|im_start|>", 1201), ("<|im_end|>", 1202)])
    yield one("template", bytes_only, post=processors.Sequence([processors.ByteLevel(), template]))
    added = [AddedToken(c, single_word=rs & 1 > 0, lstrip=rs & 2 > 0, rstrip=rs & 4 > 0, normalized=rs & 8 > 0, special=rs & 16 > 0)
             for rs, c in enumerate(["the", " a", "é", "e\u0301x", "in", "ing", "\n", "I'", "und", "世", "\U0001f469", "ß", "3", "12", "  x", "\u0301", "of", "t", "to", "<a>", "<b>", "<c>", "<d>", " the", "…", "!", "-", "--", "\t", "ك", "がぎ", "A"])]
    gguf = json.loads(base)  # as transformers writes one
    for byte in "ÀÁõ":
        del gguf["model"]["vocab"][byte]
    gguf["model"].update(byte_fallback=True, fuse_unk=True, unk_token="!", merges=[m for m in gguf["model"]["merges"] if not set("".join(m)) & set("ÀÁõ")])
    kept = {t: i for i, t in enumerate(t for t in gguf["model"]["vocab"] if not set(t) & set("ÀÁõ"))}
    gguf["model"]["vocab"] = kept
    gguf["added_tokens"] = [dict(t, id=len(kept) + i, content=f"<{i}>", normalized=False) for i, t in enumerate(gguf["added_tokens"])]
    t = Tokenizer.from_str(json.dumps(gguf))
    t.normalizer = normalizers.Sequence([])
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("\u2581", " "), decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    yield "gguf", t
    for normalizer in [None, normalizers.NFC()]:
        yield one("added", pre_tokenizers.ByteLevel(add_prefix_space=False), normalizer, added=added)


def alphabet():
    return [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]


def texts(rng, count, letters):
    pieces = ["the", " a", " in", "ing ", "'s", "'LL", "\n", "\r\n", "  ", "\t", " ", "12", "3.14", "<|im_start|>", "<|im_end|>", "<pad>", "<think>", "é", "e\u0301", "word", "I'm", "…", "--", "!", "世界", "\u0301", "👩‍👩‍👧", "\u200d", "ß", "ſ", "K", "<a>", "<b>", "<c>",
              "xx", "\u00a0", "\u3000", "\u0323", "한", "\u1100\u1161", "'", '"', "_", "A", "Bc", "ends", "m²", "½", "x³ ", "¹", "\u09be", "\u0eba", "\u1df6"]
    blocks = [(0x20, 0x7f), (0x300, 0x370), (0x400, 0x500), (0x900, 0x980), (0x0, 0x20), (0x2000, 0x2070), (0x4e00, 0x4f00), (0x1f300, 0x1f650)]
    out = []
    for _ in range(count):
        kind, length = rng.random(), rng.randrange(0, 40)
        if kind < .5:
            out.append("".join(rng.choice(pieces) for _ in range(length)))
        elif kind < .8:
            out.append("".join(chr(rng.randrange(*rng.choice(blocks))) for _ in range(length)))
        else:
            out.append("".join(rng.choice(letters) for _ in range(length)))
    known = set(letters)
    return ["".join(c for c in t if c in known) for t in out]


def compare(name, path, reference, asked, program):
    """Returns how many lines differ; None when the engine refuses the file."""
    lines = "".join(json.dumps(a) + "\n" for a in asked)
    done = subprocess.run([program, path], input=lines, capture_output=True, text=True)
    if done.returncode:
        print(f"{name}: refused: {done.stderr.strip()}")
        return None
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(answers) == len(asked), (name, len(answers), len(asked), done.stderr)
    wrong = 0
    for question, answer in zip(asked, answers):
        if isinstance(question, str):
            expected = reference.encode(question).ids
        elif isinstance(question, dict):
            expected = reference.encode(question["bare"], add_special_tokens=False).ids
        else:
            expected = reference.decode(question, skip_special_tokens=False)
        if answer != expected:
            wrong += 1
            if wrong <= 3:
                print(f"{name}: {json.dumps(question)}\n  reference {json.dumps(expected)}\n  here      {json.dumps(answer)}")
    return wrong


def compare_verb(name, path, reference, text, build, rng):
    """`meshwright tokenize` of one large file, which is cut into pieces, and of its lines as documents. Returns how many of the two differ."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        source, out = os.path.join(folder, "text.txt"), os.path.join(folder, "out.bin")
        with open(source, "w", encoding="utf-8", newline="") as f:
            f.write(text)
        for documents in ["file", "line"]:
            done = subprocess.run([os.path.join(build, "bin", "meshwright"), "tokenize", source, "--tokenizer", path, "--out", out, "--force", "--documents", documents,
                                   "--document-end", "1", "--threads", str(rng.randrange(1, 5))], capture_output=True, text=True)
            if done.returncode:
                print(f"{name}: meshwright tokenize: {done.stderr.strip()}")
                wrong += 1
                continue
            lines = [text] if documents == "file" else [line.removesuffix("\r") for line in text.split("\n")]
            expected = array.array("H")
            for line in lines:
                if documents == "file" or line.strip(" \t\r\v\f"):
                    expected.extend(reference.encode(line).ids + [1])
            with open(out, "rb") as f:
                found = f.read()[1024:]
            if found != expected.tobytes():
                print(f"{name}: meshwright tokenize --documents {documents}: other ids")
                wrong += 1
    return wrong


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(root, "build"))
    p.add_argument("--texts", type=int, default=3000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("files", nargs="*")
    a = p.parse_args()
    program = os.path.join(a.build, "bin", "tokenize")
    rng, letters = random.Random(a.seed), alphabet()
    failed = subprocess.run([sys.executable, os.path.join(here, "make_tokenizers.py"), "--check"]).returncode != 0
    total = 0

    def ask(name, path, reference, count):
        nonlocal failed, total
        size = reference.get_vocab_size()
        asked = texts(rng, count, letters)
        asked += [{"bare": t} for t in asked[:count // 10]] + [[rng.randrange(size + 3) for _ in range(rng.randrange(8))] for _ in range(count // 5)]
        wrong = compare(name, path, reference, asked, program)
        total += len(asked)
        if wrong is None:
            failed |= name != "bloom"
        else:
            failed |= wrong > 0
            print(f"{name}: {len(asked)} questions, {wrong} answered otherwise")
            if size < 65536:
                large = rng.random() < .2 or name.endswith(".json")
                text = "".join(rng.choice(asked[:count]) + rng.choice([" ", " word ", "\n", "\n\n", ".\nThe "]) for _ in range(LARGE if large else 500))
                failed |= compare_verb(name, path, reference, text, a.build, rng) > 0

    for path in [os.path.join(data, f"{style}.json") for style in ["gpt2", "llama3", "qwen2"]] + a.files:
        ask(os.path.basename(path), path, Tokenizer.from_file(path), a.texts)
    with tempfile.TemporaryDirectory() as folder:
        for name, reference in variants():
            path = os.path.join(folder, "tokenizer.json")
            reference.save(path)
            ask(name, path, reference, a.texts // 10)
    print(f"{total} questions")
    sys.exit(failed)


if __name__ == "__main__":
    main()
