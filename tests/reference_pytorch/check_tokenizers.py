"""The engine's tokenizer beside the installed `tokenizers` library: check_tokenizers.py [--build build] [--texts 3000] [--seed 1] [FILE ...]

Committed fixtures against their goldens (make_tokenizers.py --check), then thousands of random texts, and random lists of ids, through the fixtures and
through tokenizers made here: every behavior of Split, inverted too, patterns of well-known models, Digits, prefixes, added tokens of every kind; every
model, normalizer, pre-tokenizer, post-processor and decoder with its options. Ids, texts of ids, and where in a text each id stands.
FILE: further tokenizer.json files to compare.
--texts 1000000 takes some minutes a file; --only KIND ... takes those whose names begin so (figures: bench/results/tokenizers.txt).

Characters are those that Python's Unicode tables know: the libraries disagree with each other about younger ones.
"""
import argparse, array, itertools, json, os, random, subprocess, sys, tempfile, unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
data = os.path.join(root, "tests", "data", "tokenizers")
LARGE = 60000 if os.environ.get("MESHWRIGHT_ALL_LAYOUTS") == "1" else 30000  # two megabytes, of which a thread takes one at a time

PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "cjk": r"[一-龥぀-ゟ゠-ヿ]+",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "nested": r"[a[b-d[\p{Han}]]e]+|[^\s[0-9-]x]|[[.-]z]",
    "nested not": r"[a[^b]]",  # refused
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


