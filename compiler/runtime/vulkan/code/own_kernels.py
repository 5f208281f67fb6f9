"""Device code of the driver's own: fills and copies of rows, by address. It is the text that kernels are, and built as they are.

The host's commands of Vulkan fill whole words of one range, and copy a row for each entry of a list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....codegen.builder import Builder, NativeFunction, NativeModule, Value, external
from ...gpu.driver import Texts

BLOCK = 128
FILL_4 = "qd_fill_4"

_thread, _block, _blocks = (external(f"qd.{name}", "i32") for name in ("thread", "block", "blocks"))


def _kernel(
    name: str, types: tuple[str, ...], width: int, move: Callable[[Sequence[Value], Value, Value], None]
) -> NativeFunction:
    """A kernel that calls ``move`` with its words, a row, and an offset in it, for each value. Its last words: values of a row, rows."""

    def emit(f: Builder, *words: Value) -> None:
        columns, rows = words[-2:]
        n = columns * rows
        step = (f.call(_blocks) * BLOCK).to("i64")
        k = f.var((f.call(_block) * BLOCK + f.call(_thread)).to("i64"))
        with f.loop():
            here = k.value
            f.leave(unless=here.below(n))
            row = here // columns
            move(words, row, (here - row * columns) * width)
            k.value = here + step

    return NativeFunction(name, "void", types, emit, f'"threads"="{BLOCK}"')


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
