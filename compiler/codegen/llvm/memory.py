"""Addresses, loads, stores, atomics and adstacks.

An address is uniform (one pointer), linear (one pointer: lane k is k elements further) or scattered (a vector of pointers). A guarded one
is linear, and must not be touched for lanes that have failed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from ...ir.nodes import ArgDecl, Buffer, Const, GlobalStore, Op, Operand, Place, Stack, StackPut
from ...ir.trials import TRIAL_ALIGNMENT
from ...ir.types import DType, f16, f32, f64, i8, i32, i64, u1
from ...ir.walk import atomic_of
from ..abi import CTX_RET, CTX_TMP, CTX_TMP_DUAL, CTX_TMP_GRAD, address_word, plane_of
from . import arith
from .emitter import Emitter
from .in_order import accumulate, append
from .target import Unsupported, memory_type

_PLANE_TYPES = {"f4": f32, "f8": f64, "i4": i32, "i8": i64}
_CONTEXT_BUFFERS = {"tmp": CTX_TMP, "tmp_grad": CTX_TMP_GRAD, "tmp_dual": CTX_TMP_DUAL, "ret": CTX_RET}
_RMW = {"add": "add", "sub": "sub", "and": "and", "or": "or", "xor": "xor", "xchg": "xchg"}


# -- addresses


def buffer_base(e: Emitter, buffer: Buffer) -> str:
    """The base address that a launch supplies, loaded once."""
    if buffer.kind == "field":
        return e.context(e.info.layout.buffers[buffer], "ptr")
    if buffer.kind == "trial":
        return e.context(e.info.layout.params[e.number, str(buffer.owner)], "ptr")
    if buffer.kind == "block":
        return e.block_memory(buffer)
    if buffer.kind in _CONTEXT_BUFFERS:
        return e.context(_CONTEXT_BUFFERS[buffer.kind], "ptr")
    assert isinstance(buffer.owner, ArgDecl)
    return e.argument(e.info.arg_words[buffer.owner.index] + address_word(buffer), "ptr")


def extent(e: Emitter, decl: ArgDecl, axis: int) -> str:
    """An extent of an ndarray argument, i64."""
    return e.argument(e.info.arg_words[decl.index] + 1 + axis, "i64")


def strides_of(e: Emitter, place: Place) -> list[int | str]:
    """Bytes from one element to the next along each axis: numbers, or registers for an ndarray."""
    if place.strides is not None:
        return list(place.strides)
    assert isinstance(place.buffer.owner, ArgDecl)
    out: list[int | str] = [place.elem_bytes]
    for axis in range(place.ndim - 1, 0, -1):
        n = extent(e, place.buffer.owner, axis)
        out.append(e.hoist(("stride", out[-1], n), f"mul i64 {out[-1]}, {n}"))
    return out[::-1][-place.ndim :] if place.ndim else []


def alignment(place: Place) -> int:
    """The alignment of every address of a place (buffers are aligned to 8 bytes)."""
    steps = [place.elem_bytes] if place.strides is None else list(place.strides)
    return gcd(place.dtype.size, place.offset, *(s for s in steps if s))


def wide_index(e: Emitter, x: Operand) -> str:
    """A uniform index as i64."""
    if isinstance(x, Const):
        return str(int(x.value))
    if x in e.wide:
        return e.wide[x]
    return e.convert(e.operand(x, False), x.dtype, i64, False)


def without_literal(e: Emitter, place: Place, axis: int, x: Operand) -> tuple[Operand, int]:
    """An index as the sum of another one that is known as i64 and a literal: then LLVM sees by how much addresses differ.

    Where the sum of i32 is another number, the index is out of bounds: it is negative, or close to 2^31.
    """
    y, total = x, 0
    if not e.gpu and place.shape is not None and place.shape[axis] < 2**30:
        while isinstance(y, Op) and y.op in ("add", "sub") and y.dtype is i32 and isinstance(y.args[1], Const):
            total += int(y.args[1].value) * (1 if y.op == "add" else -1)
            y = y.args[0]
    return (y, total) if y in e.wide and abs(total) < 2**29 else (x, 0)


def address(e: Emitter, place: Place, index: tuple[Operand, ...]) -> tuple[str, str]:
    """The address of an element and its kind: uniform, linear or scattered."""
    if place.per_trial:
        return _trial_address(e, place, index)
    base = buffer_base(e, place.buffer)
    strides = strides_of(e, place)
    constant, more, linear, scattered = place.offset, 0, False, []
    terms: list[str] = []
    for axis, (x, stride) in enumerate(zip(index, strides)):
        y, literal = without_literal(e, place, axis, x) if isinstance(stride, int) else (x, 0)
        if isinstance(x, Const) and isinstance(stride, int):
            constant += int(x.value) * stride
        elif not e.varying(x) or (y in e.wide and stride == place.dtype.size and not linear):
            linear = linear or e.varying(x)
            terms.append(_times(e, wide_index(e, y), stride))
            more += literal * stride if isinstance(stride, int) else 0
        else:
            scattered.append((x, stride))
    if scattered and linear:
        return _scattered(e, place, index, strides)
    if constant:
        base = e.hoist(("offset", base, constant), f"getelementptr i8, ptr {base}, i64 {constant}")
    for term in terms:
        base = e.t(f"getelementptr i8, ptr {base}, i64 {term}")
    if more:
        base = e.t(f"getelementptr i8, ptr {base}, i64 {more}")
    if not scattered:
        return base, "linear" if linear else "uniform"
    return _add_vectors(e, base, scattered), "scattered"


def _trial_address(e: Emitter, place: Place, index: tuple[Operand, ...]) -> tuple[str, str]:
    """The element of the trial, or of each lane's trial: these lie side by side where the index is the same for all."""
    width = e.module.target.trials
    base, constant, varying = e.trial_base(place), width * place.offset, []
    for axis, (x, stride) in enumerate(zip(index, strides_of(e, place))):
        wide = width * stride if isinstance(stride, int) else e.hoist(("trials", stride), f"mul i64 {stride}, {width}")
        y, literal = without_literal(e, place, axis, x) if isinstance(wide, int) else (x, 0)
        if isinstance(x, Const) and isinstance(wide, int):
            constant += int(x.value) * wide
        elif e.varying(x):
            varying.append((x, wide))
        else:
            base = e.t(f"getelementptr i8, ptr {base}, i64 {_times(e, wide_index(e, y), wide)}")
            constant += literal * wide if isinstance(wide, int) else 0
    if constant:
        base = e.t(f"getelementptr i8, ptr {base}, i64 {constant}")
    if not varying:
        return base, "linear" if e.lanes > 1 else "uniform"
    lanes = "<" + ", ".join(f"i64 {k * place.dtype.size}" for k in range(e.lanes)) + ">"
    return e.t(
        f"getelementptr i8, {e.vec('ptr', True)} {_add_vectors(e, base, varying)}, {e.vec('i64', True)} {lanes}"
    ), "scattered"


