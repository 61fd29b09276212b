"""Trains a byte-level BPE tokenizer on text files: make_tokenizer.py FOLDER_OF_TEXT VOCABULARY model/tokenizer.json

It needs the package tokenizers (pip install tokenizers). Write the same VOCABULARY as vocab_size into model/config.json.
"""
import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

folder, vocabulary, out = sys.argv[1:]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(vocab_size=int(vocabulary), special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                              show_progress=False)
tokenizer.train(sorted(str(file) for file in pathlib.Path(folder).rglob("*.txt")), trainer)
tokenizer.save(out, pretty=False)
print(f"{out}: {tokenizer.get_vocab_size()} tokens")
