"""The context of lowering one kernel: the builder, the open functions, the two dispatchers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any

from ...errors import QdrunCompilationError, QdrunNameError, QdrunSyntaxError, QdrunTypeError
from ...ir.builder import convert
from ...ir.nodes import Block, Const, Loc, Op, Place, Stmt
from ...ir.ops import DIVISIONS, TABLE
from ...ir.types import u1
from ..advice import after_loop, described_module, missing_value
from ..markers import Grouped, NDRange, RangeSpec
from ..signature import LowerOptions
from ..source.inputs import Inputs
from ..syntax.tasks import Tasks
from ..values.ops import cast
from ..values.structs import StructTensor, describe_struct
from ..values.tensor import TensorRef
from ..values.values import MatrixValue, StructValue, resolve
from .bindings import read
from .builder import FrontBuilder
from .scope import Binding, Frame, Rematerialized, StructVar, Temporary, last_mentions

ExprHandler = Callable[["Context", Any], Any]
StmtHandler = Callable[["Context", Any], "str | None"]
Stop = tuple[Block | None, frozenset[Place]]
"""A block whose reads carry no gradient (None: the whole kernel), and of which places."""


class LocatedCode:
    """The block of ``Context.at``. A class, because a generator as a context manager makes twice the calls."""

    __slots__ = ("_b", "_before", "_loc")

    def __init__(self, b: FrontBuilder, loc: Loc) -> None:
        self._b, self._before, self._loc = b, b.loc, loc

    def __enter__(self) -> Loc:
        self._b.loc = self._loc
        return self._loc

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._b.loc = self._before
        if isinstance(error, QdrunCompilationError) and error.loc is None:
            raise type(error)(error.what, self._loc, error.hint) from error.__cause__


@dataclass(eq=False)
class Context:
    """The state of one lowering.

    Attributes:
        where: the code that is being emitted: a "serial" task, the "prologue" of a parallel task, or its body ("parallel").
        static: number of open ``static(..)``.
        next_loop: the ``loop_config`` of the next loop.
        stops: fields with ``stop_grad``.
        arrays: what stands for the ndarrays that template arguments hold, by ``id``.
        numbers: what stands for numbers of template arguments that come with each launch, by the ``id`` of their owner and their name.
        inputs: the record of what is looked up outside the kernel, if one is kept.
    """

    b: FrontBuilder
    options: LowerOptions
    tasks: Tasks
    expr_handlers: dict[type[ast.AST], ExprHandler]
    stmt_handlers: dict[type[ast.AST], StmtHandler]
    top_handlers: dict[type[ast.AST], StmtHandler]
    frames: list[Frame] = field(default_factory=list)
    where: str = "serial"
    static: int = 0
    next_loop: dict[str, Any] = field(default_factory=dict)
    stops: list[Stop] = field(default_factory=list)
    arrays: dict[int, TensorRef] = field(default_factory=dict)
    numbers: dict[tuple[int, str], Rematerialized] = field(default_factory=dict)
    inputs: Inputs | None = None

    @property
    def frame(self) -> Frame:
        """The function that is being lowered."""
        return self.frames[-1]

    def at(self, node: ast.AST) -> LocatedCode:
        """Set the location of emitted statements, and of errors without one, to ``node``."""
        return LocatedCode(self.b, self.frames[-1].source.loc(node, self.options.name))

    def expr(self, node: ast.expr) -> Any:
        """The value of an expression.

        Raises:
            QdrunCompilationError: at the user's line.
        """
        with self.at(node):
            handler = self.expr_handlers.get(type(node))
            if handler is None:
                raise self.refuse(node)
            value = handler(self, node)
        if not isinstance(node, (ast.Attribute, ast.Subscript)):  # ``resolve_target`` has done it
            self.produced(node, value)
        return value

    def produced(self, node: ast.AST, value: Any) -> None:
        """An expression gave a value: see ``Inputs``."""
        if self.inputs is not None:
            self.inputs.produced(node, value)

    def consumed(self, node: ast.AST, value: Any = None) -> None:
        """The value of an expression was passed on unread; ``value``: a plain container, whose parts are passed on."""
        if self.inputs is not None and type(value) in (type(None), tuple, list, dict):
            self.inputs.consumed(node)

    def stmt(self, node: ast.stmt) -> str | None:
        """Lower a statement; the result says how it certainly leaves its block: break, continue, return, or None.

        Raises:
            QdrunCompilationError: at the user's line.
        """
        with self.at(node):
            handler = self.stmt_handlers.get(type(node))
            if handler is None:
                raise self.refuse(node)
            return handler(self, node)

    def block(self, statements: list[ast.stmt]) -> str | None:
        """Lower statements in order; what follows a certain exit is dead and is not lowered."""
        for s in statements:
            left = self.stmt(s)
            if left:
                return left
        return None

    def top_block(self, statements: list[ast.stmt]) -> str | None:
        """Lower statements that stand at the top level of the kernel: between the parallel loops among them, serial tasks."""
        last = last_mentions(statements)
        for k, node in enumerate(statements):
            with self.frame.mentions(last, k), self.at(node):
                handler = self.top_handlers.get(type(node))
                if handler is not None:
                    left = handler(self, node)
                else:
                    with self.tasks.serial():
                        left = self.stmt(node)
            if left:
                return left
        return None

    def refuse(self, node: ast.AST) -> QdrunSyntaxError:
        """The error for Python that kernels do not have."""
        what, hint = _REFUSED.get(type(node), (f"`{type(node).__name__}`", "express it with what kernels have"))
        return QdrunSyntaxError(f"{what} cannot be used in a kernel", self.frame.source.loc(node, self.options.name), hint)

    def static_expr(self, node: ast.expr) -> Any:
        """The value of an expression that must be known at compile time; a literal of a type as a Python number.

        Raises:
            QdrunTypeError: it is not.
        """
        value = self.static_value(node)
        if isinstance(value, Const):
            return bool(value.value) if value.dtype is u1 else value.value
        return value

    def static_truth(self, node: ast.expr) -> bool:
        """Whether an expression that must be known at compile time is true.

        Raises:
            QdrunTypeError: it is not known, or it is a vector.
        """
        value = self.static_expr(node)
        if isinstance(value, MatrixValue):
            loc = self.frame.source.loc(node, self.options.name)
            raise QdrunTypeError("the truth of a vector or a matrix is ambiguous", loc, "use .any() or .all()")
        return bool(value)

    def static_value(self, node: ast.expr, parts: bool = False) -> Any:
        """As ``static_expr``; a literal keeps its type. With ``parts``, a tuple or a list may have parts that are not known."""
        self.static += 1
        try:
            value = self.expr(node)
        finally:
            self.static -= 1
        if not is_static(value) and not (parts and isinstance(value, (tuple, list))):
            raise QdrunTypeError(
                "this value is not known at compile time",
                self.frame.source.loc(node, self.options.name),
                "use literals, template() parameters, or values from outside the kernel; or leave static() out",
            )
        return value

    def lookup(self, name: str) -> Binding | None:
        """The binding of a name; a variable of an earlier task is brought into the serial task that is being lowered.

        Raises:
            QdrunNameError: Python's variable would hold the last index of a loop here.
        """
        binding = self.frame.find(name)
        if binding is not None and binding.stale:
            raise QdrunNameError(f"`{name}` is also the index of a loop before this line", hint=after_loop(name))
        if binding is not None and self.where == "serial":
            self._fetch(binding)
        return binding

    def _fetch(self, binding: Binding) -> None:
        if isinstance(binding.value, Temporary):
            self.tasks.fetch(binding)
        elif isinstance(binding.value, StructVar):
            for member in binding.value.members.values():
                self._fetch(member)

    def name(self, name: str) -> Any:
        """The value of a name, read now.

        Raises:
            QdrunNameError: it is not known here.
        """
        binding = self.lookup(name)
        if binding is not None:
            return self.read(binding.value)
        code = self.frame.source.fn.__code__
        if name in self.frame.assigned and (name in code.co_varnames or name in code.co_cellvars):
            of_loop = name not in self.frame.stores
            outside = self.frame.source.fn.__globals__.get(name)
            if name in self.frame.hidden and isinstance(getattr(outside, "shape", None), tuple):
                return self.python(self.frame.source.lookup(name), name)  # the field that the variable will hide
            hint = after_loop(name) if of_loop else missing_value(name, outside)
            raise QdrunNameError(f"`{name}` has no value here", hint=hint)
        return self.python(self.frame.source.lookup(name), name)

    def python(self, value: Any, name: str = "") -> Any:
        """The value of a Python object inside this kernel: see ``resolve``; an ndarray in a template argument is its argument."""
        return self.arrays[id(value)] if id(value) in self.arrays else resolve(value, name)

    def read(self, value: Any) -> Any:
        """The present content of what a name is bound to."""
        return read(self.b, value)

    @contextmanager
    def scratch(self) -> Iterator[Block]:
        """Emit into a block that is nowhere yet."""
        with self.b.into([]) as block:
            yield block

    def splice(self, block: Block) -> None:
        """Put a block's statements here."""
        self.b.block.extend(block)


