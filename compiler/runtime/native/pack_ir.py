"""The packing of numbers and arrays into the buffer of a native launch: see ``launch_ir.py``."""

from __future__ import annotations

from ...codegen.builder import Builder, Ptr, Value, external, function

# words of an argument: kind, numpy's dtype object, dimensions, element dimensions (0..2) and their extents, key, words, range.
# KIND_SAME: the object whose address is the key, no words. KIND_WATCHED: that object, and what ``watch.py`` has kept of it (A_WATCH).
# KIND_MEMBERS: an object of the type whose address is the key, and a table of its attributes (A_WATCH): how many, and for each its name
# and how it is packed.
A_KIND, A_DESCR, A_NDIM, A_ELEMENT, A_E0, A_E1, A_KEY, A_SIZE, A_LOW, A_HIGH = range(10)
A_WATCH = A_DESCR
A_WORDS = 10
M_WORDS = 1 + A_WORDS
KIND_F32, KIND_F64, KIND_INT, KIND_U64, KIND_BOOL, KIND_ARRAY, KIND_SAME, KIND_WATCHED, KIND_MEMBERS = range(1, 10)

# the process: objects of the interpreter, by address
P_VAR, P_PROGRAM, P_NONE, P_NUMPY, P_FLOAT, P_INT, P_BOOL, P_BYTES, P_TRUE, P_HOST, P_WRAPPER, P_VIEW = range(12)
P_SLOW, P_BOUND, P_WORDS = range(12, 15)

# numpy's flags: C-contiguous, aligned, writeable
ARRAY_FLAGS = 0x0001 | 0x0100 | 0x0400

_as_signed = external("PyLong_AsLongLong", "i64", "ptr")
_as_unsigned = external("PyLong_AsUnsignedLongLong", "i64", "ptr")
_error_occurred = external("PyErr_Occurred", "ptr")
clear_error = external("PyErr_Clear", "void")


def process(f: Builder, k: int) -> Value:
    """The address of an object of the interpreter (``P_*``)."""
    return f.symbol("qd_process").words(k).load("ptr")


def member(o: Value, name: str) -> Value:
    """The pointer in an object at an offset by name, see ``objects.offsets``."""
    return (o + o.f.constants[name]).load("ptr")


def length(o: Value) -> Value:
    """The number of items of a tuple, a list, a dict, or of bytes."""
    return (o + o.f.constants["HEAD"]).load()


def has_type(o: Value, k: int) -> Value:
    """Whether an object has exactly this type (``P_*``)."""
    return member(o, "TYPE") == process(o.f, k)


@function("i1")
def pack_numpy(f: Builder, o: Ptr, arg: Ptr, slot: Ptr) -> None:
    """Pack address and extents of a numpy array of the wanted dtype, rank, element and layout."""
    ndim, element = arg[A_NDIM], arg[A_ELEMENT]
    rank = (o + f.constants["ARRAY_ND"]).load("i32").to("i64", "sext")
    flags = (o + f.constants["ARRAY_FLAGS_AT"]).load("i32") & ARRAY_FLAGS
    same_type = (member(o, "ARRAY_DESCR") == arg[A_DESCR]) & (flags == ARRAY_FLAGS)
    f.ret(False, unless=same_type & (rank == ndim + element))
    dims = member(o, "ARRAY_DIMS")
    slot[0] = member(o, "HEAD")
    with f.range(ndim) as k:
        slot[k + 1] = dims[k]
    with f.range(element) as k:
        f.ret(False, unless=dims[ndim + k] == arg[k + A_E0])
    f.ret(True)


@function("i1")
def pack_array(f: Builder, o: Ptr, arg: Ptr, slot: Ptr) -> None:
    """Copy the words that our own array keeps ready."""
    f.ret(False, unless=member(o, "KEY_AT") == arg[A_KEY])
    packed = member(o, "PACKED_AT")
    f.ret(False, when=packed == 0)
    f.ret(False, unless=has_type(packed, P_BYTES))
    nbytes = length(packed)
    f.ret(False, unless=nbytes == arg[A_SIZE] << 3)
    f.copy(slot, packed + f.constants["BYTES_DATA"], nbytes)
    f.ret(True)


@function("ptr")
def own_array(f: Builder, o: Ptr) -> None:
    """Our own array that an object is or stands for, or null."""
    f.ret(o, when=has_type(o, P_HOST))
    f.ret(0, unless=has_type(o, P_WRAPPER))
    inner = member(o, "INNER_AT")
    f.ret(0, when=inner == 0)
    f.ret(has_type(inner, P_HOST).select(inner, 0))


@function("ptr")
def given_array(f: Builder, o: Ptr) -> None:
    """The same, or what stands for a part of one. That may go with the part: it is not remembered."""
    own = f.call(own_array, o)
    f.ret(own, unless=own == 0)
    f.ret(0, unless=has_type(o, P_VIEW))
    f.ret(member(o, "PART_AT"))


def _refuse_errors(f: Builder, converted: Value) -> None:
    """Return false if a conversion to an integer has raised."""
    with f.if_(converted == -1), f.if_(f.call(_error_occurred) != 0):
        f.call(clear_error)
        f.ret(False)


@function("i1", attributes="alwaysinline")
def pack_number(f: Builder, o: Ptr, arg: Ptr, slot: Ptr) -> None:
    """Pack a Python number. False: of another kind, or out of range; no Python error is set."""
    kind = arg[A_KIND]
    with f.if_(kind == KIND_F32):
        f.ret(False, unless=has_type(o, P_FLOAT))
        slot[0] = 0
        slot.store((o + f.constants["HEAD"]).load("double").to("float"))
        f.ret(True)
    with f.if_(kind == KIND_F64):
        f.ret(False, unless=has_type(o, P_FLOAT))
        slot.store((o + f.constants["HEAD"]).load("double"))
        f.ret(True)
    with f.if_(kind == KIND_INT):
        f.ret(False, unless=has_type(o, P_INT))
        value = f.call(_as_signed, o)
        _refuse_errors(f, value)
        f.ret(False, unless=(value >= arg[A_LOW]) & (value <= arg[A_HIGH]))
        slot[0] = value
        f.ret(True)
    with f.if_(kind == KIND_U64):
        f.ret(False, unless=has_type(o, P_INT))
        value = f.call(_as_unsigned, o)
        _refuse_errors(f, value)
        slot[0] = value
        f.ret(True)
    with f.if_(kind == KIND_BOOL):
        f.ret(False, unless=has_type(o, P_BOOL))
        slot[0] = (o == process(f, P_TRUE)).to("i64")
        f.ret(True)
    f.ret(False)