def trial_bytes(e: Emitter, place: Place) -> int | str:
    """The bytes that a trial has in the buffer of a place: a number, or a register for an ndarray."""
    arg = place.buffer.owner
    if place.trial_bytes or not isinstance(arg, ArgDecl):
        return place.trial_bytes
    total = str(place.elem_bytes)
    for axis in range(arg.ndim):
        n = extent(e, arg, axis)
        total = e.hoist(("elements", total, n), f"mul i64 {total}, {n}")
    total = e.hoist(("whole", total), f"add i64 {total}, {TRIAL_ALIGNMENT - 1}")
    return e.hoist(("aligned", total), f"and i64 {total}, {-TRIAL_ALIGNMENT}")


def _times(e: Emitter, x: str, stride: int | str) -> str:
    return x if stride == 1 else e.t(f"mul i64 {x}, {stride}")


def _scattered(e: Emitter, place: Place, index: tuple[Operand, ...], strides: list[int | str]) -> tuple[str, str]:
    base = e.t(f"getelementptr i8, ptr {buffer_base(e, place.buffer)}, i64 {place.offset}")
    return _add_vectors(e, base, list(zip(index, strides))), "scattered"


def _add_vectors(e: Emitter, base: str, terms: list[tuple[Operand, int | str]]) -> str:
    total, ty = "", e.vec("i64", True)
    for x, stride in terms:
        wide = e.convert(e.operand(x, True), x.dtype, i64, True)
        by = e.lit(str(stride), i64, True) if isinstance(stride, int) else e.broadcast(stride, "i64")
        term = e.t(f"mul {ty} {wide}, {by}")
        total = e.t(f"add {ty} {total}, {term}") if total else term
    return e.t(f"getelementptr i8, ptr {base}, {ty} {total}")