def is_cheap(block: Block, limit: int = 12) -> bool:
    """Whether a block may run although its value is not asked for: short, pure, and unable to fault."""
    return len(block) <= limit and all(_harmless(s) for s in block)


def _harmless(s: Stmt) -> bool:
    if not isinstance(s, Op):
        return False
    if s.op in DIVISIONS and s.dtype.is_int:
        return isinstance(s.args[1], Const) and s.args[1].value not in (0, -1)
    return s.op == "load" or TABLE[s.op].pure


def is_static(value: Any) -> bool:
    """Whether a value is known at compile time. A field is: which field it is, not what it holds."""
    if isinstance(value, (tuple, list)):
        return all(is_static(v) for v in value)
    if isinstance(value, MatrixValue):
        return all(isinstance(x, Const) for x in value.items)
    if isinstance(value, NDRange):
        return value.known
    if isinstance(value, Grouped):
        return is_static(value.space)
    return not isinstance(value, (Op, RangeSpec, StructValue))


def is_runtime(value: Any) -> bool:
    """Whether a value is a scalar or a matrix that the kernel computes with (a literal of a type included)."""
    return isinstance(value, (Op, Const, MatrixValue))


def rounded(b: FrontBuilder, value: Any) -> Any:
    """A value as a variable would hold it: a literal is rounded to its type."""
    if isinstance(value, StructValue):
        return value.map(lambda item: rounded(b, item))
    if isinstance(value, (Const, MatrixValue)):
        return cast(b, value, value.dtype) if not isinstance(value, MatrixValue) or value.items else value
    return value