def kinds():
    """Tokenizers of the other kinds: each part of a file in turn, on the fixture that it goes with."""
    files = {}
    for style in ["gpt2", "llama2", "mistral", "gemma", "t5", "albert", "bert"]:
        with open(os.path.join(data, f"{style}.json"), encoding="utf-8") as f:
            files[style] = json.load(f)

    def one(name, style, model=(), **parts):
        file = json.loads(json.dumps(files[style]))
        file["model"].update(dict(model))
        file.update(parts)
        try:
            return name, Tokenizer.from_str(json.dumps(file))
        except BaseException as problem:
            raise RuntimeError(name) from problem

    def seq(kind, *members):
        return {"type": "Sequence", {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders", "post_processor": "processors"}[kind]: list(members)}

    # Models
    vocab = files["llama2"]["model"]["vocab"]
    half = {t: i for t, i in vocab.items() if not t.startswith("<0xE")}  # ids with gaps
    added = files["llama2"]["added_tokens"]
    for fuse in [False, True]:
        yield one(f"bpe unk {fuse}", "llama2", {"byte_fallback": False, "fuse_unk": fuse})
        yield one(f"bpe half {fuse}", "llama2", {"vocab": half, "fuse_unk": fuse}, added_tokens=added)
    yield one("bpe whole words", "llama2", {"ignore_merges": True}, pre_tokenizer={"type": "WhitespaceSplit"}, normalizer=None)
    yield one("bpe legacy", "llama2", {"merges": [" ".join(m) for m in files["llama2"]["model"]["merges"]], "dropout": 0.0})
    words = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", end_of_word_suffix="</w>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    with open(os.path.join(root, "README.md"), encoding="utf-8") as f:
        words.train_from_iterator(f.read().split("\n"), trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>"], continuing_subword_prefix="##", end_of_word_suffix="</w>", show_progress=False))
    words.decoder = decoders.BPEDecoder()
    yield "bpe words", words
    pieces = files["t5"]["model"]["vocab"]
    yield one("unigram bytes", "t5", {"byte_fallback": True, "vocab": pieces + [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]}, decoder=seq("decoder", {"type": "ByteFallback"}, files["t5"]["decoder"]))
    yield one("unigram some bytes", "t5", {"byte_fallback": True, "vocab": pieces + [[f"<0x{byte:02X}>", -20.0] for byte in range(0xe2)] + [["<unk>", -30.0]]}, normalizer=None)
    yield one("unigram ties", "t5", {"vocab": [[t, -3.0 if len(t) < 3 else -5.0] for t, s in pieces]}, pre_tokenizer=None)
    yield one("unigram text", "t5", pre_tokenizer={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False})
    for most, prefix in [(100, "##"), (5, "##"), (100, "")]:
        yield one(f"word pieces {most} {prefix}", "bert", {"max_input_chars_per_word": most, "continuing_subword_prefix": prefix})
    level = {t: i for i, t in enumerate(["[UNK]", "the", "a", "in", "I", "'", "m", "12", "3", ".", "14", "世界", "é", "xx", "word", "ing", "!", "--"])}
    yield "words", Tokenizer.from_str(json.dumps(dict(files["bert"], model={"type": "WordLevel", "vocab": level, "unk_token": "[UNK]"}, added_tokens=[], post_processor=None, pre_tokenizer={"type": "Whitespace"}, decoder=None)))

    # Normalizers, before a model that shows every character
    precompiled = files["t5"]["normalizer"]
    for n in [*({"type": t} for t in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"]), {"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "Strip", "strip_left": False, "strip_right": True},
              {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Replace", "pattern": {"String": "in"}, "content": "\u00e9x"}, {"type": "Replace", "pattern": {"Regex": "\\s+|[aeiou]{2,}"}, "content": ""},
              {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "-"}, {"type": "Replace", "pattern": {"Regex": "(?i)k|\\d"}, "content": "9"}, {"type": "Prepend", "prepend": "a\u2581"},
              seq("normalizer", precompiled, {"type": "Lowercase"}), seq("normalizer", {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "NFC"}), seq("normalizer", {"type": "NFD"}, seq("normalizer", {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True}))]:
        yield one("normalizer " + json.dumps(n)[:70], "llama2", normalizer=n)
    for flags in range(16):
        yield one(f"bert normalizer {flags}", "llama2", normalizer={"type": "BertNormalizer", "clean_text": flags & 1 > 0, "handle_chinese_chars": flags & 2 > 0, "strip_accents": [None, True, False, False][flags >> 2], "lowercase": flags & 4 > 0})
    yield one("byte normalizer", "gpt2", normalizer={"type": "ByteLevel"}, pre_tokenizer={"type": "Split", "pattern": {"String": "\u0120"}, "behavior": "MergedWithNext", "invert": False})
    yield one("bytes and metaspace", "gpt2", pre_tokenizer=seq("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, {"type": "FixedLength", "length": 3}))

    # Pre-tokenizers
    behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    for pre in [*({"type": "Punctuation", "behavior": b} for b in behaviors), *({"type": t} for t in ["Whitespace", "WhitespaceSplit", "UnicodeScripts", "BertPreTokenizer"]), {"type": "CharDelimiterSplit", "delimiter": "a"},
                {"type": "CharDelimiterSplit", "delimiter": "\u4e16"}, {"type": "FixedLength", "length": 4}, {"type": "Digits", "individual_digits": True}, {"type": "Digits", "individual_digits": False}]:
        yield one("pre " + json.dumps(pre)[:60], "llama2", normalizer=None, pre_tokenizer=pre)
    for scheme in ["always", "first", "never"]:
        for split in [True, False]:
            for normalizer in [None, {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "NFKC"}]:
                meta = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}
                yield one(f"metaspace {scheme} {split} {normalizer}", "mistral", normalizer=normalizer, pre_tokenizer=meta, decoder=meta)
            yield one(f"metaspace behind {scheme} {split}", "mistral", normalizer=None, pre_tokenizer=seq("pre_tokenizer", {"type": "Digits", "individual_digits": True}, {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}))
    yield one("metaspace old", "mistral", pre_tokenizer={"type": "Metaspace", "replacement": "_", "add_prefix_space": True})

    # Post-processors and decoders
    yield one("roberta", "gpt2", post_processor={"type": "RobertaProcessing", "sep": ["a", 65], "cls": ["b", 66], "trim_offsets": True, "add_prefix_space": True})
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 2}
    replace = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    for style, decoder in [("llama2", None), ("llama2", {"type": "ByteFallback"}), ("llama2", {"type": "Fuse"}), ("llama2", replace), ("llama2", {"type": "Replace", "pattern": {"Regex": "\u2581|[0-9A]+"}, "content": "<>"}),
                           ("llama2", seq("decoder", {"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "aa"}, "content": "b"}, {"type": "Replace", "pattern": {"Regex": "e."}, "content": "\u2581"}, {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True})),
                           ("llama2", seq("decoder", {"type": "Fuse"}, {"type": "ByteFallback"}, {"type": "WordPiece", "prefix": "##", "cleanup": True})), ("bert", {"type": "WordPiece", "prefix": "", "cleanup": False}), ("bert", {"type": "WordPiece", "prefix": "##", "cleanup": True}),
                           ("bert", {"type": "CTC", "pad_token": "##", "word_delimiter_token": "e", "cleanup": True}), ("bert", {"type": "CTC", "pad_token": "[PAD]", "word_delimiter_token": "|", "cleanup": False}), ("bert", seq("decoder", {"type": "Fuse"}, {"type": "CTC", "pad_token": "a", "word_delimiter_token": "e", "cleanup": True})),
                           ("bert", {"type": "BPEDecoder", "suffix": "s"}), ("bert", seq("decoder", {"type": "Fuse"}, {"type": "BPEDecoder", "suffix": "th"})), ("gpt2", seq("decoder", {"type": "Fuse"}, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, strip)),
                           ("llama2", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}), ("llama2", seq("decoder", {"type": "Fuse"}, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True})),
                           ("llama2", seq("decoder", replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip)), ("t5", {"type": "Strip", "content": "\u2581", "start": 1, "stop": 0})]:
        yield one("decoder " + json.dumps(decoder)[:90], style, decoder=decoder)


def alphabet():
    return [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]


def texts(rng, count, letters):
    pieces = ["the", " a", " in", "ing ", "'s", "'LL", "\n", "\r\n", "  ", "\t", " ", "12", "3.14", "<|im_start|>", "<|im_end|>", "<pad>", "<think>", "é", "e\u0301", "word", "I'm", "…", "--", "!", "世界", "\u0301", "👩‍👩‍👧", "\u200d", "ß", "ſ", "K", "<a>", "<b>", "<c>",
              "xx", "\u00a0", "\u3000", "\u0323", "한", "\u1100\u1161", "'", '"', "_", "A", "Bc", "ends", "m²", "½", "x³ ", "¹", "\u09be", "\u0eba", "\u1df6", "\u2581", "##", "<s>", "</s>", "[MASK]", "[SEP]", "\n\n", "the the", "aaaa", "İ", "ﬁ", "\uff76\uff9e", "\u0600a", "\r", "\ufeff", "<0x41>", "..."]
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
    bare = Tokenizer.from_str(reference.to_str())
    bare.post_processor = processors.ByteLevel(trim_offsets=False)
    places = Places(reference)
    for question, answer in zip(asked, answers):
        try:
            if isinstance(question, str):
                expected = reference.encode(question).ids
            elif isinstance(question, list):
                expected = reference.decode(question, skip_special_tokens=False)
            elif "bare" in question:
                expected = reference.encode(question["bare"], add_special_tokens=False).ids
            else:
                encoded = bare.encode(question["ranges"])
                expected, answer = places.compared(question["ranges"], encoded, answer)
        except BaseException as problem:  # the library panics on some texts that a decoder makes empty
            if isinstance(problem, KeyboardInterrupt):
                raise
            continue
        if answer != expected:
            wrong += 1
            if wrong <= 3:
                print(f"{name}: {json.dumps(question)}\n  reference {json.dumps(expected)}\n  here      {json.dumps(answer)}")
    return wrong


class Places:
    """Where ids stand, of the library and here, in characters: what differs on purpose is taken out.

    A character and its marks are one where a normalizer may change them together, and white space that an added token took belongs to the next one, too.
    """
    def __init__(self, reference):
        file = json.loads(reference.to_str())
        normalizer = json.dumps(file["normalizer"])
        self.groups = any(name in normalizer for name in ["NFC", "NFD", "NFKC", "NFKD", "Bert"])
        self.drops = "Bert" in normalizer  # signs that are taken away, so that marks behind them join what stands before
        self.twice = json.dumps(file["post_processor"]).count('"Sequence": {"id": "A"') > 2
        # The library is wrong by one where a text begins with what the map takes away.
        self.map = reference.normalizer if "Precompiled" in normalizer else None

    def compared(self, text, encoded, answer):
        if self.twice or "error" in answer or (self.map is not None and any(self.map.normalize_str(c) == "" for c in text)):
            return None, None
        starts, of_byte = [], []
        for i, c in enumerate(text):
            of_byte += [i] * len(c.encode())
            follows = i > 0 and self.groups and (unicodedata.category(c)[0] == "M" or 0x1160 <= ord(c) <= 0x11ff or 0xd7b0 <= ord(c) <= 0xd7ff or 0xff9e <= ord(c) <= 0xffdc or 0x3131 <= ord(c) <= 0x318e or
                                                  (self.drops and unicodedata.category(c) in ("Cc", "Cf", "Co")))
            starts.append(starts[-1] if follows else i)
        ends = [len(text)] * (len(text) + 1)
        for i in reversed(range(len(text) - 1)):
            ends[i] = ends[i + 1] if starts[i + 1] == starts[i] else i + 1

        def out(ranges):
            snapped, last = [], 0
            for begin, end in ranges:
                if begin < end:
                    begin, end = starts[begin], ends[end - 1]
                last = end = max(end, last)
                snapped.append([begin, end])
            return snapped
        here = [[of_byte[b], of_byte[e - 1] + 1] if b < e else [of_byte[b] if b < len(of_byte) else len(text)] * 2 for b, e in answer[1]]
        return [encoded.ids, out(encoded.offsets)], [answer[0], out(here)]


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
    p.add_argument("--only", nargs="*")
    p.add_argument("--no-verb", action="store_true", help="leave out meshwright tokenize")
    p.add_argument("files", nargs="*")
    a = p.parse_args()
    program = os.path.join(a.build, "bin", "tokenize")
    rng, letters = random.Random(a.seed), alphabet()
    failed = subprocess.run([sys.executable, os.path.join(here, "make_tokenizers.py"), "--check"]).returncode != 0
    total = 0

    def chosen(name):
        return not a.only or any(name.startswith(kind) for kind in a.only)

    def plain(reference):
        reference.no_truncation()  # told and not applied, here
        reference.no_padding()
        return reference

    def ask(name, path, reference, count):
        nonlocal failed, total
        size = reference.get_vocab_size()
        asked = texts(rng, count, letters)
        some = min(count // 10, 20000)  # where tokens stand is compared more slowly
        asked += [{"bare": t} for t in asked[:some]] + [{"ranges": t} for t in asked[some:5 * some]] + [[rng.randrange(size + 3) for _ in range(rng.randrange(8))] for _ in range(2 * some)]
        wrong = compare(name, path, reference, asked, program)
        total += len(asked)
        if wrong is None:
            failed |= name != "nested not"
        else:
            failed |= wrong > 0
            print(f"{name}: {len(asked)} questions, {wrong} answered otherwise")
            if size < 65536 and not a.no_verb:
                large = rng.random() < .2 or name.endswith(".json")
                text = "".join(rng.choice([t for t in asked[:min(count, 2000)]]) + rng.choice([" ", " word ", "\n", "\n\n", ".\nThe "]) for _ in range(LARGE if large else 500))
                failed |= compare_verb(name, path, reference, text, a.build, rng) > 0

    for path in [os.path.join(data, f"{style}.json") for style in ["gpt2", "llama3", "qwen2", "llama2", "mistral", "gemma", "t5", "albert", "bert"]] + a.files:
        if not chosen(os.path.basename(path)):
            continue
        ask(os.path.basename(path), path, plain(Tokenizer.from_file(path)), a.texts)
    with tempfile.TemporaryDirectory() as folder:
        for name, reference in itertools.chain(variants(), kinds()):
            if not chosen(name):
                continue
            plain(reference)
            path = os.path.join(folder, "tokenizer.json")
            reference.save(path)
            ask(name, path, reference, a.texts // 10)
    print(f"{total} questions")
    sys.exit(failed)


if __name__ == "__main__":
    main()
