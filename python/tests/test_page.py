"""docs/python.md: its examples, run one after another, give what it shows."""
import doctest
import re

from conftest import PAGE


def test_examples():
    parser, names = doctest.DocTestParser(), {}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    blocks = list(re.finditer(r"^```pycon\n(.*?)^```", PAGE, re.M | re.S))
    assert len(blocks) > 10
    said = []
    for block in blocks:
        test = parser.get_doctest(block[1], names, "examples", "docs/python.md", PAGE[:block.start()].count("\n") + 1)
        runner.run(test, out=said.append, clear_globs=False)
        names = test.globs
    assert runner.failures == 0, "".join(said)