def follow_linear(e: Emitter, s: Op) -> None:
    """Remember that ``index + uniform`` and a cast of an index still grow by one from lane to lane."""
    if s.dtype.is_real or not s.args or not isinstance(s.args[0], Op):
        return
    x = s.args[0]
    if s.op == "cast" and x in e.wide and s.dtype.bits >= 32:
        e.wide[s] = e.wide[x]
    elif s.op in ("add", "sub") and x in e.wide and not e.varying(s.args[1]):
        e.wide[s] = e.t(f"{s.op} i64 {e.wide[x]}, {wide_index(e, s.args[1])}")
    elif s.op == "add" and isinstance(s.args[1], Op) and s.args[1] in e.wide and not e.varying(x):
        e.wide[s] = e.t(f"add i64 {wide_index(e, x)}, {e.wide[s.args[1]]}")


def follow_exact(e: Emitter, s: Op) -> None:
    """Compute a uniform index as i64, too, where that of i32 cannot overflow."""
    if s in e.ranges and s.op in ("add", "sub", "mul"):
        a, b = (wide_index(e, x) for x in s.args)
        e.wide[s] = e.t(f"{s.op} nsw i64 {a}, {b}")


# -- plain access


def read(e: Emitter, dtype: DType, ptr: str, kind: str, align: int) -> str:
    """The value at an address: one, or one per lane."""
    v = kind != "uniform"
    m = e.vec(memory_type(dtype), v)
    if kind == "scattered":
        reg = _masked(e, "gather", dtype, f"{e.vec('ptr', True)} align {align} {ptr}")
    elif kind == "guarded" or (kind == "linear" and e.mask):
        reg = _masked(e, "load", dtype, f"ptr align {align} {ptr}")
    else:
        reg = e.t(f"load {m}, ptr {ptr}, align {align}{e.access}")
    return e.t(f"icmp ne {m} {reg}, {e.lit('0', i8, v)}") if dtype is u1 else reg


def _masked(e: Emitter, what: str, dtype: DType, where: str) -> str:
    m, flags = e.vec(memory_type(dtype), True), e.vec("i1", True)
    suffix = e.suffix(i8 if dtype is u1 else dtype, True)
    ptr, tail = (e.vec("ptr", True), f"v{e.lanes}p0") if what == "gather" else ("ptr", "p0")
    name = f"llvm.masked.{what}.{suffix}.{tail}"
    e.module.declare(name, f"declare {m} @{name}({ptr}, {flags}, {m})")
    return e.t(f"call {m} @{name}({where}, {flags} {e.active()}, {m} zeroinitializer)")


