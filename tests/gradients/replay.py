"""Runs the IR of a compiled kernel once more, on the interpreter and on copies of the same memory, and compares what both leave behind.

``exact_libm`` lets the interpreter call the functions of scalar machine code: then the bits must be equal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from qdrun.compiler.codegen.llvm.cost import least_of_sums
from qdrun.compiler.frontend.lower import lower
from qdrun.compiler.frontend.signature import LowerOptions
from qdrun.compiler.ir import meaning
from qdrun.compiler.ir.nodes import ArgDecl, Buffer, Kernel, Place
from qdrun.compiler.ir.ops import TABLE, is_function
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.ir.walk import kernel_buffers, kernel_places
from qdrun.compiler.lang.data.ndarray import Ndarray
from qdrun.compiler.passes.parallel.reduce import reduce_kernel
from qdrun.compiler.runtime.base import Allocation
from qdrun.compiler.runtime.mirror import reading
from qdrun.compiler.runtime.python.interpret import Memory, run_kernel
from tests.machine_math import of_numbers


@contextmanager
def exact_libm() -> Iterator[None]:
    """The interpreter's transcendental functions are those of scalar machine code."""
    before = dict(meaning.REAL)
    meaning.REAL.update({code: of_numbers(code) for code in TABLE if is_function(code)})
    try:
        yield
    finally:
        meaning.REAL.update(before)


class Replay:
    """A kernel with its arguments in the current program: its forward and reverse IR, and the memory that they touch."""

    def __init__(self, kernel: Any, args: tuple) -> None:
        self.kernel, self.args = kernel, args
        self.variant, self.bound = kernel.variant(args, {})
        views = {id(a._form): a for a in args if isinstance(a, Ndarray)}
        self._arrays = self.bound.call.arrays
        self._grads = {n: views[id(a)].grad for n, a in self._arrays.items() if id(a) in views}

    # ---- the three kernels
    def lowered(self) -> Kernel:
        """What the front end makes of the source, once more, verified."""
        o = self.variant.program.options
        out = lower(
            self.kernel.source,
            self.bound.specs,
            LowerOptions("", o.default_fp, o.default_ip, o.debug, o.check_out_of_bound),
        )
        verify_kernel(out, lowered=False)
        return out

    def forward(self) -> Kernel:
        """The simplified kernel, as it is compiled: sums in registers."""
        out = reduce_kernel(self.variant.compiled_kernel.ir)
        verify_kernel(out)
        return out

    def reverse(self) -> Kernel:
        """The reverse kernel as it is compiled."""
        gradient, _ = self.variant.compiled_kernel.reverse(self.variant.program.device)
        verify_kernel(gradient.kernel)
        out = reduce_kernel(gradient.kernel)
        verify_kernel(out)
        return out

    # ---- memory
    def memory(self, ir: Kernel, live: bool = False) -> Memory:
        """The memory behind a kernel's buffers: the program's own, or a copy. Temporaries start as zeros."""
        out = Memory({d: self._arrays[d.index].shape for d in ir.args if d.kind == "ndarray"})
        for buffer in kernel_buffers(ir):
            data = self._bytes(buffer)
            if data is not None:
                out.bind(buffer, data if live else data.copy())
        return out

    def _bytes(self, buffer: Buffer) -> np.ndarray | None:
        owner = self.variant.owners.get(buffer, buffer.owner)
        if isinstance(owner, Allocation):
            return reading(owner.mirror, owner.view)
        if isinstance(owner, ArgDecl):
            array = self.bound.call.content(owner.index) if buffer.kind == "arg" else self._grads[owner.index]._content
            return array.reshape(-1).view(np.uint8)
        return None  # temporaries and returned values

    # ---- runs
    def run(self, ir: Kernel, memory: Memory, params: Any = None) -> Memory:
        """Interpret a kernel; returns its memory."""
        scalars = {d: self.bound.call.scalars[d.index] for d in ir.args if d.kind == "scalar"}
        run_kernel(ir, memory, scalars, params=params)
        return memory

    def params(self) -> dict[tuple[int, str], int]:
        """The launch parameters of the gradient's plan."""
        plan = self.variant.gradient.plan(self.bound.call)
        return {(t.position, name): value for t in plan.tasks for name, value in t.params.items()}

    apart = 1e-10
    """How far a device may be from the interpreter."""

    def compare(self, ir: Kernel, launch: Callable[[], None], params: Any = None, tolerance: float = 0.0) -> None:
        """Interpret on a copy, then launch: the same bits in every array (``tolerance``: relative to the largest element)."""
        copy = self.run(ir, self.memory(ir), params)
        launch()
        live = self.memory(ir, live=True)
        if any(t.reductions and least_of_sums(t, 1) < 64 for t in ir.tasks):
            tolerance = max(tolerance, 1e-12)  # costly iterations: a chunk has few, and partial sums come in another order
        if not self.variant.program.device.on_host:
            tolerance = max(tolerance, self.apart)  # mathematical functions of its own, and atomic sums in any order
        for place in visible(ir):
            want, got = copy.array(place), live.array(place)
            difference(f"{ir.name}: {place.name}", got, want, tolerance)

    def compare_forward(self, raw: bool = False) -> None:
        """The compiled kernel against the interpreter, to the bit; ``raw``: against the front end's output, in other order of sums."""
        with exact_libm():
            if raw:
                self.compare(self.lowered(), lambda: self.kernel(*self.args), tolerance=1e-11)
            else:
                self.compare(self.forward(), lambda: self.kernel(*self.args))

    def compare_reverse(self) -> None:
        """The compiled gradient against the interpreter, to the bit."""
        with exact_libm():
            self.compare(self.reverse(), lambda: self.kernel.grad(*self.args), self.params())


