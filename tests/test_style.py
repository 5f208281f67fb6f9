"""The size budget and the manners of the code: small files, short functions, everything public documented and annotated."""

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from qdrun.tests.sources import PACKAGE, ROOT, files, statements, tree

OURS = (*PACKAGE, "tests/devices")
LINES, HARD_LINES, FUNCTION_LINES = 500, 800, 80
BACKEND_NAME = re.compile(r"cuda|nvidia|nvptx|amdgpu|\bhip\b|vulkan|spir-?v|\bmetal\b", re.I)
BACKENDS = ("cuda", "amdgpu", "vulkan", "spirv", "metal")
OF_BACKENDS = ("tests/devices/", *(f"compiler/{part}/{name}/" for part in ("runtime", "codegen") for name in BACKENDS))
# The files outside of the backends' folders that may name one: the registry, the options of a program and of a config with the names that
# the package hands on, the standard of other libraries for memory on a device, what the runner knows of cards without opening them.
MAY_NAME_A_BACKEND = {
    *("compiler/runtime/registry.py", "compiler/options.py", "compiler/face.py", "compiler/lang/init.py"),
    "compiler/peer_options.py",
    *("compiler/program/memory/device_arrays.py", "compiler/lang/interop_on_device.py"),
    *("runner/config/model.py", "runner/cli/planning.py"),
    *("runner/ledger/inventory.py", "runner/ledger/amd.py", "runner/ledger/memory.py"),
    *("compiler/tape/machine.py", "compiler/lang/compat/taichi_names.py"),
}

# Pronouns that leave the subject of a definition open.
VAGUE = re.compile(r"\b(whoever|whomever|nobody|somebody|that which)\b", re.I)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def functions(path: Path) -> list[Function]:
    return [n for n in statements(path) if isinstance(n, Function)]


def is_kernel(node: Function) -> bool:
    """Whether a function is a kernel or a func of the kernel language, whose arguments may go without a type."""
    return any(ast.unparse(d) in ("qd.kernel", "qd.func") for d in node.decorator_list)


