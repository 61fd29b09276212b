#!/usr/bin/env python3
"""Makes semantics.json: what Jinja 3.1.6, set up as transformers does, makes of expressions and templates.

  python3 make_semantics.py >semantics.json
"""
import copy
import itertools
import json
import sys

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONTEXT = {
    "s": " Ab c\u00e9\U0001f642x ", "t": "a,b,,c", "e": "", "n": 3, "m": -7, "z": 0, "f": 2.5, "g": -0.0,
    "b": True, "x": None, "big": 123456789012345678901234567890, "l": [3, 1, 2], "ls": ["b", "A", "c"],
    "mix": [1, "a", None, True, 1.5, [2], {"k": "v"}], "el": [], "d": {"b": 1, "a": [1, 2], "items": "i", "_p": 5},
    "ed": {}, "w": "\u00df\ufb01\u0130 \u03a3\u03a3 o'neil-x", "lines": "a\n b\r\n\n c\u2028d",
    "ms": [{"role": "user", "content": "hi", "n": 2}, {"role": "assistant", "content": "yo", "n": 1},
           {"role": "user", "content": "Bye", "n": 3}],
}
VALUES = list(CONTEXT)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    return env


def expressions():
    for v in VALUES:
        for f in ["trim", "length", "list", "string", "join('-')", "first", "last", "upper", "lower", "title", "capitalize",
                  "int", "float", "abs", "round", "round(1)", "min", "max", "sum", "reverse", "sort", "unique|list", "default('D')",
                  "default('D', true)", "tojson", "tojson(indent=2)", "tojson(sort_keys=true)", "tojson(ensure_ascii=true)",
                  "items|list", "dictsort", "replace('a', 'X')", "indent", "indent(2, true, true)", "e", "wordcount", "batch(2)|list",
                  "slice(2)|list", "map('string')|list", "select|list", "reject|list", "truncate(5, true, '..', 0)", "truncate(5, leeway=0)",
                  "reverse|list", "sort(reverse=true)", "select('string')|list"]:
            if not f.startswith("truncate") or isinstance(CONTEXT[v], str):  # of a list Python cuts off items
                yield f"{v}|{f}"
        for t in ["defined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable", "odd", "even",
                  "true", "false", "lower", "upper", "callable", "divisibleby 3", "eq 3", "gt 1", "in l", "sameas none", "not none",
                  "in 'abc'"]:
            yield f"{v} is {t}"
        for p in ["not {}", "-{}", "+{}", "{}[0]", "{}[-1]", "{}[1:]", "{}[:-1]", "{}[::-1]", "{}[::2]", "{}[-3:-1]", "{}['items']", "{}.items",
                  "{}.role", "{}.get('a')", "{}.upper()", "{}.strip()", "{}.split()", "{}.split(',')", "{}.split(',', 1)", "{}.rsplit(',', 1)",
                  "{}.title()", "{}.capitalize()", "{}.lower()", "{}.splitlines()", "{}.startswith('a')", "{}.endswith(' ')",
                  "{}.replace('a', '')", "{}.replace('', '-')", "{}.replace('', '-', 2)", "{}.find('c')", "{}.count('a')", "{}.isdigit()", "{}.lstrip(' A')",
                  "{}.rstrip('x ')", "{}.format(1)", "{}.keys()|list", "{}.values()|list", "{}.append(1)", "{}.nope()", "{}.nope", "{}()",
                  "{} * 2", "{} ~ 1", "[{}]", "{{'k': {}}}", "({},)", "{} if {} else 'no'", "'%s' % {}", "'{{}}'.format({})", "{}.join(ls)",
                  "{}.removeprefix(' A')", "{}.isupper()", "{}.isspace()", "{}.isalnum()", "{}.zfill(12)", "{}.index(1)"]:
            yield p.replace("{}", v).replace("{{", "{").replace("}}", "}")
    for a, b in itertools.product(VALUES, VALUES):
        for op in ["+", "==", "<", "in"]:
            yield f"{a} {op} {b}"
    numbers = ["7", "-7", "2", "-2", "0", "2.5", "-2.5", "0.1", "1e16", "1e-5", "true", "3", "10"]
    for a, b in itertools.product(numbers, numbers):
        for op in ["-", "*", "/", "//", "%", "**", ">=", "!="]:
            yield f"{a} {op} {b}"
    for x in ["1e15", "1e16", "123456789.125", "1e22", "1e-4", "1e-5", "0.1 + 0.2", "1e300 * 1e10", "-1e300 * 1e10", "5e-324", "1.7976931348623157e308",
              "100000000000000000000", "0x1F", "0b101", "0o17", "1_000.5", "1e5", "2.675|round(2)", "2.5|round", "3.5|round", "-2.5|round", "1234.5|round(-2)",
              "1250|round(-2)", "1350|round(-2)", "2.1|round(0, 'ceil')", "2.9|round(1, 'floor')", "7|round(2)", "'0x1f'|int(0, 16)", "'12abc'|int(5)", "' 42 '|int",
              "'4_2'|int", "'1e3'|int", "'1e3'|float", "'nan'|float", "'inf'|float", "'x'|float(1.5)", "3.99|int", "-3.99|int", "1e20|int", "[1,[2,[3]]]", "{1: 2, 'a': none, true: 3}",
              "(1, 2)", "()", "(1,)", "'it\\'s \"q\"'", "['it\\'s']", "['it\\'s \"q\"']", "['\\n\\t\\r\\\\ \\x00\\x7f\\xa0\\xad\\u200b\\u2028']", "['\\U0001f642 \\u00e9']",
              "1 < 2 < 3", "3 > 2 > 2", "1 == 1.0 == true", "2 ** 3 ** 2", "-2 ** 2", "(-2) ** 2", "2 ** -1", "not 1 == 2", "1 + 2 ~ 3 + 4", "1 ~ 2 * 3", "'a' 'b'", "'a' ~ none ~ 1.0",
              "1 if false", "(1 if false) is defined", "1 if 0 else 2 if 0 else 3", "nope.x", "nope[0]", "nope ~ 1", "nope + 1", "nope == nope2", "nope|length", "nope|list", "nope|upper",
              "nope|trim", "nope|int", "nope|tojson", "nope in l", "'a' in nope", "nope|default(1)", "nope is defined", "nope()", "d.nope.x", "d['nope']['x']", "l[9].x", "l.0", "l.5",
              "d._p", "d.__class__", "''.__class__.__mro__", "l.append", "l.append is defined", "l.sort()", "d.pop('a')", "d.update({})", "d.copy().b", "ls.index('A')", "ls.count('b')",
              "'a-b c(d'|title", "'a-b c\\'d'.title()", "'\u01c6x'.title()", "'\u01c6x'|title", "'\u01c6x'|capitalize", "'\u1f80'|upper", "'\u0130'|lower", "'\u039f\u0394\u039f\u03a3'|lower", "'\u00df'|title",
              "'abc'[1:2]", "'abc'[5:]", "'abc'[-5:2]", "'abc'[2:1]", "'abc'[::-2]", "l[::0]", "l['a']", "l[1.0]", "l[true]", "'abc'[true]", "range(3)|list", "range(1, 7, 2)|list", "range(5, 0, -2)|list",
              "range(0)|list", "range(1000000)|list", "range(3)|length", "range(3)[1]", "dict(a=1, b=2)", "dict(d, z=1)|length", "namespace(a=1).a", "joiner()", "cycler(1, 2).current",
              "ms|map(attribute='role')|join", "ms|map(attribute='nope')|list|length", "ms|map(attribute='nope', default='q')|join", "ms|selectattr('n', 'gt', 1)|map(attribute='content')|join",
              "ms|rejectattr('role', 'eq', 'user')|list|length", "ms|sort(attribute='n')|map(attribute='n')|join", "ms|sort(attribute='role,n')|map(attribute='n')|join", "ms|sort(attribute='n', reverse=true)|map(attribute='content')|join",
              "ms|groupby('role')|map('first')|join", "ms|sum(attribute='n')", "ms|max(attribute='n')|tojson", "ms|min(attribute='content')|tojson", "ms|unique(attribute='role')|list|length",
              "ms|map('length')|list", "ms|map('nope')|list", "ms|selectattr('role', 'nope')|list", "ms|map|list", "ms|selectattr('role')|length", "ms|join('|', 'role')", "ms|last", "ms|first|tojson",
              "ls|sort", "ls|sort(case_sensitive=true)", "ls|unique|list", "['a', 'A']|unique|list", "['a', 'A']|unique(true)|list", "[1, 1.0, true, '1']|unique|list", "['b', 1]|sort", "[[2], [1]]|sort", "ls|max", "ls|min", "[]|max", "[]|first", "[]|last", "''|first",
              "d|dictsort(by='value')", "{'b': 2, 'A': 1}|dictsort", "{'b': 2, 'A': 1}|dictsort(true)", "{'b': 1, 'A': 2}|dictsort(by='value', reverse=true)", "'a b'|replace(' ', '')", "'aaa'|replace('a', 'b', 2)", "123|replace(2, 'x')",
              "'%s-%s'|format('a', 1)", "'%(a)s'|format(a=1)", "'%d %5.2f %s %r %%' % (3, 2.5, 'x', 'y')", "'%s' % (1, 2)", "'%s %s' % 1", "'%5s|%-5s|' % ('a', 'b')", "'%05d' % 42", "'{0} {1} {0}'.format('a', 2)", "'{a} {b[k]} {c.role}'.format(a=1, b={'k': 2}, c=ms[0])",
              "'{:>5}|{:<5}|{:^5}|'.format('a', 'b', 'c')", "'{:.2f} {:05d} {:+d} {:,}'.format(2.5, 42, 3, 4)", "'{!r}'.format('a')", "'{'.format()", "'{} {}'.format(1)", "'{{}}'.format()", "'a'.join([1])", "','.join(['a', 'b'])", "'a.b'.split('.')[0]", "'abc'.split('')",
              "' a  b '.split(' ')", "' a  b c '.split(none, 1)", "'\u00a0a\u2003b'.split()", "'a\\nb\\n'.splitlines()", "'a\\nb\\n'.splitlines(true)", "'xaxbx'.strip('x')", "'\u00e9a\u00e9'.strip('\u00e9')", "'a'.center(5)", "'abc'.startswith(('x', 'a'))", "'abc'.startswith(1)",
              "[1, 2] == [1, 2.0]", "{'a': 1} == {'a': 1.0}", "{'a': 1, 'b': 2} == {'b': 2, 'a': 1}", "(1, 2) == [1, 2]", "none < 1", "'a' < 'b'", "'Z' < 'a'", "[1, 2] < [1, 3]", "1 in 'a'", "'' in 'a'", "none in [none]", "1.0 in [1]", "'b' in {'b': 1}", "1 in 5",
              "big + 1 > big", "big == big", "big|string", "big|tojson", "-big", "big > 1", "big > 1e10", "{'a': 1}['b'] is defined", "{'a': {'b': 2}}.a.b", "[1, 2, 3][-1:]", "{'x': 1}.x", "{1: 'a'}[1]", "{1: 'a'}[1.0]", "{none: 1}[none]", "[[]][0]|length",
              "true + true", "true * 3", "-true", "true|int", "true|string", "none|string", "1.0|string", "[none, true]|join(',')", "l|join(', ', none)", "'a'|join('-')", "d|join('-')", "d|list", "d|length", "d|first", "d|tojson", "mix|tojson", "mix|string", "mix|join('|')",
              "{'a': (1, 2)}|tojson", "{1: 2, none: 3, true: 4, 1.5: 5}|tojson", "[1.0, 1e100, 1e16, 1e-7]|tojson", "'</script>&\\u2028'|tojson", "l|tojson(indent=0)", "d|tojson(indent=1, separators=('; ', '= '))", "l|tojson(2)", "range(3)|tojson", "ms|map(attribute='n')|tojson",
              "'\\x41\\101\\u0041\\q\\\\'", "'a\\\nb'", "\"a'b\"", "s|upper|lower|title", "s|length", "s[3]", "s[-3]", "s[2:6]", "s|reverse", "s|list|length", "w|upper", "w|lower", "w|title", "w|capitalize", "w.title()", "lines|indent", "lines|indent('> ', true)", "lines.splitlines()", "lines|wordcount",
              "1 is sameas 1", "1 is divisibleby(3)", "3 is not odd", "'a' is in ['a']", "ms is iterable", "5 is filter", "'upper' is filter", "'odd' is test", "1 is eq(1)", "1 is eq 1 and 2 is eq 2", "l|select('odd')|list", "l|select('gt', 1)|list", "l|reject('in', [1])|list", "ls|map('upper')|map('lower')|list", "l|map('default', 3)|list",
              "ls|map('replace', 'b', 'z')|join", "l|length == 3", "l|length - 1", "-l|length", "(l|length) * 2", "l[-1]|string + 'x'", "'a' + 1|string", "1 + '2'|int", "s.strip().split()[0].lower()", "1 // 0", "1 % 0", "1 / 0", "1.0 // 0", "0 ** -1", "[1] * 2", "2 * 'ab'", "'ab' * -1", "[1] + (2,)", "(1,) + (2,)", "{} + {}", "'a' - 'b'",
              "l[:]", "l[1:2]", "l[5:]", "l[:100]", "l[-100:]", "e or 'x'", "e and 'x'", "l and 'x'", "none or 0 or ''", "1 and 2 or 3", "not e", "not not l", "(1, 2)[0]", "((1, 2), 3)[0][1]", "[1, 2,]", "{'a': 1,}", "{}", "[]", "1,2", "1, ", "'a' if 1 else 'b' ~ 'c'", "('a' if 0 else 'b') ~ 'c'", "x is none and n == 3", "n is number and n > 2", "loop is defined", "self is defined", "caller is defined"]:
        yield x


