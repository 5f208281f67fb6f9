"""Kernels and launches that have no gradient, told before anything runs."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from ..errors import DataAccessError, NothingToDifferentiate, QdrunRuntimeError, describe, warn_user
from ..ir.walk import kernel_places
from ..program.memory.device_arrays import may_share
from ..program.memory.effects import access_region
from ..program.memory.memory_regions import MemoryRegion, tensor_regions
from ..program.program import Program

if TYPE_CHECKING:
    from ..program.variant import Variant
    from .args.binding import Bound


def is_constant(variant: Variant) -> bool:
    """Whether a kernel adds constants to what has a gradient, and so hands nothing on; it must not read a gradient."""
    writes = any(place.differentiable and place.buffer.kind != "tmp" for place, _, _ in variant.compiled_kernel.writes)
    return writes and not any(place.is_grad for place in kernel_places(variant.compiled_kernel.ir))


def refuse_without_gradient(name: str, variant: Variant) -> None:
    """Refuse a kernel whose gradient would do nothing. What is said of a variant is found once: a tape asks at each launch.

    Raises:
        NothingToDifferentiate: it touches nothing that has a gradient.
    """
    if variant.no_gradient is None:
        variant.no_gradient = "" if is_constant(variant) else _no_gradient(name, variant)
    if variant.no_gradient:
        raise NothingToDifferentiate(variant.no_gradient)


def _no_gradient(name: str, variant: Variant) -> str:
    if variant.head.returns:
        return (
            f"kernel `{name}` returns its result and writes nothing that has a gradient: there is no gradient of a returned value\n"
            "  do: store the result in a 0-D field with needs_grad=True, and set the gradient of that"
        )
    reads = any(p.differentiable and p.buffer.kind != "tmp" for p in kernel_places(variant.compiled_kernel.ir))
    return (
        f"kernel `{name}` {'writes' if reads else 'touches'} nothing that has a gradient\n"
        "  do: make a field with needs_grad=True, or leave out the call of .grad()"
    )


LOOK_BYTES = 64 << 10
"""Gradients on a GPU that are looked at for a seed."""


def warn_without_seed(program: Program, variant: Variant, bound: Bound) -> None:
    """Warn where ``k.grad()`` finds only zeros in the gradients of what the kernel writes, so that it adds nothing.

    Looks at the first gradient of each variant. In a tape, a trial or a dry run, zeros are no mistake, or nothing is known; large arrays
    of a GPU are not brought to the host for it.
    """
    quiet = (
        program.replay.running
        or program.recorders.second_order
        or program.recorders.recording
        or program.recorders.rehearsal
        or program.recorders.tape
    )
    if variant.seed_checked or quiet or program.batch.open is not None:
        return
    variant.seed_checked = True
    writes = {
        access_region(variant, bound.call, write)[0]: write
        for write in variant.compiled_kernel.writes
        if write[0].differentiable and write[0].buffer.kind != "tmp"
    }
    found = _tensors_at(program, set(writes))
    if (
        found is None
        or (not program.device.on_host and sum(map(_grad_bytes, found)) > LOOK_BYTES)
        or any(tensor.grad.to_numpy().any() for tensor in found)
    ):
        return
    named = ", ".join(f"`{tensor.name}.grad`" for tensor in found[:3]) + (", .." if len(found) > 3 else "")
    index = "[None] = 1" if found[0].shape == () and not found[0].element_shape else ".fill(1)"
    what = (
        f"the gradient of kernel `{variant.head.name}` adds nothing: the gradient of all that the kernel writes is 0 ({named})"
    )
    hint = (
        f"set it before, `{found[0].name}.grad{index}`; or launch the kernel in `with qd.ad.Tape(loss):`, which calls k.grad()"
    )
    warn_user(describe(what, getattr(next(iter(writes.values()))[2], "loc", None), hint))


def _grad_bytes(tensor: Any) -> int:
    return prod((*tensor.shape, *tensor.element_shape)) * tensor.dtype.size


def _tensors_at(program: Program, spots: set[MemoryRegion | None]) -> list[Any] | None:
    """The tensors with gradients that lie at some regions, small ones first; None: some region belongs to none that is known."""
    found = [
        (tensor, at)
        for tensor in program.tensors()
        if tensor.dtype.is_real and getattr(tensor, "placed", True) and tensor.grad is not None
        if not spots.isdisjoint(at := [spot for spot, _ in tensor_regions(tensor)])
    ]
    if not found or not spots <= {spot for _, at in found for spot in at}:
        return None
    return sorted((tensor for tensor, _ in found), key=lambda tensor: prod(tensor.shape))


def refuse_in_a_trial(program: Program, what: str) -> None:
    """Refuse what concerns all trials where Python looks at one.

    Raises:
        QdrunRuntimeError: a ``with program.trial(b)`` block is open.
    """
    if program.batch.open is not None:
        raise QdrunRuntimeError(
            f"{what}, and `with program.trial({program.batch.open}):` is open\n  do: write to single trials before it, and read them after"
        )


def refuse_one_array_twice(name: str, variant: Variant, bound: Bound) -> None:
    """A gradient takes different arguments for different memory; that matters as soon as one of them is written."""
    arrays = bound.call.arrays
    if len(arrays) < 2:
        return
    written = {
        w if isinstance(w, int) else w[1] for w in variant.compiled_kernel.forward.written if isinstance(w, (int, tuple))
    }
    for a in written & arrays.keys():
        for b in arrays.keys() - {a}:
            if may_share(arrays[a], arrays[b]):
                names = [d.name for d in variant.head.args]
                raise DataAccessError(
                    f"kernel `{name}` got one array as `{names[a]}` and `{names[b]}`, and writes to `{names[a]}`",
                    None,
                    "pass two arrays: the gradient needs the values that were overwritten",
                )


ONLY_REVERSE = 'it has a gradient, and no tangent; do: a Tape, or qd.ad.jacobian(.., mode="reverse")'
"""Why a solution or a fixed point is refused in forward mode."""


def refuse_in_forward_mode(
    program: Program, what: str, why: str = "second derivatives; do: it before or after the block"
) -> None:
    """Refuse what has no meaning while a forward-mode block is open.

    Raises:
        QdrunRuntimeError: one is open.
    """
    if program.recorders.forward is not None:
        raise QdrunRuntimeError(f"{what} inside of FwdMode is not possible: {why}")


def refuse_second_order(program: Program | None, what: str) -> None:
    """Refuse what has no second derivatives.

    Raises:
        QdrunRuntimeError: a Hessian product is being computed.
    """
    if program is not None and program.recorders.second_order is not None:
        raise QdrunRuntimeError(
            f"{what} inside of qd.ad.hvp has no second derivatives: the derivative of its gradient is not known\n"
            "  do: launch its kernels one by one"
        )
