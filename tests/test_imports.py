"""Imports point down: between packages as ``ALLOWED`` says, and between files without a circle."""

import ast
import functools
from pathlib import Path

import pytest

from qdrun.compiler import extend
from qdrun.tests.sources import PACKAGE, ROOT, files, statements, tree

ERRORS, AMOUNTS, OPTIONS, REFUSED = "compiler.errors", "compiler.amounts", "compiler.options", "compiler.refused"
PEER_OPTIONS = "compiler.peer_options"
FORMATS = "compiler.print_formats"
VERSIONS = "compiler.versions"
BELOW_THE_PROGRAM = {
    *("compiler.frontend", "compiler.passes", "compiler.tape", "compiler.runtime", "compiler.codegen", "compiler.ir", ERRORS)
}
# Every package, and what it may import besides itself.
ALLOWED = {
    "compiler.errors": set(),
    "compiler.amounts": set(),
    FORMATS: set(),
    "compiler.refused": {ERRORS},
    VERSIONS: {ERRORS},
    "compiler.options": {REFUSED, AMOUNTS, PEER_OPTIONS, "compiler.ir", ERRORS},
    PEER_OPTIONS: {ERRORS},
    "compiler.ir": set(),
    "compiler.tape": {"compiler.ir", ERRORS},
    "compiler.passes": {"compiler.tape", "compiler.ir", ERRORS},
    "compiler.frontend": {"compiler.passes", "compiler.ir", ERRORS, FORMATS},
    "compiler.codegen": {"compiler.ir", ERRORS},
    "compiler.runtime": {"compiler.codegen", "compiler.ir", ERRORS, FORMATS},
    "compiler.compile": {*BELOW_THE_PROGRAM, OPTIONS},
    "compiler.program": {*BELOW_THE_PROGRAM, "compiler.compile", OPTIONS, REFUSED, AMOUNTS},
    "compiler.lang": {*BELOW_THE_PROGRAM, "compiler.compile", "compiler.program", OPTIONS, PEER_OPTIONS, REFUSED, AMOUNTS},
    "compiler.extend": {"compiler.lang", "compiler.frontend", "compiler.ir", REFUSED},
    "library": {"compiler.face", "compiler.extend"},
    "compiler.modules": {"compiler.lang", "compiler.face", "library"},
    "compiler.face": {
        "compiler.lang",
        "compiler.program",
        "compiler.compile",
        "compiler.frontend",
        "compiler.ir",
        OPTIONS,
        REFUSED,
        ERRORS,
    },
    "qdrun": {"compiler.face", "compiler.lang", "library", VERSIONS},
    "jobs": {"qdrun"},
    "configs": set(),
}
# The folders of the runner and the files beside them, from the bottom up: each may import those before it.
RUNNER = (
    *(
        "clock",
        "collector",
        "visible",
        "private",
        "processes",
        "user_lines",
        "exit_codes",
        "stops",
        "regular_files",
        "fields",
        "text_grid",
        "value_columns",
    ),
    *("store.files", "jobcode", "optimize.update_rules", "config", "optimize", "packing", "ledger", "study"),
    *(
        "store",
        "live",
        "upkeep",
        "provenance",
        "query",
        "workers",
        "checks",
        "observe",
        "export",
        "search",
        "engine.messages",
        "ray_adapter",
    ),
    *("engine", "compare", "sensitivity", "remote", "rounds", "examples", "cli", "interactive", "api", "__init__"),
)
for place, name in enumerate(RUNNER):
    below = {f"runner.{other}" for other in RUNNER[:place]}
    ALLOWED[f"runner.{name}"] = {"jobs", "compiler.runtime", ERRORS, AMOUNTS, VERSIONS, *below}
ALLOWED["runner.examples"].add("configs")
# Files that lie lower than the rest of their folder: where bytes are kept, and what the state of a run and its workers tell each other.
LOWER = {
    **{f"runner.store.{name}": "runner.store.files" for name in ("files", "interface", "objects", "encoding")},
    **{f"runner.engine.{name}": "runner.engine.messages" for name in ("messages", "parts")},
    "runner.optimize.update_rules": "runner.optimize.update_rules",
}
# compiler.errors names the type of a location in an annotation and imports it for type checkers alone.
FOR_TYPES = {("compiler.errors", "compiler.ir")}


def package_of(parts: tuple[str, ...]) -> str:
    """The package that a dotted name below ``qdrun`` belongs to."""
    if not parts:
        return "qdrun"
    if (name := ".".join(parts[:3])) in LOWER:
        return LOWER[name]
    return ".".join(parts[:2]) if parts[0] in ("compiler", "runner") else parts[0]