TEMPLATES = [
    "{% for a in l %}{% for b in l if b > a %}{{ loop.index }}{{ a }}{{ b }};{% else %}none;{% endfor %}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for x in l %}{{ loop.changed(x > 1) }}{{ loop.cycle('a', 'b') }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
    "{% for x in l %}{{ loop.previtem|default('-') }}{{ loop.nextitem|default('-') }}{{ loop.revindex }}{% endfor %}",
    "{% for x in l recursive %}{{ x if x is number else '(' ~ loop(x) ~ ')' }}{% endfor %}",
    "{% for x in [1, [2, [3]], 4] recursive %}{{ loop.depth }}{{ x if x is number else '(' ~ loop(x) ~ ')' }}{% endfor %}",
    "{% set ns = namespace(found=false) %}{% for x in l if not ns.found %}{{ x }}{% set ns.found = true %}{% endfor %}",
    "{% set ns = namespace(found=false) %}{% for x in l if not ns.found %}{{ x }}{{ loop.index }}{% set ns.found = true %}{% endfor %}",
    "{% set ns = namespace(found=false) %}{% for x in l if not ns.found %}{{ x }}{{ loop.last }}{% set ns.found = true %}{% endfor %}",
    "{% set x = 1 %}{% if true %}{% set x = 2 %}{% for i in l %}{% set x = i %}{% endfor %}{% endif %}{{ x }}",
    "{% for i in l %}{{ y is defined }}{% set y = i %}{{ y }}{% endfor %}{{ y is defined }}",
    "{% for i in l %}{% if loop.first %}{% set y = i %}{% endif %}{{ y }}{% endfor %}",
    "{% set a %}x{% set q = 5 %}{{ q }}{% endset %}{{ a }}{{ q is defined }}",
    "{% macro f(a, b=a ~ '!', *c) %}{% endmacro %}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 3, 4, z=5) }}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1, 3, 4) }}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1, z=3) }}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(b=1) }}{{ f(1, a=2) }}",
    "{% macro f(a, b=2) %}[{{ a }}{{ b }}]{% endmacro %}{{ f(*[1, 2]) }}{{ f(**{'a': 3}) }}{{ f(4, *[5]) }}",
    "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}G{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ v }}{% endmacro %}{% set v = 1 %}{{ f() }}{% set v = 2 %}{{ f() }}",
    "{% for i in l %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}",
    "{% macro f(x) %}{% set x = x + 1 %}{{ x }}{% endmacro %}{{ f(1) }}{{ x }}",
    "{% macro f() %}{% if caller is defined %}{{ caller(1, 2) }}{% else %}-{% endif %}{% endmacro %}{{ f() }}{% call(a, b=3) f() %}{{ a }}{{ b }}{% endcall %}",
    "{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}",
    "{% macro f() %}  a  {% endmacro %}[{{ f()|trim }}][{{ f()|length }}][{{ f() ~ 'x' }}]",
    "{% macro f() %}x{% endmacro %}{{ f is callable }}{{ f.name }}{{ f is string }}{{ f() is string }}",
    "{% filter upper|replace('A', 'b') %}a{{ n }}{% endfilter %}",
    "{% set q | trim | upper %}  a {% endset %}[{{ q }}]",
    "{% set a, (b, c) = 1, (2, 3) %}{{ a }}{{ b }}{{ c }}",
    "{% set a, b = l %}",
    "{% for a, b in [[1, 2], [3, 4]] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in [1] %}{% endfor %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% set a = 5 %}{{ a }}{% endwith %}{{ a is defined }}",
    "{% with a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{% endwith %}",
    "{% set j = joiner('|') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{% set _ = c.reset() %}{{ c.next() }}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% else %}E{% endfor %}",
    "{% for x in l %}{% break %}{% else %}E{% endfor %}",
    "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ y }}{% endfor %}{{ x }}{% endfor %}",
    "{% for x in n %}{% endfor %}", "{% for x in none %}{% endfor %}", "{% for c in s %}[{{ c }}]{% endfor %}", "{% for x in d %}{{ x }}{% endfor %}",
    "{% for x in e %}a{% else %}{% set y = 1 %}{{ y }}{% endfor %}{{ y is defined }}",
    "{% if n > 2 %}a{% elif nope.x %}b{% else %}c{% endif %}", "{% if z %}a{% elif n %}b{% else %}c{% endif %}", "{% if z %}a{% endif %}",
    "{% if 1, 2 %}t{% endif %}", "{% set t = 1, 2 %}{{ t }}", "{{ 1, 2 }}",
    "a\n  {% if true %}  \n b\n  {% endif %}  \nc", "  {% set a = 1 %}\n  {{ a }}\n", "a {%- if true -%} b {%- endif -%} c",
    "a\n\n  {%- if true %}\n\n b{% endif -%}\n\n c", "{#- a -#}  \n x {# b #}\n y {#+ c #}\nz", "  {# a #}\n  {#- b #}\n  {# c -#}\n d",
    "{% raw %} {{ a }} {% if %} {% endraw %}x", "  {% raw %}\n a\n  {% endraw %}\nb", "a  {%- raw -%}  b  {%- endraw -%}  c", "x{% raw -%} b {% endraw +%}\ny",
    "{%+ if true +%}\n  a{%+ endif %}", "\n\n{% if true %}a{% endif %}\n\n", "{{ '{{' }}{{ '}}' }}{{ '{%' }}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ {'a': {}}}}", "{{ {} }}",
    "{{ 1 -}}  \n x", "x \n {{- 1 }}", "x{{-1}}", "x{{+1}}", "{{ (1\n+\n2) }}", "{% set a = [\n 1,\n 2\n] %}{{ a }}", "a\r\nb\rc{{ 1 }}\r\n", "\u00a0{%- if true %}\u2003 {%- endif %}x",
    "{% if true: %}a{% endif %}", "{% for x in l: %}{{ x }}{% endfor %}", "{{ 'a' }}{{ \"b\" }}{# c #}", "{% set x = 'a' %}{{ x }}{% set x = x ~ 'b' %}{{ x }}",
    "{% set d2 = dict(d, c=3) %}{{ d2.c }}{{ d.c is defined }}", "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b is defined }}{{ ns['a'] }}", "{% set ns.x = 1 %}", "{% set n.x = 1 %}",
    "{{ ms[0]['role'] }}{{ ms[-1].content }}{{ ms[5] }}", "{{ ms[5].role }}", "{% for m in ms[1:] %}{{ m.role }}{% endfor %}", "{% for m in ms[::-1] %}{{ loop.index0 }}{{ m.n }}{% endfor %}",
    "{% if %}{% endif %}", "{% for %}{% endfor %}", "{% for x l %}{% endfor %}", "{% endif %}", "{% else %}", "{% if a %}{% endfor %}", "{% set %}", "{% set 1 = 2 %}", "{% set true = 2 %}", "{{ }}", "{{ 1 + }}", "{{ (1 }}", "{{ 1) }}", "{{ [1 }}",
    "{{ 'a }}", "{{ a b }}", "{{ a. }}", "{{ a[ }}", "{{ |upper }}", "{{ 1 | }}", "{{ a is }}", "{{ a is not }}", "{% macro %}{% endmacro %}", "{% macro f %}{% endmacro %}", "{% macro f(a=1, b) %}{% endmacro %}", "{% break %}", "{% continue %}", "{# a", "{% raw %}", "{{ f(a=1, 2) }}",
    "{{ f(*a, *b) }}", "{{ a ? b }}", "{{ $ }}", "{{ 1 is odd is even }}", "{% block a %}{% endblock %}x{% import 'a' as b %}", "{% unknown %}", "{{ 012 }}", "{{ 1__0 }}", "{{ a.1.b }}", "{% filter nope %}{% endfilter %}", "{% call 1 %}{% endcall %}",
    "{{ loop }}", "{% for x in l %}{{ loop is defined }}{% endfor %}{{ loop is defined }}", "{% for x in l if loop.first %}{{ x }}{% endfor %}", "{% for loop in l %}{{ loop }}{% endfor %}",
    "{% for x in range(3) %}{{ x }}{% endfor %}", "{% for i in range(ms|length - 1, -1, -1) %}{{ ms[i].n }}{% endfor %}", "{{ d.items is callable }}{{ d['items'] }}{{ d.get('items') }}", "{{ namespace is defined }}{{ range is callable }}{{ dict is defined }}",
    "{{ [1, 2, 3] | select('odd') }}"[:0] + "{{ ([1, 2]|select('odd')) is iterable }}{{ 'x' if ([1]|select('even')) else 'y' }}", "{{ (d.items())|length }}{{ 'x' if {}.items() else 'y' }}", "{% set x %}{% endset %}[{{ x }}]{{ x is string }}",
]