def in_any_order() -> float:
    """How far sums of atomics may be apart that should be equal: on a GPU they come in another order in each run."""
    return 0.0 if os.environ.get("QDRUN_TEST_ARCH", "cpu") == "cpu" else 1e-10


def same(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether two gradients are equal to the bit; on a GPU, but for the order of atomic sums."""
    if np.array_equal(got, want, equal_nan=True):
        return True
    scale = max(1.0, float(np.max(np.abs(want[np.isfinite(want)]), initial=0.0)))
    return bool(in_any_order() and np.allclose(got, want, rtol=0.0, atol=in_any_order() * scale, equal_nan=True))


def visible(ir: Kernel) -> list[Place]:
    """The places of a kernel that outlive the launch."""
    return [p for p in kernel_places(ir) if p.buffer.kind in ("field", "arg", "arg_grad")]


def difference(name: str, got: np.ndarray, want: np.ndarray, tolerance: float = 0.0) -> None:
    """Fail unless the arrays are equal bit by bit (any NaN is any NaN), or within ``tolerance`` of the largest number.

    Raises:
        AssertionError: names the array and shows both.
    """
    a, b = np.ascontiguousarray(got), np.ascontiguousarray(want)
    tolerance = max(tolerance, in_any_order())
    same = a.view(f"u{a.itemsize}") == b.view(f"u{a.itemsize}")
    if a.dtype.kind == "f":
        same |= np.isnan(a) & np.isnan(b)
        if tolerance:
            scale = max(1.0, float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0)))
            with np.errstate(all="ignore"):
                same |= np.abs(a.astype(float) - b) <= tolerance * scale * (1.0 if a.itemsize == 8 else 1e6)
                same |= a == b
    assert same.all(), f"{name}: compiled {a[~same][:4]}, interpreted {b[~same][:4]} at {np.argwhere(~same)[:4].tolist()}"


def central_differences(inputs, value, h: float) -> np.ndarray:
    """The slope of ``value()`` along each element of the ``inputs``, in their order."""
    out = []
    for t in inputs:
        at = t.to_numpy()
        for i in np.ndindex(at.shape):
            ends = []
            for moved in (at[i] + h, at[i] - h):
                there = at.copy()
                there[i] = moved
                t.from_numpy(there)
                ends.append(value())
            out.append((ends[0] - ends[1]) / (2 * h))
        t.from_numpy(at)
    return np.array(out)


def resolution(value: float, h: float) -> float:
    """The smallest slope that differences over ``h`` on each side can show: a value has no digits below its last bit."""
    return float(np.spacing(abs(value))) / h if np.isfinite(value) else float("inf")
