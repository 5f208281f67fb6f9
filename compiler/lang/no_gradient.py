"""Kernels and launches that have no gradient, told before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import DataAccessError, NothingToDifferentiate
from ..ir.walk import kernel_places
from .near import may_share

if TYPE_CHECKING:
    from .binding import Bound
    from .kernel import Variant


def is_constant(variant: Variant) -> bool:
    """Whether a kernel adds constants to what has a gradient, and so hands nothing on; it must not read a gradient."""
    writes = any(place.differentiable and place.buffer.kind != "tmp" for place, _, _ in variant.recipe.writes)
    return writes and not any(place.is_grad for place in kernel_places(variant.recipe.ir))


def nothing_to_differentiate(name: str, variant: Variant) -> NothingToDifferentiate:
    """The error for a kernel whose gradient would do nothing."""
    if variant.head.returns:
        return NothingToDifferentiate(
            f"kernel `{name}` returns its result and writes nothing that has a gradient: there is no gradient of a returned value\n"
            "  do: store the result in a 0-D field with needs_grad=True, and set the gradient of that"
        )
    reads = any(p.differentiable and p.buffer.kind != "tmp" for p in kernel_places(variant.recipe.ir))
    verb = "writes" if reads else "touches"
    return NothingToDifferentiate(
        f"kernel `{name}` {verb} nothing that has a gradient\n"
        "  do: make a field with needs_grad=True, or leave out the call of .grad()"
    )


def refuse_one_array_twice(name: str, variant: Variant, bound: Bound) -> None:
    """A gradient takes different arguments for different memory; that matters as soon as one of them is written."""
    arrays = bound.call.arrays
    if len(arrays) < 2:
        return
    written = {w if isinstance(w, int) else w[1] for w in variant.recipe.forward.written if isinstance(w, (int, tuple))}
    for a in written & arrays.keys():
        for b in arrays.keys() - {a}:
            if may_share(arrays[a], arrays[b]):
                names = [d.name for d in variant.head.args]
                raise DataAccessError(
                    f"kernel `{name}` got one array as `{names[a]}` and `{names[b]}`, and writes to `{names[a]}`",
                    None,
                    "pass two arrays: the gradient needs the values that were overwritten",
                )
