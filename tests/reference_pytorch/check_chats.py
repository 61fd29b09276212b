"""Chats beside transformers' apply_chat_template: check_chats.py [--build build]

Every template whose text is in sdk/text/chat/tests/chat-golden.json, with every conversation that it takes, over a tokenizer of tests/data with that
template's special tokens: the token ids of `dataset show` are those of apply_chat_template(tokenize=True), and learnt is what transformers' own
generation mask says where the template has generation blocks. Contents that look like special tokens are read as transformers reads them with
special_tokens_in_content = "parse", and stay text otherwise. Rows of other programs have the ids of the messages that those programs make of them.
"""
import argparse, json, os, subprocess, tempfile

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))

CONFIG = """schema = 1
[run]
name = "chats"
[model]
config = "{root}/configs/models/chat-tiny/config.json"
[distributed]
strategy = "ddp"
[step_scheduler]
max_steps = 1
[dataset]
plugin = "jsonl"
path = "{folder}/rows.jsonl"
seq_len = 8192
[dataset.jsonl]
tokenizer = "{folder}"
cache = "{folder}/cache"
special_tokens_in_content = "{special}"
template_variables = {variables}
"""

# Rows as other programs write them (Alpaca and ShareGPT as LLaMA-Factory reads them, OpenOrca, Dolly, GSM8K), with the messages that they stand for.
CHAT = [{"role": "user", "content": "Why?\nBecause."}, {"role": "assistant", "content": "So."}]
SYSTEM = [{"role": "system", "content": "Be brief."}]
FORMS = [
    ({"instruction": "Why?", "input": "Because.", "output": "So."}, CHAT),
    ({"instruction": "Why?\nBecause.", "input": "", "output": "So."}, CHAT),
    ({"instruction": "Why?", "context": "Because.", "response": "So.", "category": "x"}, CHAT),
    ({"instruction": "Why?", "input": "Because.", "output": "So.", "history": [["a", "b"]]},
     [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, *CHAT]),
    ({"question": "Why?\nBecause.", "answer": "So."}, CHAT),
    ({"system_prompt": "Be brief.", "question": "Why?\nBecause.", "response": "So."}, SYSTEM + CHAT),
    ({"system": "Be brief.", "prompt": "Why?\nBecause.", "completion": "So."}, SYSTEM + CHAT),
    ({"system": "Be brief.", "conversations": [{"from": "human", "value": "Why?\nBecause."}, {"from": "gpt", "value": "So."}]}, SYSTEM + CHAT),
    ({"conversation": [{"speaker": "Human", "text": "Why?\nBecause."}, {"speaker": "bot", "text": "So."}]}, CHAT),
]


