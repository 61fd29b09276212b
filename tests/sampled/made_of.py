#!/usr/bin/env python3
"""Every file that a program is made of stands in a path of its row in tools/sampled.sh: made_of.py BUILD_DIR NINJA, in the project's folder.

Rows that name a folder with all before it (<=FOLDER) promise to have everything. What a program is made of is what ninja learned from the compiler:
the sources and headers of its objects and of all that is linked with it, loaded by it or started by it. What is not built in this folder, because
./check left it out, is looked at when it is.
"""
import collections, json, os, re, subprocess, sys

build, ninja = sys.argv[1:]
root = os.getcwd()


def output(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def sources():
    """Of each object, the files of the project."""
    of, at = collections.defaultdict(set), None
    for line in output(ninja, "-C", build, "-t", "deps").splitlines():
        if line and not line.startswith(" "):
            at = line.split(":")[0]
        elif line.strip():
            file = os.path.relpath(os.path.normpath(os.path.join(build, line.strip())), root)
            if not file.startswith((".", "build")):
                of[at].add(file)
    return of


def promised():
    """Of each label whose row has <=, its paths."""
    table = open("tools/sampled.sh").read()
    rows = dict(line.split(" ", 1) for line in output("tools/sampled.sh").splitlines())
    return {label: rows[label].split() for label in re.findall(r"^(\w+) +<=", table, re.M)}


def programs():
    """Of each label, its programs: those of ctest's tests, and those that ./check builds with the sanitizers."""
    of = collections.defaultdict(set)
    for test in json.loads(output("ctest", "--test-dir", build, "--show-only=json-v1"))["tests"]:
        labels = [p["value"] for p in test["properties"] if p["name"] == "LABELS"]
        for word in test.get("command", []):
            if os.path.dirname(word) == os.path.join(build, "bin") and os.path.basename(word) != "meshwright":
                for label in labels[0] if labels else []:
                    of[label].add(os.path.relpath(word, build))
    for label, targets in re.findall(r'^  part (\w+) "[^"]*" (.*)$', open("check").read(), re.M):
        of[label] |= {f"bin/{target}" for target in targets.split()}
    return of


of_object, paths, of_label = sources(), promised(), programs()
looked_at, wrong = 0, []
for label in sorted(paths):
    missing = [path for path in paths[label] if not os.path.exists(path)]
    wrong += [f"{label}: {path} is not there" for path in missing]
    for program in sorted(of_label[label]):
        inputs = output(ninja, "-C", build, "-t", "inputs", program).split()
        files = set().union(*(of_object.get(i, ()) for i in inputs))
        looked_at += bool(files)
        beyond = {os.path.dirname(f) for f in files if not any(f == p or f.startswith(p + "/") for p in paths[label])}
        wrong += [f"{label}: {program} is made of {folder}, too" for folder in sorted(beyond)]
print("\n".join(wrong) or f"{looked_at} programs are made of what their rows in tools/sampled.sh say")
sys.exit(1 if wrong or looked_at < 10 else 0)
