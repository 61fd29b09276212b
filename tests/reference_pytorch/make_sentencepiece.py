"""Small sentencepiece models and a small tekken.json, and the tokenizer.json that transformers makes of each: tests/data/tokenizers

    make_sentencepiece.py             writes bpe.model, unigram.model, tekken.json and converted.golden.json
    make_sentencepiece.py --check     compares what is committed with what the installed transformers makes of them today

The models are of sentencepiece's own trainer (pip install sentencepiece protobuf).
"""
import argparse, base64, io, json, os, shutil, sys, tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
from transformers import AutoTokenizer
from transformers.integrations.mistral.tokenizer import MistralConverter

from make_tokenizers import LINES, folder

golden = os.path.join(folder, "converted.golden.json")
TEXT = [line for line in "\n".join(LINES).split("\n") if line.strip()]

# Which file, under which name in a folder, beside which tokenizer_config.json.
CASES = [
    ("bpe.model", "tokenizer.model", {"tokenizer_class": "LlamaTokenizer"}),
    ("bpe.model", "tokenizer.model", {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "add_eos_token": False, "legacy": True,
                                      "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False},
                                      "added_tokens_decoder": {"0": {"content": "<unk>", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False, "special": True},
                                                               "1": {"content": "<s>", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False, "special": True},
                                                               "700": {"content": "<|new|>", "lstrip": True, "normalized": False, "rstrip": False, "single_word": True, "special": False}}}),
    ("bpe.model", "tokenizer.model", {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False, "add_eos_token": True, "pad_token": "[PAD]"}),
    ("bpe.model", "tokenizer.model", {"tokenizer_class": "PreTrainedTokenizerFast"}),
    ("gemma.model", "tokenizer.model", {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True}),
    ("unigram.model", "spiece.model", {"tokenizer_class": "T5Tokenizer", "extra_ids": 3}),
    ("unigram.model", "sentencepiece.bpe.model", {"tokenizer_class": "XLMRobertaTokenizer"}),
    ("unigram.model", "tokenizer.model", {"tokenizer_class": "TokenizersBackend"}),
    ("albert.model", "spiece.model", {"tokenizer_class": "AlbertTokenizer", "keep_accents": True}),
]

TEXTS = TEXT + ["", " ", "  two  spaces ", " a", "a ", "ABC \u00c4\u00e9 \ufb01 \u00bd", "\u2581 x", "\U0001f642 unknown \u2d30", "<tool>12ab<tool> x"]


def train(path, **options):
    import sentencepiece
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        # A map of characters of the kind that published models have, but small: two capital letters and a ligature.
        rules.write("41\t61\nC4\te4\nFB01\t66 69\n")
        rules.flush()
        if options["model_type"] == "unigram":
            options["normalization_rule_tsv"] = rules.name
        else:
            options["normalization_rule_name"] = "identity"
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT * 2), model_writer=model, minloglevel=2, num_threads=1, **options)
    with open(path, "wb") as f:
        f.write(model.getvalue())


def make():
    bpe = dict(model_type="bpe", vocab_size=700, byte_fallback=True, remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True, character_coverage=0.98)
    train(os.path.join(folder, "bpe.model"), user_defined_symbols=["<tool>", "\u2581\u2581\u2581"], **bpe)
    train(os.path.join(folder, "gemma.model"), add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", bos_piece="<bos>", eos_piece="<eos>",
          user_defined_symbols=["<mask>", "<start_of_turn>", "\n"], **bpe)
    train(os.path.join(folder, "unigram.model"), model_type="unigram", vocab_size=290, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, character_coverage=0.98)
    train(os.path.join(folder, "albert.model"), model_type="unigram", vocab_size=290, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"], character_coverage=0.98)
    with open(os.path.join(folder, "gpt2.json"), encoding="utf-8") as f:
        vocab = json.load(f)["model"]["vocab"]
    from transformers.convert_slow_tokenizer import bytes_to_unicode
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    tokens = [bytes(byte_of[c] for c in token) for token, _ in sorted(vocab.items(), key=lambda item: item[1])[:360]]
    tekken = {"config": {"pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+", "num_vocab_tokens": 360, "default_vocab_size": 350,
                         "default_num_special_tokens": 10, "version": "v11"},
              "vocab": [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for rank, token in enumerate(tokens)],
              "special_tokens": [{"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])]}
    with open(os.path.join(folder, "tekken.json"), "w", encoding="utf-8") as f:
        json.dump(tekken, f, separators=(",", ":"))


def convert(file, name, config):
    """The tokenizer that transformers makes of a folder with these two files."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copy(file, os.path.join(place, name))
        with open(os.path.join(place, "tokenizer_config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        return AutoTokenizer.from_pretrained(place)


def goldens():
    import sentencepiece
    made = [(file, config, convert(os.path.join(folder, file), name, config).backend_tokenizer) for file, name, config in CASES]
    made.append(("tekken.json", {}, MistralConverter(os.path.join(folder, "tekken.json")).converted()))
    rows = [{"file": file, "config": config, "json": json.loads(t.to_str()), "ids": [t.encode(text).ids for text in TEXTS]} for file, config, t in made]
    # Without a class: sentencepiece itself.
    for file in ["bpe.model", "gemma.model", "unigram.model"]:
        own = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, file))
        rows.append({"file": file, "config": {}, "json": None, "ids": [own.encode(text) for text in TEXTS]})
    return json.dumps({"texts": TEXTS})[:-1] + ', "rows": [\n' + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "]}\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    if not a.check:
        make()
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
