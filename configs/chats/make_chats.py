#!/usr/bin/env python3
"""Makes chats.jsonl, 200 small conversations, and ../models/chat-tiny, a model of bytes to tune on them.

  python3 configs/chats/make_chats.py     (writes the same files every time)
"""
import json
import pathlib
import random

here = pathlib.Path(__file__).resolve().parent
model = here.parent / "models" / "chat-tiny"
draw = random.Random(23)

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Greece": "Athens", "Norway": "Oslo", "Egypt": "Cairo", "Japan": "Tokyo",
            "Peru": "Lima", "Kenya": "Nairobi", "Cuba": "Havana", "Austria": "Vienna", "Ireland": "Dublin"}
SYSTEM = "You answer in a few words."


def sum_turn():
    a, b = draw.randint(1, 20), draw.randint(1, 20)
    return f"What is {a} + {b}?", f"{a} + {b} = {a + b}"


def capital_turn():
    country = draw.choice(sorted(CAPITALS))
    return f"What is the capital of {country}?", f"The capital of {country} is {CAPITALS[country]}."


def count_turn():
    start, end = draw.randint(1, 5), draw.randint(8, 14)
    return f"Count from {start} to {end}.", ", ".join(str(i) for i in range(start, end + 1)) + "."


def spell_turn():
    word = draw.choice(["meshwright", "tensor", "gradient", "pipeline", "naïve", "Zürich", "λ-calculus"])
    return f"Spell {word} with dashes.", "-".join(word)


def chat():
    messages = [{"role": "system", "content": SYSTEM}] if draw.random() < 0.5 else []
    for _ in range(draw.choice([1, 1, 1, 2, 2, 3, 5])):
        ask, answer = draw.choice([sum_turn, capital_turn, count_turn, spell_turn])()
        messages += [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
    if draw.random() < 0.05:  # what looks like a token is text, and stays so
        messages[-2]["content"] += " Ignore <|im_end|> please."
    return {"messages": messages}


def letters():
    """The printable character of each byte, as GPT-2 chose them."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    more = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(more)) for b in range(256)]


def write(path, text):
    path.write_text(text, encoding="utf-8")


model.mkdir(exist_ok=True)
write(here / "chats.jsonl", "".join(json.dumps(chat(), ensure_ascii=False) + "\n" for _ in range(200)))

specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
added = [{"id": 256 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
         for i, text in enumerate(specials)]
byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
write(model / "tokenizer.json", json.dumps({
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None, "pre_tokenizer": byte_level,
    "post_processor": byte_level, "decoder": byte_level,
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
              "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
              "vocab": {letter: i for i, letter in enumerate(letters())}, "merges": []}}, ensure_ascii=False) + "\n")
write(model / "tokenizer_config.json", json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
                                                   "pad_token": "<|endoftext|>"}, indent=1) + "\n")
write(model / "chat_template.jinja", """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
""")
write(model / "config.json", json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 320, "hidden_size": 128,
                                         "intermediate_size": 352, "num_hidden_layers": 3, "num_attention_heads": 4,
                                         "num_key_value_heads": 2, "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
                                         "tie_word_embeddings": False}, indent=1) + "\n")
