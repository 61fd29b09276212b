"""What the reference library's BpeTrainer makes of small texts: tests/data/tokenizers/trained.golden.json

    make_trained.py             writes it
    make_trained.py --check     compares what is committed with what the installed library gives today
"""
import argparse, json, os, random, sys

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from make_tokenizers import LINES, LLAMA3, QWEN2, fnv, folder

PATTERNS = {
    "gpt2": None,
    "gpt4": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "llama3": LLAMA3,
    "qwen2": QWEN2,
}
golden = os.path.join(folder, "trained.golden.json")


def train(texts, pattern, vocab_size, min_frequency=0, special=(), max_token_length=None, limit_alphabet=None):
    """The tokenizer that `meshwright tokenizer train` makes, by the library."""
    tokenizer = Tokenizer(models.BPE())
    if PATTERNS[pattern] is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    more = {"limit_alphabet": limit_alphabet} if limit_alphabet else {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=list(special), max_token_length=max_token_length,
                                                            show_progress=False, **more))
    return tokenizer


def random_text(rng, letters):
    words = ["".join(rng.choice(letters) for _ in range(rng.randrange(1, 9))) for _ in range(40)]
    return "".join(rng.choice(words) + rng.choice([" ", "\n", "  ", "", "\n\n"]) for _ in range(300))


def cases():
    rng = random.Random(5)
    lines = "\n".join(LINES)
    for pattern in PATTERNS:
        yield lines, pattern, dict(vocab_size=330, special=["<|endoftext|>"])
    # Few letters: tokens that several pairs make, pairs that are there in two places at two times, ties.
    for letters in ["ab", "abc", "aab'", "é世a"]:
        yield random_text(rng, letters), "gpt2", dict(vocab_size=400, min_frequency=2)
    yield random_text(rng, "abcd"), "llama3", dict(vocab_size=500, max_token_length=5)
    yield random_text(rng, "abcd"), "qwen2", dict(vocab_size=500, max_token_length=2)
    yield random_text(rng, "abc"), "gpt4", dict(vocab_size=400, special=["ab", "<x>", "c"])
    yield "aaabbbbbbbbcddddddd aaabbbbbbbbcddddddd", "gpt2", dict(vocab_size=20, limit_alphabet=4)


def goldens():
    rows = []
    for text, pattern, options in cases():
        tokenizer = train([text], pattern, **options)
        saved = tokenizer.to_str(pretty=True)
        model = json.loads(saved)["model"]
        rows.append({"text": text, "pattern": pattern, **options, "merges": model["merges"], "size": len(model["vocab"]), "tokens": None if any(t in text for t in options.get("special", [])) else len(tokenizer.encode(text).ids), "fnv": str(fnv(saved.encode()))})
    return "[\n" + ",\n".join(json.dumps(r) for r in rows) + "]\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    text = goldens()
    if not a.check:
        with open(golden, "w", encoding="utf-8") as f:
            f.write(text)
        return
    with open(golden, encoding="utf-8") as f:
        same = f.read() == text
    print(f"{os.path.basename(golden)}: {'as committed' if same else 'DIFFERS from what is committed'}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
