"""Runs programs of this folder, two at a time, in forks of one interpreter that has imported what most of them import: run_checks.py FOLDER < LINES

A line is a program and its arguments. What it prints goes to FOLDER/LINE.txt; the exit status is 1 when one failed, and its file says so.
"""
import forks  # before torch

import os, runpy, shlex, sys, traceback

import torch._dynamo  # which the first optimizer imports
import transformers
from transformers import AutoModelForCausalLM, LlamaForCausalLM  # noqa: F401  (names of transformers are imported when they are asked for)

here = os.path.dirname(os.path.abspath(__file__))
# These import neither, and one looks at what a process without torch does.
ALONE = {"check_c_abi.py", "check_monitors.py", "check_tokenizers.py", "check_trained.py", "check_sentencepiece.py"}
AT_ONCE = 2


def run(words):
    """In a fork; returns the exit status."""
    path = os.path.join(here, words[0])
    if words[0] in ALONE:
        os.execv(sys.executable, [sys.executable, path, *words[1:]])
    sys.argv = [path, *words[1:]]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return int(end.code or 0)
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def start(line, folder):
    out = os.path.join(folder, f"{line}.txt")
    process = os.fork()
    if process == 0:
        status = 1
        try:
            to = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
            os.dup2(to, 1)
            os.dup2(to, 2)
            status = run(shlex.split(line))
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
    return process, out


def main():
    folder, lines = sys.argv[1], [line.strip() for line in sys.stdin if line.strip()]
    assert torch.get_num_threads() == 1
    running, failed = {}, False
    while lines or running:
        while lines and len(running) < AT_ONCE:
            line = lines.pop(0)
            process, out = start(line, folder)
            running[process] = line, out
        process, status = os.wait()
        line, out = running.pop(process)
        if status:
            failed = True
            with open(out, "a") as f:
                f.write(f"{line}: failed\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