def marked():
    """Markup: what safe and e give, and what becomes of it."""
    for m in ["('<a> &'|safe)", "('x<y'|e)", "(s|safe)", "(''|safe)"]:
        for p in ["{} + '<'", "'<' + {}", "{} + {}", "{} ~ '<'", "'<' ~ {} ~ '>'", "{} * 2", "2 * {}", "'<' + {} + '>' + '&'", "'<' + '>' + {}", "[{}]", "{{'k': {}}}", "{}|tojson",
                  "{} == {}|string", "{} in '<a> &'", "{{'<a> &': 1}}[{}]", "{}[1:] + '<'", "{}[0] + '<'", "{}[::-1] + '<'", "{}|reverse + '<'", "{}|first + '<'", "{}|last + '<'", "({}|list)[0] + '<'",
                  "{}|join('<')", "['<', {}]|join({})", "['<', {}, 1]|join('&')", "{}.join(['<', {}, 1])", "', '.join(['<', {}])", "{}|replace('a', '<') + '<'", "{}.replace('a', '<')", "{}.replace('a', {}) + '<'", "'a'.replace('a', {}) + '<'",
                  "{}|upper + '<'", "{}|lower + '<'", "{}|title + '<'", "{}|capitalize + '<'", "{}|trim + '<'", "{}|string + '<'", "{}|e", "{}|e|e + '<'", "{}|safe + '<'", "{}|indent(2, true) + '<'", "{}|length", "{}|wordcount",
                  "{}|truncate(3, true, '<', 0)", "{}|default('<') + '<'", "{} is escaped", "{} is string", "{} is sequence", "{}|int", "{}|unique|list", "{}|sort|first + '<'", "{}|max + '<'", "{}|batch(2)|list", "{}|map('upper')|join + '<'",
                  "{}.strip() + '<'", "{}.lstrip('<') + '<'", "{}.rstrip() + '<'", "{}.split()[0] + '<'", "{}.split('a')[0] + '<'", "{}.rsplit(' ', 1)[0] + '<'", "{}.splitlines()", "{}.partition('a')", "{}.rpartition('q')",
                  "{}.center(12, '*') + '<'", "{}.ljust(12) + '<'", "{}.rjust(12, '<')", "{}.zfill(12) + '<'", "{}.title() + '<'", "{}.capitalize() + '<'", "{}.swapcase() + '<'", "{}.casefold() + '<'", "{}.upper() + '<'", "{}.lower() + '<'",
                  "{}.expandtabs() + '<'", "{}.removeprefix('<') + '<'", "{}.removesuffix('&') + '<'", "{}.startswith('<')", "{}.find('a')", "{}.count('a')", "{}.isalpha()", "'<' in {}", "{} < 'b'", "{} % '<'", "{} + 1", "{} + none", "{} + nope",
                  "'%s<' % {} + '<'", "'%s' % [{}]", "'{{}}<'.format({}) + '<'", "'{{!r}}'.format({})", "'{{:>9}}'.format({})", "{}|format('<')", "{} is lower", "'a' if {} else 'b'", "{}|float", "{}|items", "{}|sum", "{}|abs", "-{}", "not {}"]:
            yield p.replace("{{", "\0").replace("}}", "\1").replace("{}", m).replace("\0", "{").replace("\1", "}")
    for x in ["('%s|%r|%5.1f|%d|%(q)s'|safe) % {'q': '<'}", "('%s|%r|%s'|safe) % ('<', '<', '<'|safe)", "('%s'|safe) % '<'", "('%(a)s'|safe) % {'a': '<'}", "('%d|%5.1f|%5s|'|safe) % (3, 2.5, '<')", "('%s'|safe)|format('<')",
              "('%(a)s'|safe)|format(a='<')", "'%s'|format('<'|safe) + '<'", "('{}|{!r}|{!s}|{:>5}|{a}'|safe).format('<', '<', '<'|safe, '<', a='<'|safe)", "('{}'|safe).format('<'|safe) + '<'", "('{:>5}'|safe).format('<'|safe)",
              "('{}|{}'|safe).format(1, none)", "('{a[k]}{b.role}'|safe).format(a={'k': '<'}, b=ms[0])", "('%s'|safe) % ['<']", "('%s'|safe) % none", "none|safe + '<'", "[1, '<']|safe + '<'", "[1, '<']|e", "1|e + '<'", "nope|safe + '<'", "nope|e + '<'",
              "d|tojson|safe + '<'", "'<' + d|tojson|safe", "ms|map(attribute='content')|map('e')|join('<')", "('a<b'|e)|map('e')|join", "'<'|e|length", "['<']|map('safe')|list", "{'a'|safe: 1}|tojson", "(('a'|safe) ~ '<') is escaped",
              "('a'|safe)|attr('upper')()", "'a'.striptags is defined", "range('<'|safe)", "('a b'|safe)|title is escaped", "('<'|safe)|string is escaped", "['b'|safe, 'A']|sort", "[('a'|safe), 'a']|unique|list", "joiner('<'|safe)() ~ '<'",
              "('x'|safe)|center(3)" if False else "('x'|safe).center(3, '<')", "'%' % ()", "('<'|safe)|join(',')", "(['a', 'b']|join('<')|safe) + '<'", "('a,b'|safe).split(',')|join('<')", "('\n'|safe).join(['<', 'b'])", "dict(a='<'|safe).a + '<'"]:
        yield x