@functools.cache
def imports_of(path: Path) -> list[tuple[str, int]]:
    """The packages of ours that a file imports, each with its line."""
    here = ("qdrun", *path.relative_to(ROOT).with_suffix("").parts)[:-1]
    found = []
    for node in statements(path):
        if isinstance(node, ast.Import):
            names = [tuple(a.name.split(".")) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            own = base[:1] == ("qdrun",) and (
                node.module is None or base == ("qdrun", "compiler") or base[:2] == ("qdrun", "runner")
            )
            names = [(*base, a.name) for a in node.names] if own else [base]
        else:
            continue
        found += [(package_of(name[1:]), node.lineno) for name in names if name[0] == "qdrun"]
    return found


def source_files() -> list[Path]:
    return [ROOT / "__init__.py", *files(*PACKAGE, "configs")]


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


def test_the_folders_of_the_language_have_one_direction():
    order = ("data", "args", "kernel", "autograd", "compat")
    lang = ROOT / "compiler" / "lang"
    seen = set()
    for path in files("compiler/lang"):
        mine = path.relative_to(lang).with_suffix("").parts
        for node in statements(path):
            if isinstance(node, ast.ImportFrom) and node.level == len(mine) and node.module:
                seen.add((mine[0], node.module.split(".")[0]))
    wrong = [(a, b) for a, b in seen if a in order and b in order and order.index(b) > order.index(a)]
    assert not wrong and {("args", "data"), ("kernel", "args"), ("autograd", "kernel"), ("compat", "data")} <= seen


def test_the_library_takes_what_everyone_has_and_what_extend_lists():
    taken = set()
    for path in files("library"):
        for node in statements(path):
            if isinstance(node, ast.ImportFrom) and node.level == 3 and (node.module or "").startswith("compiler"):
                assert node.module in ("compiler.face", "compiler.extend"), f"{path}:{node.lineno}"
                taken |= {alias.name for alias in node.names if node.module == "compiler.extend"}
            assert not (isinstance(node, ast.Import) and any(a.name.startswith("qdrun") for a in node.names)), path
    assert taken == set(extend.__all__)


def test_ir_and_errors_import_nothing_of_ours():
    for mine, other in edges():
        assert mine not in ("compiler.ir", "compiler.errors"), f"{mine} imports {other}"


def test_errors_import_ir_for_types_alone():
    path = ROOT / "compiler" / "errors.py"
    guarded = [n for n in tree(path).body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    inside = {id(n) for g in guarded for n in ast.walk(g)}
    relative = [n for n in statements(path) if isinstance(n, ast.ImportFrom) and n.level]
    assert relative and all(id(n) in inside for n in relative)


@pytest.mark.parametrize(
    "line, package", [("from ..lang import field", "compiler.lang"), ("import qdrun.runner.cli.app", "runner.cli")]
)
def test_the_reader_of_imports_sees_an_arrow_that_points_up(line, package, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "compiler" / "ir" / "bad.py"
    path.parent.mkdir(parents=True)
    path.write_text(line + "\n", encoding="utf-8")
    assert imports_of(path) == [(package, 1)]
    assert package not in ALLOWED["compiler.ir"]


def module_file(parts: tuple[str, ...]) -> Path | None:
    """The file of a dotted name below ``qdrun``; none for a name inside a module."""
    module, package = ROOT.joinpath(*parts).with_suffix(".py"), ROOT.joinpath(*parts, "__init__.py")
    return module if parts and module.is_file() else package if parts and package.is_file() else None


def files_imported_by(path: Path) -> set[Path]:
    """The files of ours that a file imports: at its top, within its functions, and for type checkers alone."""
    here = path.relative_to(ROOT).parts[:-1]
    found: set[Path | None] = set()
    for node in statements(path):
        if isinstance(node, ast.Import):
            found |= {module_file(tuple(a.name.split(".")[1:])) for a in node.names if a.name.split(".")[0] == "qdrun"}
        elif isinstance(node, ast.ImportFrom):
            named = tuple(node.module.split(".")) if node.module else ()
            if not node.level and named[0] != "qdrun":
                continue
            base = (*here[: len(here) - node.level + 1], *named) if node.level else named[1:]
            found |= {module_file((*base, a.name)) or module_file(base) for a in node.names}
    return {other for other in found if other is not None} - {path}


def files_in_circles(imported: dict[str, set[str]]) -> set[str]:
    """The files from which a path of imports leads back to themselves."""

    def reaches_itself(name: str) -> bool:
        seen: set[str] = set()
        todo = list(imported[name])
        while todo:
            if (other := todo.pop()) not in seen:
                seen.add(other)
                todo += imported.get(other, ())
        return name in seen

    return {name for name in imported if reaches_itself(name)}


def test_no_file_is_in_a_circle_of_imports():
    imported = {p: files_imported_by(p) for p in source_files()[1:]}
    named = {p.relative_to(ROOT).as_posix(): {o.relative_to(ROOT).as_posix() for o in s} for p, s in imported.items()}
    circle = files_in_circles(named)
    assert not circle, f"files that import themselves in a circle: {sorted(circle)}"


def test_a_circle_is_found_through_imports_for_types_and_within_functions(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    texts = {
        "a": "def f():\n    from .b import g",
        "b": "if TYPE_CHECKING:\n    from qdrun.compiler import c",
        "c": "import qdrun.compiler.a",
        "above": "from .a import f",
        "below": "import ast",
    }
    (tmp_path / "compiler").mkdir()
    for name, text in texts.items():
        (tmp_path / "compiler" / f"{name}.py").write_text(text + "\n", encoding="utf-8")
    imported = {p: files_imported_by(p) for p in (tmp_path / "compiler").iterdir()}
    found = files_in_circles({p.stem: {o.stem for o in others} for p, others in imported.items()})
    assert found == {"a", "b", "c"}


def top_level_imports(path: Path) -> set[str]:
    """The packages that a file imports by absolute names, at its top or within its functions."""
    found = set()
    for node in statements(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_only_the_adapter_imports_ray():
    importers = {path.relative_to(ROOT).parts[:2] for path in source_files() if "ray" in top_level_imports(path)}
    assert importers == {("runner", "ray_adapter")}


def test_only_what_starts_runs_imports_the_adapter():
    importers = {mine for mine, other in edges() if other == "runner.ray_adapter"}
    assert importers == {"runner.engine", "runner.remote", "runner.rounds"}
