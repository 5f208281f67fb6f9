"""Builder of LLVM IR for the runtime's own native code: launchers, the thread pool, recorders of command buffers.

A native function is a Python function that emits its body once::

    @function("i64")
    def total(f: Builder, items: Ptr, n: I64) -> None:
        '''The sum of ``n`` words.'''
        out = f.var(0)
        with f.range(n) as i:
            out.value = out.value + items[i]
        f.ret(out.value)

    text = NativeModule([total]).text

Addresses are stored in 8-byte words, so ``i64`` and ``ptr`` convert to each other wherever the other type is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

_BITS = {"i64": 64, "ptr": 64, "i32": 32, "i16": 16, "i8": 8, "i1": 1, "double": 64, "float": 32}
_ANNOTATIONS = {"Ptr": "ptr", "I64": "i64", "I32": "i32", "I1": "i1"}


def _operator(op: str, result: str = "") -> Callable[[Value, Operand], Value]:
    """A method of ``Value``: an instruction with two operands of its type."""

    def emit(x: Value, y: Operand) -> Value:
        ty = x.ty
        if isinstance(y, Value):
            right = y.text if y.ty == ty else x.f.as_type(y, ty)
        else:
            right = str(y) if ty == "i64" else x.f.as_type(y, ty)
        return x.f.new(result or ty, f"{op} {ty} {x.text}, {right}")

    return emit


class Value:
    """A register or a literal of a function. Comparisons with ``<``, ``<=``, ``>``, ``>=`` are signed; ``//``, ``%``, ``>>`` unsigned.

    ``p + n`` is ``n`` bytes after a pointer, ``p[k]`` the ``k``-th 8-byte word behind it.
    """

    __slots__ = ("f", "text", "ty")  # without a constructor: thousands are made at the first launch of a process
    __hash__ = None  # type: ignore[assignment]
    f: Builder
    ty: str
    text: str

    def __add__(self, other: Operand) -> Value:
        if self.ty != "ptr":
            return _ADD(self, other)
        return self if other.__class__ is int and not other else self._step("i8", other)

    __sub__, __mul__, __floordiv__, __mod__ = _operator("sub"), _operator("mul"), _operator("udiv"), _operator("urem")
    plus = _operator("fadd")  # of reals
    __and__, __or__, __xor__ = _operator("and"), _operator("or"), _operator("xor")
    __lshift__, __rshift__ = _operator("shl"), _operator("lshr")
    __lt__, __le__ = _operator("icmp slt", "i1"), _operator("icmp sle", "i1")
    __gt__, __ge__ = _operator("icmp sgt", "i1"), _operator("icmp sge", "i1")
    below, above = _operator("icmp ult", "i1"), _operator("icmp ugt", "i1")  # unsigned

    __eq__: ClassVar[Callable[[Value, Operand], Value]] = _operator("icmp eq", "i1")  # type: ignore[assignment]
    __ne__: ClassVar[Callable[[Value, Operand], Value]] = _operator("icmp ne", "i1")  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TypeError(f"{self.ty} {self.text} is known when the code runs: use f.if_(..), and & for and")

    def __rsub__(self, other: int) -> Value:
        return self.f.new(self.ty, f"sub {self.ty} {other}, {self.text}")

    def __invert__(self) -> Value:
        return self.f.new(self.ty, f"xor {self.ty} {self.text}, -1")

    def select(self, yes: Operand, no: Operand) -> Value:
        """``yes`` where this is true, else ``no``; at least one is a ``Value``."""
        ty = yes.ty if isinstance(yes, Value) else no.ty if isinstance(no, Value) else "i64"
        return self.f.new(ty, f"select i1 {self.text}, {ty} {self.f.as_type(yes, ty)}, {ty} {self.f.as_type(no, ty)}")

    def to(self, ty: str, op: str = "zext") -> Value:
        """Convert to another type. ``op``: for a larger one; a smaller one is ``trunc``, or ``fptrunc``."""
        if _BITS[ty] < _BITS[self.ty]:
            op = "fptrunc" if ty == "float" else "trunc"
        return self.f.new(ty, f"{op} {self.ty} {self.text} to {ty}")

    # -- memory
    def _step(self, unit: str, n: Operand) -> Value:
        where = self.text if self.ty == "ptr" else self._address()
        return self.f.new(
            "ptr", f"getelementptr {unit}, ptr {where}, i64 {n if n.__class__ is int else self.f.as_type(n, 'i64')}"
        )

    def _address(self) -> str:
        if self.ty == "i64":
            return self.f.new("ptr", f"inttoptr i64 {self.text} to ptr").text
        return self.f.as_type(self, "ptr")

    def words(self, k: Operand) -> Value:
        """The address of the ``k``-th word behind this pointer."""
        return self if k.__class__ is int and not k else self._step("i64", k)

    def __getitem__(self, k: Operand) -> Value:
        return (self._step("i64", k) if k.__class__ is not int or k else self).load()

    def __setitem__(self, k: Operand, value: Operand) -> None:
        (self._step("i64", k) if k.__class__ is not int or k else self).store(value)

    def load(self, ty: str = "i64", order: str = "") -> Value:
        """Load from here. ``order``: of an atomic load."""
        where = f"{ty}, ptr {self.text if self.ty == 'ptr' else self._address()}"
        return self.f.new(ty, f"load atomic {where} {order}, align {_BITS[ty] // 8}" if order else f"load {where}")

    def store(self, value: Operand, ty: str = "", order: str = "") -> None:
        """Store here. ``ty``: of a literal, ``i64`` by default; ``order``: of an atomic store."""
        ty = ty or (value.ty if isinstance(value, Value) else "i64")
        given = value.text if isinstance(value, Value) and value.ty == ty else self.f.as_type(value, ty)
        what = f"{ty} {given}, ptr {self.text if self.ty == 'ptr' else self._address()}"
        self.f.put(f"store atomic {what} {order}, align {_BITS[ty] // 8}" if order else f"store {what}")

    def update(self, op: str, value: Operand, order: str, ty: str = "i64") -> Value:
        """``atomicrmw``: the value before."""
        return self.f.new(ty, f"atomicrmw {op} ptr {self.f.as_type(self, 'ptr')}, {ty} {self.f.as_type(value, ty)} {order}")

    def exchange_if(self, old: Operand, new: Operand, orders: str, ty: str = "i64") -> Value:
        """``cmpxchg``: whether the value was ``old``, and is ``new`` now."""
        pair = f"{{ {ty}, i1 }}"
        both = f"{ty} {self.f.as_type(old, ty)}, {ty} {self.f.as_type(new, ty)} {orders}"
        found = self.f.new(pair, f"cmpxchg ptr {self.f.as_type(self, 'ptr')}, {both}")
        return self.f.new("i1", f"extractvalue {pair} {found.text}, 1")


def value_of(f: Builder, ty: str, text: str) -> Value:
    """An operand that is no register, or a parameter."""
    made = Value()
    made.f, made.ty, made.text = f, ty, text
    return made


_ADD = _operator("add")
Operand = Value | int
Ptr = I64 = I32 = I1 = Value
"""Types of parameters, read by ``function``."""


class Variable:
    """A local variable: a stack slot, which LLVM turns into registers."""

    __slots__ = ("at", "ty")

    def __init__(self, at: Value, ty: str) -> None:
        self.at, self.ty = at, ty

    @property
    def value(self) -> Value:
        """Its value at this place of the code."""
        return self.at.f.new(self.ty, f"load {self.ty}, ptr {self.at.text}")

    @value.setter
    def value(self, x: Operand) -> None:
        self.at.store(x, self.ty)


class IfBlock:
    """The block of ``Builder.if_``. A class, because a generator as a context manager makes twice the calls."""

    __slots__ = ("condition", "f", "no")
    f: Builder
    condition: Value
    no: str

    def __enter__(self) -> None:
        self.no = self.f._branch(self.condition)

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.f._close_branch(self.no)


class NativeFunction(NamedTuple):
    """A function of native code.

    Attributes:
        types: of its parameters.
        emit: emits its body; None: it is external.
        attributes: of the definition, such as ``alwaysinline``.
    """

    name: str
    result: str
    types: tuple[str, ...]
    emit: Callable[..., None] | None = None
    attributes: str = ""


def external(name: str, result: str, *types: str) -> NativeFunction:
    """A function that is linked by name."""
    return NativeFunction(name, result, types)


def function(result: str, *, name: str = "", attributes: str = "") -> Callable[[Callable[..., None]], NativeFunction]:
    """Define a native function. Its parameters have the types of their annotations: ``Ptr``, ``I64``, ``I32``, ``I1``.

    Annotations must be strings, as ``from __future__ import annotations`` makes them.
    """

    def define(emit: Callable[..., None]) -> NativeFunction:
        types = [_ANNOTATIONS[t] for name, t in emit.__annotations__.items() if name not in ("f", "return")]
        return NativeFunction(name or emit.__name__, result, tuple(types), emit, attributes)

    return define


_COPY = external("llvm.memcpy.p0.p0.i64", "void", "ptr", "ptr", "i64", "i1")
_MIN = external("llvm.smin.i64", "i64", "i64", "i64")


class Builder:
    """One function under construction: emits at the end of the open block. ``constants``: of the module."""

    def __init__(self, module: NativeModule, definition: NativeFunction) -> None:
        self.module, self.constants, self._definition = module, module.constants, definition
        self._head: list[str] = []  # stack slots, once at the top
        self._lines: list[str] = []
        self._returns: dict[str, str] = {}  # the label of a block that only returns, by its instruction
        self._void = value_of(self, "void", "")
        self._n = 0
        self._open = True  # the current block has no terminator yet
        self._loops: list[list[Any]] = []  # labels of ``continue`` and ``break``, and whether there is a ``break``
        self._last_if = (
            -1,
            -1,
        )  # for ``else_``: the line of the jump at the end of an ``if_`` (-1: none), how many lines there were

    # -- text
    def new(self, ty: str, right: str) -> Value:
        """A new register."""
        assert self._open, f"{self._definition.name}: code behind the end of a block: {right}"
        self._n += 1
        made = Value()
        made.f, made.ty, made.text = self, ty, f"%r{self._n}"
        self._lines.append(f"  {made.text} = {right}")
        return made

    def put(self, line: str) -> None:
        """An instruction without a result."""
        assert self._open, f"{self._definition.name}: code behind the end of a block: {line}"
        self._lines.append("  " + line)

    def as_type(self, x: Operand, ty: str) -> str:
        """An operand of a type, as text."""
        if isinstance(x, Value):
            if x.ty == ty:
                return x.text
            if {x.ty, ty} != {"i64", "ptr"}:
                raise TypeError(f"{self._definition.name}: {x.ty} {x.text} where {ty} is wanted")
            return self.new(ty, f"{'inttoptr' if ty == 'ptr' else 'ptrtoint'} {x.ty} {x.text} to {ty}").text
        if ty == "ptr":
            return f"inttoptr (i64 {x} to ptr)" if x else "null"
        return ("true" if x else "false") if ty == "i1" else str(int(x))

    def _label(self) -> str:
        self._n += 1
        return f"L{self._n}"

    def _start(self, label: str) -> None:
        if self._open:
            self._lines.append(f"  br label %{label}")
        self._lines.append(label + ":")
        self._open = True

    def _end(self, line: str) -> None:
        assert self._open, f"{self._definition.name}: code behind the end of a block: {line}"
        self._lines.append("  " + line)
        self._open = False

    def _branch(self, condition: Value) -> str:
        """Open the block for a condition that holds; returns the label of the other one."""
        self._n += 2
        return self._fork(condition, f"L{self._n - 1}", f"L{self._n}", f"L{self._n - 1}:")

    def _jump(self, label: str, when: Value | None, unless: Value | None) -> None:
        """Jump, under a condition if one is given."""
        if when is None and unless is None:
            self._end(f"br label %{label}")
            return
        self._n += 1
        stay = f"L{self._n}"
        if when is not None:
            self._fork(when, label, stay, stay + ":")
        elif unless is not None:
            self._fork(unless, stay, label, stay + ":")

    def _fork(self, condition: Value, yes: str, no: str, opened: str) -> str:
        """Jump to one of two blocks, and open one of them; returns ``no``."""
        assert self._open, f"{self._definition.name}: code behind the end of a block: br"
        self._lines += (f"  br i1 {condition.text}, label %{yes}, label %{no}", opened)
        return no

    # -- values
    def symbol(self, name: str | NativeFunction) -> Value:
        """The address of a native function, or of an imported name."""
        return value_of(self, "ptr", f"@{self.module.use(name)}")

    def var(self, value: Operand | None = None, ty: str = "") -> Variable:
        """A variable with a first value; ``ty``: ``i64`` by default."""
        ty = ty or (value.ty if isinstance(value, Value) else "i64")
        made = Variable(self.stack(1, ty), ty)
        if value is not None:
            made.value = value
        return made

    def stack(self, n: Operand = 1, ty: str = "i64") -> Value:
        """Memory on the stack: ``n`` items, uninitialised."""
        if isinstance(n, Value):
            return self.new("ptr", f"alloca {ty}, i64 {n.text}, align 16")
        self._n += 1
        text = f"%s{self._n}"
        self._head.append(f"  {text} = alloca {ty if n == 1 else f'[{n} x {ty}]'}")
        return value_of(self, "ptr", text)

    def min(self, a: Value, b: Value) -> Value:
        """The lesser of two signed words."""
        return self.call(_MIN, a, b)

    def copy(self, to: Value, source: Value, nbytes: Operand) -> None:
        """Copy bytes that do not overlap."""
        self.call(_COPY, to, source, nbytes, False)

    # -- calls
    def call(self, target: NativeFunction, *args: Operand) -> Value:
        """Call a native function."""
        assert len(args) == len(target.types), f"{target.name} takes {len(target.types)} arguments"
        given: list[str] = []
        for ty, x in zip(target.types, args):
            given.append(f"{ty} {x.text if isinstance(x, Value) and x.ty == ty else self.as_type(x, ty)}")
        return self._call(target.result, self.module.use(target), ", ".join(given))

    def call_address(self, target: Value, result: str, *args: Operand | tuple[str, Value]) -> Value:
        """Call the function at an address. Literals are ``i64``; a pair says how a pointer is passed."""
        given: list[str] = []
        for x in args:
            ty, value = x if isinstance(x, tuple) else (x.ty if isinstance(x, Value) else "i64", x)
            given.append(f"{ty} {self.as_type(value, ty.split()[0])}")
        address = self.as_type(target, "ptr")
        return self._call(result, address[1:], ", ".join(given), address[0])

    def _call(self, result: str, name: str, args: str, sigil: str = "@") -> Value:
        text = f"call {result} {sigil}{name}({args})"
        if result != "void":
            return self.new(result, text)
        self.put(text)
        return self._void

    # -- control flow
    def ret(self, value: Operand | None = None, *, when: Value | None = None, unless: Value | None = None) -> None:
        """Return, under a condition if one is given."""
        ty = self._definition.result
        text = "ret void"
        if value is not None:
            text = f"ret {ty} {value.text if isinstance(value, Value) and value.ty == ty else self.as_type(value, ty)}"
        if when is None and unless is None:
            return self._end(text)
        if text not in self._returns:
            self._returns[text] = self._label()
        return self._jump(self._returns[text], when, unless)

    def leave(self, *, when: Value | None = None, unless: Value | None = None) -> None:
        """Leave the innermost loop, under a condition if one is given."""
        self._loops[-1][2] = True
        self._jump(self._loops[-1][1], when, unless)

    def if_(self, condition: Value) -> IfBlock:
        """Code that runs if the condition holds."""
        made = IfBlock()
        made.f, made.condition = self, condition
        return made

    def _close_branch(self, no: str) -> None:
        jump = len(self._lines) if self._open else -1
        self._start(no)
        self._last_if = jump, len(self._lines)

    @contextmanager
    def else_(self) -> Iterator[None]:
        """Code that runs if the condition of the ``if_`` just before did not hold."""
        jump, lines = self._last_if
        assert lines == len(self._lines), "else_ follows if_ at once"
        end = self._label()
        if jump >= 0:
            self._lines[jump] = f"  br label %{end}"
        yield
        if jump >= 0:
            self._start(end)

    @contextmanager
    def loop(self) -> Iterator[None]:
        """Code that runs until it leaves."""
        head = self._open_loop(self._label())
        self._start(head)
        yield
        self._close_loop(head)

    @contextmanager
    def range(self, n: Operand, start: Operand = 0) -> Iterator[Value]:
        """A loop over ``start`` .. ``n - 1``, signed."""
        k, head = self.var(start), self._label()
        step = self._open_loop(self._label())
        self._start(head)
        i = k.value
        self.leave(unless=i < n)
        yield i
        self._start(step)
        k.value = i + 1
        self._close_loop(head)

    def _open_loop(self, again: str) -> str:
        self._loops.append([again, self._label(), False])
        return again

    def _close_loop(self, head: str) -> None:
        if self._open:
            self._end(f"br label %{head}")
        _, end, left = self._loops.pop()
        if left:
            self._start(end)

    def again(self, *, when: Value | None = None, unless: Value | None = None) -> None:
        """Begin the next turn of the innermost loop, under a condition if one is given."""
        self._jump(self._loops[-1][0], when, unless)

    def finish(self, head: str) -> str:
        """The function's text."""
        if self._open:
            assert self._definition.result == "void", f"{self._definition.name} ends without a result"
            self._end("ret void")
        returns = [f"{label}:\n  {text}" for text, label in self._returns.items()]
        return "\n".join([head + " {", "entry:", *self._head, *self._lines, *returns, "}\n"])


