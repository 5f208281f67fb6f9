"""docs/glossary.md: each term names something that exists. A class name means one thing, so that it can be searched for."""

import ast
import re
from collections.abc import Iterable

import pytest

from qdrun.tests.sources import ROOT, files, statements, tree

PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS = re.findall(r"^\| ([^`|]+) \| .+ \| `([\w/]+\.py)` \| `(\w+)` \|$", PAGE, re.M)


def named_at_the_top(file: str) -> set[str]:
    """The functions, classes and constants of a module."""
    found: set[str] = set()
    for node in tree(ROOT / file).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {t.id for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def classes(*folders: str) -> set[tuple[str, str]]:
    """Every class of some folders with its file."""
    return {
        (n.name, path.relative_to(ROOT).as_posix())
        for path in files(*folders)
        for n in statements(path)
        if isinstance(n, ast.ClassDef)
    }


def repeated(found: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The files of each class name that stands in several, with or without an underscore, and is public in one of them."""
    where: dict[str, set[str]] = {}
    for name, file in found:
        where.setdefault(name.lstrip("_"), set()).add(file)
    return {name: sorted(where[name]) for name, _ in found if len(where.get(name, ())) > 1}


def taken(found: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """The classes that have the name of a term's class and are in another file."""
    where = {name: file for _, file, name in TERMS if name[:1].isupper() and not name.isupper()}
    return {(name, file) for name, file in found if name in where and file != where[name]}


def test_each_term_is_there_once():
    terms = [term for term, _, _ in TERMS]
    rows = [line for line in PAGE.splitlines() if re.match(r"\| [^-]", line) and not line.startswith("| term ")]
    assert len(terms) >= 40 and len(set(terms)) == len(terms) and len(rows) == len(TERMS)


@pytest.mark.parametrize("term, file, name", TERMS, ids=[term for term, _, _ in TERMS])
def test_each_term_names_something_that_exists(term, file, name):
    assert name in named_at_the_top(file), term


def test_no_class_takes_the_name_of_another_term():
    found = taken(classes("compiler", "library", "runner", "jobs"))
    assert not found, f"classes with a name of the glossary: {sorted(found)}"


@pytest.mark.parametrize("folders", [("compiler", "library"), ("runner", "jobs")], ids=lambda folders: folders[0])
def test_a_class_name_stands_in_one_module(folders):
    again = repeated(classes(*folders))
    assert not again, "use the other class, or name this one after what it is: " + str(again)


def test_a_second_class_of_a_name_is_noticed():
    name, file = next((name, file) for _, file, name in TERMS if name == "Lease")
    both = {(name, "runner/cli/models.py"), (name, file), ("Other", file), ("_Private", file), ("_Private", "x.py")}
    assert taken(both) == {(name, "runner/cli/models.py")}
    assert repeated(both) == repeated({(f"_{name}", "runner/cli/models.py"), *both} - {(name, "runner/cli/models.py")})
    assert repeated(both) == {name: sorted({"runner/cli/models.py", file})}
