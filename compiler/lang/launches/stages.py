"""Splits a graph kernel into stages: straight work, which is a kernel of its own, loops that the device counts, and checkpoints.

A stage is the function with the statements of the stage alone. What is assigned in one stage has no value in another, but for values that
can be computed again: those of extents, arguments and literals (``values``). A function that is called at the top level may have stages,
too: each of its parts is then a function of its own, which a stage of the kernel calls.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

from ...errors import QdrunNameError, QdrunSyntaxError
from ...frontend.regions import checkpoint, graph_do_while
from ...frontend.source.parse import FunctionSource
from ...ir.nodes import Loc
from .scopes import Fact, FunctionScope, UnboundName, UndecidedStages
from .stage_values import is_repeatable, pass_values

USES = {("condition",): "while qd.graph.do_while(c):", ("cp_id", "yield_on"): "with qd.checkpoint(1, yield_on=flag):"}
"""The parameters of the calls that begin a stage -> an example."""


@dataclass(frozen=True, eq=False)
class LaunchStage:
    """Statements that are one launch."""

    source: FunctionSource


@dataclass(frozen=True)
class Flag:
    """The array on the device whose number decides.

    Attributes:
        use: the call that has it, for messages.
        value: finds it, from the arguments of the kernel.
    """

    use: str
    loc: Loc
    value: Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, eq=False)
class StageLoop:
    """Stages that run once, and again while the flag is not zero. ``labels``: of the checkpoints inside."""

    flag: Flag
    body: tuple[Any, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Pause:
    """Work after which the kernel pauses if the flag is not zero."""

    label: int
    flag: Flag
    body: tuple[Any, ...]


Stage = LaunchStage | StageLoop | Pause


@dataclass(frozen=True, eq=False)
class Plan:
    """The stages of a kernel for some arguments; none if it has no loop and no checkpoint.

    Attributes:
        facts: of the arguments that the plan depends on.
    """

    stages: tuple[Stage, ...]
    facts: tuple[Fact, ...]

    def fits(self, arguments: Sequence[Any]) -> bool:
        """Whether it is that of these arguments, too."""
        return all(fact.holds(arguments) for fact in self.facts)


def split(source: FunctionSource, checkpoints: bool, arguments: Sequence[Any] | None = None) -> Plan:
    """The stages of a graph kernel.

    Args:
        source: of the kernel.
        checkpoints: the kernel may have some.
        arguments: of a call; None: before any call.

    Raises:
        QdrunSyntaxError: a stage is not written as it must be, the kernel returns, or a value passes from one stage to another.
        UndecidedStages: the stages depend on the arguments, and there are none.
    """
    splitter = _Splitter(FunctionScope.of_kernel(source), checkpoints, arguments)
    stages = splitter.stages_of(splitter.kernel, source.tree.body)
    finished = () if stages is None else tuple(_finished(source, s) for s in stages)
    return Plan(finished, tuple(splitter.facts))


@dataclass(frozen=True)
class _Piece:
    """A part of a function, as a function that kernels can call."""

    __qd_func__: FunctionSource


@dataclass(frozen=True)
class _BoundPiece(_Piece):
    """The same of a method."""

    __self__: Any


@dataclass(eq=False)
class _Draft:
    """The statements of one launch, and the pieces of functions that they call, by name."""

    statements: list[ast.stmt]
    pieces: dict[str, _Piece] = field(default_factory=dict)


class _Splitter:
    """Reads the statements of one kernel, and of the functions with stages that it calls."""

    def __init__(self, kernel: FunctionScope, checkpoints: bool, arguments: Sequence[Any] | None) -> None:
        self.kernel, self.facts = kernel, list[Fact]()
        self._checkpoints, self._given = checkpoints, arguments
        self._labels: list[int] = []
        self._open: list[Any] = []  # functions that are being read
        self._numbers = iter(range(1 << 30))

    def stages_of(self, scope: FunctionScope, statements: Sequence[ast.stmt], nested: bool = False) -> list[Any] | None:
        """The drafts of a whole function, their values passed on; None: it has no stages.

        Raises:
            QdrunSyntaxError: it returns.
        """
        drafts = self._drafts(scope, statements, nested)
        if all(isinstance(d, _Draft) for d in drafts):
            return None
        for node in ast.walk(scope.source.tree):
            if isinstance(node, ast.Return):
                what = f"`{scope.source.name}` has stages, and returns here"
                raise self._error(scope, what, node, "write the result to an ndarray or a field")
        pass_values(scope.source, self.kernel.source.name, [d.statements for d in _drafts_of(drafts)])
        return drafts

    def _drafts(self, scope: FunctionScope, statements: Sequence[ast.stmt], nested: bool) -> list[Any]:
        """The stages of a list of statements. ``nested``: in a checkpoint, which has no other inside."""
        out: list[Any] = []
        for node in statements:
            for stage in self._stages(scope, node, nested) or [_Draft([node])]:
                last = out[-1] if out else None
                if isinstance(stage, _Draft) and isinstance(last, _Draft):
                    last.statements += stage.statements
                    last.pieces |= stage.pieces
                else:
                    out.append(stage)
        return [d for d in out if not isinstance(d, _Draft) or not all(map(_is_idle, d.statements))]

    def _stages(self, scope: FunctionScope, node: ast.stmt, nested: bool) -> list[Any] | None:
        """The stages of a statement; None: it is work."""
        if isinstance(node, ast.While) and self._is_call(scope, node.test, graph_do_while):
            return [self._loop(scope, node, nested)]
        if isinstance(node, ast.With) and self._is_call(scope, node.items[0].context_expr, checkpoint) and not nested:
            return [self._pause(scope, node)]
        if isinstance(node, ast.If) and scope.is_static(node.test):
            known, truth = self._known(scope.truth(node.test))
            inner = self._drafts(scope, node.body if truth else node.orelse, nested) if known else []
            return None if all(isinstance(d, _Draft) for d in inner) else inner
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return self._inlined(scope, node.value, nested)
        return None

    def _loop(self, scope: FunctionScope, node: ast.While, nested: bool) -> StageLoop:
        if node.orelse:
            raise self._error(scope, "a loop with `else` cannot be used in a kernel", node, "write it after the loop")
        assert isinstance(node.test, ast.Call)
        arguments = self._arguments(scope, node.test, ("condition",))
        flag = self._flag(scope, arguments["condition"], "qd.graph.do_while(..)")
        before = len(self._labels)
        body = self._drafts(scope, node.body, nested)
        return StageLoop(flag, tuple(body), tuple(self._labels[before:]))

    def _pause(self, scope: FunctionScope, node: ast.With) -> Pause:
        call = node.items[0].context_expr
        assert isinstance(call, ast.Call)
        if not self._checkpoints:
            hint = "write @qd.kernel(graph=True, checkpoints=True)"
            raise self._error(
                scope, f"kernel `{self.kernel.source.name}` has a checkpoint, and no checkpoints=True", node, hint
            )
        arguments = self._arguments(scope, call, ("cp_id", "yield_on"))
        label = scope.constant(arguments["cp_id"])
        if not isinstance(label, int) or isinstance(label, bool):
            what = (
                f"the cp_id of a checkpoint is a number that is known before a launch, not `{ast.unparse(arguments['cp_id'])}`"
            )
            raise self._error(scope, what, call, "give a literal or a member of an IntEnum")
        if label in self._labels:
            what = f"two checkpoints of kernel `{self.kernel.source.name}` have the cp_id {label!r}"
            raise self._error(scope, what, call, "number them")
        self._labels.append(label)
        flag = self._flag(scope, arguments["yield_on"], "qd.checkpoint(yield_on=..)")
        return Pause(label, flag, tuple(self._drafts(scope, node.body, nested=True)))

    def _arguments(self, scope: FunctionScope, call: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr]:
        """The arguments of a stage's call by name: each of ``names`` once."""
        given = dict(zip(names, call.args)) | {str(k.arg): k.value for k in call.keywords}
        if set(given) != set(names) or len(call.args) + len(call.keywords) != len(names):
            wrong = [f"no {name}=" for name in names if name not in given] + [f"{k}=" for k in given if k not in names]
            found = ", ".join(wrong) or f"{len(call.args) + len(call.keywords)} arguments"
            what = f"{ast.unparse(call.func)}() takes {' and '.join(names)}, each once; here: {found}"
            raise self._error(scope, what, call, f"write {USES[names]}")
        return given

    def _flag(self, scope: FunctionScope, node: ast.expr, use: str) -> Flag:
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            what = f"{use} takes an ndarray or a field by its name, not `{ast.unparse(node)}`"
            raise self._error(scope, what, node, "give a parameter, an attribute of one, or a field")
        loc = scope.source.loc(node, self.kernel.source.name)

        def value(arguments: Sequence[Any]) -> Any:
            try:
                return scope.value(node, arguments)
            except (AttributeError, LookupError) as e:
                what = f"{use} takes an integer ndarray or field without axes, and there is no `{ast.unparse(node)}`"
                raise QdrunNameError(what, loc, "define it before the call: qd.ndarray(qd.i32, shape=())") from e

        return Flag(use, loc, value)

    def _is_call(self, scope: FunctionScope, node: ast.expr, marker: Any) -> bool:
        return isinstance(node, ast.Call) and scope.constant(node.func) is marker

    # ---- functions with stages
    def _inlined(self, scope: FunctionScope, call: ast.Call, nested: bool) -> list[Any] | None:
        """The stages of a call, if it calls a function that has some."""
        _, callee = self._known(scope.fact(call.func))
        source = getattr(callee, "__qd_func__", None)
        if (
            not isinstance(source, FunctionSource)
            or source.fn in self._open
            or (call.keywords and any(k.arg is None for k in call.keywords))
        ):
            return None
        inner = scope.of_call(callee, call)
        if inner is None:
            return None
        self._open.append(source.fn)
        try:
            drafts = self.stages_of(inner, source.tree.body, nested)
        finally:
            self._open.pop()
        if drafts is None:
            return None
        self._refuse_changing(scope, inner, call)
        return [self._called(d, callee, call) for d in drafts]

    def _refuse_changing(self, scope: FunctionScope, inner: FunctionScope, call: ast.Call) -> None:
        """Refuse arguments of a function with stages that its parts would not all get alike."""
        name = inner.source.name
        for node in [*call.args, *(k.value for k in call.keywords)]:
            if not is_repeatable(scope.source, node, scope.source.fn.__code__.co_varnames):
                what = f"`{name}` has stages, and would compute `{ast.unparse(node)}` again in each"
                raise self._error(scope, what, node, "pass a parameter, a field or an ndarray")
        parameters = {p.name for p in inner.source.parameters}
        for node in ast.walk(inner.source.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in parameters:
                what = f"`{name}` has stages, and assigns its parameter `{node.id}`, which has its first value in the next"
                raise self._error(inner, what, node, "use an ndarray or a field")

    def _called(self, stage: Any, callee: Any, call: ast.Call) -> Any:
        """A stage of a function as a stage of its caller: work is a call of a piece of the function."""
        if not isinstance(stage, _Draft):
            return replace(stage, body=tuple(self._called(s, callee, call) for s in stage.body))
        source = callee.__qd_func__
        piece = _part(
            replace(source, fn=_again(source.fn)), stage.statements, stage.pieces
        )  # in caches each is a function of its own
        name = f"{source.name}__{next(self._numbers)}"
        made = copy.copy(call)
        made.func = ast.copy_location(ast.Name(name, ast.Load()), call.func)
        owner = getattr(callee, "__self__", None)
        found = _Piece(piece) if owner is None else _BoundPiece(piece, owner)
        return _Draft([ast.copy_location(ast.Expr(made), call)], {name: found})

    def _known(self, fact: Fact) -> tuple[bool, Any]:
        """Whether a value that the stages may depend on is there, and the value. Where it is none, lowering says so.

        Raises:
            UndecidedStages: it depends on arguments, or on a name that is not defined yet, and nothing was called yet.
        """
        if fact.depends and self._given is None:
            raise UndecidedStages
        try:
            value = fact.find(self._given or ())
        except Exception as e:  # a condition is the user's own code
            if isinstance(e, UnboundName) and self._given is None:
                raise UndecidedStages from None
            return False, None
        if fact.depends:
            self.facts.append(replace(fact, value=value))
        return True, value

    def _error(self, scope: FunctionScope, what: str, node: ast.AST, hint: str) -> QdrunSyntaxError:
        return QdrunSyntaxError(what, scope.source.loc(node, self.kernel.source.name), hint)


def _drafts_of(stages: Iterable[Any]) -> Iterator[_Draft]:
    """All work, in the order of the source."""
    for stage in stages:
        if isinstance(stage, _Draft):
            yield stage
        else:
            yield from _drafts_of(stage.body)


def _is_idle(node: ast.stmt) -> bool:
    """Whether a statement does nothing: a docstring."""
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


# ---- stages as functions
def _finished(source: FunctionSource, stage: Any) -> Stage:
    if isinstance(stage, _Draft):
        return LaunchStage(_part(source, stage.statements, stage.pieces))
    return replace(stage, body=tuple(_finished(source, s) for s in stage.body))


def _part(source: FunctionSource, statements: list[ast.stmt], pieces: Mapping[str, Any]) -> FunctionSource:
    """The function with these statements alone. Other lines are empty: by its lines a kernel is known in caches."""
    tree = copy.copy(source.tree)
    tree.body = list(statements)
    head = source.tree.body[0].lineno - 2  # the tree was read under an added first line
    kept = {row for s in statements for row in range(s.lineno - 2, (s.end_lineno or s.lineno) - 1)}
    lines = tuple(text if row < head or row in kept else "\n" for row, text in enumerate(source.lines))
    return replace(source, tree=tree, lines=lines, given=pieces)


def _again(fn: FunctionType) -> FunctionType:
    """The same function as another object."""
    made = FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    made.__annotations__, made.__kwdefaults__ = fn.__annotations__, fn.__kwdefaults__
    made.__qualname__, made.__module__ = fn.__qualname__, fn.__module__
    return made
