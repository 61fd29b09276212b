"""Small tokenizers of every kind and what the reference library makes of a hard corpus: tests/data/tokenizers.

    make_tokenizers.py             writes them
    make_tokenizers.py --check     compares the committed ids with what the installed library gives today

Byte-level BPE: gpt2 (ByteLevel's own pattern), llama3 (Split, ignore_merges, a template that puts a beginning before the text; merges as pairs),
qwen2 (NFC, Split). BPE that falls back to bytes: llama2 (Prepend and Replace, no pre-tokenizer), mistral (Metaspace), gemma (Replace, Split of nothing).
Unigram: t5 (a map of characters that sentencepiece made, Metaspace), albert (more normalizers). WordPiece: bert. Trained on texts of this project and on
lines of many scripts below: made again, they differ as far as those texts have changed. The map of characters is a small one, of sentencepiece's own
form: making t5 and albert anew wants `pip install sentencepiece protobuf`.
"""
import argparse, json, os, random, re, sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
folder = os.path.join(root, "tests", "data", "tokenizers")

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

LINES = """The quick brown fox jumps over the lazy dog; it's what they'll've done, isn't it? WE'RE I'M HE'D
Füße große Straße naïve café Ångström Åse œuvre el niño mañana à bientôt
Привет, как дела? Сегодня хорошая погода.
Καλημέρα κόσμε, τι κάνετε; ἀρχὴ σοφίας
שלום עולם, מה שלומך היום?
مرحبا بالعالم كيف حالك اليوم؟ ١٢٣٤٥
नमस्ते दुनिया, आप कैसे हैं? १२३
สวัสดีชาวโลก วันนี้อากาศดี
你好，世界！今天天气很好。 中文分词测试
こんにちは世界、今日はいい天気ですね。カタカナ ｶﾀｶﾅ
안녕하세요 세계, 오늘 날씨가 좋네요
გამარჯობა მსოფლიო Բարեւ աշխարհ
ሰላም ልዑል 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚 Ⅳ ½ ² ①
👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇫🇷🇯🇵 ❤️ 🙂🙃 ✨
def f(x):\n    return x ** 2  # tab\there\n\tif x >= 10 and y != 3.14159:\n        print(f"{x:>8}")\n
0 1 12 123 1234 12345 3.14 1e-5 0xFF 2026-11-21 1,000,000 +49 30 1234567
""".split("\n")


def styles():
    yield "gpt2", None, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), [AddedToken("<|endoftext|>", special=True, normalized=False)]
    yield "llama3", None, pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), [
        AddedToken("<|begin_of_text|>", special=True, normalized=False), AddedToken("<|end_of_text|>", special=True, normalized=False),
        AddedToken("<|eot_id|>", special=True, normalized=False)]
    yield "qwen2", normalizers.NFC(), pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), [
        AddedToken("<|endoftext|>", special=True, normalized=False), AddedToken("<|im_start|>", special=True, normalized=False),
        AddedToken("<|im_end|>", special=True, normalized=False), AddedToken("<think>", special=False, normalized=False),
        AddedToken("<pad>", special=True, normalized=False, lstrip=True, rstrip=True), AddedToken("caf\u00e9!", special=False, normalized=True),
        AddedToken("word", special=False, normalized=False, single_word=True), AddedToken("  ", special=False, normalized=False)]


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def charsmap():
    """A map of characters as sentencepiece writes it into a model, of a few rules of nmt_nfkc."""
    import base64, tempfile, unicodedata
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as proto
    rules = {}
    for code in list(range(0xa0, 0x180)) + list(range(0xff01, 0xff5f)) + list(range(0xff65, 0xffa0)) + list(range(0x2460, 0x2474)) + [0x3000, 0x2026, 0x2163, 0x32a8, 0x3326, 0xfb01, 0x1d518]:
        to = unicodedata.normalize("NFKC", chr(code))
        if to != chr(code):
            rules[chr(code)] = to
        apart = unicodedata.normalize("NFD", chr(code))
        if len(apart) > 1 and unicodedata.normalize("NFC", apart) == chr(code):
            rules[apart] = chr(code)
    rules.update({"\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u200b": " ", "\ufeff": "", "\x01": "", "\x7f": "", "\u00ad": "", "\uff76\uff9e": "\u30ac"})
    with tempfile.TemporaryDirectory() as place:
        rows, text, model = (os.path.join(place, name) for name in ["rules.tsv", "text.txt", "model"])
        with open(rows, "w", encoding="utf-8") as f:
            f.writelines(" ".join(f"{ord(c):X}" for c in key) + "\t" + " ".join(f"{ord(c):X}" for c in value) + "\n" for key, value in sorted(rules.items()))
        with open(text, "w", encoding="utf-8") as f:
            f.write("\n".join(LINES))
        sentencepiece.SentencePieceTrainer.train(input=text, model_prefix=model, vocab_size=1000, hard_vocab_limit=False, normalization_rule_tsv=rows, minloglevel=3)
        read = proto.ModelProto()
        with open(model + ".model", "rb") as f:
            read.ParseFromString(f.read())
    return base64.b64encode(read.normalizer_spec.precompiled_charsmap).decode()


