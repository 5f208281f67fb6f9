"""``qd.ad.hvp``: the product of the Hessian of a loss and a vector, by reverse over forward mode.

The launches run as their forward-mode kernels, with the vector as the tangent of the parameter: the dual of the loss is its derivative
along the vector. A tape reverses these kernels from there: the gradient of the parameter is then the Hessian times the vector, and the
gradient of its dual is the gradient of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ....errors import QdrunRuntimeError, QdrunTypeError
from ....program.program import Program, current_program
from ....tape.heap_plan import HeapPlan
from ...data.field import Field
from ...data.tensor import Tensor
from ...no_gradient import refuse_in_a_trial, refuse_in_forward_mode
from ..gradient_arrays import assign_tangent, clear_duals, dual_of, has_grad
from ..tape import Tape
from .jacobian import shaped


class HessianProduct(NamedTuple):
    """What ``hvp`` computes. Lists have one array for each of several parameters.

    Attributes:
        loss: its value; of a batched program (trials,).
        gradient: of the loss with respect to the parameter, in the shape of ``param.to_numpy()``.
        product: the Hessian times the vector, in the same shape.
    """

    loss: Any
    gradient: Any
    product: Any


def hvp(run: Callable[[], Any], loss: Any, param: Any, vector: Any) -> HessianProduct:
    """The Hessian of a loss with respect to parameters, times a vector. Nothing is approximated, and no Hessian is stored.

    All real fields that take part need gradients, duals and gradients of their duals: ``qd.root.lazy_hessian()`` once, when all are
    declared. They hold four times the bytes of the values. The adstack heap of a kernel is planned like that of its gradient:
    ``k.grad.plan(.., order=2)``.

    Args:
        run: launches the kernels that compute the loss from the parameters, as the body of a ``Tape``. It must not write to the parameters.
        loss: a 0-D field, which is set to 0 first.
        param: a field, or a list of fields.
        vector: for each parameter an array of the shape of ``param.to_numpy()``, or flat.

    Raises:
        QdrunRuntimeError: a field has no gradient of its dual; the vector does not fit; ``run`` writes to a parameter from Python, or
            calls what has no second derivatives; inside of a tape, a ``FwdMode`` block or the block of a trial.
        DifferentiationError: a kernel has no correct second derivative, by name and line.
    """
    program, many = current_program(), isinstance(param, (list, tuple))
    params = [_field(p, "param") for p in (param if many else [param])]
    target = _field(loss, "loss")
    refuse_in_forward_mode(program, "qd.ad.hvp")
    refuse_in_a_trial(program, "qd.ad.hvp runs the launches of all trials")
    if program.recorders.tape is not None or program.recorders.second_order is not None:
        raise QdrunRuntimeError("qd.ad.hvp opens a tape of its own; do: call it outside of the tape")
    _check_storage(program, [*params, target])
    program.materialize()
    vectors = [shaped(v, p, "the vector of qd.ad.hvp") for v, p in zip(_vectors(vector, params, many), params, strict=True)]
    clear_duals(program)
    target.fill(0)
    for p, v in zip(params, vectors, strict=True):
        p.dual.from_numpy(v)
    with program.second_order(_Product(program, params)), Tape(loss=target.dual):
        run()
    found = [p.grad.to_numpy() for p in params]
    gradients = [p.dual.grad.to_numpy() for p in params]
    return HessianProduct(target.to_numpy()[()], gradients if many else gradients[0], found if many else found[0])


def hvp_plan(kernel: Any, *args: Any, **options: Any) -> HeapPlan:
    """The adstack heap that ``hvp`` will need for a launch of a kernel, to the byte. Runs nothing, and compiles nothing.

    Args:
        kernel: it.
        args: those of the launch.
        options: ``budget`` and ``arch``, see ``k.grad.plan``.

    Raises:
        QdrunRuntimeError: a field has no gradient of its dual.
        DifferentiationError, OutOfMemory, QdrunTypeError: see ``k.grad.plan``.
    """
    program = current_program()
    _check_storage(program, [])
    with program.second_order(_Product(program, [])):
        return kernel.grad.plan(*args, **options)


class _Product:
    """While a product is computed: what Python assigns has no tangent."""

    def __init__(self, program: Program, params: Sequence[Field]) -> None:
        self._program, self._params = program, params

    def wrote(self, tensor: Any, index: tuple[int, ...] | None, source: Any = None, parts: tuple[Any, ...] = ()) -> None:
        """Python is about to write; see ``Program.wrote``."""
        tape, dual = self._program.recorders.tape, dual_of(tensor)
        if tape is None or dual is None:
            return
        if any(tensor is p for p in self._params):
            raise QdrunRuntimeError(
                f"the function that qd.ad.hvp runs writes to its parameter `{tensor.name}`: what it writes does not depend on it\n"
                "  do: write to it before qd.ad.hvp"
            )
        tangent = dual_of(source) if isinstance(source, Field) else None
        tape.wrote(dual, index, tangent, parts)
        assign_tangent(dual, tangent, index, parts)


def _field(tensor: Any, what: str) -> Field:
    found = tensor._unwrap() if isinstance(tensor, Tensor) else tensor
    if not isinstance(found, Field):
        raise QdrunTypeError(f"the {what} of qd.ad.hvp is a field, not {type(found).__name__}; do: make it with qd.field")
    found.refuse_blocks(f"the {what} of qd.ad.hvp")
    return found


def _check_storage(program: Program, wanted: Sequence[Field]) -> None:
    """Refuse fields with a gradient or a dual, but without a gradient of the dual: derivatives would be lost in them."""
    every = [
        *wanted,
        *(tensor for tensor in program.tensors() if isinstance(tensor, Field) and (has_grad(tensor) or dual_of(tensor))),
    ]
    for tensor in every:
        if tensor._root.program is not program:
            raise QdrunRuntimeError(f"field `{tensor.name}` belongs to another program; do: make it after qd.init()")
        if not (tensor.dtype.is_real and has_grad(tensor) and has_grad(tensor.dual) and tensor.dual.placed):
            raise QdrunRuntimeError(
                f"field `{tensor.name}` has no gradient of its dual, which qd.ad.hvp needs\n"
                "  do: call qd.root.lazy_hessian() when all fields are declared, before the first kernel"
            )


def _vectors(vector: Any, params: Sequence[Field], many: bool) -> Sequence[Any]:
    if not many:
        return [vector]
    if not isinstance(vector, (list, tuple)) or len(vector) != len(params):
        raise QdrunRuntimeError(f"qd.ad.hvp has {len(params)} parameters; do: give a list of as many vectors")
    return vector


__all__ = ["HessianProduct", "hvp", "hvp_plan"]