class NativeModule:
    """Native functions, and all that they call, as LLVM text.

    Args:
        exports: functions whose addresses are wanted.
        constants: integers, for ``Builder.constants``.

    Attributes:
        exports: their names.
        imports: the names that must be linked.
    """

    def __init__(self, exports: Sequence[NativeFunction], constants: Mapping[str, int] | None = None) -> None:
        self.constants, self.exports = constants or {}, tuple(x.name for x in exports)
        self._symbols: dict[str, None] = {}
        self._used: dict[str, NativeFunction] = {}
        self._waiting = list[NativeFunction]()
        for one in exports:
            self.use(one)
        parts = [self._text_of(one) for one in self._waiting]  # the list grows meanwhile
        self.text = "".join([*(f"@{name} = external global i8\n" for name in self._symbols), *parts])
        linked = [x.name for x in self._waiting if x.emit is None and not x.name.startswith("llvm.")]
        self.imports = (*linked, *self._symbols)

    def use(self, target: NativeFunction | str) -> str:
        """The name of a function, or of something that is imported, which becomes a part of the module."""
        if isinstance(target, str):
            self._symbols[target] = None
            return target
        known = self._used.get(target.name)
        if known is None:
            self._used[target.name] = target
            self._waiting.append(target)
        else:
            linked = target.emit is None and (known.emit is None or known.name in self.exports)
            assert known is target or linked, f"two functions are called {target.name}"
        return target.name

    def _text_of(self, one: NativeFunction) -> str:
        if one.emit is None:
            return f"declare {one.result} @{one.name}({', '.join(one.types)})\n"
        f = Builder(self, one)
        parameters = [value_of(f, ty, f"%p{k}") for k, ty in enumerate(one.types)]
        one.emit(f, *parameters)
        linkage = "" if one.name in self.exports else "internal "
        takes = ", ".join([f"{x.ty} {x.text}" for x in parameters])
        return f.finish(f"define {linkage}{one.result} @{one.name}({takes}) {one.attributes}")