def fallback(name):
    """BPE over the whole text that falls back to bytes, as transformers makes it of a sentencepiece model."""
    special = {"gemma": ["<pad>", "<eos>", "<bos>", "<unk>"]}.get(name, ["<unk>", "<s>", "</s>"])
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    text = [" " + line for line in training_text()] + ["  " * k + "x" for k in range(1, 9)] * 3
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=1000, special_tokens=special + BYTES, limit_alphabet=150, show_progress=False))
    t.add_special_tokens([AddedToken(c, special=True, normalized=False) for c in special])
    begin = "<bos>" if name == "gemma" else "<s>"
    t.post_processor = processors.TemplateProcessing(single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, t.token_to_id(begin))])
    back = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if name == "llama2":
        t.normalizer, t.pre_tokenizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]), None
    elif name == "mistral":
        t.normalizer, t.pre_tokenizer = None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        t.add_tokens([AddedToken("[INST]", special=True, normalized=False), AddedToken("[/INST]", special=True, normalized=False)])
    else:
        t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        t.add_tokens([AddedToken("<start_of_turn>", special=True, normalized=False), AddedToken("\n\n", normalized=False), AddedToken("word", single_word=True)])
    t.decoder = decoders.Sequence(back + ([] if name == "gemma" else [decoders.Strip(" ", 1, 0)]))
    text = json.loads(t.to_str())
    text["model"].update(unk_token="<unk>", fuse_unk=True, byte_fallback=True, type="BPE")
    return json.dumps(text, ensure_ascii=False, indent=None, separators=(",", ":"))


