"""Forward mode: ``with FwdMode(loss, param, seed):`` runs kernels on values and tangents: a Jacobian-vector product in the duals.

Every kernel launched inside computes what it always computes and, beside each value, its tangent: the derivative in the direction ``seed``.
A tangent lives in the ``dual`` of a field or an ndarray. What Python assigns is a constant: it clears the dual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import QdrunRuntimeError, describe, warn_user
from ...program.memory.effects import access_region
from ...program.memory.memory_regions import ANYWHERE, IndexPattern, MemoryRegion, patterns_meet, tensor_regions
from ...program.program import Program, current_program
from ...runtime.mirror import store
from ..data.field import Field
from ..data.matrix import Matrix
from ..data.ndarray import Ndarray
from ..no_gradient import refuse_in_a_trial, refuse_in_forward_mode
from .gradient_arrays import assign_tangent, clear_duals, dual_of

if TYPE_CHECKING:
    from ...ir.nodes import Loc
    from ...passes.dependence.access import Access
    from ...program.call import Call
    from ...program.variant import Variant


class FwdMode:
    """``with qd.ad.FwdMode(loss=y, param=x, seed=[1, 0, 0]):`` then ``y.dual`` holds dy/dx times the seed.

    On entry all duals of the program are cleared and the seed is stored to ``param.dual``; at the end ``param.dual`` is cleared (unless
    ``param`` is a loss as well, and holds results).

    Args:
        loss: what is differentiated: a field or an ndarray with a dual, or a list of them.
        param: the field or ndarray with respect to which; of numbers, vectors or matrices.
        seed: the direction, one number for each number of ``param``, flat or in its shape; [1.0] when ``param`` is one number.
        clear_gradients: False keeps the duals that are there.

    Raises:
        QdrunRuntimeError: something of these has no dual, belongs to another program or does not fit; a block inside a block or inside a
            ``Tape``; a second use of the same object.
    """

    def __init__(self, loss: Any, param: Any, seed: Any = None, clear_gradients: bool = True) -> None:
        self.loss, self.param, self.seed, self.clear_gradients = loss, _unwrapped(param), seed, clear_gradients
        self._program: Program | None = None
        self._lost: dict[
            MemoryRegion, dict[IndexPattern, tuple[str, Loc | None]]
        ] = {}  # memory that lost a tangent -> which elements, by what, where
        self._warned: set[object] = set()

    def __enter__(self) -> FwdMode:
        if self._program is not None:
            raise QdrunRuntimeError("FwdMode can be entered only once; do: make a new one")
        program = current_program()
        refuse_in_forward_mode(program, "a second FwdMode")
        refuse_in_a_trial(program, "FwdMode runs the launches of all trials")
        if program.recorders.tape is not None:
            raise QdrunRuntimeError("FwdMode inside of a Tape is not possible: second derivatives; do: one after the other")
        program.materialize()
        for loss in _losses(self.loss):
            _dual(loss, "loss", program)
        dual = _dual(self.param, "param", program)
        dual.refuse_blocks("FwdMode(param=..)")
        seed = self._seed_as((*dual.shape, *dual.element_shape))
        if self.clear_gradients:
            clear_duals(program)
        store(dual._mirror, dual._form, seed)
        self._program = program
        program.recorders.forward = self
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        program = self._program
        assert program is not None
        program.recorders.forward = None
        if not program.closed and not any(loss is self.param for loss in _losses(self.loss)):
            dual = self.param.dual
            store(dual._mirror, dual._form, 0)
        if kind is None and current_program() is not program:
            raise QdrunRuntimeError("another program became current inside of FwdMode; do: one block in one program")

    def _seed_as(self, shape: tuple[int, ...]) -> np.ndarray:
        size = int(np.prod(shape, dtype=int))
        if self.seed is None:
            if size == 1:
                return np.ones(shape)
            raise QdrunRuntimeError(
                f"FwdMode needs a `seed`: param holds {size} numbers\n  do: seed=[..] with one number for each of them, the direction"
                " in which to differentiate; [1, 0, 0, ..] gives the derivative with respect to the first"
            )
        try:
            given = self.seed.to_numpy() if isinstance(self.seed, (Matrix, Field, Ndarray)) else self.seed
            seed = np.asarray(given, np.float64)
        except (TypeError, ValueError):
            raise QdrunRuntimeError(f"the seed of FwdMode is a list or an array of numbers, not {self.seed!r}") from None
        if seed.size != size or (seed.ndim > 1 and seed.shape != shape):
            raise QdrunRuntimeError(
                f"the seed of FwdMode has shape {seed.shape}, param has shape {shape}; do: give {size} numbers, flat or in that shape"
            )
        return seed.reshape(shape)

    # ---- what happens inside
    def wrote(self, tensor: Any, index: tuple[int, ...] | None, source: Any = None, parts: tuple[Any, ...] = ()) -> None:
        """Python is about to write: constants, or a copy of ``source``. ``parts``: what of the element, as indices of indices."""
        dual = dual_of(tensor)
        tangent = dual_of(source) if isinstance(source, (Field, Ndarray)) else None
        if dual is None:
            lost = tangent is not None and bool(tangent._content.any())
            for spot, _ in tensor_regions(tensor) if lost or index is None else ():
                self._lost.pop(spot, None)
                if lost:
                    self._lost[spot] = {ANYWHERE: ("copy_from", None)}
            return
        assign_tangent(dual, tangent, index, parts)

    def launched(self, variant: Variant, call: Call) -> None:
        """A kernel has run: warn where the tangent of what it read was lost."""
        found = variant.compiled_kernel.tangent(variant.program.device)[0]
        for read, write in found.broken:
            self._warn(read, variant, f"`{variant.head.name}`" + _line(getattr(write[2], "loc", None)))
        for read in found.read if self._lost else ():
            spot, region = access_region(variant, call, read)
            for where, (kernel, loc) in self._lost.get(spot, {}).items() if spot is not None else ():
                if patterns_meet(region, where):
                    self._warn(read, variant, f"`{kernel}`{_line(loc)}")
        for write in found.lost:
            spot, region = access_region(variant, call, write)
            if spot is not None:
                self._lost.setdefault(spot, {})[region] = variant.head.name, getattr(write[2], "loc", None)

    def _warn(self, read: Access, variant: Variant, by: str) -> None:
        place, _, statement = read
        if (key := (place.name, variant.head.name, getattr(statement, "loc", None))) in self._warned:
            return
        self._warned.add(key)
        what = f"forward mode loses the tangent in `{place.name}`, which has no dual: {by} stores a value that may depend on the parameter,"
        hint = f"make `{place.name}` with needs_dual=True, or ignore this if its derivative does not matter"
        text = describe(f"{what} and it is read here on the way to a dual", getattr(statement, "loc", None), hint)
        self._lost_tangent(text)

    def _lost_tangent(self, text: str) -> None:
        warn_user(text)


def _line(loc: Loc | None) -> str:
    return "" if loc is None else f" line {loc.line} (`{loc.text.strip()}`)"


def _unwrapped(tensor: Any) -> Any:
    """The field or ndarray behind a tensor."""
    unwrap = getattr(tensor, "_unwrap", None)
    return tensor if unwrap is None else unwrap()


def _losses(loss: Any) -> list[Any]:
    return [_unwrapped(x) for x in (loss if isinstance(loss, (list, tuple)) else [loss])]


def _dual(tensor: Any, what: str, program: Program) -> Any:
    """The dual of a loss or the parameter.

    Raises:
        QdrunRuntimeError: there is none.
    """
    if not isinstance(tensor, (Field, Ndarray)):
        raise QdrunRuntimeError(f"the {what} of FwdMode is a field or an ndarray, not {type(tensor).__name__}")
    if (tensor._root.program if isinstance(tensor, Field) else tensor._program) is not program:
        raise QdrunRuntimeError(f"the {what} of FwdMode belongs to another program; do: make it after qd.init()")
    dual = dual_of(tensor)
    if dual is None:
        name = f" `{tensor.name}`" if isinstance(tensor, Field) else ""
        raise QdrunRuntimeError(
            f"the {what}{name} of FwdMode has no dual; do: make it with needs_dual=True, or qd.root.lazy_dual()"
        )
    return dual