def write(e: Emitter, dtype: DType, value: str, ptr: str, kind: str, align: int) -> None:
    """Store one value, or one per active lane."""
    v = kind != "uniform"
    m, flags = e.vec(memory_type(dtype), v), e.vec("i1", True)
    if dtype is u1:
        value = e.t(f"zext {e.ty(u1, v)} {value} to {m}")
    if not v or (kind == "linear" and not e.mask):
        e.put(f"store {m} {value}, ptr {ptr}, align {align}{e.access}")
        return
    suffix = e.suffix(i8 if dtype is u1 else dtype, True)
    what, p, tail = ("scatter", e.vec("ptr", True), f"v{e.lanes}p0") if kind == "scattered" else ("store", "ptr", "p0")
    name = f"llvm.masked.{what}.{suffix}.{tail}"
    e.module.declare(name, f"declare void @{name}({m}, {p}, {flags})")
    e.put(f"call void @{name}({m} {value}, {p} align {align} {ptr}, {flags} {e.active()})")


def load(e: Emitter, s: Op) -> None:
    """``gload``"""
    assert isinstance(s.attr, Place)
    ptr, kind = address(e, s.attr, s.args)
    e.values[s] = (read(e, s.dtype, ptr, kind, alignment(s.attr)), kind != "uniform")


def store(e: Emitter, s: GlobalStore) -> None:
    """``place[index] = value``. Lanes that meet at one address: the last one wins."""
    ptr, kind = address(e, s.place, s.index)
    if kind == "uniform" and e.varying(s.value):
        ptr, kind = e.broadcast(ptr, "ptr"), "scattered"
    write(e, s.place.dtype, e.operand(s.value, kind != "uniform"), ptr, kind, alignment(s.place))


# -- atomics


def atomic(e: Emitter, s: Op) -> None:
    """An atomic; its value is the old content. Lanes take their turns."""
    if s in e.waiting:
        return
    window = e.info.order.windows.get(s)
    if window is not None:
        accumulate(e, s, window)
        return
    place, code = atomic_of(s)
    ptr, kind = address(e, place, s.args[: place.ndim])
    values = s.args[place.ndim :]
    plain = e.serial or s in e.info.plain
    how = _in_order(e) if s in e.info.order.atomics else update if plain else exchange
    if e.lanes == 1:
        given = [e.operand(x, False) for x in values]
        e.values[s] = (e.atomic(s, ptr, given) if how is exchange else how(e, code, place, ptr, given), False)
    elif (s in e.info.plain and kind != "uniform") or (plain and kind == "linear"):  # no two lanes touch one element
        old = read(e, place.dtype, ptr, kind, alignment(place))
        new = combine(e, code, place.dtype, True, old, [e.operand(x, True) for x in values])
        write(e, place.dtype, new, ptr, kind, alignment(place))
        e.values[s] = (old, True)
    else:
        e.values[s] = (_by_lane(e, how, code, place, ptr, kind, values), True)


Update = Callable[[Emitter, str, Place, str, list[str]], str]
"""Emits one update of an element at an address by values; gives the old content."""


def _in_order(e: Emitter) -> Update:
    return append if e.task in e.info.order.deferred else update


def add_in_order(e: Emitter, place: Place, ptr: str, value: str) -> None:
    """Add one value to an element, when it is the chunk's turn."""
    _in_order(e)(e, "add", place, ptr, [value])


def sum_of_lanes(e: Emitter, dtype: DType, value: str) -> str:
    """The sum of a value per lane. Its order is written here, so that its bits are the same everywhere."""
    ty, n = e.ty(dtype, False), e.lanes
    while n > 1:
        n //= 2
        low, high = arith.halves(e, dtype, value, n)
        value = e.t(f"fadd <{n} x {ty}> {low}, {high}")
    return e.t(f"extractelement <1 x {ty}> {value}, i64 0")


def combine(e: Emitter, code: str, dtype: DType, v: bool, old: str, values: list[str]) -> str:
    """The value that an atomic stores."""
    if code == "xchg":
        return values[0]
    if code == "cas":
        return arith.select(e, dtype, v, arith.compare(e, "eq", dtype, v, old, values[0]), values[1], old)
    if dtype is u1:
        code = {"add": "or", "sub": "xor", "mul": "and"}.get(code, code)
    return arith.binary(e, code, dtype, v, old, values[0])