def tokenizer_of(template, special):
    """Qwen2's fixture with the tokens that this template's model has."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(root, "tests", "data", "tokenizers", "qwen2.json"))
    tokens = [token for token in dict.fromkeys(special) if token]
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken(t, special=True, normalized=False) for t in tokens]})
    for key in ("bos_token", "eos_token"):
        if template.get(key):
            setattr(tokenizer, key, template[key])
    tokenizer.chat_template = template["source"]
    return tokenizer


def shown(build, folder, special, variables, row):
    job = os.path.join(folder, "job.toml")
    with open(job, "w", encoding="utf-8") as f:
        f.write(CONFIG.format(root=root, folder=folder, special=special,
                              variables="{ " + ", ".join(f'{k} = {json.dumps(json.dumps(v))}' for k, v in variables.items()) + " }"))
    with open(os.path.join(folder, "rows.jsonl"), "w", encoding="utf-8") as f:
        f.write(json.dumps(row, ensure_ascii=False) + "\n")
    done = subprocess.run([os.path.join(build, "bin", "meshwright"), "dataset", "show", job, "--row", "0", "--json"], capture_output=True, text=True,
                          cwd=root, env={**os.environ, "NO_COLOR": "1"})
    if done.returncode != 0:
        raise SystemExit(f"dataset show ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--build", default=os.path.join(root, "build"))
    a = a.parse_args()
    with open(os.path.join(root, "sdk", "text", "chat", "tests", "chat-golden.json"), encoding="utf-8") as f:
        golden = json.load(f)
    compared = masks = injected = 0
    empty_lists, formed = set(), set()
    with tempfile.TemporaryDirectory() as folder:
        for case in golden["cases"]:
            template = golden["templates"][case["template"]]
            if template["source"] is None or "error" in case or case.get("add_generation_prompt"):
                continue
            messages = golden["conversations"][case["conversation"]]
            if not all(isinstance(m.get("content"), (str, type(None))) for m in messages):
                continue
            tokenizer = tokenizer_of(template, template["special_tokens"])
            tokenizer.save_pretrained(folder)
            variables = case.get("variables", {})
            row = {"messages": messages}
            tools = golden["tools"] if case.get("tools") else None
            if tools:
                row["tools"] = tools
            wanted = tokenizer.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=True,
                                                   return_assistant_tokens_mask="generation_spans" in case, **variables)
            name = f"{case['template']}, {case['conversation']}"
            got = shown(a.build, folder, "parse", variables, row)
            ids = [token["id"] for token in got["tokens"]]
            if ids != wanted["input_ids"]:
                at = next((i for i, (x, y) in enumerate(zip(ids, wanted["input_ids"])) if x != y), min(len(ids), len(wanted["input_ids"])))
                raise SystemExit(f"{name}: token {at} is {ids[at:at + 5]}, but transformers has {wanted['input_ids'][at:at + 5]}")
            if "generation_spans" in case:
                mask = wanted["assistant_masks"] if "assistant_masks" in wanted else wanted["assistant_mask"]
                if [int(token["target"]) for token in got["tokens"]] != list(mask):
                    raise SystemExit(f"{name}: what is learnt is not transformers' assistant mask")
                masks += 1
            compared += 1
            if case["template"] in ("qwen2.5", "qwen3", "phi4", "own-llama-style") and case["template"] not in formed:
                formed.add(case["template"])
                for row_of, becomes in FORMS:
                    wanted = tokenizer.apply_chat_template(becomes, tokenize=True, return_dict=True)["input_ids"]
                    if [token["id"] for token in shown(a.build, folder, "text", {}, row_of)["tokens"]] != wanted:
                        raise SystemExit(f"{case['template']}: other ids than transformers' for {becomes} from {row_of}")
            if not tools and case["template"] not in empty_lists:
                # An empty list of tools is one for transformers, and some templates write it otherwise than none.
                empty_lists.add(case["template"])
                wanted = tokenizer.apply_chat_template(messages, tools=[], tokenize=True, return_dict=True, **variables)
                got_list = shown(a.build, folder, "parse", variables, {**row, "tools": []})
                if [token["id"] for token in got_list["tokens"]] != wanted["input_ids"]:
                    raise SystemExit(f"{name}: other ids than transformers' with an empty list of tools")
            # As it is by default: the text is the same, and no token of a content is special.
            plain = shown(a.build, folder, "text", variables, row)
            if plain["text"] != got["text"]:
                raise SystemExit(f"{name}: the text depends on special_tokens_in_content")
            if case["conversation"] == "injection":
                injected += 1
                special = set(tokenizer.convert_tokens_to_ids(template["special_tokens"]))
                contents = [m["content"] for m in messages]
                count = lambda tokens: sum(t["id"] in special for t in tokens)
                inside = sum(c.count(s) for c in contents for s in template["special_tokens"])
                if inside and count(plain["tokens"]) >= count(got["tokens"]):
                    raise SystemExit(f"{name}: a content became a special token")
            elif [t["id"] for t in plain["tokens"]] != ids:
                raise SystemExit(f"{name}: ids depend on special_tokens_in_content without such a content")
    assert compared >= 40 and masks >= 5 and injected >= 3 and len(empty_lists) >= 5 and formed, (compared, masks, injected, empty_lists, formed)
    print(f"{compared} chats have the token ids of transformers, {masks} its masks; {injected} with injected tokens keep them as text; "
          f"{len(empty_lists)} templates with an empty list of tools; {len(FORMS)} forms of rows by {len(formed)} templates")


main()
