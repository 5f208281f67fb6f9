"""Our own kernels that fill and copy rows, by address. They are device text, and built like any kernel.

The commands of an API fill whole words of one range and copy a row for each entry of a list, or fill with bytes and copy whole words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....codegen.builder import Builder, NativeFunction, NativeModule, Value, external
from ..driver import Texts
from .words import FILL_BLOCK

FILL_4, COPY_1, COPY_4 = "qd_fill_4", "qd_copy_1", "qd_copy_4"

_thread, _block, _blocks = (external(f"qd.{name}", "i32") for name in ("thread", "block", "blocks"))


def _kernel(
    name: str, types: tuple[str, ...], width: int, move: Callable[[Sequence[Value], Value, Value], None]
) -> NativeFunction:
    """A kernel that calls ``move`` with its words, a row, and an offset in it, for each value. Its last words: values of a row, rows."""

    def emit(f: Builder, *words: Value) -> None:
        columns, rows = words[-2:]
        n = columns * rows
        step = (f.call(_blocks) * FILL_BLOCK).to("i64")
        k = f.var((f.call(_block) * FILL_BLOCK + f.call(_thread)).to("i64"))
        with f.loop():
            here = k.value
            f.leave(unless=here.below(n))
            row = here // columns
            move(words, row, (here - row * columns) * width)
            k.value = here + step

    return NativeFunction(name, "void", types, emit, f'"threads"="{FILL_BLOCK}"')


def texts(name: str) -> Texts:
    """The text of one function.

    Args:
        name: ``qd_fill_1``, ``_2`` or ``_4`` with the words address, bytes from row to row, value, values of a row, rows; ``qd_copy_1``,
            ``_2``, ``_4`` or ``_8`` with the words address to write, bytes from row to row, the same to read, values of a row, rows.
    """
    what, width = name.split("_")[1], int(name.split("_")[2])
    ty = f"i{8 * width}"

    def fill(words: Sequence[Value], row: Value, at: Value) -> None:
        to, stride, value = words[:3]
        (to + (row * stride + at)).store(value.to(ty))

    def copy(words: Sequence[Value], row: Value, at: Value) -> None:
        to, stride, source, source_stride = words[:4]
        (to + (row * stride + at)).store((source + (row * source_stride + at)).load(ty))

    rows = ("i64", "i64")
    made = (
        _kernel(name, ("ptr", "i64", "i64", *rows), width, fill)
        if what == "fill"
        else _kernel(name, ("ptr", "i64", "ptr", "i64", *rows), width, copy)
    )
    return Texts(name, NativeModule((made,)).text, "", name, (name,), "")


def fill_of_rows(ptr: int, step: int, word: int, count: int, width: int, rows: int) -> tuple[str, tuple[int, ...]]:
    """The kernel and its words that fill rows with ``count`` words of ``width`` bytes each; rows begin ``step`` bytes apart."""
    return f"qd_fill_{width}", (ptr, step, word & (1 << 8 * width) - 1, count, rows)


def copy_of_rows(dst: int, dst_step: int, src: int, src_step: int, nbytes: int, rows: int) -> tuple[str, tuple[int, ...]]:
    """The kernel and its words that copy rows of ``nbytes``: by the largest words that everything is a multiple of."""
    steps = (dst_step, src_step) if rows > 1 else ()
    width = next(n for n in (8, 4, 2, 1) if not any(x % n for x in (dst, src, nbytes, *steps)))
    return f"qd_copy_{width}", (dst, dst_step, src, src_step, nbytes // width, rows)