def unigram(name):
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.NFKC()
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    special = {"t5": ["<pad>", "</s>", "<unk>"], "albert": ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]}[name]
    text = [line.lower() for line in training_text()] if name == "albert" else training_text()
    t.train_from_iterator(text, trainers.UnigramTrainer(vocab_size=900, special_tokens=special, unk_token="<unk>", show_progress=False))
    precompiled = {"type": "Precompiled", "precompiled_charsmap": charsmap()}
    t.add_special_tokens([AddedToken(c, special=True, normalized=False, lstrip=c == "[MASK]") for c in special])
    t.decoder = decoders.Metaspace()
    if name == "t5":
        t.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", t.token_to_id("</s>"))])
    else:
        t.post_processor = processors.BertProcessing(("[SEP]", t.token_to_id("[SEP]")), ("[CLS]", t.token_to_id("[CLS]")))
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    text = json.loads(t.to_str())
    text["normalizer"] = precompiled
    if name == "albert":
        text["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "``"}, "content": "\""}, {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, precompiled,
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]}
    else:
        text["truncation"] = {"direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0}
    text["model"]["vocab"] = [[piece, round(score, 5)] for piece, score in text["model"]["vocab"]]
    return json.dumps(text, ensure_ascii=False, indent=None, separators=(",", ":"))


def word_piece():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(training_text(), trainers.WordPieceTrainer(vocab_size=1300, special_tokens=special, show_progress=False))
    t.add_special_tokens([AddedToken(c, special=True, normalized=False) for c in special])
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    t.decoder = decoders.WordPiece()
    return json.dumps(json.loads(t.to_str()), ensure_ascii=False, indent=None, separators=(",", ":"))


# How each is made; the rest of a style is for make().
OTHERS = {"llama2": fallback, "mistral": fallback, "gemma": fallback, "t5": unigram, "albert": unigram, "bert": lambda name: word_piece()}


def training_text():
    out = []
    for name in ["README.md", "CONTRIBUTING.md"]:
        with open(os.path.join(root, name), encoding="utf-8") as f:
            out += f.read().split("\n")[:200]
    return out[:300] + LINES * 4


def make(name, normalizer, pre_tokenizer, added):
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(training_text(), trainers.BpeTrainer(vocab_size=1200, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_tokens(added)
    if name == "llama3":
        begin = tokenizer.token_to_id("<|begin_of_text|>")
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B", special_tokens=[("<|begin_of_text|>", begin)])])
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    text = json.loads(tokenizer.to_str())
    if name == "llama3":
        text["model"]["ignore_merges"] = True
        # A token that no merges make: only ignore_merges reaches it.
        ids = {i: t for t, i in text["model"]["vocab"].items()}
        last = max(ids)
        text["model"]["merges"] = [m for m in text["model"]["merges"] if "".join(m) != ids[last]]
    if name == "gpt2":  # the older way of writing them
        text["model"]["merges"] = [" ".join(m) for m in text["model"]["merges"]]
    return json.dumps(text, ensure_ascii=False, indent=None, separators=(",", ":"))


def corpus():
    out = ["", " ", "  ", "\n", "\r\n\r\n", "\t", "a", "\u0000", "\u0001\u0002\x7f\x85", "\ufeffbyte order mark", "\ufffd", "\uffff\U0010ffff\ufdd0", "\u200b\u200d\u2060\u00ad"]
    out += LINES
    out += ["it's we'll I'M DON'T they'Ve 'S 't'l 'LL've ' s '\u017f x'\u017f", "e\u0301 cafe\u0301! caf\u00e9! \u1100\u1161\u11a8 \uac01 \u0323\u0307q q\u0307\u0323 \u212b \u2126 \u0344 \u0958",
            "a" + "\u0301" * 50, "".join(chr(c) for c in range(0x300, 0x370)), " " * 100, "x" + " " * 77 + "y", "\n" * 60 + " " * 9 + "z", " \n \n  \n\t\n x", "\u00a0\u2003\u3000\u1680\u180e\u2028 x",
            "1234567890" * 12, "١٢٣٤٥٦ १२३४ ⅣⅫ ½¼ ²³ ①②③ 𝟘𝟙𝟚𝟛 〇〡", "!!!???...,,,;;; ---===*** (((]]]) \"'`", "a" * 3000, "ab" * 1700, "\u4e2d" * 500, "\U0001f600" * 300,
            "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", "x <|im_start|>user\nHello<|im_end|> y", "<|im_start", "<|im_start|", "<<|im_end|>>", "<think>  </think>", "a  <pad>  b", "<pad>\u3000\n<pad>",
            "word words sword word, \u00e9word word\u0301 word", "word_ word\u203f word\u200d 1word", "<|begin_of_text|>twice<|end_of_text|><|eot_id|>", "cafe\u0301!caf\u00e9!", "  two   three    four"]
    rng = random.Random(11)
    ranges = [(0x20, 0x7f), (0xa0, 0x180), (0x300, 0x370), (0x370, 0x400), (0x400, 0x500), (0x590, 0x700), (0x900, 0xa00), (0xe00, 0xe80), (0x1100, 0x1200), (0x2000, 0x2070),
              (0x3040, 0x3100), (0x4e00, 0x5000), (0xac00, 0xad00), (0x1f300, 0x1f650), (0, 0x20), (0x10000, 0x10400)]
    for _ in range(120):
        low, high = rng.choice(ranges)
        out.append("".join(chr(rng.randrange(*((low, high) if rng.random() < .7 else rng.choice(ranges)))) for _ in range(rng.randrange(1, 60))))
    return out


def long_text():
    """A megabyte that a test can make for itself: the lines again and again, each with its number."""
    out, size, i = [], 0, 0
    while size < 1 << 20:
        line = f"{i} {LINES[i % len(LINES)]}\n"
        size += len(line.encode())
        out.append(line)
        i += 1
    return "".join(out)


def fnv(ids):
    value = 0xcbf29ce484222325
    for i in ids:
        value = ((value ^ i) * 0x100000001b3) & 0xffffffffffffffff
    return value


def goldens(tokenizer, small=False):
    """small: of the kinds whose texts need no long ones, which the tests make for themselves."""
    tokenizer.no_truncation()
    rows = []
    texts = corpus()
    for text in [text for text in texts if len(text) < 200][::3] if small else texts:
        ids = tokenizer.encode(text).ids
        rows.append({"text": text, "ids": ids, "bare": tokenizer.encode(text, add_special_tokens=False).ids == ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                     "plain": tokenizer.decode(ids, skip_special_tokens=True)})
    rng = random.Random(7)
    size = tokenizer.get_vocab_size()
    decoded = []
    for _ in range(50 if small else 100):
        ids = [rng.randrange(size + 5) for _ in range(rng.randrange(1, 12))]
        decoded.append({"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False), "plain": tokenizer.decode(ids, skip_special_tokens=True)})
    ids = tokenizer.encode(long_text()).ids
    return {"texts": rows, "decodes": decoded, "long": {"count": len(ids), "fnv": str(fnv(ids))}}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true")
    p.add_argument("--only", nargs="*", help="of these styles alone")
    a = p.parse_args()
    os.makedirs(folder, exist_ok=True)
    failed = False
    lines = json.dumps(LINES, ensure_ascii=True)
    for style in [*styles(), *((name,) for name in OTHERS)]:
        if a.only and style[0] not in a.only:
            continue
        path, golden = os.path.join(folder, style[0] + ".json"), os.path.join(folder, style[0] + ".golden.json")
        if not a.check:
            made = make(*style) if len(style) > 1 else OTHERS[style[0]](style[0])
            with open(path, "w", encoding="utf-8") as f:
                f.write(made + "\n")
        rows = goldens(Tokenizer.from_file(path), small=len(style) == 1)
        text = "{\"lines\": " + lines + ",\n\"texts\": [\n" + ",\n".join(json.dumps(r) for r in rows["texts"]) + "],\n\"decodes\": [\n" + ",\n".join(json.dumps(r) for r in rows["decodes"]) + \
            "],\n\"long\": " + json.dumps(rows["long"]) + "}\n"
        if not a.check:
            with open(golden, "w", encoding="utf-8") as f:
                f.write(text)
        else:
            with open(golden, encoding="utf-8") as f:
                same = f.read() == text
            failed |= not same
            print(f"{style[0]}: {len(rows['texts'])} texts, {'as committed' if same else 'DIFFER from what is committed'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
