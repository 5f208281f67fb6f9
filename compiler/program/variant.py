"""``Variant``: one specialisation of a kernel in one program. Its parts are compiled on first use."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..compile.ahead import AHEAD
from ..compile.cache import CACHE
from ..compile.compiled_kernel import CompiledKernel
from ..errors import DifferentiationError, QdrunRuntimeError, describe, warn_user
from ..frontend.signature import ArgSpec, LowerOptions
from ..frontend.source.captured import Captured
from ..frontend.source.parse import FunctionSource
from ..ir.nodes import Buffer, Kernel
from ..ir.threads import new_lock, once
from ..ir.walk import walk
from ..options import Arch
from ..passes.dependence.access import IN_A_TAPE, Access, overwritten, writes_of
from ..passes.dependence.array_flow import StoredValues
from ..passes.dependence.paths import Broken
from ..runtime.base import Allocation, next_serial
from ..runtime.mirror import clear
from .executable import Executable
from .memory.memory_regions import EXTERNAL, NdarrayAllocation
from .plans.gradient_executable import GradientExecutable
from .plans.gradient_plans import GradientPlans
from .plans.kernel_plan import KernelPlan, uncompiled_plan
from .plans.store_checks import StoreChecks
from .state import ProgramState

if TYPE_CHECKING:
    from .executable import Executable


class PassedValues:
    """The temporaries of a kernel that a tape launches in parts, with their gradients and duals: what one part leaves for another.

    Each launch of the kernel sets all that its parts read.

    Args:
        program: theirs, which knows them as ``passed``.
        nbytes: of one trial.

    Raises:
        OutOfMemory: the program's limit or the machine is too small.
    """

    def __init__(self, program: ProgramState, nbytes: int) -> None:
        self._program, self.memory = program, program.allocate(program.batch.layout.bytes(nbytes), "parts")
        program.passed.add(self)

    def clear(self) -> None:
        """Set all to zero: a tape that failed on its way back may have left gradients."""
        clear([(self.memory.mirror, self.memory.view)])

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        memory = getattr(self, "memory", None)
        if memory is not None and not ending():
            self._program.device.free(memory)


class Variant:
    """One specialisation of a kernel in one program. The gradient is built on first use.

    Args:
        program: the program.
        source: the source of the kernel.
        specs: the properties of each argument that the front end needs.
        second_order: it is the forward-mode kernel as a kernel of its own, for second derivatives.
    """

    def __init__(
        self,
        program: ProgramState,
        source: FunctionSource,
        specs: Mapping[str, ArgSpec],
        second_order: bool = False,
    ) -> None:
        program.materialize()
        program.batch.lay_out(())
        o = program.options
        options = LowerOptions(
            *("", o.default_fp, o.default_ip, o.debug, o.check_out_of_bound, o.overflow_check, o.nan_check),
            breakpoints=program.arch is Arch.python,
            blocks=not program.device.on_host,
            lanes=program.device.lanes,
            grid_barrier=program.device.grid_barrier,
        )
        kernel, memory, inputs = CACHE.kernel(source, specs, options, o, program.device)
        if second_order:
            kernel = kernel.second_order()
        owners = {b: m for b, m in zip(kernel.buffers, memory) if isinstance(m, Allocation)}
        if any(m.category != EXTERNAL and m.ptr not in program.device.live for m in owners.values()):
            if any(m.freed for m in owners.values()):
                raise QdrunRuntimeError(f"kernel `{source.name}` uses a field that was destroyed\n  do: make the field anew")
            raise QdrunRuntimeError(
                f"kernel `{source.name}` uses a field of another program\n  do: make the fields after qd.init(), or launch it"
                " inside `with program:` of the program that they belong to"
            )
        captured = [m for m in owners.values() if isinstance(m, NdarrayAllocation)]
        self._begin(program, kernel, owners, Captured(inputs, captured) if captured else None)

    def _begin(
        self, program: ProgramState, kernel: CompiledKernel, owners: dict[Buffer, Allocation], captured: Captured | None
    ) -> None:
        self.program, self.lock = program, new_lock(self, "lock")
        self.serial = next_serial()  # in the keys of what may outlive it: another one may come to lie where it lay
        self.compiled_kernel, self.owners, self.captured = kernel, owners, captured
        self.passed: PassedValues | None = None  # of the parts of one variant, which share it
        self.keeps: list[object] = []  # objects that it is specialised for by identity, or weak references to them
        self.accesses: dict[str, Any] = {}  # see ``accesses_of``
        self.no_gradient: str | None = (
            None  # why its gradient would do nothing; empty: it does something; None: not looked for yet
        )
        self.seed_checked = False  # whether a gradient without a seed was looked for
        # Calls may be launched natively. An array that the kernel refers to by name may be replaced, or be an argument, too: checked at
        # each launch.
        self.native = not (captured and (self.takes_arrays or captured))

    def check_captured(self, specs: Mapping[str, ArgSpec]) -> None:
        """Refuse a launch after an ndarray that the kernel refers to by name was replaced: the kernel would use the old one.

        Raises:
            QdrunRuntimeError: naming it.
        """
        name = None if self.captured is None else self.captured.replaced(specs)
        if name is not None:
            raise QdrunRuntimeError(
                f"kernel `{self.head.name}` was compiled for the ndarray `{name}`, which is another object now\n"
                "  do: pass the ndarray as an argument, or hold it in `self` of a class with @qd.data_oriented:"
                " a launch takes the present one"
            )

    @property
    def head(self) -> Kernel:
        """The lowered kernel without its tasks: name, arguments, returned types."""
        return self.compiled_kernel.forward.head

    @property
    def takes_arrays(self) -> bool:
        """Whether an argument is an array."""
        return any(d.kind == "ndarray" for d in self.head.args)

    def uses(self, memory: Allocation) -> bool:
        """Whether a field of the kernel lies in this memory."""
        return any(m.serial == memory.serial for m in self.owners.values())

    @once
    def parts(self) -> tuple[Variant, ...]:
        """Variants of some of its tasks each, which a tape launches instead, see ``passes.parts``; none: it launches this one.

        Raises:
            DifferentiationError: no correct gradient exists, by name and line, in parts or as a whole.
        """
        found = self.compiled_kernel.parts(self.program.device)
        passed = PassedValues(self.program, found.passed_bytes) if found.passed_bytes else None
        return tuple(self._part(kernel, passed) for kernel in found.kernels)

    @property
    def reverses_whole(self) -> bool:
        """Whether it has a gradient as a whole; in parts, it is right at factors of zero, too."""
        return self.compiled_kernel.parts(self.program.device).whole

    def _part(self, kernel: CompiledKernel, passed: PassedValues | None) -> Variant:
        made = object.__new__(Variant)
        owners = self.owners if passed is None else {**self.owners, kernel.buffers[-1]: passed.memory}
        made._begin(self.program, kernel, owners, self.captured)
        made.passed = passed
        return made

    @once
    def executable(self) -> Executable:
        """The kernel, compiled.

        Raises:
            QdrunRuntimeError: LLVM or the driver refuses the code; names the kernel.
        """
        return Executable(self.program, self.compiled_kernel.forward, self.owners)

    @once
    def plans(self) -> GradientPlans:
        """What plans the launches of the gradient; nothing is compiled for it. Warns where a gradient is lost.

        Raises:
            DifferentiationError: no correct gradient exists, by name and line.
        """
        device = self.program.device
        found, lazy = self.compiled_kernel.reverse(device)
        for broken in found.broken:
            self.report_lost(broken, self.head.name, strict=False)
        return GradientPlans(self.program, lazy.head, self.owners, found.sizing, self.compiled_kernel.planned_lanes(device))

    @once
    def gradient(self) -> GradientExecutable:
        """The reverse kernel, compiled.

        Raises:
            DifferentiationError: see ``plans``.
            QdrunRuntimeError: see ``executable``.
        """
        plans = self.plans
        found, lazy = self.compiled_kernel.reverse(self.program.device)
        stores = StoreChecks(found.meetings, self.owners, self.program.batch.layout)
        return GradientExecutable(plans, lazy, self.executable, stores)

    @once
    def tangent(self) -> Executable:
        """The forward-mode kernel, compiled: it computes values and tangents.

        Raises:
            DifferentiationError: something has no tangent, by name and line.
        """
        lazy = self.compiled_kernel.tangent(self.program.device)[1]
        return self.executable if lazy is self.compiled_kernel.forward else Executable(self.program, lazy, self.owners)

    def uncompiled(self, gradient: bool) -> dict[object, KernelPlan]:
        """What the kernel, and its gradient if that is wanted, will keep in the program, as far as they are not compiled. Compiles nothing.

        Raises:
            DifferentiationError: see ``plans``.
        """
        trials = self.program.batch.layout.padded
        wanted = {"executable": lambda: self.compiled_kernel.forward}
        if gradient:
            wanted["gradient"] = lambda: self.compiled_kernel.reverse(self.program.device)[1]
        if self.program.tangents and self.compiled_kernel.tangent(self.program.device)[1] is not self.compiled_kernel.forward:
            wanted["tangent"] = lambda: self.compiled_kernel.tangent(self.program.device)[1]
        return {
            (self, name): uncompiled_plan(lazy(), self.compiled_kernel.context_words(lazy()), trials)
            for name, lazy in wanted.items()
            if name not in self.__dict__
        }

    def close(self) -> None:
        """Give the launch contexts back."""
        for made in self.made():
            made.close()

    def made(self) -> list[Executable]:
        """What is compiled."""
        return [e for e in map(self.__dict__.get, ("executable", "gradient", "tangent")) if e is not None]

    def begin_gradient(self) -> None:
        """Compile the gradient on another thread: a tape will need it."""
        if self.program.device.native and not self.compiled_kernel.reversed:
            AHEAD.submit(functools.partial(self.compiled_kernel.compile_reverse, self.program.device))

    def replayed(self) -> tuple[Access, ...]:
        """The loads that the gradient repeats."""
        return self.compiled_kernel.reverse(self.program.device)[0].replayed

    def before(self) -> tuple[tuple[int, str], ...]:
        """The loads among ``replayed`` of elements that the kernel overwrites afterwards, by number, each with what overwrites it."""
        return self.compiled_kernel.reverse(self.program.device)[0].before

    def refuse_overwritten(self) -> None:
        """Refuse to run the gradient where it needs what memory held before the launch, and memory does not hold that.

        Raises:
            DataAccessError: the gradient needs a value that the kernel overwrites.
        """
        for number, by in () if self.program.replay.before_launch else self.before():
            raise overwritten(self.replayed()[number], by, IN_A_TAPE).final()

    def broken(self) -> tuple[Broken, ...]:
        """The arrays without a gradient in which a gradient is lost."""
        return self.compiled_kernel.reverse(self.program.device)[0].broken

    def report_lost(self, broken: Broken, by: str, *, strict: bool) -> None:
        """Say that the kernel reads a differentiable value that kernel ``by`` stored where there is no gradient; warns once.

        Raises:
            DifferentiationError: ``strict``.
        """
        stored, program, kernel = broken.stored, self.program, self.head.name
        line = f" line {stored.line} (`{stored.text.strip()}`)" if stored else ""
        what = (
            f"the gradient is lost in `{broken.array}`, which has none: `{by}`{line} stores a differentiable value to it, and"
            f" `{kernel}` computes from what it reads here"
        )
        hint = (
            f"make `{broken.array}` with needs_grad=True; to stop the gradient here on purpose, write"
            f" stop_grad({broken.array}) before the read"
        )
        if strict:
            raise DifferentiationError(what, broken.loc, hint)
        seen = (kernel, broken.array, broken.loc)
        if seen not in program.warned:
            program.warned.add(seen)
            program.told.append(f"{what}{f' ({broken.loc})' if broken.loc else ''}; do: {hint}")
            warn_user(describe(what, broken.loc, hint))

    @property
    def flows(self) -> StoredValues:
        """The places that the stored values depend on."""
        return self.compiled_kernel.flows

    def adjoints(self) -> list[Access]:
        """The places that the gradient stores to."""
        return [a for t in self.compiled_kernel.reverse(self.program.device)[0].kernel.tasks for a in writes_of(walk(t.body))]


def kernels_of(known: Mapping[object, Mapping[tuple[Any, ...], Variant]]) -> list[Executable]:
    """Every compiled kernel of a program: forward, reverse and tangent, in the order of their making. ``known``: ``Program.variants``."""
    found: list[Executable] = []
    for variants in list(known.values()):
        for variant in list(variants.values()):
            found += [e for e in variant.made() if e not in found]
    return found
