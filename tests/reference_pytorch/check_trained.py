"""`meshwright tokenizer train` beside the BpeTrainer of the installed `tokenizers` library: check_trained.py [--build build] [--rounds 60] [--seed 1] [FILE]

The committed goldens (make_trained.py --check), then random texts with random options: tokenizer.json is the library's to the byte, with any number of
threads, and transformers loads the folder and gives the ids of `meshwright tokenize`. FILE: a text of your own, with the time that both take, each on one
core.
"""
import argparse, array, json, os, random, subprocess, sys, tempfile, time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from make_trained import LINES, PATTERNS, train
from tokenizers import Tokenizer

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))


def options(rng):
    special = rng.choice([[], ["<e>"], ["ab", "<x>"], ["a", "aa", "bab"], ["<s>", "é"], ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]])
    out = {"vocab_size": 257 + len(special) + rng.choice([0, 1, 10, 100, 1000, 5000]), "min_frequency": rng.choice([0, 0, 1, 2, 5])}
    if rng.random() < .4:
        out["max_token_length"] = rng.choice([2, 3, 5, 8])
    return special, out


def text(rng):
    if rng.random() < .2:
        return "\n".join(rng.choice(LINES) for _ in range(rng.randrange(1, 60)))
    letters = rng.choice(["ab", "abc", "aab'", "abcdefgh", "é世a \n", "aé😀 1\n\t", "ABab12 '\r\n"])
    words = ["".join(rng.choice(letters) for _ in range(rng.randrange(1, rng.choice([3, 8, 40])))) for _ in range(rng.choice([2, 10, 200]))]
    return "".join(rng.choice(words) + rng.choice([" ", "\n", " ", "  ", "", "\n\n"]) for _ in range(rng.choice([5, 100, 3000]))) + "a"


def here_trains(program, files, pattern, special, more, out, threads, *flags):
    command = [program, "tokenizer", "train", *files, "--out", out, "--pattern", pattern, "--threads", str(threads), "--json", *flags]
    for token in special:
        command += ["--special", token]
    for key, value in more.items():
        command += ["--" + key.replace("_", "-"), str(value)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(" ".join(command), done.stdout, done.stderr)
        return None
    with open(os.path.join(out, "tokenizer.json"), encoding="utf-8") as f:
        return f.read()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(root, "build"))
    p.add_argument("--rounds", type=int, default=60)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--vocab-size", type=int, default=32000)
    p.add_argument("file", nargs="?")
    a = p.parse_args()
    program = os.path.join(a.build, "bin", "meshwright")
    failed = subprocess.run([sys.executable, os.path.join(here, "make_trained.py"), "--check"]).returncode != 0
    loaded = 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(a.rounds):
            rng = random.Random(a.seed * 100000 + i)
            texts = [text(rng) for _ in range(rng.choice([1, 1, 3]))]
            files = []
            for k, one in enumerate(texts):
                files.append(os.path.join(folder, f"{k}.txt"))
                with open(files[-1], "w", encoding="utf-8", newline="") as f:
                    f.write(one)
            pattern = rng.choice(list(PATTERNS))
            special, more = options(rng)
            out = os.path.join(folder, f"out{i}")
            found = here_trains(program, files, pattern, special, more, out, rng.randrange(1, 4), "--eos", (special or ["<e>"])[-1])
            expected = train(texts, pattern, special=special or ["<e>"], **more).to_str(pretty=True)
            if found != expected:
                failed = True
                print(f"round {i}: {pattern} {special} {more}: another tokenizer than the library's")
            elif i % 10 == 0:
                from transformers import AutoTokenizer
                tokenizer = AutoTokenizer.from_pretrained(out)
                tokens = os.path.join(folder, "tokens.bin")
                subprocess.run([program, "tokenize", files[0], "--tokenizer", out, "--out", tokens, "--document-end", "eos", "--force"], check=True, capture_output=True)
                with open(tokens, "rb") as f:
                    ids = array.array("H", f.read()[1024:]).tolist()
                same = ids == tokenizer(texts[0]).input_ids + [tokenizer.eos_token_id] == Tokenizer.from_str(expected).encode(texts[0]).ids + [tokenizer.eos_token_id]
                failed |= not same
                loaded += 1
                if not same:
                    print(f"round {i}: transformers gives other ids")
        print(f"{a.rounds} tokenizers, {loaded} of them loaded by transformers")
        # A beginning before each text, and all roles.
        out = os.path.join(folder, "roles")
        saved = here_trains(program, files, "llama3", ["<x>"], {"vocab_size": 300}, out, 1, "--bos", "<s>", "--eos", "</s>", "--pad", "<x>", "--max-length", "77")
        from transformers import AutoTokenizer
        tokenizer = AutoTokenizer.from_pretrained(out)
        found = [tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.model_max_length, tokenizer("ab").input_ids[0], tokenizer.convert_tokens_to_ids(["<x>", "<s>", "</s>"])]
        if saved is None or found != ["<s>", "</s>", "<x>", 77, 1, [0, 1, 2]] or Tokenizer.from_str(saved).to_str(pretty=True) != saved:
            failed = True
            print("roles of special tokens:", found)
        if a.file:
            begin = time.time()
            found = here_trains(program, [a.file], "gpt2", ["<|endoftext|>"], {"vocab_size": a.vocab_size, "min_frequency": 2}, os.path.join(folder, "own"), 1)
            middle = time.time()
            with open(a.file, encoding="utf-8", newline="") as f:
                expected = train([f.read()], "gpt2", a.vocab_size, 2, ["<|endoftext|>"]).to_str(pretty=True)
            print(f"{a.file}: {middle - begin:.1f} s here, {time.time() - middle:.1f} s by the library; {'the same' if found == expected else 'DIFFERENT'}")
            failed |= found != expected
    sys.exit(failed)


if __name__ == "__main__":
    main()
