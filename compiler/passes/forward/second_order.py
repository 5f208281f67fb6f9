"""Second derivatives by reverse over forward: a forward-mode kernel as a primal of its own, whose reverse kernel gives Hessian products.

The tangent of a loss in a direction v is its directional derivative; the gradient of that is the Hessian times v. The forward-mode kernel
is an ordinary kernel, and its duals are arrays like others. So its adstacks, its plan and its checks are those of any kernel. A dual needs
a gradient for that: those of fields are placed by ``lazy_hessian``, those of temporaries are made here.
"""

from __future__ import annotations

from ...errors import DifferentiationError
from ...ir.nodes import Kernel, Place
from ...ir.verify import verified
from ...ir.walk import kernel_places, place_of, replace_place, task_blocks
from ..clone import clone_kernel

WORD = 8
"""Bytes of a temporary."""


@verified()
def second_order_primal(tangent: Kernel) -> Kernel:
    """A simplified forward-mode kernel as a kernel to be reversed: the duals of its temporaries are temporaries with a gradient.

    Raises:
        DifferentiationError: it takes an array with a gradient or a dual: the gradient of a dual has no place there.
    """
    for decl in tangent.args:
        if decl.needs_grad or decl.needs_dual:
            raise DifferentiationError(
                f"`{decl.name}` is an array with a gradient or a dual, which has no second derivatives",
                tangent.loc,
                "use a field, or an array without a gradient",
            )
    out = clone_kernel(tangent)
    lost = [p for p in kernel_places(out) if p.dual is not None and p.dual.grad is None and p.buffer.kind != "tmp"]
    if lost:
        what = f"the dual of `{lost[0].name}` has no gradient, which second derivatives need"
        raise DifferentiationError(what, tangent.loc, "call qd.root.lazy_hessian() when all fields are declared")
    duals: dict[Place, Place] = {}
    for tmp in list(out.tmps):
        if tmp.dual is not None and tmp.grad is not None:
            offset = WORD * len(out.tmps)
            where = (0, (), (), offset, tmp.elem_bytes)
            grad = Place(f"{tmp.dual.name}_grad", tmp.dtype, tmp.grad.buffer, *where, is_grad=True)
            duals[tmp.dual] = Place(tmp.dual.name, tmp.dtype, tmp.buffer, *where, grad)
            out.tmps.append(duals[tmp.dual])
    for task in out.tasks:
        for s in task_blocks(task):
            if place_of(s) in duals:
                replace_place(s, lambda place: duals.get(place, place))
    return out
