#!/usr/bin/env python3
"""Writes the files of this folder, each as Parquet and as the JSON lines that it stands for.

PYTHONPATH=.deps/arrow python3 tests/data/parquet/make.py, after ./quickstart --parquet. Another release of pyarrow writes other
bytes of the same rows.
"""
import datetime
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

folder = pathlib.Path(__file__).parent


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [without_nulls(one) for one in value]
    return value


def write(name, rows, schema, **options):
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / f"{name}.parquet", **options)


def write_lines(name, rows):
    text = "".join(json.dumps(without_nulls(row), ensure_ascii=False, default=str) + "\n" for row in rows)
    (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


# Every type that is read, with nulls, in three row groups.
schema = pa.schema([
    ("text", pa.string()), ("large", pa.large_string()), ("view", pa.string_view()), ("word", pa.dictionary(pa.int32(), pa.string())),
    ("i8", pa.int8()), ("u16", pa.uint16()), ("i32", pa.int32()), ("i64", pa.int64()), ("u64", pa.uint64()), ("half", pa.float16()),
    ("f32", pa.float32()), ("f64", pa.float64()), ("flag", pa.bool_()), ("nothing", pa.null()), ("day", pa.date32()),
    ("at", pa.timestamp("ms")), ("there", pa.timestamp("ms", tz="Europe/Berlin")), ("words", pa.list_(pa.string())),
    ("pair", pa.list_(pa.int32(), 2)), ("many", pa.large_list(pa.float64())),
    ("deep", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.string()), ("d", pa.list_(pa.bool_()))])))])),
])
texts = ["plain", "", "line\nfeed \"quoted\" back\\slash \u0001", "größer 漢字 🙂", None, "tab\t/", "end"]
rows = []
for i, text in enumerate(texts):
    some = None if i == 4 else i
    rows.append({
        "text": text, "large": text, "view": text, "word": [None, "yes", "no"][i % 3], "i8": -i, "u16": 65535 - i, "i32": some,
        "i64": 9007199254740993 + i, "u64": 18446744073709551615 - i, "half": 0.5 * i, "f32": 0.25 * i, "f64": 1e-7 + i, "flag": i % 2 == 0,
        "nothing": None, "day": None if i == 1 else datetime.date(1969, 12, 30) + datetime.timedelta(days=i),
        "at": datetime.datetime(2026, 11, 30, 21, i, 5), "there": datetime.datetime(2026, 7, 1, 12, i, 5, tzinfo=datetime.timezone.utc),
        "words": [None, [], ["a", None, "ü"]][i % 3], "pair": None if i == 2 else [i, -i], "many": [0.5] * i,
        "deep": None if i == 3 else {"a": some, "b": [{"c": text, "d": None}, None, {"c": None, "d": [True, None]}][:i]},
    })
write("types", rows, schema, row_group_size=3, compression="zstd")
write_lines("types", [
    {**row, "day": row["day"] and str(row["day"]), "at": row["at"].strftime("%Y-%m-%dT%H:%M:%S.000"),
     "there": row["there"].strftime("%Y-%m-%dT%H:%M:%S.000Z")} for row in rows])

# Texts, beside columns that no text is made of.
schema = pa.schema([("id", pa.int64()), ("content", pa.string()), ("image", pa.binary()), ("tags", pa.map_(pa.string(), pa.string()))])
rows = [{"id": i, "content": f"Text number {i}\nhas {i % 7} words: " + "word " * (i % 7), "image": b"\xff", "tags": None} for i in range(60)]
for compression in ("none", "snappy", "gzip", "zstd", "brotli", "lz4"):
    write(f"texts_{compression}", rows, schema, row_group_size=25, compression=compression, write_page_checksum=True)
write_lines("texts", [{"content": row["content"]} for row in rows])

# Long texts that are packed to little: 200 MB, and one of 64 MB. Two columns of one name.
schema = pa.schema([("text", pa.string())])
write("repeated", [{"text": "long " * 20_000}] * 2000, schema, compression="zstd")
write("long", [{"text": "a" * 64_000_000}], schema, compression="zstd", compression_level=19, use_dictionary=False, write_statistics=False)
pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), folder / "twice.parquet")

# Chats as Hugging Face has them: all messages have all members, of which most are null.
call = pa.struct([("type", pa.string()), ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())]))])
schema = pa.schema([("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(call))]))),
                    ("source", pa.dictionary(pa.int8(), pa.string()))])
rows = []
for i in range(24):
    messages = [{"role": "user", "content": f"What is {i} + {i}?"}]
    if i % 4 == 0:
        messages.insert(0, {"role": "system", "content": "Be brief."})
    messages.append({"role": "assistant", "content": f"It is {2 * i}."})
    if i % 3 == 0:
        messages += [{"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes."}]
    rows.append({"messages": messages, "source": ["sums", "more"][i % 2]})
write("chats", rows, schema, row_group_size=10)
write_lines("chats", rows)

# The same in the words of ShareGPT.
schema = pa.schema([("conversations", pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())])))])
names = {"user": "human", "assistant": "gpt", "system": "system"}
rows = [{"conversations": [{"from": names[one["role"]], "value": one["content"]} for one in row["messages"]]} for row in rows]
write("sharegpt", rows, schema)
write_lines("sharegpt", rows)