def update(e: Emitter, code: str, place: Place, ptr: str, values: list[str]) -> str:
    """Update an element that nothing else touches now; what it held."""
    old = read(e, place.dtype, ptr, "uniform", alignment(place))
    write(e, place.dtype, combine(e, code, place.dtype, False, old, values), ptr, "uniform", alignment(place))
    return old


def exchange(e: Emitter, code: str, place: Place, ptr: str, values: list[str]) -> str:
    """Emit one atomic by the machine's instruction, or a loop around one. Returns the old value."""
    d = place.dtype
    if alignment(place) != d.size:
        raise Unsupported(f"an atomic on `{place.name}`, whose elements are not aligned")
    if e.gpu and d.size < 4:
        return _word_exchange_loop(e, code, place, ptr, values)
    if code == "cas" and d is not u1:
        swap = f"{e.ty(d, False)} {values[0]}, {e.ty(d, False)} {values[1]}"
        pair = e.t(f"cmpxchg ptr {ptr}, {swap} {e.scope}monotonic monotonic")
        return e.t(f"extractvalue {{ {e.ty(d, False)}, i1 }} {pair}, 0")
    if d is u1 or d is f16:
        return _exchange_loop(e, code, place, ptr, values)
    if d.is_real:
        op = {"add": "fadd", "sub": "fsub", "xchg": "xchg"}.get(code)
    else:
        op = _RMW.get(code) or (("" if d.kind == "i" else "u") + code if code in ("min", "max") else None)
    if op is None:
        return _exchange_loop(e, code, place, ptr, values)
    value = values[0]
    if (
        e.gpu and op == "or" and value == "0"
    ):  # ``volatile_load``: threads that wait for others would keep an update's unit busy
        return _first(e, e.ty(d, False), ptr, d.size)
    if e.gpu and op == "fsub":  # there is an instruction for the sum only
        op, value = "fadd", e.t(f"fneg {e.ty(d, False)} {value}")
    facts = e.module.target.atomic_facts
    return e.t(f"atomicrmw {op} ptr {ptr}, {e.ty(d, False)} {value} {e.scope}monotonic{facts}")


def _first(e: Emitter, bits: str, ptr: str, align: int) -> str:
    """What a memory holds before an exchange.

    Volatile on a GPU: LLVM removes exchanges that change nothing (``x[i] *= qd.popcnt(4)``), finds that the rest only reads the memory,
    and one of its code generators for GPUs ends the process on an atomic load of such a pointer.
    """
    return e.t(f"load atomic {'volatile ' if e.gpu else ''}{bits}, ptr {ptr} {e.scope}monotonic, align {align}")


def _exchange_loop(e: Emitter, code: str, place: Place, ptr: str, values: list[str]) -> str:
    """Compare-and-swap until it succeeds: what the machine has no instruction for, or has with another rule for ties and NaN."""
    d, ty = place.dtype, e.ty(place.dtype, False)
    bits = f"i{d.size * 8}"
    seen, again, done = e.slot(bits), e.label("again"), e.label("done")
    first = _first(e, bits, ptr, d.size)
    e.put(f"store {bits} {first}, ptr {seen}")
    e.jump(again)
    e.at(again)
    raw = e.t(f"load {bits}, ptr {seen}")
    old = e.t(f"icmp ne i8 {raw}, 0" if d is u1 else f"bitcast {bits} {raw} to {ty}")
    new = combine(e, code, d, False, old, values)
    new_raw = e.t(f"zext i1 {new} to i8" if d is u1 else f"bitcast {ty} {new} to {bits}")
    if e.gpu:  # many threads meet at one address, and most of them change nothing: a minimum that is already reached
        swap = e.label("swap")
        e.branch(e.t(f"icmp eq {bits} {raw}, {new_raw}"), done, swap)
        e.at(swap)
    pair = e.t(f"cmpxchg weak ptr {ptr}, {bits} {raw}, {bits} {new_raw} {e.scope}monotonic monotonic")
    e.put(f"store {bits} {e.t(f'extractvalue {{ {bits}, i1 }} {pair}, 0')}, ptr {seen}")
    e.branch(e.t(f"extractvalue {{ {bits}, i1 }} {pair}, 1"), done, again)
    e.at(done)
    return old