def more():
    """Groups, ranges, views, what is gone through once, methods of strings and characters in tags."""
    for x in ["ms|groupby('role')", "ms|groupby('role')|map(attribute='grouper')|join", "(ms|groupby('role'))[0].list|length", "(ms|groupby('role'))[0]['grouper']", "(ms|groupby('role'))[0][0]", "ms|groupby('role')|map(attribute='list')|map('length')|list",
              "(ms|groupby('role'))[0].index('assistant')", "(ms|groupby('role'))[0].nope is defined", "ms|groupby('nope')|length", "ms|groupby('nope', default='q')|map(attribute='grouper')|join", "ms|groupby('n')|map('first')|list", "ms|groupby('role')|tojson",
              "['b', 'A', 'a', 'B']|groupby('0')|list", "['b', 'A', 'a', 'B']|groupby(0)|list", "['b', 'A', 'a', 'B']|groupby(0, case_sensitive=true)|list", "ms|groupby('role,n')|length", "ms|groupby", "(ms|groupby('role'))[0] + (1,)", "(ms|groupby('role'))[0][:1]",
              "(ms|groupby('role'))[0] == ('assistant', [ms[1]])", "ms|map(attribute='a.b', default='q')|list", "ms|map(attribute='role.x', default='q')|list", "ms|unique(attribute='role,n')|list|length", "ms|max(attribute='role,n')|length",
              "range(3)", "range(1, 7, 2)", "range(5, 0, -2)", "[range(2)]", "range(3)|string", "range(3) ~ ''", "range(3)|tojson", "range(3)[1:]", "range(9)[::-2]", "range(9)[7:1:-3]", "range(0)[1:]", "range(9)[2:5][1]", "range(3) + [1]", "range(3) * 2", "range(3) == range(3)",
              "range(0) == range(5, 1)", "range(3) == [0, 1, 2]", "range(3) < range(4)", "range(3)|list + [1]", "range(3).start", "range(1, 9, 2).step", "range(3).stop", "range(3).index(2)", "range(3).count(1)", "range(3).append is defined", "range(3) is sequence", "range(3) is iterable",
              "range(3) is mapping", "range(3)|last", "range(3)|reverse|list", "range(3)|first", "range(3)|sum", "range(3)|join", "range(3)|sort(reverse=true)", "range(3)|batch(2)|list", "2 in range(3)", "'x' if range(0) else 'y'", "range(3)|length", "range(3)|int(7)", "'%s' % range(2)",
              "'{}'.format(range(2))", "d.keys()", "d.values()", "d.items()", "{}.keys()", "{'a': 'x'}.items()", "[d.keys()]", "d.keys()|string", "d.keys()|tojson", "d.items()|tojson", "d.values()|tojson", "d.keys()|list", "d.items()|first", "d.values()|last", "d.keys()[0] is defined",
              "d.keys() == d.keys()", "d.items() == d.items()", "d.values() == d.values()", "d.keys() == {'b': 0, 'a': 0, 'items': 0, '_p': 0}.keys()", "d.keys() == ['b', 'a', 'items', '_p']", "'a' in d.keys()", "1 in d.values()", "('b', 1) in d.items()", "d.items() is sequence", "d.keys()|length",
              "d.keys() + []", "d.items()|reverse|list", "d.items()|sort", "d.values()|map('string')|join", "[d.keys()]|unique|list", "[[1], [1]]|unique|list", "[(1, 2), (1, 2.0), (1, '2')]|unique|list", "[1, true, 1.0, 0, false, none, none, '1']|unique|list", "[(1, [2])]|unique|list", "[big, big, 2.0 ** 80]|unique|list",
              "[{}, {}]|unique|list", "[range(2), range(2)]|unique|list", "[nope, nope2]|unique|list|length", "[0.0, -0.0]|unique|list",
              "'abc'.center(8) ~ '|'", "'abc'.center(9, '*')", "'abcd'.center(9, '*')", "'abc'.ljust(5, '.')", "'abc'.rjust(5, '.')", "'abc'.rjust(2)", "'abc'.ljust(5, 'ab')", "'a.b.c'.partition('.')", "'a.b.c'.rpartition('.')", "'abc'.partition('.')", "'abc'.rpartition('.')", "'abc'.partition('')",
              "'a\tb\nc\td'.expandtabs(4)", "'a\tb'.expandtabs()", "'\ta'.expandtabs(0)", "'aXbX'.rindex('X')", "'a'.rindex('X')", "'Ab'.swapcase()", "'ßİﬁ'.casefold()", "'a b c '.rsplit(none, 1)", "' a b c '.rsplit(none, 5)", "' a b '.rsplit(none, 0)", "''.rsplit(none, 1)", "'  '.rsplit(none, 1)",
              "'Ab Cd'.istitle()", "'ABc'.istitle()", "'1_a'.isidentifier()", "'a1'.isidentifier()", "''.isprintable()", "''.isascii()", "''.isdecimal()", "''.istitle()", "'٣٥'|int", "'٣.٥'|float", "'１２'|int", "'٣٥'|int(base=16)", "'5'|int", "' 5 '|int", "'1 '|float", "'²'|int(7)",
              "'५_६'|int", "'1__0'|int(7)", "a ", "n + 1", " n", " n ", "n​", "“n”", "‘a’", "'a' 'b'", "n ", "n", "n", "n+ 1", "é", "é is defined", "n²", "ń is defined", "٣", "n٣ is defined",
              "1٣", "℘ is defined", "℮", "n − 1", "n × 2", "l[ 0 ]", "d .a", "﻿n", "n­", "d.é is defined", "𝓍 is defined", "中文 is defined", "🙂"]:
        yield x


