#!/usr/bin/env python3
"""What plugins of a frozen interface lay out: data members and virtual functions of each class, values of each enumeration, in
their order, and what names of types and constants mean. layouts.py FROZEN_INCLUDE INCLUDE: fails where today's headers have
another list for one of the frozen headers.

Sizes alone would not tell two members that changed places, nor symbols two virtual functions. Classes may come, and so may
functions that are not virtual, enumerators behind the others, and members at the end of a struct that tells its size.
"""
import difflib
import pathlib
import re
import sys

ATTRIBUTES = r"\bMESHWRIGHT_(?:API|LOCAL)\b|\[\[(?:nodiscard|maybe_unused|noreturn|deprecated)\]\]"
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
            value = "=" in re.sub(r"\(.*?\)|operator=+|[<>=!]=", "", text[begin:at], flags=re.S)
            if text[at] == "{" and not value and not re.match(r"\s*[;,]", text[end + 1:]) \
                    or text[at] == "{" and re.search(r"\b(?:class|struct|union|enum)\b[^()=;]*$", text[begin:at]):
                yield text[begin:at], text[at + 1:end]
                begin = end + 1
            at = end
        at += 1


def declarators(statement):
    """The statement without what comes after '=' or in braces, and whether it has a function's list of parameters."""
    out, depth, value, function = "", 0, False, False
    plain = re.sub(r"\b(?:alignas|decltype)\([^)]*\)", lambda m: "T" * len(m[0]), statement).replace("<<", "__")
    for at, c in enumerate(plain):
        depth -= c in ")}]" or (c == ">" and plain[at - 1] != "-")
        if depth == 0 and c == ",":
            value = False
        value = value or (depth == 0 and c in "={")
        function = function or (depth == 0 and c == "(" and not value and "(*" not in plain[: at + 2])
        out += "" if value else statement[at]
        depth += c in "({[<"
    return re.sub(r" *([,;]|$)", r"\1", out), function


def read(text, scope, found, owner=None):
    """`scope`: the names around, `owner`: the class whose members are read."""
    for statement, body in statements(text):
        statement = " ".join(re.sub(ATTRIBUTES, " ", re.sub(r"\b(?:public|private|protected)\s*:(?!:)", " ", statement)).split())
        space = body is not None and re.match(r'(?:inline )?namespace ?([\w:]*)|extern "C"', statement)
        if space:
            read(body, scope + (space[1] + "::" if space[1] else ""), found)
            continue
        kind = re.match(r"(template <.*> (?:requires .* )?)?(?:typedef )?(class|struct|union|enum(?: class| struct)?)\b ?([\w:]*)(.*)$", statement)
        if body is not None and kind and not declarators(statement)[1]:
            special, _, bases = kind[4].replace(" final", "").partition(" : ")
            name = scope + (kind[3] + special if kind[3] else f"{kind[2]} of {body.split(',')[0].split('=')[0].strip()}")
            if kind[2].startswith("enum"):
                found[name] = [f"enum of {bases or 'int'}"] + [" ".join(part.split()) for part in body.split(",") if part.strip()]
            else:
                if owner and not kind[3]:
                    found[owner].append(name)
                found[name] = [f"{kind[1] or ''}{bases}"]
                read(body, name + "::", found, name)
            continue
        alias = re.match(r"(?:template <.*> )?using (\w+) = |(?:static |inline )*constexpr [\w:<> ]*?\b(\w+)(?:\[\])? ?(?:=|$)", statement)
        if alias and body is None:
            found[f"{scope}{alias[1] or alias[2]}, as a name"] = [statement]
        elif owner and statement:
            of = owner.split("::")[-1]
            if re.search(r"\b(?:virtual|override|final)\b", statement):
                found[owner].append(re.sub(r"\b(?:virtual|inline) ", "", statement))
            elif re.match(rf"~|(?:constexpr )?{re.escape(of)}\((?:const )?{re.escape(of)} ?&", statement):
                found[owner].append(statement)  # whether it is passed in registers
            elif not re.search(NO_MEMBER, statement) and not declarators(statement)[1]:
                found[owner].append(declarators(statement)[0])


def layouts(folder):
    found = {}
    for file in sorted(pathlib.Path(folder).rglob("*.h")):
        text = file.read_text()
        read(without_comments(text), "", found)
        for name, value in re.findall(r"^#define (MESHWRIGHT_\w+) ([^\\\n]+)$", text, flags=re.M):
            if name not in ("MESHWRIGHT_VERSION", "MESHWRIGHT_SDK_MINOR"):
                found[name] = [value.split("/*")[0].strip()]
    for name, number in re.findall(r"MESHWRIGHT_ERROR\((\w+),\s*(\d+)", (pathlib.Path(folder) / "meshwright/error_codes.def").read_text()):
        found["ErrorCode::" + name] = [number]
    return found


def main():
    frozen, today = layouts(sys.argv[1]), layouts(sys.argv[2])
    wrong = 0
    for name, members in frozen.items():
        now = today.get(name, ["gone"])
        grows = members[0].startswith("enum of") or any("struct_size" in m or "meshwright_extension" in m for m in members[1:2])
        if now == members or (grows and now[: len(members)] == members):
            continue
        wrong += 1
        print(f"{name}, as promised (-) and now (+):")
        print(*(f"    {line}" for line in difflib.ndiff(members, now) if line[0] != "?"), sep="\n")
    print(f"{len(frozen)} classes, enumerations and names of the frozen headers, {wrong} of them are others now")
    return wrong != 0


sys.exit(main())