@functools.cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """All classes of ours by their names."""
    found: dict[str, list[ast.ClassDef]] = {}
    for path in files(*OURS):
        for node in statements(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def methods(node: ast.ClassDef) -> dict[str, Function]:
    return {f.name: f for f in node.body if isinstance(f, Function)}


def attributes(node: ast.ClassDef) -> set[str]:
    """The methods of a class, and what it assigns."""
    targets = [t for s in node.body if isinstance(s, ast.Assign) for target in s.targets for t in ast.walk(target)]
    return {*methods(node), *(t.id for t in targets if isinstance(t, ast.Name))}


def bases_of(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """The classes of ours that a class names as its bases, and theirs."""
    for base in node.bases:
        name = ast.unparse(base).split("[")[0].split(".")[-1]
        for found in classes().get(name, ()):
            if found is not node:
                yield from (found, *bases_of(found))


@functools.cache
def protocols() -> list[ast.ClassDef]:
    return [c for same in classes().values() for c in same if "Protocol" in map(ast.unparse, c.bases)]


def inherited(node: ast.ClassDef) -> set[str]:
    """The methods of a class that a base of it documents, or a Protocol all methods of which the class has."""
    above = list(bases_of(node))
    own = set().union(*map(attributes, (node, *above)))
    above += [c for c in protocols() if c is not node and own >= methods(c).keys()]
    return {name for c in above for name, f in methods(c).items() if ast.get_docstring(f)}


def undocumented(path: Path) -> Iterator[ast.ClassDef | Function]:
    """Classes and functions without a docstring that another module can reach by names without an underscore.

    An override may go without: it says only what the method above it does not.
    """

    def inside(body: list[ast.stmt], above: set[str]) -> Iterator[ast.ClassDef | Function]:
        for node in body:
            if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
                continue
            if isinstance(node, ast.ClassDef):
                yield from inside(node.body, inherited(node))
            elif node.name in above or any(ast.unparse(d).endswith((".setter", "overload")) for d in node.decorator_list):
                continue
            if not ast.get_docstring(node):
                yield node

    return inside(tree(path).body, set())


def test_our_files_have_at_most_500_lines():
    sizes = {name_of(p): len(p.read_text(encoding="utf-8").splitlines()) for p in files(*OURS)}
    assert not {name: n for name, n in sizes.items() if n > LINES}


def test_no_file_at_all_has_more_than_800_lines():
    sizes = {name_of(p): len(p.read_text(encoding="utf-8").splitlines()) for p in files(*OURS, "tests", "benchmarks")}
    assert not {name: n for name, n in sizes.items() if n > HARD_LINES}


def test_functions_have_at_most_80_lines():
    long = [
        f"{name_of(path)}:{f.lineno} {f.name}"
        for path in files(*OURS, "tests")
        for f in functions(path)
        if (f.end_lineno or 0) - f.lineno + 1 > FUNCTION_LINES
    ]
    assert not long


ASSERTS = re.compile(r"\bassert\b|\braise\b|\b(raises|warns|fail|assert_\w+|run_state_machine_as_test)\(|\bcheck=True\b")


def test_every_test_can_fail():
    """By an assertion, in itself or in a helper that it calls: of its file, else of any with this name."""
    files_of: dict[str, set[Path]] = {}
    texts: dict[tuple[str, Path], str] = {}
    for path in files("tests"):
        lines = path.read_text(encoding="utf-8").splitlines()
        for f in functions(path):
            files_of.setdefault(f.name, set()).add(path)
            texts[f.name, path] = texts.get((f.name, path), "") + "\n".join(lines[f.lineno : f.end_lineno])
    sure = {key for key, text in texts.items() if ASSERTS.search(text)}
    callers: dict[tuple[str, Path], list[tuple[str, Path]]] = {}
    for key in texts.keys() - sure:
        for name in {*re.findall(r"\b(\w+)(?:\.hypothesis\.inner_test)?\(", texts[key])} & files_of.keys():
            for path in {key[1]} & files_of[name] or files_of[name]:
                callers.setdefault((name, path), []).append(key)
    new = list(sure)
    while new:
        found = [key for key in callers.pop(new.pop(), ()) if key not in sure]
        sure |= {*found}
        new += found
    assert not [f"{name_of(path)} {name}" for name, path in texts.keys() - sure if name.startswith("test_")]


def test_every_public_class_and_function_says_what_it_does():
    assert not [f"{name_of(path)}:{n.lineno} {n.name}" for path in files(*OURS) for n in undocumented(path)]


def test_overrides_go_without_a_docstring_and_other_methods_do_not(tmp_path):
    path = tmp_path / "drivers.py"
    path.write_text(
        'class MyDriver(HipDriver):\n    """Ours."""\n    def open(self): ...\n    def opened(self): ...\n', encoding="utf-8"
    )
    assert [n.name for n in undocumented(path)] == ["opened"]


def test_every_module_says_what_it_is():
    bare = []
    for path in files(*OURS):
        text = ast.get_docstring(tree(path))
        if not text or "to be described" in text.lower():
            bare.append(name_of(path))
    assert not bare


def test_sentences_name_their_subject():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    vague = [
        f"{name_of(path)}:{number} {line.strip()}"
        for path in [*files(*OURS), *pages]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if VAGUE.search(line)
    ]
    assert not vague


@pytest.mark.parametrize("folder", ["docs", "docs/internals"])
def test_every_page_begins_with_its_subject_and_its_use(folder):
    """The first paragraph of a page: at least two sentences, one of which says when a reader needs the page."""
    silent = []
    for page in sorted((ROOT / folder).glob("*.md")):
        first = page.read_text(encoding="utf-8").split("\n", 1)[1].strip().split("\n\n")[0]
        sentences = re.split(r"[.:]\s+(?=[A-Z`*\[])", first)
        if len(sentences) < 2 or not re.search(r"\bneeds?\b|\b[Rr]ead (it|on)\b|\bLook up\b|\bshows how\b", first):
            silent.append(page.name)
    assert not silent


def test_every_function_is_annotated():
    bare = []
    for path in files(*OURS):
        for f in functions(path):
            a = f.args
            named = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
            missing = [x.arg for x in named if x.annotation is None and x.arg not in ("self", "cls")]
            if (missing or f.returns is None) and not is_kernel(f):
                bare.append(f"{name_of(path)}:{f.lineno} {f.name}")
    assert not bare


def test_only_the_places_of_backends_name_one():
    paths = [ROOT / "__init__.py", *files(*OURS)]
    said = {name_of(p) for p in paths if BACKEND_NAME.search(p.read_text(encoding="utf-8"))}
    said = {name for name in said if not name.startswith(OF_BACKENDS)}
    assert said == MAY_NAME_A_BACKEND, said ^ MAY_NAME_A_BACKEND


def test_folders_have_at_most_15_files():
    sizes = Counter(p.parent for p in files(*OURS))
    assert not {name_of(folder): n for folder, n in sizes.items() if n > 15}


@pytest.mark.parametrize("name", ["utils", "helpers", "common", "misc"])
def test_no_room_for_everything(name):
    assert not [p for p in files(*OURS) if p.stem == name]