MORE_TEMPLATES = [
    "{% set g = l|map('string') %}{{ g|join }}|{{ g|join }}|{{ 'x' if g else 'y' }}", "{% set g = l|select %}{% for x in g %}{{ x }}{% endfor %}{% for x in g %}{{ x }}{% else %}none{% endfor %}",
    "{% set g = l|map('string') %}{{ g|first }}{{ g|list }}", "{% set g = l|map('int') %}{{ 1 in g }}{{ g|list }}", "{% set g = l|map('int') %}{{ 9 in g }}{{ g|list }}", "{% set g = l|map('int') %}{% for x in g %}{% break %}{% endfor %}{{ g|list }}",
    "{% set g = l|map('int') %}{% for x in g %}{{ loop.last }}{% break %}{% endfor %}{{ g|list }}", "{% set g = l|map('int') %}{% for x in g %}{{ loop.length }}{% break %}{% endfor %}{{ g|list }}", "{% set g = l|map('int') %}{% for x in g if x < 3 %}{{ x }}{% break %}{% endfor %}{{ g|list }}",
    "{% set g = l|reverse %}{{ g|first }}{{ g|first }}{{ g|first }}[{{ g|first }}]", "{% set g = l|batch(2) %}{{ g|list }}{{ g|list }}", "{% set g = d|items %}{{ g|length }}", "{% set g = ls|unique %}{{ g|sort }}{{ g|sort }}", "{% set a, b, c = l|map('int') %}{{ a }}{{ b }}{{ c }}",
    "{% set g = l|map('int') %}{% set h = g|map('string') %}{{ h|list }}{{ h|list }}", "{% set e2 = d.items() %}{{ e2|list|length }}{{ e2|list|length }}", "{% set g = l|map('int') %}{% for x in g %}{{ loop.nextitem }}{% break %}{% endfor %}{{ g|list }}",
    "{% set ns = namespace(g=l|map('int')) %}{% for x in l %}{{ ns.g|first }}{% endfor %}[{{ ns.g|first }}]", "{% set ns = namespace(t='') %}{% for m in ms %}{% set ns.t = ns.t + m.content + '<' %}{% endfor %}{{ ns.t }}", "{% set ns = namespace(t=''|safe) %}{% for m in ms %}{% set ns.t = ns.t + m.content + '<' %}{% endfor %}{{ ns.t }}",
    "{% set ns = namespace(t=[]) %}{% for m in ms %}{% for c in m.content %}{% set ns.t = ns.t + [c ~ loop.index] %}{% endfor %}{% endfor %}{{ ns.t }}", "{% set ns = namespace(a=none) %}{% for m in ms %}{% set ns.a = {'k': [m.content ~ '!', {'z': m.role ~ '?'}], 'b': ns.a} %}{% endfor %}{{ ns.a }}",
    "{% set ns = namespace(a=none) %}{% for m in ms %}{% set ns.a = [m.n, range(m.n), m.items(), (m.content ~ 'x')[1:]] %}{% endfor %}{{ ns.a }}", "{% set ns = namespace(f=none) %}{% for m in ms %}{% macro f() %}{{ n }}!{% endmacro %}{% set ns.f = f %}{% endfor %}{% for i in l %}{{ 'abc' ~ i }}{% endfor %}{{ ns.f() }}",
    "{% set ns = namespace(f=none) %}{% for m in ms %}{% set ns.f = namespace(x=m.content ~ '!') %}{% endfor %}{% for i in l %}{{ 'abc' ~ i }}{% endfor %}{{ ns.f.x }}", "{% set ns = namespace(f=none) %}{% for m in ms %}{% set ns.f = m.content|map('upper') %}{% endfor %}{% for i in l %}{{ 'abc' ~ i }}{% endfor %}{{ ns.f|join }}",
    "{% for m in ms %}{{ loop.changed(m.role ~ '!') }}{{ loop.changed(m.role ~ '!', [m.role ~ '?']) }}{% for i in l %}{{ 'a' ~ i }}{% endfor %}{% endfor %}", "{% macro f(x) %}{% for c in x %}{{ c ~ '.' }}{% endfor %}{% endmacro %}{{ f('ab') ~ f('cd') + f('e') }}{{ [f('x'), f('y')] }}{{ {'a': f('p'), 'b': f('q')} }}",
    "{% set ns = namespace(o=0) %}{% for m in ms %}{% set ns.o = ns.o + m.n %}{% set ns.last = m.role ~ ns.o %}{% endfor %}{{ ns.o }}{{ ns.last }}", "{% set x %}<{{ s }}{% endset %}{{ (x|safe) + '<' }}{{ x + '<' }}", "{% macro f() %}<{% endmacro %}{{ f() + ('<'|safe) }}{{ f() is escaped }}", "{% filter e %}<{{ s }}{% endfilter %}",
    "{% for c in '<a>'|safe %}{{ c + '<' }}{% endfor %}", "{% set q | e %}<{% endset %}{{ q + '<' }}{{ q is escaped }}", "{% for g in ms|groupby('role') %}{{ g.grouper }}{{ g.list|map(attribute='n')|join(',') }};{% endfor %}", "{% for role, group in ms|groupby('role') %}{{ role }}{{ group|length }}{% endfor %}",
    "{%\u00a0if\u2003true\u00a0%}a{%\u00a0endif\u00a0%}", "{% set\u00a0x\u00a0=\u00a01 %}{{ x }}", "{% for\u201cx in l %}{% endfor %}", "{% set \u00e9 = 1 %}{{ \u00e9 }}", "{% macro \u00fc(\u00e4=2) %}{{ \u00e4 }}{% endmacro %}{{ \u00fc(\u00e4=3) }}", "{{ dict(\u00e9=1) }}", "{% if n\u00b2 %}{% endif %}",
]


