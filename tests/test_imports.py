"""Imports point down: ``runner -> jobs -> lang -> frontend -> transforms -> adstack -> ir`` and ``lang -> runtime -> codegen -> ir``."""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ERRORS, AMOUNTS = "compiler.errors", "compiler.amounts"
# Every package, and what it may import besides itself.
ALLOWED = {
    "compiler.errors": set(),
    "compiler.amounts": set(),
    "compiler.ir": set(),
    "compiler.adstack": {"compiler.ir", ERRORS},
    "compiler.transforms": {"compiler.adstack", "compiler.ir", ERRORS},
    "compiler.frontend": {"compiler.transforms", "compiler.ir", ERRORS},
    "compiler.codegen": {"compiler.ir", ERRORS},
    "compiler.runtime": {"compiler.codegen", "compiler.ir", ERRORS},
    "compiler.lang": {
        *("compiler.frontend", "compiler.transforms", "compiler.adstack"),
        *("compiler.runtime", "compiler.codegen", "compiler.ir", ERRORS, AMOUNTS),
    },
    "compiler.modules": {"compiler.lang"},
    "compiler.face": {"compiler.lang", "compiler.frontend", "compiler.ir", ERRORS},
    "qdrun": {"compiler.face"},
    "jobs": {"qdrun"},
    "runner": {"jobs", "compiler.runtime", ERRORS, AMOUNTS},
    "configs": set(),
}
# compiler.errors names the type of a location in an annotation and imports it for type checkers alone.
FOR_TYPES = {("compiler.errors", "compiler.ir")}


def package_of(parts: tuple[str, ...]) -> str:
    """The package that a dotted name below ``qdrun`` belongs to."""
    if not parts:
        return "qdrun"
    return ".".join(parts[:2]) if parts[0] == "compiler" and len(parts) > 1 else parts[0]


@functools.cache
def imports_of(path: Path) -> list[tuple[str, int]]:
    """The packages of ours that a file imports, each with its line."""
    here = ("qdrun", *path.relative_to(ROOT).with_suffix("").parts)[:-1]
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [tuple(a.name.split(".")) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            own = base[:1] == ("qdrun",) and (node.module is None or base == ("qdrun", "compiler"))
            names = [(*base, a.name) for a in node.names] if own else [base]
        else:
            continue
        found += [(package_of(name[1:]), node.lineno) for name in names if name[0] == "qdrun"]
    return found


def source_files() -> list[Path]:
    folders = [p for name in ("compiler", "runner", "jobs", "configs") for p in sorted((ROOT / name).rglob("*.py"))]
    return [ROOT / "__init__.py", *folders]


def edges() -> dict[tuple[str, str], list[str]]:
    """Which package imports which, and where."""
    out: dict[tuple[str, str], list[str]] = {}
    for path in source_files():
        relative = path.relative_to(ROOT)
        if relative.parts == ("compiler", "__init__.py"):
            continue
        mine = "qdrun" if len(relative.parts) == 1 else package_of(relative.with_suffix("").parts)
        for other, line in imports_of(path):
            if other != mine and (mine, other) not in FOR_TYPES:
                out.setdefault((mine, other), []).append(f"{relative}:{line}")
    return out


def test_no_arrow_points_up():
    wrong = [f"{a} -> {b} at {', '.join(where)}" for (a, b), where in edges().items() if b not in ALLOWED[a]]
    assert not wrong, "\n".join(wrong)


def test_the_packages_have_no_cycle():
    below: dict[str, set[str]] = {}
    for a, b in edges():
        below.setdefault(a, set()).add(b)
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"cycle: {' -> '.join([*path, name])}"
        if name not in done:
            for other in sorted(below.get(name, ())):
                visit(other, (*path, name))
            done.add(name)

    for name in sorted(below):
        visit(name, ())


def test_ir_and_errors_import_nothing_of_ours():
    for mine, other in edges():
        assert mine not in ("compiler.ir", "compiler.errors"), f"{mine} imports {other}"


def test_errors_import_ir_for_types_alone():
    tree = ast.parse((ROOT / "compiler" / "errors.py").read_text(encoding="utf-8"))
    guarded = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    inside = {id(n) for g in guarded for n in ast.walk(g)}
    relative = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level]
    assert relative and all(id(n) in inside for n in relative)


@pytest.mark.parametrize(
    "line, package", [("from ..lang import field", "compiler.lang"), ("import qdrun.runner.cli", "runner")]
)
def test_the_reader_of_imports_sees_an_arrow_that_points_up(line, package, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "compiler" / "ir" / "bad.py"
    path.parent.mkdir(parents=True)
    path.write_text(line + "\n", encoding="utf-8")
    assert imports_of(path) == [(package, 1)]
    assert package not in ALLOWED["compiler.ir"]
