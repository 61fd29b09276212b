#!/usr/bin/env python3
"""What plugins of a frozen interface lay out: data members and virtual functions of each class, values of each enumeration, in
their order. layouts.py FROZEN_INCLUDE INCLUDE: fails where today's headers have another list for a class of the frozen ones.

Sizes alone would not tell two members that changed places, nor symbols two virtual functions. Classes may come, and so may
functions that are not virtual and enumerators behind the others.
"""
import difflib
import pathlib
import re
import sys

ATTRIBUTES = r"\bMESHWRIGHT_(?:API|LOCAL)\b|\[\[\w+\]\]|\balignas\([^)]*\)"
NO_MEMBER = r"^(?:using|friend|static|typedef|template|static_assert|(?:struct|class|enum) \w+$)|\boperator\b"


def without_comments(text):
    text = re.sub(r"^[ \t]*#(?:.*\\\n)*.*$", "", text, flags=re.M)
    return re.sub(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', lambda m: m[0] if m[0][0] == '"' else " ", text, flags=re.S)


def statements(text):
    """Yields (statement, body) of the text's top level; body is None where the statement ends with ';'."""
    begin = at = 0
    while at < len(text):
        if text[at] == ";":
            yield text[begin:at], None
            begin = at + 1
        elif text[at] in "({[":
            end, depth = at, 0
            while True:
                depth += (text[end] in "({[") - (text[end] in ")}]")
                if depth == 0:
                    break
                end += 1
            if text[at] == "{" and not re.search(r"=\s*$", text[begin:at]) and not re.match(r"\s*[;,]", text[end + 1:]) \
                    or text[at] == "{" and re.search(r"\b(?:class|struct|union|enum)\b[^()=;]*$", text[begin:at]):
                yield text[begin:at], text[at + 1:end]
                begin = end + 1
            at = end
        at += 1


def declarators(statement):
    """The statement without what comes after '=' or in braces, and whether it has a function's list of parameters."""
    out, depth, value, function = "", 0, False, False
    for at, c in enumerate(statement):
        depth -= c in ")}]" or (c == ">" and statement[at - 1] != "-")
        if depth == 0 and c == ",":
            value = False
        value = value or (depth == 0 and c in "={")
        function = function or (depth == 0 and c == "(" and not value and "(*" not in statement[: at + 2])
        out += "" if value else c
        depth += c in "({[<"
    return re.sub(r" *([,;]|$)", r"\1", out), function


def read(text, scope, found):
    for statement, body in statements(text):
        statement = " ".join(re.sub(ATTRIBUTES, " ", re.sub(r"\b(?:public|private|protected)\s*:(?!:)", " ", statement)).split())
        if body is not None and re.match(r'(?:inline )?namespace\b|extern "C"', statement):
            read(body, scope, found)
            continue
        kind = re.match(r"(?:template <.*> )?(?:typedef )?(class|struct|union|enum(?: class| struct)?)\b ?([\w:]*)(.*)$", statement)
        if body is not None and kind and not declarators(statement)[1]:
            name = scope + (kind[2] or "enum of " + body.split(",")[0].split("=")[0].strip())
            if kind[1].startswith("enum"):
                found[name] = ["enum"] + [" ".join(part.split()) for part in body.split(",") if part.strip()]
            else:
                found[name] = [kind[3].replace("final", "").strip()]
                read(body, name + "::", found)
        elif scope and statement:
            if statement.startswith("virtual ") or re.search(r"\b(?:override|final)\b", statement):
                found[scope[:-2]].append(re.sub(r"^virtual ", "", statement))
            elif not re.search(NO_MEMBER, statement) and not declarators(statement)[1]:
                found[scope[:-2]].append(declarators(statement)[0])


def layouts(folder):
    found = {}
    for file in sorted(pathlib.Path(folder).rglob("*.h")):
        read(without_comments(file.read_text()), "", found)
    for name, number in re.findall(r"MESHWRIGHT_ERROR\((\w+),\s*(\d+)", (pathlib.Path(folder) / "meshwright/error_codes.def").read_text()):
        found["ErrorCode::" + name] = [number]
    return found


def main():
    frozen, today = layouts(sys.argv[1]), layouts(sys.argv[2])
    wrong = 0
    for name, members in frozen.items():
        now = today.get(name, ["gone"])
        grows = members[0] == "enum" or name.startswith("meshwright_")  # what is plain C grows at its end
        if now == members or (grows and now[: len(members)] == members):
            continue
        wrong += 1
        print(f"{name}, as promised (-) and now (+):")
        print(*(f"    {line}" for line in difflib.ndiff(members, now) if line[0] != "?"), sep="\n")
    print(f"{len(frozen)} classes and enumerations of the frozen headers, {wrong} of them are others now")
    return wrong != 0


sys.exit(main())