def _word_exchange_loop(e: Emitter, code: str, place: Place, ptr: str, values: list[str]) -> str:
    """The same for one or two bytes where the machine exchanges words of four only: the aligned word around them, the rest as it was."""
    d, bits = place.dtype, f"i{place.dtype.size * 8}"
    address = e.t(f"ptrtoint ptr {ptr} to i64")
    into = e.t(f"and i64 {address}, 3")
    word = e.t(f"getelementptr i8, ptr {ptr}, i64 {e.t(f'sub i64 0, {into}')}")
    shift = e.t(f"trunc i64 {e.t(f'shl i64 {into}, 3')} to i32")
    hole = e.t(f"xor i32 {e.t(f'shl i32 {(1 << d.size * 8) - 1}, {shift}')}, -1")
    seen, again, swap, done = e.slot("i32"), e.label("again"), e.label("swap"), e.label("done")
    first = _first(e, "i32", word, 4)
    e.put(f"store i32 {first}, ptr {seen}")
    e.jump(again)
    e.at(again)
    whole = e.t(f"load i32, ptr {seen}")
    raw = e.t(f"trunc i32 {e.t(f'lshr i32 {whole}, {shift}')} to {bits}")
    old = e.t(f"icmp ne i8 {raw}, 0") if d is u1 else raw if d.is_int else e.t(f"bitcast {bits} {raw} to {e.ty(d, False)}")
    new = combine(e, code, d, False, old, values)
    if d is u1:
        new = e.t(f"zext i1 {new} to i8")
    elif d.is_real:
        new = e.t(f"bitcast {e.ty(d, False)} {new} to {bits}")
    wide = e.t(f"shl i32 {e.t(f'zext {bits} {new} to i32')}, {shift}")
    target = e.t(f"or i32 {e.t(f'and i32 {whole}, {hole}')}, {wide}")
    e.branch(e.t(f"icmp eq i32 {whole}, {target}"), done, swap)
    e.at(swap)
    pair = e.t(f"cmpxchg weak ptr {word}, i32 {whole}, i32 {target} {e.scope}monotonic monotonic")
    e.put(f"store i32 {e.t(f'extractvalue {{ i32, i1 }} {pair}, 0')}, ptr {seen}")
    e.branch(e.t(f"extractvalue {{ i32, i1 }} {pair}, 1"), done, again)
    e.at(done)
    return old


