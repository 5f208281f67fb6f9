"""Makes a failing program small: statements are taken out, expressions become their parts or small numbers, as long as it fails alike.

Indices of arrays and the helpers that keep programs within what is defined (``grid``, ``nonan``) are left as they are: without them a
program would fail for another reason.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator

KEPT = ("grid", "nonan")
Edit = Callable[[], None]


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements, the outermost first."""
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                if not (isinstance(node, ast.FunctionDef) and node.name in KEPT):
                    yield block


def _cut(block: list[ast.stmt], start: int, count: int) -> Edit:
    def edit() -> None:
        block[start : start + count] = [] if len(block) > count else [ast.Pass()]

    return edit


def _swap(block: list[ast.stmt], at: int, new: list[ast.stmt]) -> Edit:
    def edit() -> None:
        block[at : at + 1] = new

    return edit


def statement_edits(tree: ast.Module) -> Iterator[Edit]:
    """Runs of statements taken out, the longest first; blocks in the place of their ``if`` or ``with``."""
    blocks = list(_blocks(tree))
    longest = max((len(b) for b in blocks), default=1)
    count = longest
    while count:
        for block in blocks:
            if count <= len(block) and not (count == len(block) == 1 and isinstance(block[0], ast.Pass)):
                for start in range(len(block) - count, -1, -max(1, count // 2)):
                    yield _cut(block, start, count)
        count //= 2
    for block in blocks:
        for at, s in enumerate(block):
            if isinstance(s, ast.If):
                yield _swap(block, at, s.body)
                if s.orelse:
                    yield _swap(block, at, s.orelse)
                    yield _swap(block, at, [ast.If(s.test, s.body, [])])
            elif isinstance(s, (ast.For, ast.While)) and block is not tree.body:
                inside = [n for b in s.body for n in ast.walk(b)]
                if not any(isinstance(n, (ast.Break, ast.Continue)) for n in inside):
                    yield _swap(block, at, s.body)
            elif isinstance(s, ast.AugAssign):
                yield _swap(block, at, [ast.Assign([s.target], s.value, lineno=0)])


def _simpler(e: ast.expr) -> list[ast.expr]:
    """What may stand for an expression."""
    out: list[ast.expr] = []
    if isinstance(e, ast.BinOp):
        out = [e.left, e.right]
    elif isinstance(e, ast.UnaryOp):
        out = [e.operand]
    elif isinstance(e, ast.BoolOp):
        out = list(e.values)
    elif isinstance(e, ast.Compare) and len(e.ops) > 1:
        out = [ast.Compare(e.left, e.ops[:1], e.comparators[:1])]
    elif isinstance(e, ast.IfExp):
        out = [e.body, e.orelse]
    elif isinstance(e, ast.Call):
        out = [a for a in e.args if not isinstance(a, ast.Starred)]
    if isinstance(e, ast.Constant):
        if isinstance(e.value, float) and e.value not in (0.0, 1.0):
            out = [ast.Constant(1.0), ast.Constant(float(int(e.value)) if abs(e.value) < 1e9 else 2.0)]
        elif isinstance(e.value, int) and not isinstance(e.value, bool) and abs(e.value) > 1:
            out = [ast.Constant(1), ast.Constant(e.value // 2)]
    elif not isinstance(e, (ast.Name, ast.Attribute)):
        out += [ast.Constant(1), ast.Constant(1.0)]
    return [x for x in out if ast.dump(x) != ast.dump(e)]


def expression_edits(tree: ast.Module) -> Iterator[Edit]:
    """Expressions replaced by simpler ones, the outermost first; what Python itself runs stays."""
    kernels = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.decorator_list]
    inside = {id(n) for k in kernels for n in ast.walk(k)}
    hosts = {id(n) for n in ast.walk(tree) if id(n) not in inside}
    for node in ast.walk(tree):
        if (isinstance(node, ast.FunctionDef) and node.name in KEPT) or id(node) in hosts:
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KEPT:
            continue
        for name, value in ast.iter_fields(node):
            if name in ("slice", "target", "targets", "func", "annotation", "returns", "decorator_list", "iter", "keywords"):
                continue
            if isinstance(value, ast.expr) and not _kept(value):
                for new in _simpler(value):
                    yield lambda node=node, name=name, new=new: setattr(node, name, new)
            elif isinstance(value, list):
                for at, item in enumerate(value):
                    if isinstance(item, ast.expr) and not _kept(item):
                        for new in _simpler(item):
                            yield lambda value=value, at=at, new=new: value.__setitem__(at, new)


def _kept(e: ast.expr) -> bool:
    return isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id in KEPT


def _pass(text: str, edits: Callable[[ast.Module], Iterator[Edit]], fails: Callable[[str], bool], end: float) -> str:
    """One kind of edits, until none of them leaves a program that fails."""
    at, tried = 0, {text}
    while time.monotonic() < end:
        tree = ast.parse(text)
        edit = next((e for k, e in enumerate(edits(tree)) if k == at), None)
        if edit is None:
            return text
        edit()
        try:
            new = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        except Exception:  # an edit that leaves no Python
            at += 1
            continue
        if new not in tried and len(new) <= len(text) + 8 and fails(new):
            text = new
        else:
            at += 1
        tried.add(new)
    return text


def shrink(text: str, fails: Callable[[str], bool], seconds: float = 60.0) -> str:
    """A smaller program for which ``fails`` still holds."""
    end = time.monotonic() + seconds
    before = ""
    while text != before and time.monotonic() < end:
        before = text
        for edits in (statement_edits, expression_edits):
            text = _pass(text, edits, fails, end)
    return text
