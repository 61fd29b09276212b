#!/usr/bin/env python3
"""Makes unicode.json: what Jinja 3.1.6 under this Python makes of every character there is, by filter and method.

  python3 make_unicode.py >unicode.json

Of each expression a hash for every 4096 characters: FNV-1a of what a template prints of them, one behind the other. Characters that this Python does not
know are left out: what is younger is another's to say. Of names and blanks within a tag likewise, each character as the end and the beginning of a name.
"""
import json
import sys
import unicodedata

import jinja2
from jinja2 import nodes
from make_semantics import environment

BLOCK = 4096
PLANES = 0x32000  # behind them are tags and variation selectors, and private use
EXPRESSIONS = [
    "c|upper", "c|lower", "('a' ~ c ~ 'b C')|title", "(c ~ 'A')|capitalize", "c.upper()", "c.lower()", "('a' ~ c ~ 'bC').title()", "(c ~ 'bC').capitalize()",
    "c.casefold()", "c.swapcase()", "('a\u03a3' ~ c ~ 'b')|lower", "('a\u03a3' ~ c)|lower", "(c ~ '\u03a3').lower()", "c.isdigit()", "c.isdecimal()", "c.isnumeric()",
    "c.isalpha()", "c.isalnum()", "c.isspace()", "c.isupper()", "c.islower()", "(c ~ 'b').istitle()", "('B' ~ c).istitle()", "c.isprintable()", "c.isidentifier()",
    "('a' ~ c).isidentifier()", "c.isascii()", "c is upper", "c is lower", "c|int(-1)", "('1' ~ c)|int(-1)", "(c ~ '1')|int(-1)", "c|float(-1)", "('1' ~ c)|float(-1)",
    "('1.' ~ c)|float(-1)", "(c ~ 'x' ~ c)|trim", "(c ~ 'x' ~ c).strip()", "(c ~ 'x' ~ c).lstrip()", "(c ~ 'x' ~ c).rstrip()", "(c ~ 'x').strip('x')", "('a' ~ c ~ 'b').split()|length",
    "(c ~ 'a' ~ c ~ 'b').rsplit(none, 1)|join('|')", "('a' ~ c ~ 'b').splitlines()|length", "('a' ~ c ~ 'b')|indent", "('a' ~ c ~ 'b')|wordcount", "[c]", "c|tojson",
    "c|tojson(ensure_ascii=true)", "(c|e) ~ (c|length)", "c.center(4, '.')", "(c ~ '\\t' ~ c).expandtabs(4)", "('ab' ~ c ~ 'cd')|truncate(4, true, c, 0)", "(c ~ 'a')|reverse", "('a' ~ c ~ 'b').partition(c)|join('|')",
    "('%3s' % c) ~ '{:>3}'.format(c)", "c|string|list|first",
]
NAMES = ["x{} is defined", "{}x is defined"]


def fnv(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def known():
    """Blocks of the characters that this Python knows."""
    places = list(range(PLANES)) + list(range(0xE0000, 0xE1000)) + [0xF0000, 0xFFFFD, 0x100000, 0x10FFFD]
    chars = [c for c in map(chr, places) if unicodedata.category(c) not in ("Cn", "Cs")]
    blocks = {}
    for c in chars:
        blocks.setdefault(ord(c) // BLOCK, []).append(c)
    return [blocks[b] for b in sorted(blocks)]


def ranges(chars):
    out = []
    for c in map(ord, chars):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def named(env, form, c):
    source = "{{ " + form.format(c) + " }}"
    try:
        tree = env.parse(source)
    except jinja2.TemplateSyntaxError:
        # Jinja's own list of marks that names have is older than Python's, which it asks of letters.
        if ("x" + c).isidentifier() and unicodedata.category(c) in ("Mn", "Mc"):
            return "False" if form.startswith("x") or c.isidentifier() else "E"
        return "E"
    tests = list(tree.find_all(nodes.Test))
    if len(tests) == 1 and isinstance(tests[0].node, nodes.Name):
        return str(tests[0].node.name == "x")
    try:
        return env.from_string(source).render(x=1)
    except Exception:
        return "E"


def main():
    env = environment()
    blocks = known()
    out = {"about": f"made by make_unicode.py, with jinja2 {jinja2.__version__} and Unicode {unicodedata.unidata_version}", "characters": ranges([c for b in blocks for c in b])}
    out["expressions"] = {}
    for expression in EXPRESSIONS:
        template = env.from_string("{% for c in chars %}{{ " + expression + " }}\n{% endfor %}")
        out["expressions"][expression] = " ".join(fnv(template.render(chars=b)) for b in blocks)
    out["names"] = {form: " ".join(fnv("".join(named(env, form, c) for c in b)) for b in blocks) for form in NAMES}
    json.dump(out, sys.stdout, ensure_ascii=True, indent=0)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