def _by_lane(e: Emitter, how: Update, code: str, place: Place, ptr: str, kind: str, values: tuple[Operand, ...]) -> str:
    """Emit code for one lane after the other, active lanes only."""
    d, lanes = place.dtype, e.lanes
    vec = e.vec(memory_type(d), True)
    vectors, bits = [e.operand(x, True) for x in values], f"i{lanes}"
    old, left, turn, done = e.slot(vec), e.slot(bits), e.label("turn"), e.label("done")
    e.put(f"store {vec} zeroinitializer, ptr {old}")
    mask = e.t(f"bitcast <{lanes} x i1> {e.active()} to {bits}")
    e.put(f"store {bits} {mask}, ptr {left}")
    e.branch(e.t(f"icmp ne {bits} {mask}, 0"), turn, done)
    e.at(turn)
    now = e.t(f"load {bits}, ptr {left}")
    e.module.declare(f"cttz{lanes}", f"declare {bits} @llvm.cttz.{bits}({bits}, i1)")
    lane = e.t(f"call {bits} @llvm.cttz.{bits}({bits} {now}, i1 true)")
    if lanes != 64:
        lane = e.t(f"{'zext' if lanes < 64 else 'trunc'} {bits} {lane} to i64")
    here = ptr
    if kind == "linear":
        here = e.t(f"getelementptr {memory_type(d)}, ptr {ptr}, i64 {lane}")
    elif kind == "scattered":
        here = e.t(f"extractelement {e.vec('ptr', True)} {ptr}, i64 {lane}")
    ones = [e.t(f"extractelement {e.ty(d, True)} {x}, i64 {lane}") for x in vectors]
    was = how(e, code, place, here, ones)
    if d is u1:
        was = e.t(f"zext i1 {was} to i8")
    olds = e.t(f"load {vec}, ptr {old}")  # whole vectors only: an indexed slot would have to live in memory
    e.put(f"store {vec} {e.t(f'insertelement {vec} {olds}, {memory_type(d)} {was}, i64 {lane}')}, ptr {old}")
    rest = e.t(f"and {bits} {now}, {e.t(f'sub {bits} {now}, 1')}")
    e.put(f"store {bits} {rest}, ptr {left}")
    e.branch(e.t(f"icmp ne {bits} {rest}, 0"), turn, done)
    e.at(done)
    out = e.t(f"load {vec}, ptr {old}")
    return e.t(f"icmp ne {vec} {out}, {e.lit('0', i8, True)}") if d is u1 else out


# -- adstacks


def stack_word(e: Emitter, stack: Stack, field: int, slot: Operand) -> tuple[str, str]:
    """Address and its kind of one state word."""
    plane = plane_of(stack.locals[field].dtype)
    mates = [k for k, x in enumerate(stack.locals) if plane_of(x.dtype) == plane]
    size, width, place = int(plane[1]), len(mates), mates.index(field)
    base, step = e.stacks[stack.name, plane], str(width * size * e.lanes)
    if e.turn:  # not all lanes at once
        side = e.bytes_side_by_side(size)
        base = e.t(f"getelementptr i8, ptr {base}, i64 {e.t(f'mul i64 {e.turn}, {size}')}")
        base = e.t(f"getelementptr i8, ptr {base}, i64 {e.t(f'mul i64 {side}, {place}')}") if place else base
        step = e.hoist(("step", side, width), f"mul i64 {side}, {width}")
    elif place:
        base = e.t(f"getelementptr i8, ptr {base}, i64 {place * size * e.lanes}")
    if not e.varying(slot):
        byte = e.t(f"mul i64 {e.operand(slot, False)}, {step}")
        return e.t(f"getelementptr i8, ptr {base}, i64 {byte}"), "linear" if e.lanes > 1 else "uniform"
    ty = e.vec("i64", True)
    byte = e.t(f"mul {ty} {e.operand(slot, True)}, {e.broadcast(step, 'i64')}")
    lanes = "<" + ", ".join(f"i64 {k * size}" for k in range(e.lanes)) + ">"
    return e.t(f"getelementptr i8, ptr {base}, {ty} {e.t(f'add {ty} {byte}, {lanes}')}"), "scattered"


def stack_put(e: Emitter, s: StackPut) -> None:
    """Write one slot of a stack."""
    for field, value in enumerate(s.values):
        ptr, kind = e.stack_word(s.stack, field, s.slot)
        wide = _PLANE_TYPES[plane_of(s.stack.locals[field].dtype)]
        v = kind != "uniform"
        write(e, wide, e.convert(e.operand(value, v), value.dtype, wide, v), ptr, kind, wide.size)


def stack_get(e: Emitter, s: Op) -> None:
    """Read one word of a slot."""
    assert isinstance(s.attr, tuple)
    stack, field = s.attr
    ptr, kind = e.stack_word(stack, field, s.args[0])
    wide = _PLANE_TYPES[plane_of(stack.locals[field].dtype)]
    v = kind != "uniform"
    e.values[s] = (e.convert(read(e, wide, ptr, kind, wide.size), wide, s.dtype, v), v)