# What is left out on purpose: integers beyond 64 bits are printed and compared, not calculated with; complex numbers; and
# what no chat template was seen to use.
LEFT_OUT = {"big is odd", "big is even", "big is divisibleby 3", "big * 2", "big + 1 > big", "self is defined",
            "'{:.2f} {:05d} {:+d} {:,}'.format(2.5, 42, 3, 4)"} | {f"{v} + big" for v in "nmzb"} | {f"big + {v}" for v in "nmzb"} | {"big + big"}


def run(env, source):
    try:
        return {"text": env.from_string(source).render(**copy.deepcopy(CONTEXT))}
    except RecursionError:
        return None
    except Exception as error:  # what Jinja says is for the reader; the tests want a refusal
        return {"error": f"{type(error).__name__}: {error}"[:120]}


def main():
    env = environment()
    env.globals.pop("lipsum")
    cases, seen = [], set()
    for source in itertools.chain(("{{ " + e + " }}" for e in itertools.chain(expressions(), marked(), more())), TEMPLATES, MORE_TEMPLATES):
        if source in seen or source[3:-3] in LEFT_OUT:
            continue
        seen.add(source)
        found = run(env, source)
        if found is None:
            continue
        text = found.get("text", "")
        # Addresses and the names of Python's own classes are nobody's format.
        if " at 0x" in text or "<built-in" in text or "<class" in text or "<jinja2" in text or "Undefined" in text or text.endswith("j)"):
            continue
        cases.append({"template": source, **found})
    json.dump({"about": "made by make_semantics.py, with jinja2 " + jinja2.__version__, "context": CONTEXT, "cases": cases}, sys.stdout, ensure_ascii=False, indent=0)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
