"""Sentencepiece models and tekken.json beside transformers' conversion: check_sentencepiece.py [--build build] [--models 6] [--seed 1] [FILE ...]

The committed goldens (make_sentencepiece.py --check), then models trained here with random settings, each beside random tokenizer_config.json files of every
class that is read: the tokenizer.json that build/bin/convert_tokenizer makes is transformers' own, key by key. Where build/bin/tokenize reads that kind of
tokenizer, ids of random texts too: transformers', and without a class sentencepiece's. FILE: tokenizer.model or tekken.json files of your own, each also
beside those files that lie in its folder; those of mistral-common are compared where it is installed. Needs sentencepiece and protobuf.
"""
import argparse, importlib.util, io, json, os, random, shutil, subprocess, sys, tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import sentencepiece
from transformers import AutoTokenizer
from transformers.integrations.mistral.tokenizer import MistralConverter

from make_sentencepiece import TEXT
from make_tokenizers import LINES

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))


def same(a, b, place=""):
    """The first place at which they differ; None: nowhere. Orders of keys count in no object but the vocabulary, which has ids."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in list(a) + list(b):
            if key not in a or key not in b:
                return f"{place}.{key}: only in one"
            if found := same(a[key], b[key], f"{place}.{key}"):
                return found
        return None
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return f"{place}: {len(a)} and {len(b)} items"
        return next((found for i, (x, y) in enumerate(zip(a, b)) if (found := same(x, y, f"{place}[{i}]"))), None)
    if isinstance(a, float) and isinstance(b, float) and abs(a - b) <= 1e-15 * abs(a):  # transformers copies some through JSON, a bit of which is lost
        return None
    return None if a == b else f"{place}: {a!r} and {b!r}"


def random_model(rng, path):
    bpe = rng.random() < .5
    options = {"model_type": "bpe" if bpe else "unigram", "byte_fallback": rng.random() < (.8 if bpe else 0), "split_digits": rng.random() < .5, "add_dummy_prefix": rng.random() < .7,
               "remove_extra_whitespaces": rng.random() < .5, "normalization_rule_name": rng.choice(["identity", "nmt_nfkc", "nmt_nfkc_cf"]), "vocab_size": rng.choice([290, 300]) + (400 if bpe else 0)}
    layout = rng.choice([{}, {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}, {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]},
                         {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "pad_piece": "<pad>", "bos_piece": "<bos>", "eos_piece": "<eos>"}])
    if rng.random() < .5:
        layout = dict(layout, user_defined_symbols=rng.sample(["<tool>", "\u2581\u2581", "<mask>", "\n", "ab", "12"], 3))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT * 2), model_writer=model, minloglevel=2, num_threads=1, character_coverage=0.98, hard_vocab_limit=False, **options, **layout)
    with open(path, "wb") as f:
        f.write(model.getvalue())
    return bpe, layout


def random_config(rng, bpe, layout):
    classes = ["PreTrainedTokenizerFast"]
    if bpe:
        classes += ["LlamaTokenizer", "LlamaTokenizerFast", "LlamaTokenizer"] + (["GemmaTokenizer"] * 3 if "pad_piece" in layout else [])
    else:
        # fairseq's four tokens take the place of three, so only of those that are there without a layout.
        classes += ["T5Tokenizer"] + (["XLMRobertaTokenizer"] * 2 if not layout else []) + (["AlbertTokenizer"] * 3 if "control_symbols" in layout else [])
    config = {"tokenizer_class": rng.choice(classes)}
    for key in ["add_bos_token", "add_eos_token"]:
        if rng.random() < .3:
            config[key] = rng.random() < .5
    if config["tokenizer_class"].startswith("Llama"):
        if rng.random() < .4:
            config["legacy"] = rng.random() < .5
        if rng.random() < .3:
            config["add_prefix_space"] = rng.random() < .5
        if rng.random() < .3:
            config["pad_token"] = rng.choice(["<unk>", "[PAD]", {"content": "<p>", "lstrip": True, "__type": "AddedToken"}])
    if config["tokenizer_class"] == "T5Tokenizer" and rng.random() < .5:
        config["extra_ids"] = rng.choice([1, 7])
    if config["tokenizer_class"] == "AlbertTokenizer":
        for key in ["keep_accents", "do_lower_case"]:
            if rng.random() < .5:
                config[key] = rng.random() < .5
    return config


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(root, "build"))
    p.add_argument("--convert", help="the program, if it is not build/bin/convert_tokenizer")
    p.add_argument("--models", type=int, default=6)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("files", nargs="*")
    a = p.parse_args()
    convert, tokenize = a.convert or os.path.join(a.build, "bin", "convert_tokenizer"), os.path.join(a.build, "bin", "tokenize")
    failed = subprocess.run([sys.executable, os.path.join(here, "make_sentencepiece.py"), "--check"]).returncode != 0
    compared = asked = refused = 0

    def ids(name, path, texts, expected):
        nonlocal failed, asked, refused
        if not os.path.exists(tokenize):
            return
        done = subprocess.run([tokenize, path], input="".join(json.dumps(t) + "\n" for t in texts), capture_output=True, text=True)
        if done.returncode:
            refused += 1
            return
        for text, line, wanted in zip(texts, done.stdout.splitlines(), expected):
            asked += 1
            if json.loads(line) != wanted:
                failed = True
                print(f"{name}: {text!r}\n  reference {wanted}\n  here      {line}")

    def hold(name, path, reference):
        nonlocal failed, compared
        done = subprocess.run([convert, path], capture_output=True, text=True)
        compared += 1
        wrong = same(json.loads(reference.to_str()), json.loads(done.stdout)) if done.returncode == 0 else done.stderr.strip()
        if wrong:
            failed = True
            print(f"{name}: {wrong}")

    texts = [""] + LINES + ["  two  spaces ", " a", "a ", "ABC Äé ﬁ ½", "<s> x </s>", "<mask>12ab<tool>\n\n", "\u2581 x", "🙂 unknown ⴰ"]
    with tempfile.TemporaryDirectory() as folder:
        for i in range(a.models):
            rng = random.Random(a.seed * 1000 + i)
            model = os.path.join(folder, f"{i}.model")
            bpe, layout = random_model(rng, model)
            for k in range(5):
                config = random_config(rng, bpe, layout)
                place = os.path.join(folder, f"{i}.{k}")
                os.mkdir(place)
                name = {"T5Tokenizer": "spiece.model", "AlbertTokenizer": "spiece.model", "XLMRobertaTokenizer": "sentencepiece.bpe.model"}.get(config["tokenizer_class"], "tokenizer.model")
                path = os.path.join(place, name)
                shutil.copy(model, path)
                with open(os.path.join(place, "tokenizer_config.json"), "w") as f:
                    json.dump(config, f)
                try:
                    reference = AutoTokenizer.from_pretrained(place).backend_tokenizer
                except Exception as error:  # a class that the file does not fit
                    print(f"model {i}: transformers has none for {config}: {str(error)[:80]}")
                    continue
                hold(f"model {i} {layout} {config}", path, reference)
                ids(f"model {i} {layout} {config}", path, texts, [reference.encode(t).ids for t in texts])
            own = sentencepiece.SentencePieceProcessor(model_file=model)
            # Tokens that stand in a text are found here, and by sentencepiece only those that a user defined.
            # Beside such tokens sentencepiece does not make a tab the space that its own map says.
            tabs = "user_defined_symbols" in str(layout)
            plain = [t for t in texts if "<s>" not in t and "<mask>" not in t and not (tabs and "\t" in t)]
            ids(f"model {i} {layout} alone", model, plain, [own.encode(t) for t in plain])
        files = list(a.files)
        if found := importlib.util.find_spec("mistral_common"):
            place = os.path.join(os.path.dirname(found.origin), "data")
            files += [os.path.join(place, f) for f in sorted(os.listdir(place)) if f.startswith(("tekken", "tokenizer.model"))]
        for path in files:
            if os.path.basename(path).startswith("tekken"):
                reference, copy = MistralConverter(path).converted(), path
            else:
                place = os.path.join(folder, os.path.basename(path))
                os.mkdir(place)
                copy = shutil.copy(path, os.path.join(place, "tokenizer.model"))
                with open(os.path.join(place, "tokenizer_config.json"), "w") as f:
                    json.dump({"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}, f)
                reference = AutoTokenizer.from_pretrained(place).backend_tokenizer
            hold(path, copy, reference)
            ids(path, copy, texts, [reference.encode(t).ids for t in texts])
    print(f"{compared} tokenizers compared, {asked} texts asked, {refused} of a kind that is not read")
    sys.exit(failed)


if __name__ == "__main__":
    main()