def zero(dtype: Any) -> Const:
    """The literal 0 of a type."""
    return Const(convert(0, dtype), dtype)


def describe(value: Any) -> str:
    """A value as a message names it."""
    if isinstance(value, (StructValue, StructTensor)):
        return describe_struct(value)
    if isinstance(value, TensorRef):
        return f"the field or array `{value.name}`"
    if isinstance(value, MatrixValue):
        return f"a {'vector' if len(value.shape) == 1 else 'matrix'} of shape {value.shape}"
    if isinstance(value, (Op, Const)):
        return f"a number of type {value.dtype}"
    if isinstance(value, (RangeSpec, NDRange)):
        return "a range whose ends are only known at run time"
    return described_module(value) if isinstance(value, ModuleType) else f"a Python {type(value).__name__}"


_REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Try: ("`try`", "check the condition with `if` instead"),
    ast.Raise: ("`raise`", "use `assert condition, message`"),
    ast.With: ("`with`", "call the setting's function before the loop instead"),
    ast.Lambda: ("`lambda`", "write a function decorated with @func"),
    ast.Yield: ("`yield`", "write the values to a field"),
    ast.YieldFrom: ("`yield from`", "write the values to a field"),
    ast.Import: ("`import`", "import the module at the top of the file"),
    ast.ImportFrom: ("`import`", "import the module at the top of the file"),
    ast.Delete: ("`del`", "a variable ends with its block"),
    ast.Global: ("`global`", "use a field"),
    ast.Nonlocal: ("`nonlocal`", "use a field"),
    ast.FunctionDef: ("a nested `def`", "define a @func outside of the kernel"),
    ast.AsyncFunctionDef: ("`async def`", "define a @func outside of the kernel"),
    ast.ClassDef: ("`class`", "define the class outside of the kernel"),
    ast.Set: ("a set", "use a tuple with static()"),
    ast.Dict: ("a dict", "use separate variables"),
    ast.SetComp: ("a set comprehension", "use a list comprehension over static()"),
    ast.DictComp: ("a dict comprehension", "use separate variables"),
    ast.Starred: ("a `*` argument", "write the elements out"),
    ast.NamedExpr: ("`:=` in static()", "assign on a line of its own"),
    ast.Match: ("`match`", "use if / elif"),
    ast.Await: ("`await`", "kernels run to their end"),
    ast.AsyncFor: ("`async for`", "use `for`"),
    ast.AsyncWith: ("`async with`", "call the function directly"),
    ast.Slice: ("a slice", "index the elements one by one"),
}
