"""Every test that docs/reliability.md names is there."""

import ast
import re

from qdrun.tests.sources import ROOT, statements

PAGE = ROOT / "docs" / "reliability.md"


def test_each_promise_names_tests_that_exist():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ") and "---" not in line]
    promises = [line for line in rows if not line.startswith("| promise")]
    assert len(promises) > 25
    for line in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", line.rsplit("|", 2)[1])
        assert named, line
        for path, function in named:
            defined = [s.name for s in statements(ROOT / path) if isinstance(s, ast.FunctionDef)]
            tests = {name for name in defined if name.startswith("test_")}
            assert tests, path
            assert not function or function in tests, (path, function)
